"""The command that runs a plan again, and what bound it raised to what its open gates need. Pure.

A step goes on until it has the requests its gates want, so more time is asked for only where what ended it was its
duration, --max-step, a cap, or --max-time.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec

from sweep.finding import Facts, Finding
from sweep.plan import BLOCKS, DEMO_API, WARMUP_FACTOR, SweepPlan
from sweep.plan_json import as_json, option
from sweep.plan_steps import Step, steps
from sweep.step_table import StepRow
from sweep.units import EITHER, duration_text

SPARE = 1.2  # more than the numbers say, for a command that should decide
EARLY_QUARTER = 4  # a step that has requests enough may close after a quarter of its duration (design §6a)
# What a run fills in or draws for itself, and what --demo brings of its own.
OF_THE_RUN = ("out_dir", "seed", "quiet", "target", "levels", "demo", "gateway_pid", "gateway_pid_given", "user_class")
OF_THE_DEMO = ("model", "gateway_listen")
_DURATIONS = {option(each.name) for each in fields(SweepPlan) if each.name.endswith("_s")}


@dataclass(frozen=True, slots=True)
class _Need:
    """What one step would have to have for the gates that it left open. n: started in the window; n_sent: in all."""

    step: Step
    closed_by: str | None
    n: int
    n_sent: int
    window_s: float


def raised(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    """Options that bound the steps, as a command line writes them, with what the open gates need; {} for none."""
    wanted = _raised(facts.plan, tuple(_needs(facts, findings)))
    return {name: duration_text(value) if isinstance(value, float) else value for name, value in wanted.items()}


def command(plan: SweepPlan, guessed: Collection[str] = (), changed: Mapping[str, Any] | None = None) -> str:
    """One line for a shell that runs the plan again. changed: options with another value, None to leave one out."""
    options = {**_given(plan, guessed), **(changed or {})}
    words = ["ha-sweep", "run"]
    for name, value in options.items():
        if value is None:
            continue
        for each in _repeated(value):
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if each is True else [flag, str(each)]
    return shlex.join([*words, *plan.user_classes])


def _repeated(value: Any) -> list[Any]:
    """What a repeatable option was given, one by one."""
    if isinstance(value, Mapping):
        return [f"{name}={each}" for name, each in value.items()]
    return value if isinstance(value, list) else [value]


def _given(plan: SweepPlan, guessed: Collection[str]) -> dict[str, Any]:
    """What differs from the defaults, by long option name."""
    dropped = {*OF_THE_RUN, *guessed, *(OF_THE_DEMO if plan.demo else ()), *(["mode"] if plan.locustfile else [])}
    plain = as_json(SweepPlan(target=plan.target, levels=plan.levels, api=DEMO_API if plan.demo else None))
    given = {name: value for name, value in as_json(plan).items() if value != plain[name] and name not in dropped}
    first: dict[str, Any] = {"demo": True} if plan.demo else {"target": plan.target}
    if "target" in guessed and plan.gateway_pid is not None:
        first = {}
    first["levels"] = "auto" if plan.is_auto else ",".join(str(level) for level in plan.levels)
    processes: list[Any] = [f"{name}={form}" for name, form in given.pop("beside_pids", {}).items()]
    if plan.gateway_pid is not None and not plan.demo:
        processes.insert(0, plan.gateway_pid_given or plan.gateway_pid)
    if processes:
        first["gateway_pid"] = processes
    if "extra_body" in given:
        given["extra_body"] = msgspec.json.encode(given["extra_body"]).decode()
    return first | {name: duration_text(v) if name in _DURATIONS else v for name, v in given.items()}


def _needs(facts: Facts, findings: Sequence[Finding]) -> Iterator[_Need]:
    """Steps whose numbers were too few for a required gate, with how many would do."""
    planned = {step.id: step for step in steps(facts.plan)}
    open_ = [each for each in findings if each.required and each.status == "unknown"]
    for row in facts.steps:
        factors = [each.n_needed / each.n for each in open_ if each.n_needed and each.n and _covers(each, row)]
        factor = max(factors, default=1.0)
        if factor > 1 and row.offered and row.times.step in planned:
            report = row.times.report
            yield _Need(
                step=planned[row.times.step], closed_by=None if report is None else report.closed_by,
                n=math.ceil(row.offered * factor), n_sent=math.ceil(row.lines * factor * SPARE),
                window_s=float(math.ceil(row.times.window_s * factor * SPARE)),
            )  # fmt: skip


def _covers(finding: Finding, row: StepRow) -> bool:
    return finding.level in (None, row.times.level) and (
        row.times.mode in EITHER or finding.mode in (None, row.times.mode)
    )


def _raised(plan: SweepPlan, needs: Sequence[_Need]) -> dict[str, float | int]:
    """Options that bound the steps, with what they need."""
    if not needs:
        return {}
    # A step that wants the requests anyway goes on for them; only more than it wants takes a longer duration.
    longer = [need for need in needs if need.closed_by in ("duration", "n_early") or need.n > need.step.n_wanted]
    duration_s = max((_duration_s(need) for need in longer), default=0.0)
    longest_s = max(duration_s, *(need.window_s for need in needs))
    # Beside its window each step has warm-up, drain and cool-down; a cap may have been the time left of the run.
    around_s = WARMUP_FACTOR * plan.lead_s + plan.drain_or_default_s + plan.cooldown_s
    time_s = float(math.ceil(plan.n_steps * (longest_s + around_s)))
    # Of the plan; a block has a part of them.
    share = BLOCKS if plan.beside else 1
    wanted: dict[str, float | int] = {"duration": share * duration_s, "max_step": share * longest_s}
    if longest_s > max(need.step.max_step_s for need in needs) or any(need.closed_by == "cap" for need in needs):
        wanted["max_time"] = time_s
    wanted["max_requests"] = _cap(plan, "max_requests", {need.step.id: need.n_sent for need in needs})
    tokens = {need.step.id: need.n_sent * plan.max_tokens for need in needs}
    wanted["max_output_tokens"] = _cap(plan, "max_output_tokens", tokens)
    now = as_json(plan)
    return {name: value for name, value in wanted.items() if value > now[name]}


def _duration_s(need: _Need) -> float:
    """Four times as long where it has enough to close early before the gates have theirs."""
    return need.window_s * (EARLY_QUARTER if need.n * SPARE > need.step.n_early else 1)


def _cap(plan: SweepPlan, name: str, wanted: Mapping[str, int]) -> int:
    """The cap of the run at which each step's share holds what it needs."""
    cap: int = getattr(plan, name)
    while any(getattr(step, name) < wanted.get(step.id, 0) for step in steps(plan)):
        cap = math.ceil(cap * SPARE)
        raised: dict[str, Any] = {name: cap}
        plan = replace(plan, **raised)
    return cap
