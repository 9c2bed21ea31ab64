"""The plan's defaults, its steps in time, what each step wants, and its form in run.json."""

import json
from dataclasses import FrozenInstanceError, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.errors import PlanError
from sweep.plan import Level, SweepPlan, parse_levels
from sweep.plan_json import as_json, from_json, option
from sweep.plan_steps import steps
from sweep.slo import parse_slo


def make_plan(levels="1,2,4,8", slos=(), **given_fields):
    """A plan for a loopback target."""
    return SweepPlan(
        target="http://127.0.0.1:8080",
        levels=parse_levels(levels),
        slos=tuple(parse_slo(text) for text in slos),
        **given_fields,
    )


def wanted(plan):
    return {step.id: step.n_wanted for step in steps(plan)}


def test_defaults_are_those_the_dry_run_promises():
    """Design and README name these figures."""
    plan = as_json(make_plan("1"))

    expected = {
        "api": None, "mode": "both", "duration": 60.0, "max_step": 300.0, "warmup": 10.0, "drain": 120.0,
        "cooldown": 15.0, "cycles": 1, "max_tokens": 128, "prompt_tokens": 256, "timeout": 600.0,
        "connect_timeout": 5.0, "first_byte_timeout": 120.0, "idle_timeout": 30.0, "load_timeout": 300.0,
        "max_requests": 20_000, "max_output_tokens": 5_000_000, "max_time": 7200.0,
    }  # fmt: skip
    assert expected == {key: plan[key] for key in expected}


@pytest.mark.parametrize(
    ("given_fields", "drain_s"), [({}, 120.0), ({"timeout_s": 30.0}, 30.0), ({"drain_s": 200.0}, 200.0)]
)
def test_drain_is_the_total_time_out_up_to_two_minutes_unless_given(given_fields, drain_s):
    """A given --drain may be longer than the default's limit."""
    plan = make_plan(**given_fields)

    assert drain_s == plan.drain_or_default_s == steps(plan)[0].drain_s


def test_steps_run_by_cycle_then_level_then_streaming_first():
    """The number runs over the whole run."""
    plan = make_plan("2,1", cycles=2)

    assert [
        "s01-c1-stream-k1", "s02-c1-nonstream-k1", "s03-c2-stream-k1", "s04-c2-nonstream-k1",
        "s05-c1-stream-k2", "s06-c1-nonstream-k2", "s07-c2-stream-k2", "s08-c2-nonstream-k2",
    ] == [step.id for step in steps(plan)]  # fmt: skip
    assert plan.n_steps == len(steps(plan))


def test_step_numbers_grow_a_digit_when_they_must():
    """A hundred steps still have unique names that sort within each length."""
    ids = [step.id for step in steps(make_plan("1", mode="stream", cycles=100))]

    assert ("s01-c1-stream-k1", "s99-c1-stream-k99", "s100-c1-stream-k100") == (ids[0], ids[98], ids[99])


def test_one_mode_gives_steps_of_that_mode_only():
    """--mode nonstream drives nothing else."""
    assert ["nonstream"] * 2 == [step.mode for step in steps(make_plan("1,2", mode="nonstream"))]


def test_levels_above_the_sustained_one_explore():
    """They bracket the capacity and decide nothing."""
    explores = {str(step.level): step.exploring for step in steps(make_plan(sustain=Level(4)))}

    assert {"1": False, "2": False, "4": False, "8": True} == explores
    assert Level(8) == make_plan().sustained


@pytest.mark.parametrize(
    ("given_fields", "expected"),
    [
        # 299 over four steps, and 100 over two streaming ones: 75, 50.
        ({"levels": "1,2"}, [75, 75, 75, 75]),
        # Both pools have the same two steps.
        ({"levels": "1,2", "mode": "stream"}, [150, 150]),
        # Three cycles are twelve steps.
        ({"levels": "1,2", "cycles": 3}, [25] * 12),
        # The exploring level has no pooled gate and no SLO.
        ({"levels": "1,2", "sustain": Level(1)}, [150, 150, 1, 1]),
        # p95 at the sustained level only; at @8 at every level; p99 above it.
        ({"levels": "1,2,4,8", "slos": ["ttft_ms.p95<=5"]}, [38, 38, 38, 38, 38, 38, 59, 38]),
        ({"levels": "1,2,4,8", "slos": ["ttft_ms.p95<=5@8"]}, [59, 38] * 4),
        ({"levels": "1,2,4,8", "slos": ["e2e_ms.p95<=5@8", "e2e_ms.p99<=9@1"]}, [299, 299] + [59] * 6),
        ({"levels": "1,2", "sustain": Level(1), "slos": ["ttft_ms.p95<=5@2"]}, [150, 150, 59, 1]),
        ({"levels": "1,2", "slos": ["stream.error_ratio<=0.5%@1"]}, [598, 75, 75, 75]),
        ({"levels": "1,2", "slos": ["goodput>=0.99"]}, [75, 75, 299, 299]),
        ({"levels": "1,2", "slos": ["request_rate_per_s>=1"]}, [75] * 4),
    ],
)
def test_step_wants_the_most_that_any_of_its_gates_needs(given_fields, expected):
    """Per-level SLOs in full, pooled gates in equal parts over the steps up to the sustained level."""
    assert expected == list(wanted(make_plan(**given_fields)).values())


def test_step_closes_early_at_ten_times_its_need_and_an_exploring_one_at_ten_p95s():
    """An exploring step that wants one request must not end after ten."""
    first, _, last, _ = steps(make_plan("1,2", sustain=Level(1)))

    assert (1500, 590) == (first.n_early, last.n_early)


@pytest.mark.parametrize(("duration_s", "min_early_s"), [(60.0, 15.0), (20.0, 10.0), (6.0, 6.0), (200.0, 50.0)])
def test_step_never_closes_early_before_a_quarter_and_ten_seconds(duration_s, min_early_s):
    """Shorter steps than ten seconds do not close early at all."""
    assert min_early_s == steps(make_plan("1", duration_s=duration_s))[0].min_early_s


@given(
    levels=st.lists(st.integers(1, 600), min_size=1, max_size=8, unique=True),
    cycles=st.integers(1, 4),
    max_requests=st.integers(1, 100_000),
    max_output_tokens=st.integers(1, 10**7),
)
def test_shares_of_the_caps_never_exceed_them(levels, cycles, max_requests, max_output_tokens):
    """Together the steps may never send more than the plan promises, and lose at most one unit a step to rounding."""
    plan = make_plan(
        ",".join(map(str, levels)), cycles=cycles, max_requests=max_requests, max_output_tokens=max_output_tokens
    )
    shares = steps(plan)

    assert max_requests - len(shares) <= sum(step.max_requests for step in shares) <= max_requests
    assert max_output_tokens - len(shares) <= sum(step.max_output_tokens for step in shares) <= max_output_tokens


def test_high_levels_do_not_starve_the_low_ones_of_their_share():
    """A share by level alone would leave level 1 ten of 20,000 requests beside level 512; its gates need 150."""
    first, *_, last = steps(make_plan("1,512", slos=["ttft_ms.p95<=500@512"]))

    assert first.max_requests >= first.n_wanted + 3
    assert last.max_requests > 50 * first.max_requests


def test_long_plans_shorten_the_longest_step_to_fit_the_time_cap():
    """24 steps in two hours: each has 300 s, of which 30 + 120 + 15 s go to warm-up, drain and cool-down."""
    assert 135.0 == steps(make_plan(cycles=3))[0].max_step_s
    assert 300.0 == steps(make_plan(cycles=1))[0].max_step_s
    assert 60.0 == steps(make_plan(cycles=6))[0].max_step_s  # never below the duration


def test_json_holds_every_option_by_its_long_name():
    """Levels and SLOs are text, durations floats; nothing needs this package to be read."""
    plan = as_json(make_plan("1,8", ["ttft_ms.p95<=500@8"], duration_s=6, sustain=Level(1), allow_hosts=("h",)))

    assert {option(field.name) for field in fields(SweepPlan)} == set(plan)
    assert (["1", "8"], "1", ["ttft_ms.p95<=500@8"], ["h"]) == tuple(
        plan[key] for key in ("levels", "sustain", "slo", "allow_host")
    )
    assert "6.0" == json.dumps(plan["duration"])
    assert not {key for key in plan if key.endswith("_s")}


def test_plan_survives_run_json():
    """The judge works with the plan as it was run, whatever a later version added to the file."""
    plan = make_plan(
        "1,2,8", ["ttft_ms.p95<=500@8", "error_ratio<=1%"], sustain=Level(2), drain_s=9.0, cycles=2, seed=7,
        extra_body={"options": {"num_ctx": 4096}}, allow_hosts=("a", "b"), gateway_pid=12, model="m", demo=True,
    )  # fmt: skip

    assert plan == from_json(json.loads(json.dumps(as_json(plan))) | {"of_a_later_version": 1})


@pytest.mark.parametrize("damage", [{"levels": None}, {"levels": [1]}, {"slo": ["x"]}, {"slo": 5}, {"sustain": 8}])
def test_damaged_plan_in_run_json_is_refused_in_one_line(damage):
    """A file that was edited is no reason for a traceback."""
    with pytest.raises(PlanError):
        from_json(as_json(make_plan()) | damage)
    with pytest.raises(PlanError, match="target"):
        from_json({"levels": ["1"]})


def test_default_drain_is_filled_in_and_default_sustain_stays_null():
    """Evidence shows the drain that held; that the sustained level was the default is said by its absence."""
    plan = make_plan()
    written = as_json(plan)

    assert (120.0, None) == (written["drain"], written["sustain"])
    assert replace(plan, drain_s=120.0) == from_json(written)


def test_plan_is_frozen():
    """What was printed before the load is what runs."""
    with pytest.raises(FrozenInstanceError):
        make_plan().cycles = 2
