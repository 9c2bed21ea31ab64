"""What a plan says about itself before it runs."""

import re

import pytest
from build import make_record

from sweep.errors import PlanError
from sweep.estimate import Measured, estimate, time_line
from sweep.holdable import check_holdable
from sweep.left_open import not_tested
from sweep.plan import DEMO_TARGET, Level, SweepPlan, parse_levels
from sweep.preflight import measured_of
from sweep.slo import parse_slo


def make_plan(levels="1,8", slos=(), **given_fields):
    return SweepPlan(
        **{"target": "http://127.0.0.1:8080"} | given_fields,
        levels=parse_levels(levels),
        slos=tuple(parse_slo(text) for text in slos),
    )


def totals(found):
    """(requests, output tokens) of the line that sums up, None without one."""
    match = re.search(r"in all: ~([0-9,]+) requests .*, ~([0-9,]+) output tokens", "\n".join(found.lines))
    return None if match is None else tuple(int(each.replace(",", "")) for each in match.groups())


def both(e2e_s, n_in=12, n_out=128):
    return {"stream": Measured(e2e_s, n_in, n_out), "nonstream": Measured(e2e_s, n_in, n_out)}


def test_level_line_says_the_rate_and_what_it_decides():
    """The line of the design: 3.3 s an answer is 18 a minute; 59 take 3.2 min, 299 do not fit in five.

    At level 8 they would fit, but nothing makes the step go on after its minute for a p99 nobody asked for.
    """
    lines = estimate(make_plan(slos=["ttft_ms.p95<=500@8"]), both(3.3)).lines

    assert "level 1 stream: ~18 requests a minute; p95 decided in ~3.2 min; p99 not within --max-step" == lines[0]
    assert (
        "level 8 stream: ~145 requests a minute; p95 decided in ~24 s; "
        "p99 not waited for (~2.1 min): no SLO asks for it"
    ) == lines[2]


@pytest.mark.parametrize(
    ("slos", "why"),
    [
        ([], "no SLO asks for it"),
        (["e2e_ms.p95<=500"], "no SLO asks for it"),
        (["nonstream.e2e_ms.p99<=500"], "no SLO asks for it"),
        (["stream.e2e_ms.p99<=500"], "the SLO without @ asks at level 16 only"),
        (["e2e_ms.p99<=500@8", "ttft_ms.p99<=500"], None),
    ],
)
def test_percentile_that_is_not_waited_for_says_which_slo_would_have_it(slos, why):
    """An SLO without @ holds at the sustained level; its reader may have meant every level."""
    lines = estimate(make_plan("8,16", slos), both(3.3)).lines

    waits = "p99 decided in ~2.1 min" if why is None else f"p99 not waited for (~2.1 min): {why}"
    assert waits == lines[0].split("; ")[2]


def test_time_is_what_is_expected_and_what_stretches_it():
    """One figure to plan with, one to bound it, and what makes the difference."""
    plan = make_plan(drain_s=7.0)

    assert (
        "time: ~5.0 min for 4 steps; slower answers stretch it, to ~23.5 min at most: "
        "a step waits for the requests its gates need"
    ) == time_line(plan, 300.0)
    assert time_line(plan, None).startswith("time: 5.7 min for 4 steps if answers are quick; slower")


def test_percentile_asked_for_gets_its_own_figure():
    """p50 is of no interest unless an SLO names it."""
    with_p50 = estimate(make_plan("1", ["e2e_ms.p50<=500"]), both(6.0)).lines

    assert (
        "level 1 stream: ~10 requests a minute; p50 decided in ~30 s; p95 not within --max-step; p99 not" in with_p50[0]
    )
    assert not any("p50" in line for line in estimate(make_plan("1"), both(6.0)).lines)


def test_plan_with_enough_requests_has_nothing_undecidable():
    """The control of the tests below."""
    assert () == estimate(make_plan(slos=["ttft_ms.p95<=500@8"]), both(1.0)).undecidable


def test_slo_without_enough_requests_is_named_with_a_remedy_that_works():
    """Level 1 at 10 s an answer has 30 of 59 requests in five minutes; with the proposed --max-step it has them all."""
    plan = make_plan(slos=["ttft_ms.p95<=500@8"], mode="stream")
    (found, *_) = estimate(plan, both(10.0)).undecidable

    assert (
        "SLO ttft_ms.p95<=500@8 at level 1 stream: needs 59 requests, about 30 fit; "
        "raise --max-step to 25m, or lower --max-tokens"
    ) == found
    remedied = make_plan(slos=["ttft_ms.p95<=500@8"], mode="stream", max_step_s=25 * 60.0)
    assert () == estimate(remedied, both(10.0)).undecidable


def test_pooled_gates_without_enough_requests_are_named():
    """20 s an answer at level 1: 15 requests in each mode decide neither the pooled gates nor stream integrity."""
    found = estimate(make_plan("1"), both(20.0)).undecidable

    assert [
        "errors and shed, up to level 1: needs 299 requests, about 30 fit",
        "stream integrity, up to level 1: needs 100 requests, about 15 fit",
    ] == [line.split(";")[0] for line in found]


def test_exploring_steps_do_not_feed_the_pooled_gates():
    """Level 8 above the sustained level 1 has requests enough, and they do not count."""
    found = estimate(make_plan("1,8", sustain=Level(1)), both(20.0)).undecidable

    assert found[0].startswith("errors and shed, up to level 1: needs 299 requests, about 30 fit")


@pytest.mark.parametrize(
    ("given_fields", "remedy"),
    [
        ({"max_requests": 60}, "raise --max-requests or --max-output-tokens"),
        ({"max_output_tokens": 60 * 128}, "raise --max-requests or --max-output-tokens"),
        ({"max_time_s": 200.0, "mode": "stream"}, "raise --max-time"),
    ],
)
def test_cap_that_leaves_a_gate_open_is_the_one_named(given_fields, remedy):
    """Raising --max-step would not help when something else ends the step."""
    found = estimate(make_plan("1", ["e2e_ms.p99<=900"], **given_fields), both(2.0)).undecidable

    assert found
    assert {remedy} == {line.split("; ")[1] for line in found}


def test_totals_stay_below_the_caps_and_count_warm_up():
    """A fast target is limited by the caps; a slow one sends what fits into warm-up and window."""
    fast = estimate(make_plan(max_requests=1000), both(0.01))
    slow = estimate(make_plan("1", mode="stream", slos=["e2e_ms.p50<=9000"]), both(1.0))

    n_fast, _ = totals(fast)
    assert n_fast <= 1000
    # 299 wanted at one a second, after ten seconds of warm-up.
    assert (309, 309 * 128) == totals(slow)
    # 10 + 299 + 1 + 15 s.
    assert pytest.approx({"s01-c1-stream-k1": 310.0}) == slow.load_s
    assert any(line.startswith("time: ~5.4 min for 1 step; ") for line in slow.lines)


def test_unknown_token_count_is_taken_at_its_most():
    """A server that does not count its tokens may have sent as many as were allowed."""
    unknown = estimate(make_plan("1", mode="stream"), {"stream": Measured(1.0)})
    known = estimate(make_plan("1", mode="stream"), {"stream": Measured(1.0, 12, 10)})

    assert totals(unknown)[0] * 128 == totals(unknown)[1]
    assert totals(known)[0] * 10 == totals(known)[1]
    assert "prompt tokens" not in "".join(unknown.lines)
    assert "prompt tokens" in "".join(known.lines)


@pytest.mark.parametrize("nothing", [{}, {"nonstream": Measured(None)}, {"nonstream": Measured(0.0)}])
def test_mode_that_was_not_measured_has_no_estimate_and_no_total(nothing):
    """An unknown time is said, not guessed; and the mode stands among what may stay undecided."""
    found = estimate(make_plan("1"), {"stream": Measured(1.0, 12, 128)} | nothing)

    assert "level 1 nonstream: no estimate, the preflight measured no nonstream answer" == found.lines[1]
    assert None is totals(found)
    assert ("nonstream: the preflight got no nonstream answer, so how many requests fit is unknown",) == (
        found.undecidable
    )


def test_mode_that_was_measured_is_still_told_beside_one_that_was_not():
    """Ten seconds an answer: thirty of the 59 the SLO needs."""
    found = estimate(make_plan("1", ["ttft_ms.p95<=500"]), {"stream": Measured(10.0)}).undecidable

    assert ["nonstream", "SLO ttft_ms.p95<=500 at level 1 stream"] == [line.split(":")[0] for line in found]


@pytest.mark.parametrize(
    ("given_fields", "named", "absent"),
    [
        ({}, ["restart", "tenants", "leak (1 cycle)", "process evidence (no --gateway-pid)", "latency (no --slo)"], []),
        ({"cycles": 2}, ["leak (2 cycles)"], []),
        ({"cycles": 3, "gateway_pid": 7}, ["leak (3 cycles, floors shown but not judged)"], ["process evidence"]),
        ({"mode": "nonstream"}, ["streaming", "stream integrity"], ["non-streaming"]),
        ({"mode": "stream", "slos": ["e2e_ms.p95<=5"]}, ["non-streaming"], ["stream integrity", "latency"]),
        ({"demo": True, "target": DEMO_TARGET}, [], ["process evidence"]),
        ({"slos": ["error_ratio<=1%"]}, ["latency (no --slo of a latency)"], []),
    ],
)
def test_what_no_request_can_test_is_listed(given_fields, named, absent):
    """The list depends on the plan alone."""
    found = not_tested(make_plan(**given_fields))

    assert set(named) <= set(found)
    assert not [item for item in found for word in absent if item.startswith(word)]


@pytest.mark.parametrize(("load_ms", "e2e_s"), [(None, 1.0), (0, 1.0), (750, 0.25), (2000, 1.0)])
def test_the_time_a_cold_model_takes_to_load_is_no_request_s(load_ms, e2e_s):
    """Later requests find it loaded; a load time that cannot be is left alone."""
    load_ns = None if load_ms is None else load_ms * 1_000_000
    cold = make_record(t_start_ns=5, t_end_ns=1_000_000_005, load_ns=load_ns)

    assert e2e_s == measured_of(cold).e2e_s


def test_a_rate_is_told_with_its_requests_in_flight():
    """5/s of 3.2 s each are 300 a minute and, by Little's law, 16 in flight; requests and time follow from the rate."""
    found = estimate(make_plan("5/s", ["ttft_ms.p95<=500"], mode="stream", warmup_s=10.0), both(3.2))

    assert (
        "level 5/s stream: ~300 requests a minute; ~16 in flight; p95 decided in ~12 s; p99 decided in ~60 s"
    ) == found.lines[0]
    assert (350, 44800) == totals(found)  # ten seconds before the window and the minute of it
    assert pytest.approx(73.2) == found.load_s["s01-r5-stream-k1"]


def test_users_who_think_send_less():
    """One user with 6.7 s of thought after 3.3 s of answer sends six a minute."""
    assert estimate(make_plan("1", think_time_s=6.7), both(3.3)).lines[0].startswith("level 1 stream: ~6 requests a")


def test_level_0_costs_time_and_no_request():
    """Alone it needs no measured answer; beside others it is left out of their pools."""
    alone = estimate(make_plan("0"), {})
    beside = estimate(make_plan("0,8"), both(1.0))

    assert ["level 0: observes for 1.0 min, asks nothing", "time: ~1.2 min for 1 step"] == list(alone.lines)
    assert () == alone.undecidable
    assert totals(estimate(make_plan("8"), both(1.0))) == totals(beside)
    assert {"s01-c0-observe-k1": 60.0}.items() <= beside.load_s.items()


@pytest.mark.parametrize(
    ("levels", "processes", "fd_limit", "expected"),
    [
        ("10/s,100/s", 1, 1024, []),
        ("10/s,200/s", 1, 1024, ["level 200/s: answers take 3 s, so about 600 requests are in flight at once, of"]),
        ("400/s", 1, 1024, "level 400/s: answers take 3 s, so about 1,200 requests are in flight at once, and one "),
        ("400/s", 4, 1024, []),
        ("8", 1, 64, []),
    ],
)
def test_a_rate_that_cannot_be_held_open_is_refused_after_the_preflight(levels, processes, fd_limit, expected):
    """Rate times answer time against the descriptors of one process: more is refused, more than half is said."""
    plan = make_plan(levels, processes=processes)
    if isinstance(expected, str):
        with pytest.raises(PlanError) as refused:
            check_holdable(plan, both(3.0), fd_limit)
        assert str(refused.value).startswith(expected)
    else:
        warnings = check_holdable(plan, both(3.0), fd_limit)
        assert len(expected) == len(warnings)
        assert all(told.startswith(start) for told, start in zip(warnings, expected, strict=True))


def test_an_api_without_tokens_is_not_capped_by_them():
    """No output tokens are foretold, and their cap, which would end the window, binds nothing."""
    plan = SweepPlan(target="http://x", levels=parse_levels("1"), mode="nonstream", max_output_tokens=10)
    with_tokens = estimate(plan, {"nonstream": Measured(0.1, 5, None)})
    without = estimate(plan, {"nonstream": Measured(0.1, 5, None, has_tokens=False)})

    assert "a cap ends the window" in with_tokens.lines[0] and "output tokens" in with_tokens.lines[1]
    assert "a cap" not in without.lines[0] and "output tokens" not in without.lines[1]
