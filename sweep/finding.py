"""What a gate gives, and what it looks at: Gate, Finding and the facts of one run. Pure values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sweep import outdir
from sweep.health_table import Probes
from sweep.level_table import LevelRow
from sweep.others_table import Others
from sweep.plan import SweepPlan
from sweep.run_table import GuardTrip, Survival
from sweep.search_table import Search
from sweep.stats import Value
from sweep.step_table import StepRow
from sweep.subject_table import Seen
from sweep.units import Level

Status = Literal["pass", "warn", "fail", "unknown", "skipped", "assumed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One gate, judged once. level None: about the whole run or pooled. skipped: not tested.

    required: a fail or unknown of it decides the verdict. exploring: above the sustained level, it never does.
    is_target: its gate is one that a level must pass to count as capacity, as its row says.
    """

    gate: str
    status: Status
    reason: str
    rule: str
    level: Level | None = None
    mode: str | None = None
    step: str | None = None
    required: bool = True
    exploring: bool = False
    observed: Value | None = None
    limit: float | None = None
    unit: str = ""
    n: int | None = None
    n_needed: int | None = None
    evidence: tuple[str, ...] = ()
    is_target: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "gate": self.gate, "level": level_json(self.level), "mode": self.mode, "step": self.step,
            "status": self.status, "required": self.required, "exploring": self.exploring, "rule": self.rule,
            "observed": {} if self.observed is None else self.observed.as_json(), "limit": self.limit,
            "unit": self.unit, "n": self.n, "n_needed": self.n_needed, "reason": self.reason,
            "evidence": list(self.evidence),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the gates look at. planned: (level, mode) of every step of the plan, each once, in its order; of a step
    of mode `mixed` or `user`, the modes it sent.

    planned_steps: (id, level, mode) of every step. guards: those that tripped, in order.
    process_why: step -> why its process evidence is incomplete, None when it is not. live, ready: None without a path.
    others: None when nothing was asked about them.
    oom_kills: in the cgroup during the run, None when unknown; oom_alone: the cgroup holds only the gateway's tree.
    seen: what is known of the build that was tested. search: of --levels auto; None for given levels.
    """

    plan: SweepPlan
    planned: tuple[tuple[Level, str], ...]
    planned_steps: tuple[tuple[str, Level, str], ...]
    rows: tuple[LevelRow, ...]
    steps: tuple[StepRow, ...]
    guards: tuple[GuardTrip, ...]
    survival: Survival
    subject: Mapping[str, Any] | None
    process_why: Mapping[str, str | None]
    live: Probes | None
    ready: Probes | None
    oom_kills: int | None
    oom_alone: bool
    seen: Seen = field(default_factory=Seen)
    others: Others | None = None
    search: Search | None = None

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes of the steps; of mixed ones and an own locustfile, those sent."""
        return tuple(dict.fromkeys(mode for level, mode in self.planned if level.value))

    def row(self, level: Level, mode: str) -> LevelRow | None:
        return next((row for row in self.rows if row.level == level and row.mode == mode), None)

    def skipped_above(self, level: Level) -> Level | None:
        """The lowest invalid level of the same kind below this one: it makes this level skipped."""
        below = [row.level for row in self.rows if not row.valid and row.level != level and level.reaches(row.level)]
        return min(below, key=lambda each: each.value, default=None)

    def usable(self, level: Level, mode: str) -> LevelRow | None:
        """The row if its numbers may be judged: it ran, it is valid, and so is every level below it."""
        row = self.row(level, mode)
        return row if row is not None and row.valid and self.skipped_above(level) is None else None

    def unusable_why(self, level: Level, mode: str) -> str | None:
        """Why a level cannot be judged, or None."""
        row, barrier = self.row(level, mode), self.skipped_above(level)
        if barrier is not None:
            return f"level {barrier} below it is invalid"
        if row is None:
            trip = self.exploring_ended(level)
            return "it was not run" if trip is None else f"not run: a guard ended the exploring at level {trip.level}"
        return None if row.valid else f"invalid step: {row.invalid_why}"

    def exploring_ended(self, level: Level) -> GuardTrip | None:
        """The guard after which no level above the sustained one was run; None for a level that is needed."""
        if not self.plan.is_exploring(level):
            return None
        trips = (trip for trip in self.guards if trip.level is not None and self.plan.is_exploring(trip.level))
        return next(trips, None)

    def is_skipped(self, level: Level, mode: str) -> bool:
        """Whether a level that cannot be judged was left out on purpose, rather than being unknown."""
        row_is_missing = self.row(level, mode) is None
        return self.skipped_above(level) is not None or (row_is_missing and self.exploring_ended(level) is not None)

    def sustained(self) -> tuple[tuple[Level, str], ...]:
        """Levels and modes that decide the verdict."""
        return tuple((level, mode) for level, mode in self.planned if not self.plan.is_exploring(level))


@dataclass(frozen=True, slots=True)
class Gate:
    """One row of the policy. judge: the facts and this row -> findings. why: what the limit protects from.

    not_tested: how the verdict names the gate when it was skipped, "" when the plan's own words cover it.
    is_target: a level counts as capacity only when it passed this gate, and only if the gate speaks of it.
    """

    name: str
    rule: str
    why: str
    judge: Callable[[Facts, Gate], list[Finding]]
    limit: float | None = None
    unit: str = ""
    not_tested: str = ""
    is_target: bool = False

    @property
    def bound(self) -> float:
        """The limit of a gate that cannot be judged without one. Raises ValueError where the table lacks it."""
        if self.limit is None:
            raise ValueError(f"gate {self.name!r} needs a limit; its row in the table has none")
        return self.limit


def compare(value: Value, op: str, limit: float) -> Status:
    """pass, fail or unknown, by the bounds; exactly at the limit passes.

    A share or latency passes when its upper bound is at or below the limit and fails when its lower bound is above;
    with a lower limit the other way round.
    """
    good, bad = (value.hi, value.lo) if op == "<=" else (value.lo, value.hi)
    if value.v is None:
        return "unknown"
    if bad is not None and (bad > limit if op == "<=" else bad < limit):
        return "fail"
    if good is not None and (good <= limit if op == "<=" else good >= limit):
        return "pass"
    return "unknown"


def level_json(level: Level | None) -> int | str | None:
    """8 for a concurrency, "5/s" for a rate."""
    if level is None:
        return None
    return int(level.value) if level.kind == "concurrency" else str(level)


def request_files(rows: Sequence[LevelRow]) -> tuple[str, ...]:
    """The request files these rows were counted from."""
    return tuple(file for row in rows for step in row.rows for file in step_request_files(step))


def step_request_files(step: StepRow) -> tuple[str, ...]:
    report = step.times.report
    return () if report is None else tuple(outdir.requests_file(step.times.step, p.worker) for p in report.processes)
