"""The steps of a plan, in the order they run, each with everything that ends it fixed before it starts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sweep.beside_plan import turns
from sweep.plan import BLOCKS, EARLY_FACTOR, ERROR_LIMIT, N_INTEGRITY, WARMUP_FACTOR, WARMUP_REQUESTS, SweepPlan
from sweep.slo import n_needed
from sweep.tenants import driven
from sweep.units import EITHER, MODES, Level, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One level in one mode in one cycle, with everything that ends it fixed before it starts.

    The window closes when duration_s is over and n_wanted requests have started in it (and n_by_mode of each mode that
    sent at all); at n_early before that; at max_step_s or when a cap is used up, whatever the rest says.
    With other targets beside, it is one block of that: of the target named (None: the first), from 1.
    """

    id: str
    level: Level
    mode: Mode
    cycle: int
    exploring: bool
    n_wanted: int
    n_by_mode: Mapping[Mode, int]
    n_early: int
    duration_s: float
    max_step_s: float
    warmup_s: float
    drain_s: float
    cooldown_s: float
    max_requests: int
    max_output_tokens: int
    ends_cycle: bool = False
    target: str | None = None
    block: int | None = None

    @property
    def min_early_s(self) -> float:
        """Time before which n_early closes nothing: a quarter of the duration, at least 10 s (design §6a)."""
        return min(self.duration_s, max(self.duration_s / 4, 10.0))


def steps(plan: SweepPlan) -> tuple[Step, ...]:
    """All steps in the order they run: cycle, level ascending, mode (stream, then nonstream), each target's blocks.

    Then --leak-cycles, which repeat the sustained level alone, in every mode. Of --levels auto only the first probe is
    known (`search`).
    Shares of the caps: see `_shares`; share of --max-time: see `_max_step_s`.
    """
    if plan.is_auto:
        return first_probe(plan)
    cycles = range(1, plan.cycles + 1)
    order = [(cycle, lv, mode) for cycle in cycles for lv in plan.levels for mode in plan.modes_at(lv)]
    repeated, level = range(plan.cycles + 1, plan.n_cycles + 1), plan.sustained
    order += [(cycle, level, mode) for cycle in repeated for mode in plan.modes_at(level)]
    wanted = [n_wanted(plan, level, mode) for _, level, mode in order]
    weights = [driven(plan, level) for _, level, _ in order]
    floors = [_floor(plan, level, n) for n, (_, level, _) in zip(wanted, order, strict=True)]
    requests = _shares(plan.max_requests, floors, weights)
    tokens = _shares(plan.max_output_tokens, [n * plan.max_tokens for n in floors], weights)
    found = tuple(
        Step(
            id=f"s{number:02d}-{level.code}-{mode}-k{cycle}",
            level=level,
            mode=mode,
            cycle=cycle,
            exploring=plan.is_exploring(level),
            n_wanted=wanted[number - 1],
            n_by_mode=n_by_mode(plan, level) if mode in EITHER else {},
            n_early=n_early(plan, level, wanted[number - 1]),
            duration_s=plan.duration_s,
            max_step_s=_max_step_s(plan) if level.value else plan.duration_s,
            warmup_s=plan.lead_s if level.value else 0.0,
            drain_s=plan.drain_or_default_s if level.value else 0.0,
            cooldown_s=plan.cooldown_s,
            max_requests=requests[number - 1],
            max_output_tokens=tokens[number - 1],
            ends_cycle=number == len(order) or order[number][0] != cycle,
        )
        for number, (cycle, level, mode) in enumerate(order, 1)
    )
    return tuple(block for step in found for block in _blocks(plan, step)) if plan.beside else found


def _blocks(plan: SweepPlan, step: Step) -> Iterator[Step]:
    """The step in turns of every target: of each so many blocks, together as long as the step.

    Half the warm-up is enough, if the ramp is over by then: each target was loaded seconds ago. Between blocks a part
    of the cool-down, after the last of them, which is the first target's, all of it.
    """
    order = tuple(turns(tuple(plan.beside)))
    for place, (block, target) in enumerate(order, 1):
        yield replace(
            step,
            id=f"{step.id}{'' if target is None else f'-{target}'}.b{block}",
            target=target,
            block=block,
            n_wanted=math.ceil(step.n_wanted / BLOCKS),
            n_by_mode={mode: math.ceil(n / BLOCKS) for mode, n in step.n_by_mode.items()},
            n_early=math.ceil(step.n_early / BLOCKS),
            duration_s=step.duration_s / BLOCKS,
            warmup_s=max(step.warmup_s / 2, plan.ramp_s or 0.0),
            cooldown_s=step.cooldown_s if place == len(order) else step.cooldown_s / BLOCKS,
            max_requests=step.max_requests // len(order),
            max_output_tokens=step.max_output_tokens // len(order),
            ends_cycle=step.ends_cycle and place == len(order),
        )


def first_probe(plan: SweepPlan) -> tuple[Step, ...]:
    """Of --levels auto the steps that are known before the search; it goes on by `sequence`."""
    requests, tokens = probe_caps(plan, plan.levels[0], plan.max_requests, plan.max_output_tokens, plan.auto_steps)
    return probe_steps(plan, plan.levels[0], number=1, cycle=1, max_requests=requests, max_output_tokens=tokens)


def probe_caps(plan: SweepPlan, level: Level, requests: int, tokens: int, n_levels: int) -> tuple[int, int]:
    """(requests, output tokens) one level may use of what is left for n_levels: an equal part, but what it needs."""
    parts = max(1, n_levels + plan.leak_cycles)
    needed = least_requests(plan, level)
    return (
        min(requests, max(requests // parts, needed)),
        min(tokens, max(tokens // parts, needed * plan.max_tokens)),
    )


def probe_steps(
    plan: SweepPlan, level: Level, *, number: int, cycle: int, max_requests: int, max_output_tokens: int
) -> tuple[Step, ...]:
    """Steps of one level of --levels auto, in every mode, each with the requests that its SLOs need.

    number: of the first. The two caps are those of all of them. Exploring, unless production needs the level: a guard
    that trips there says that the level is too high, and the search goes on below it.
    """
    alone = replace(
        plan, levels=(level,), sustain=level, cycles=1, leak_cycles=0, auto_max=None, max_requests=max_requests,
        max_output_tokens=max_output_tokens,
    )  # fmt: skip
    return tuple(
        replace(
            step, id=f"s{number + place:02d}-{level.code}-{step.mode}-k{cycle}", cycle=cycle,
            exploring=cycle == 1 and (plan.sustain is None or not plan.sustain.reaches(level)),
            max_step_s=_max_step_s(plan),
        )
        for place, step in enumerate(steps(alone))
    )  # fmt: skip


def least_requests(plan: SweepPlan, level: Level) -> int:
    """Requests that the steps of one level of --levels auto need at least."""
    alone = replace(plan, levels=(level,), sustain=level, cycles=1, leak_cycles=0, auto_max=None)
    return sum(_floor(alone, level, n_wanted(alone, level, mode)) for mode in plan.modes)


def n_wanted(plan: SweepPlan, level: Level, mode: Mode) -> int:
    """Requests the gates of one step need, fixed before it starts; the largest of

    - each SLO that applies at this level in this mode: what its percentile or ratio needs (p95: 59). Each cycle's
      step gets the full number, so that an invalid one costs no decision;
    - up to the sustained level, the step's equal part of the pooled gates: errors and refusals (299 over all these
      steps for a limit of 1 %), and in streaming steps stream integrity (100 over the streaming ones);
    - 1, so that an exploring step ends by its duration. A step of mode `user`: the largest of both modes; of mode
      `mixed`: so many that the share of each mode has its number.
    """
    if mode == "observe":
        return 0
    by_mode = n_by_mode(plan, level)
    if mode == "mixed":
        needs = [math.ceil(n / plan.share_of(each)) for each, n in by_mode.items()]
    else:
        needs = [*by_mode.values()] if mode == "user" else [by_mode[mode]]
    if not plan.is_exploring(level):
        needs.append(math.ceil(n_needed(1 - ERROR_LIMIT) / (_n_pooled(plan) * len(plan.modes))))
    return max(needs)


def n_by_mode(plan: SweepPlan, level: Level) -> dict[Mode, int]:
    """Requests of each mode that one step's gates need of that mode alone; errors are pooled over both.

    Of clients that leave nothing is learnt of an answer: there are so many more.
    """
    needs = {mode: [1, *(x.n_wanted for x in plan.slos if x.applies(level, mode, plan.sustained))] for mode in MODES}
    if not plan.is_exploring(level):
        needs["stream"].append(math.ceil(N_INTEGRITY / _n_pooled(plan)))
    return {mode: math.ceil(max(numbers) / round(1 - plan.leaving(mode), 12)) for mode, numbers in needs.items()}


def _n_pooled(plan: SweepPlan) -> int:
    """Steps of a mode that the pooled gates are over; level 0 sends nothing to them."""
    n_swept = sum(not plan.is_exploring(level) and level.value > 0 for level in plan.levels)
    return plan.cycles * n_swept + (plan.leak_cycles if plan.sustained.value else 0)


def _floor(plan: SweepPlan, level: Level, n: int) -> int:
    """Requests without which a step cannot have its n: two of warm-up a user, and one in flight when the window opens.

    Of a rate: all that are due until its window may close, and four standard deviations more. Of all blocks together.
    """
    blocks = plan.n_blocks
    if level.kind == "concurrency":
        return n * (1 + len(plan.beside)) + int((WARMUP_REQUESTS + 1) * driven(plan, level) * blocks)
    share, rate = BLOCKS if plan.beside else 1, driven(plan, level)
    due = rate * (plan.lead_s + plan.duration_s / share)
    needed = math.ceil(n / share) + math.ceil(rate * plan.lead_s)
    return blocks * max(needed, math.ceil(due + 4 * math.sqrt(due)))


def n_early(plan: SweepPlan, level: Level, n: int) -> int:
    """Requests that close a step before its duration: ten times what its gates need.

    An exploring step may need only one; it goes on until its p95 would be known ten times over.
    """
    return EARLY_FACTOR * (max(n, n_needed(0.95)) if plan.is_exploring(level) else n)


def _shares(cap: int, floors: Sequence[int], weights: Sequence[float]) -> list[int]:
    """One share of the cap a step, together at most the cap.

    Each step first gets its floor (a share by level alone starves level 1 of a plan that reaches 512). The rest is
    given in proportion to the level. A cap below the floors is shared in proportion to them.
    """
    rest = cap - sum(floors)
    if not sum(weights):
        return [0] * len(floors)
    if rest < 0:
        return [cap * floor // sum(floors) for floor in floors]
    total = sum(weights)
    return [floor + math.floor(rest * weight / total) for floor, weight in zip(floors, weights, strict=True)]


def _max_step_s(plan: SweepPlan) -> float:
    """--max-step, or an equal part of --max-time less warm-up, drain and cool-down at their longest; never below the
    duration, which `refusals.check` has found to fit. Of a block: its part of them."""
    around = WARMUP_FACTOR * plan.lead_s + plan.drain_or_default_s + plan.cooldown_s
    share = BLOCKS if plan.beside else 1
    return max(plan.duration_s / share, min(plan.max_step_s / share, plan.max_time_s / plan.n_steps - around))
