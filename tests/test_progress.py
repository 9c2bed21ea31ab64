"""What is said of a running step: how far it is, what it waits for, and how long that may take."""

from __future__ import annotations

import pytest
from build import make_record

from sweep import outdir
from sweep.follow import GatewayProgress, StepProgress
from sweep.plan import SweepPlan, parse_levels
from sweep.plan_steps import steps
from sweep.progress import Outlook, cooling, loading
from sweep.records import to_line
from sweep.slo import parse_slo
from sweep.terminal import progress_line

S = 10**9
# Each step wants 75, its duration is 60 s after 10 s of warm-up, then 15 s of cool-down; 85 s a step.
PLAN = SweepPlan(target="http://127.0.0.1:1", levels=parse_levels("1,2"), slos=(parse_slo("ttft_ms.p95<=5"),))
STEPS = steps(PLAN)
PLANNED = Outlook(STEPS, {})


def seen(tmp_path, n_window, from_s=10.0, n_warmup=3):
    """A step that has so many finished requests, the first of the window started at from_s."""
    path = tmp_path / f"{n_window}-{from_s}"
    with outdir.LineFile(path) as lines:
        for n in range(n_warmup):
            lines.append(to_line(make_record(phase="warmup", t_start_ns=n * S)))
        for n in range(n_window):
            lines.append(to_line(make_record(phase="window", t_start_ns=round(from_s * S) + n)))
    progress = StepProgress([path])
    progress.look(0)
    return progress


def look(tmp_path, n_window, elapsed_s, number=1, outlook=PLANNED, **more):
    gateway = GatewayProgress(tmp_path / "none", 100)
    return loading(outlook, number, seen(tmp_path, n_window, **more), gateway, elapsed_s, round(elapsed_s * S))


def test_within_its_duration_a_step_has_the_planned_time_left(tmp_path):
    """One request a second and more needs no more than the duration; the cool-down and three steps come after."""
    assert 75 == STEPS[0].n_wanted
    start = look(tmp_path, 0, 2.0, n_warmup=0)
    half = look(tmp_path, 60, 40.0)

    assert (68.0 + 15 + 3 * 85, None) == (start.left_s, start.waits_for)
    assert (30.0 + 15 + 3 * 85, None) == (half.left_s, half.waits_for)
    assert 63 == half.n_finished
    assert progress_line(half).endswith("~5:00 left")


def test_what_the_preflight_expects_counts_instead_of_the_plan(tmp_path):
    """Answers of 3 s: this step will wait for its 75, as the preflight knew, and so will the next."""
    slow = Outlook(STEPS[:2], {STEPS[0].id: 240.0, STEPS[1].id: 250.0})
    start = look(tmp_path, 0, 2.0, outlook=slow)

    assert 238.0 + 15 + 250 + 15 == start.left_s


def test_a_step_that_waits_for_its_requests_says_so_and_how_long_by_the_rate_so_far(tmp_path):
    """Half a request a second: of 75, 30 are there after a minute; 45 take 90 s, seen before the minute is over."""
    early = look(tmp_path, 15, 40.0, number=4)
    late = look(tmp_path, 30, 70.1, number=4)

    assert pytest.approx(120 + 15) == early.left_s
    assert early.waits_for is None
    assert pytest.approx(90 + 15, abs=0.5) == late.left_s
    assert "requests: 30 of 75" == late.waits_for
    assert progress_line(late).endswith("waiting for requests: 30 of 75 · ~1:45 left")


def test_a_step_waits_no_longer_than_max_step(tmp_path):
    """One request in a minute would take hours."""
    assert 300.0 - 60 + 15 == look(tmp_path, 1, 70.0, number=4).left_s


def test_a_fast_step_is_expected_to_close_early(tmp_path):
    """Fifty a second: ten times the need is there after a quarter of the duration."""
    assert 15.0 - 5 + 15 == look(tmp_path, 250, 15.0, number=4).left_s


def test_without_a_request_past_the_duration_the_time_left_is_unknown(tmp_path):
    """No figure is better than one that stands still."""
    stuck = look(tmp_path, 0, 80.0)

    assert (None, "requests: 0 of 75") == (stuck.left_s, stuck.waits_for)
    assert progress_line(stuck).endswith("waiting for requests: 0 of 75")


def test_after_its_last_request_a_step_waits_for_what_is_in_flight(tmp_path):
    """The drain."""
    assert (15.0, "what is in flight") == (
        (done := look(tmp_path, 75, 71.0, number=4)).left_s, done.waits_for,
    )  # fmt: skip


def test_a_cool_down_counts_down(tmp_path):
    """It lasts on past its time until sockets rest: then nothing is left of it."""
    gateway, progress = GatewayProgress(tmp_path / "none", 100), seen(tmp_path, 1)

    assert [9.0 + 85, 0.0 + 85] == [cooling(PLANNED, 3, progress, gateway, left).left_s for left in (9.0, -2.0)]
    assert " cool-down · " in progress_line(cooling(PLANNED, 3, progress, gateway, 1.0))
