"""The plan of a run and its steps: every option with its default, frozen; and its form in run.json. Pure.

What a plan must not be is in `refusals`; what it will cost, and how it is told to a person, in `estimate`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

from sweep.errors import PlanError
from sweep.slo import Slo, n_needed, parse_slo
from sweep.units import MODES as MODES
from sweep.units import Level as Level
from sweep.units import Mode as Mode
from sweep.units import duration_text as duration_text
from sweep.units import parse_duration as parse_duration
from sweep.units import parse_level
from sweep.units import parse_levels as parse_levels

APIS = ("openai-chat", "ollama-chat", "ollama-generate")
DEMO_API = "openai-chat"  # it speaks all of them
DEMO_TARGET = "http://127.0.0.1:0"  # a plan with `demo`; the gateway's real port replaces it when it listens
ERROR_LIMIT = 0.01  # of errors, and of refusals, pooled up to the sustained level (built-in policy, design §8)
N_INTEGRITY = 100  # stream integrity passes on none seen in this many (built-in policy, design §8)
EARLY_FACTOR = 10  # a step with this many times what its gates need closes before its duration is over (design §6a)
DRAIN_LIMIT_S = 120.0  # default of --drain is the total time-out, at most this (design §8)
WARMUP_REQUESTS = 2  # each user finishes so many before the window opens (design §6a)
# Fields that hold what a repeatable option gives, and its name.
SINGULAR = {
    "slos": "slo", "allow_hosts": "allow_host", "labels": "label", "headers": "header",
    "headers_plain": "header_plain", "keep_headers": "keep_header", "user_classes": "user_class",
}  # fmt: skip
WARMUP_FACTOR = 3  # …but the warm-up lasts at most so many times --warmup (design §6a)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """Every option of `ha-sweep run`; None is "not given". Ends of names are units; the option has none of them.

    Build it, then `refusals.check` it. `replace(plan, model=…)` for what is guessed later.
    """

    target: str
    levels: tuple[Level, ...]
    sustain: Level | None = None
    gateway_listen: str | None = None
    api: str | None = None  # None: asked before the load
    model: str | None = None
    mode: Literal["both", "stream", "nonstream", "user"] = "both"
    duration_s: float = 60.0
    max_step_s: float = 300.0
    warmup_s: float = 10.0
    drain_s: float | None = None
    cooldown_s: float = 15.0
    cycles: int = 1
    max_tokens: int = 128
    prompt_tokens: int = 256
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    slos: tuple[Slo, ...] = ()
    gateway_pid: int | None = None
    gateway_pid_given: str | None = None  # the form it was given in, like unit:ollama; None: as a number
    out_dir: str | None = None
    name: str = "sweep"
    api_key_env: str | None = None
    health_path: str | None = None
    ready_path: str | None = None
    metrics_path: str | None = None
    metrics_key_env: str | None = None
    allow_hosts: tuple[str, ...] = ()
    acknowledge_load: str | None = None
    timeout_s: float = 600.0
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 120.0
    idle_timeout_s: float = 30.0
    load_timeout_s: float = 300.0
    max_requests: int = 20_000
    max_output_tokens: int = 5_000_000
    max_time_s: float = 7200.0
    seed: int | None = None  # None: drawn by the run and recorded; a fixed one would repeat prompts between runs
    strict: bool = False
    quiet: bool = False
    demo: bool = False
    gateway: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)  # name -> environment variable that holds its value
    headers_plain: Mapping[str, str] = field(default_factory=dict)  # name -> value
    key_style: str = "bearer"
    api_key_cmd: str | None = None
    ca_file: str | None = None
    cert: str | None = None
    key: str | None = None
    insecure: bool = False
    locustfile: str | None = None
    user_classes: tuple[str, ...] = ()
    subject: str | None = None
    subject_digest: str | None = None
    keep_headers: tuple[str, ...] = ()
    quiet_check_s: float = 10.0

    @property
    def sustained(self) -> Level:
        """The level production needs: the one given, else the highest."""
        return self.levels[-1] if self.sustain is None else self.sustain

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Modes driven, in the order of the steps."""
        return MODES if self.mode == "both" else (self.mode,)

    @property
    def sent_modes(self) -> tuple[Mode, ...]:
        """Modes that requests may have: the tasks of an own locustfile choose."""
        return MODES if self.mode == "user" else self.modes

    @property
    def drain_or_default_s(self) -> float:
        return min(self.timeout_s, DRAIN_LIMIT_S) if self.drain_s is None else self.drain_s

    @property
    def n_steps(self) -> int:
        return self.cycles * len(self.levels) * len(self.modes)

    def is_exploring(self, level: Level) -> bool:
        return not self.sustained.reaches(level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One level in one mode in one cycle, with everything that ends it fixed before it starts.

    The window closes when duration_s is over and n_wanted requests have started in it (and n_by_mode of each mode that
    is sent at all); at n_early before that; at max_step_s or when a cap is used up, whatever the rest says.
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

    @property
    def min_early_s(self) -> float:
        """Time before which n_early closes nothing: a quarter of the duration, at least 10 s (design §6a)."""
        return min(self.duration_s, max(self.duration_s / 4, 10.0))


def steps(plan: SweepPlan) -> tuple[Step, ...]:
    """All steps in the order they run: cycle, level ascending, mode (stream, then nonstream).

    Shares of the caps: see `_shares`; share of --max-time: see `_max_step_s`.
    """
    order = [(cycle, lv, mode) for cycle in range(1, plan.cycles + 1) for lv in plan.levels for mode in plan.modes]
    wanted = [n_wanted(plan, level, mode) for _, level, mode in order]
    floors = [n + int((WARMUP_REQUESTS + 1) * level.value) for n, (_, level, _) in zip(wanted, order, strict=True)]
    weights = [level.value for _, level, _ in order]
    requests = _shares(plan.max_requests, floors, weights)
    tokens = _shares(plan.max_output_tokens, [n * plan.max_tokens for n in floors], weights)
    return tuple(
        Step(
            id=f"s{number:02d}-{level.code}-{mode}-k{cycle}",
            level=level,
            mode=mode,
            cycle=cycle,
            exploring=plan.is_exploring(level),
            n_wanted=wanted[number - 1],
            n_by_mode=n_by_mode(plan, level) if mode == "user" else {},
            n_early=n_early(plan, level, wanted[number - 1]),
            duration_s=plan.duration_s,
            max_step_s=_max_step_s(plan),
            warmup_s=plan.warmup_s,
            drain_s=plan.drain_or_default_s,
            cooldown_s=plan.cooldown_s,
            max_requests=requests[number - 1],
            max_output_tokens=tokens[number - 1],
        )
        for number, (cycle, level, mode) in enumerate(order, 1)
    )


def n_wanted(plan: SweepPlan, level: Level, mode: Mode) -> int:
    """Requests the gates of one step need, fixed before it starts; the largest of

    - each SLO that applies at this level in this mode: what its percentile or ratio needs (p95: 59). Each cycle's
      step gets the full number, so that an invalid one costs no decision;
    - up to the sustained level, the step's equal part of the pooled gates: errors and refusals (299 over all these
      steps for a limit of 1 %), and in streaming steps stream integrity (100 over the streaming ones);
    - 1, so that an exploring step ends by its duration. A step of mode `user`: the largest of both modes.
    """
    by_mode = n_by_mode(plan, level)
    needs = [*by_mode.values()] if mode == "user" else [by_mode[mode]]
    if not plan.is_exploring(level):
        needs.append(math.ceil(n_needed(1 - ERROR_LIMIT) / (_n_pooled(plan) * len(plan.modes))))
    return max(needs)


def n_by_mode(plan: SweepPlan, level: Level) -> dict[Mode, int]:
    """Requests of each mode that one step's gates need of that mode alone; errors are pooled over both."""
    needs = {mode: [1, *(x.n_wanted for x in plan.slos if x.applies(level, mode, plan.sustained))] for mode in MODES}
    if not plan.is_exploring(level):
        needs["stream"].append(math.ceil(N_INTEGRITY / _n_pooled(plan)))
    return {mode: max(numbers) for mode, numbers in needs.items()}


def _n_pooled(plan: SweepPlan) -> int:
    return plan.cycles * sum(not plan.is_exploring(level) for level in plan.levels)


def n_early(plan: SweepPlan, level: Level, n: int) -> int:
    """Requests that close a step before its duration: ten times what its gates need.

    An exploring step may need only one; it goes on until its p95 would be known ten times over.
    """
    return EARLY_FACTOR * (max(n, n_needed(0.95)) if plan.is_exploring(level) else n)


def as_json(plan: SweepPlan) -> dict[str, Any]:
    """run.json's `plan`: options by long name with `_`; levels and SLOs as text, durations as float seconds.

    `drain` is filled in; `sustain` and what else was not given stay null.
    """
    return {option(each.name): _to_json(each.name, getattr(plan, each.name)) for each in fields(plan)} | {
        "drain": float(plan.drain_or_default_s)
    }


def from_json(content: Mapping[str, Any]) -> SweepPlan:
    """The plan back from `as_json`; keys of later versions are passed over. Raises PlanError if it is damaged."""
    given: dict[str, Any] = {}
    try:
        for each in fields(SweepPlan):
            if option(each.name) in content:
                given[each.name] = _from_json(each.name, content[option(each.name)])
        return SweepPlan(**given)
    except (TypeError, AttributeError) as error:  # a key missing, or its value of another type
        raise PlanError(f"plan in run.json: {error}; the file was changed or damaged") from error


def option(field_name: str) -> str:
    """Long option name of a plan's field, with `_`: duration_s is `duration`, slos is `slo`."""
    return SINGULAR.get(field_name, field_name.removesuffix("_s"))


def _to_json(name: str, value: object) -> object:
    if name == "levels":
        return [str(level) for level in cast(Sequence[Level], value)]
    if name == "slos":
        return [slo.text for slo in cast(Sequence[Slo], value)]
    if isinstance(value, Level):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if name.endswith("_s") and isinstance(value, int):
        return float(value)
    return value


def _from_json(name: str, value: Any) -> object:
    if name == "levels":
        return tuple(parse_level(text) for text in value)
    if name == "slos":
        return tuple(parse_slo(text) for text in value)
    if name == "sustain" and value is not None:
        return parse_level(value)
    return tuple(value) if isinstance(value, list) else value


def _shares(cap: int, floors: Sequence[int], weights: Sequence[float]) -> list[int]:
    """One share of the cap a step, together at most the cap.

    Each step first gets its floor: what its gates need, two warm-up requests a user, and one in flight a user when
    the window opens (a share by level alone starves level 1 of a plan that reaches 512). The rest is given in
    proportion to the level. A cap below the floors is shared in proportion to them.
    """
    rest = cap - sum(floors)
    if rest < 0:
        return [cap * floor // sum(floors) for floor in floors]
    total = sum(weights)
    return [floor + math.floor(rest * weight / total) for floor, weight in zip(floors, weights, strict=True)]


def _max_step_s(plan: SweepPlan) -> float:
    """--max-step, or an equal part of --max-time less warm-up, drain and cool-down at their longest; never below the
    duration, which `refusals.check` has found to fit."""
    around = WARMUP_FACTOR * plan.warmup_s + plan.drain_or_default_s + plan.cooldown_s
    return max(plan.duration_s, min(plan.max_step_s, plan.max_time_s / plan.n_steps - around))
