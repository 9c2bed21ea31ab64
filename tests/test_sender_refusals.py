"""Shares, clients that leave, prefixes: what is refused before any load, and what a plan of them says and counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep import refusals
from sweep.dry_run import describe
from sweep.errors import PlanError
from sweep.estimate import Measured, estimate
from sweep.next_command import command
from sweep.plan import SweepPlan, parse_levels
from sweep.plan_json import as_json, from_json
from sweep.plan_steps import n_by_mode, steps
from sweep.slo import parse_slo
from sweep.units import Level
from sweep.verdict import scope


def plan_of(levels: str = "2,4", slos: tuple[str, ...] = (), **given) -> SweepPlan:
    values = {"target": "http://127.0.0.1:9", "levels": parse_levels(levels), "slos": tuple(map(parse_slo, slos))}
    return SweepPlan(**values | given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mode": "mixed", "stream_share": 0.0}, "--stream-share 0: give a share between 0 and 1"),
        ({"mode": "mixed", "stream_share": 1.5}, "--stream-share 1.5: give a share between 0 and 1"),
        ({"stream_share": 0.7}, "says nothing without --mode mixed"),
        ({"cancel_ratio": 1.0}, "less than 1; if all leave, nothing is answered"),
        ({"cancel_ratio": -0.1}, "--cancel-ratio -0.1"),
        ({"cancel_at": ("mid_stream",)}, "add --cancel-ratio"),
        ({"cancel_ratio": 0.1, "cancel_at": ("nonstream",), "mode": "stream"}, "--cancel-at nonstream: --mode stream"),
        ({"cancel_ratio": 0.1, "cancel_at": ("mid_stream", "mid_stream")}, "given twice"),
        ({"cancel_ratio": 0.1, "slos": ("goodput>=95%",)}, "10% of the clients leave, so it cannot be met"),
        ({"shared_prefix": -1}, "--shared-prefix -1"),
        ({"shared_prefix": 256}, "leaves nothing of --prompt-tokens 256"),
        ({"shared_prefix": 8, "prompts": "p"}, "--prompts and --shared-prefix both say what is sent"),
        ({"prompts": "p", "expect_workers": 1}, "workers on other machines do not have the file"),
        ({"prompts": "p", "locustfile": "f.py", "mode": "user"}, "--prompts and -f both say what is sent"),
    ],
)
def test_what_contradicts_itself_is_refused(given, says):
    with pytest.raises(PlanError, match=says):
        refusals.check(plan_of(**given))


@pytest.mark.parametrize("given", [
    {"mode": "mixed", "stream_share": 0.7, "cancel_ratio": 0.1, "cancel_at": ("nonstream",)},
    {"mode": "mixed", "slos": ("stream.ttft_ms.p95<=500", "nonstream.e2e_ms.p95<=500")},
    {"cancel_ratio": 0.1, "slos": ("goodput>=85%",)}, {"shared_prefix": 255},
])  # fmt: skip
def test_a_sound_plan_passes_and_is_read_back(given):
    plan = plan_of(**given, drain_s=1.0)
    refusals.check(plan)

    assert plan == from_json(as_json(plan))


def test_a_mixed_step_sends_enough_for_each_mode():
    """59 non-streaming answers for a p95 at a share of 20 % are 295 requests; 100 streams need fewer."""
    plan = plan_of("4", ("nonstream.e2e_ms.p95<=500",), mode="mixed", stream_share=0.8)
    (step,) = steps(plan)

    assert "s01-c4-mixed-k1" == step.id
    assert {"stream": 100, "nonstream": 59} == step.n_by_mode
    assert 299 == step.n_wanted  # errors, over both modes, need more
    assert 590 == steps(plan_of("4", ("nonstream.e2e_ms.p95<=500",), mode="mixed", stream_share=0.9))[0].n_wanted


def test_those_that_leave_are_made_up_for():
    """A percentile rests on those that stay."""
    plan = plan_of("4", ("stream.ttft_ms.p95<=500",), cancel_ratio=0.5, cancel_at=("before_first",))

    assert {"stream": 200, "nonstream": 1} == n_by_mode(plan, plan.levels[0])
    plan = plan_of("4", ("nonstream.e2e_ms.p95<=500",), cancel_ratio=0.41)
    assert 100 == n_by_mode(plan, plan.levels[0])["nonstream"]


def test_a_mixed_plan_is_estimated_by_its_share():
    """One request in four streams for 1 s, three take 3 s: 2.5 s on average, 4 users give 96 a minute."""
    plan = plan_of("4", ("stream.ttft_ms.p95<=500",), mode="mixed", stream_share=0.25, max_step_s=60.0)
    told = estimate(plan, {"stream": Measured(1.0, 10, 8), "nonstream": Measured(3.0, 10, 16)})

    assert told.lines[0].startswith("level 4 mixed: ~96 requests a minute")
    assert any("SLO stream.ttft_ms.p95<=500 at level 4 stream: needs 59 requests, about 24 fit" in line
               for line in told.undecidable)  # fmt: skip
    assert ("mixed: the preflight got no mixed answer, so how many requests fit is unknown",) == (
        estimate(plan, {"stream": Measured(1.0, 10, 8)}).undecidable
    )


def test_scope_and_dry_run_say_who_leaves_and_what_is_mixed():
    plan = plan_of("4", mode="mixed", stream_share=0.7, cancel_ratio=0.1, api="openai-chat", model="m")

    assert scope(plan).endswith("with model m, 70 % streaming, 10 % of the clients leave, on one node")
    some = plan_of("4", cancel_ratio=0.1, cancel_at=("mid_stream",), api="openai-chat")
    assert ", 10 % of the clients of stream requests leave (mid_stream), " in scope(some)
    assert "clients that leave: 0.1 of the requests, mid_stream" in describe(some)


def test_the_next_command_repeats_shares_as_shares():
    """0.7 is no 700ms."""
    plan = plan_of("4", mode="mixed", stream_share=0.7, cancel_ratio=0.25, duration_s=2.0, tenants=("a=A:3", "b=B"))
    words = command(plan)

    assert "--stream-share 0.7" in words and "--cancel-ratio 0.25" in words and "--duration 2s" in words
    assert "--tenant a=A:3 --tenant b=B" in words


def test_caches_are_told():
    assert "prefix caches: off by nonce" in describe(plan_of())
    assert "prefix caches: on for 64 tokens, the same in every request; a nonce follows" in (
        describe(plan_of(shared_prefix=64))
    )
    of_file = describe(plan_of(prompts="a/mine.jsonl"))
    assert any(line.startswith("prefix caches: as mine.jsonl has it") for line in of_file)


def test_users_who_think_are_no_concurrent_requests():
    """With a pause between two requests fewer are in flight than the level says; arrivals have none."""
    plan = plan_of("0,1,4,5/s", sustain=Level(4), think_time_s=2.0, api="openai-chat", model="m")

    assert "for 4 users who pause 2s between two requests, of openai-chat with model m on one node" == scope(plan)
    assert scope(replace(plan, sustain=Level(1))).startswith("for 1 user who pauses 2s between two requests, of ")
    assert scope(replace(plan, sustain=Level(5, "rate"))).startswith("for 5 arrivals a second (Poisson) of ")
