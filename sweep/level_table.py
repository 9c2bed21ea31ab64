"""Evidence -> one row a level and mode, pooled over its valid steps: counts, rates, latencies, goodput. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sweep import stats
from sweep.answer_table import Told, told
from sweep.evidence import Evidence
from sweep.latency import LATENCIES, Timed, is_good, missing_why, percentiles, timed
from sweep.plan import SweepPlan
from sweep.process_table import ProcessUse, memory_source, process_use
from sweep.punctual import OpenLoop, open_loop
from sweep.records import FAILED
from sweep.slo import STATS, Slo
from sweep.stats import Value, smallest
from sweep.step_table import StepRow
from sweep.token_rate import MIXED, TokenRate, token_rate
from sweep.units import EITHER, MODES, Level
from sweep.windows import Bools, Sets

Latencies = Mapping[str, Mapping[str, Value]]


@dataclass(frozen=True, slots=True)
class LevelRow:
    """One level in one mode. Its values are unknown, each with the reason, when no step of it is valid.

    shares_step: the step, mixed or of an own locustfile, sent the other mode too; counts and latencies are of the
    row's mode, process and generator of the whole step.

    latencies: metric or metric_ok -> stat -> value. missing: metric -> why too few answers have it. outcomes: of all
    requests that started in the window, cut ones too. flags: of the successes. unanswered: of the cut ones, those that
    were silent for the whole drain. in_flight: requests going on at once, their mean over the window; fewer
    than the level where users pause after a refusal or think. told: what the answers say of who gave them.
    left_at: phase -> clients that left in it.
    """

    level: Level
    mode: str
    exploring: bool
    rows: tuple[StepRow, ...]
    valid: bool
    invalid_why: str | None
    window_s: float
    outcomes: Mapping[str, int]
    cut: int
    flags: Mapping[str, int]
    request_rate: Value
    tokens: TokenRate
    latencies: Latencies
    missing: Mapping[str, str]
    goodput: Value | None
    shares_step: bool = False
    unanswered: int = 0
    left_at: Mapping[str, int] = field(default_factory=dict)
    in_flight: Value = field(default_factory=lambda: stats.unknown("invalid step"))
    process: ProcessUse = field(default_factory=ProcessUse)
    told: Told = field(default_factory=Told)
    open_loop: OpenLoop | None = None

    @property
    def offered(self) -> int:
        return sum(self.outcomes.values()) - self.cut

    @property
    def ok(self) -> int:
        return self.outcomes.get("ok", 0)

    @property
    def failed(self) -> int:
        return sum(self.outcomes.get(name, 0) for name in FAILED)

    @property
    def cut_ratio(self) -> float:
        """Share of the requests started in the window that the step's end cut."""
        return self.cut / (self.offered + self.cut) if self.offered + self.cut else 0.0

    def ratio(self, count: int) -> Value:
        """Share of the requests offered; unknown when the level is invalid."""
        return stats.share(count, self.offered) if self.valid else stats.unknown(self.invalid_why or "invalid step")

    def as_json(self) -> dict[str, Any]:
        """The row in result.json."""
        steps = self.rows if not self.valid else tuple(row for row in self.rows if row.valid)
        has_users = self.level.kind == "concurrency" and self.level.value > 0
        users = [row.users_min for row in steps if row.users_min is not None and has_users]
        return {
            "level": str(self.level), "kind": self.level.kind, "mode": self.mode, "exploring": self.exploring,
            "steps": [row.times.step for row in self.rows], "valid": self.valid, "invalid_why": self.invalid_why,
            "shares_step": self.shares_step,
            "window_s": self.window_s, "offered": self.offered, "ok": self.ok, "outcomes": dict(self.outcomes),
            "cut": self.cut, "left_at": dict(self.left_at), "flags": dict(self.flags), "told": self.told.as_json(),
            "request_rate_per_s": self.request_rate.as_json(),
            "token_rate_per_s": self.tokens.value.as_json(), "token_source": self.tokens.source,
            **{name: {stat: value.as_json() for stat, value in per.items()} for name, per in self.latencies.items()},
            "error_ratio": self.ratio(self.failed).as_json(),
            "shed_ratio": self.ratio(self.outcomes.get("shed", 0)).as_json(),
            "in_flight": self.in_flight.as_json(),
            "open_loop": None if self.open_loop is None else self.open_loop.as_json(),
            "goodput": None if self.goodput is None else self.goodput.as_json(),
            "generator": {
                "cpu_share_max": stats.largest([row.cpu_share_max for row in steps]),
                "lag_p99_ms_max": stats.largest([row.lag_p99_ms_max for row in steps]),
                "users_min": min(users) if users else None,
                "achieved_ratio_min": smallest([row.achieved_min for row in steps]),
                "connections_max": stats.largest([row.connections_max for row in steps]),
                "ports_left_min": smallest([row.ports_left_min for row in steps]),
                "ports_why": next((row.ports_why for row in steps if row.ports_why is not None), None),
                "why": "; ".join(dict.fromkeys(row.generator_why for row in self.rows if row.generator_why)) or None,
            },
            **self.process.as_json(),
        }  # fmt: skip


def level_rows(
    ev: Evidence, plan: SweepPlan, steps: Sequence[StepRow], sets: Sets, planned: Sequence[tuple[Level, str]]
) -> tuple[LevelRow, ...]:
    """Rows in the order of levels and modes of the plan, of those that have at least one step that began.

    planned: (level, mode) as `windows.planned_modes` gives them.
    """
    wanted: dict[tuple[str, str], list[int]] = {}
    for code, step in enumerate(steps):
        for level, mode in planned:
            if level == step.times.level and step.times.mode in (mode, *EITHER):
                wanted.setdefault((str(level), mode), []).append(code)
    is_shared = [step.times.mode in EITHER for step in steps]
    source = memory_source(ev, [step.times for step in steps])
    rows = [
        replace(
            _row(ev, plan, steps, sets, mode, codes, source),
            shares_step=any((level, other) in wanted for other in MODES if other != mode and is_shared[codes[0]]),
        )
        for (level, mode), codes in wanted.items()
    ]
    modes = [row.mode for row in rows]
    return tuple(sorted(rows, key=lambda row: (row.level.kind, row.level.value, modes.index(row.mode))))


def latency_slos(plan: SweepPlan) -> tuple[Slo, ...]:
    return tuple(slo for slo in plan.slos if slo.kind == "latency")


def speaks_of(slo: Slo, level: Level, mode: str) -> bool:
    """Whether an SLO says anything of a level in a mode; without a level of its own it does of every one."""
    return mode in slo.modes and (slo.at is None or slo.at.reaches(level))


def _row(
    ev: Evidence, plan: SweepPlan, steps: Sequence[StepRow], sets: Sets, mode: str, codes: Sequence[int], source: str
) -> LevelRow:
    times = steps[codes[0]].times
    valid = [code for code in codes if steps[code].valid]
    used = valid or codes
    mask = sets.of(used)
    if times.mode in EITHER:
        mask &= ev.requests["stream"].to_numpy(dtype=bool) == (mode == "stream")
    counted = mask & (sets.offered | sets.cut)
    outcomes = Counter(str(name) for name in sets.outcome[counted])
    window_s = sum(steps[code].times.window_s for code in used)
    head: dict[str, Any] = {
        "level": times.level, "mode": mode, "exploring": plan.is_exploring(times.level),
        "rows": tuple(steps[code] for code in codes), "valid": bool(valid), "window_s": window_s,
        "outcomes": dict(sorted(outcomes.items())), "cut": int((mask & sets.cut).sum()),
        "flags": _flags(ev, sets, mask), "unanswered": _unanswered(ev, plan, sets, mask),
        "told": told(ev, sets, mask, plan.keep_headers),
        "left_at": _left_at(ev, mask & sets.offered & (sets.outcome == "left")),
    }  # fmt: skip
    schedules = [steps[code].schedule for code in used]
    head["open_loop"] = open_loop(ev.requests, sets, mask, schedules, stream=mode != "nonstream", valid=bool(valid))
    if mode == "observe" or not valid:
        return _invalid(head, mode) if not valid else _observed(ev, head, valid, steps, sets, source)
    of = timed(ev.requests, sets, mask, stream=mode != "nonstream")
    metrics = _metrics(mode)
    latencies = {metric: percentiles(of, metric) for metric in metrics}
    latencies |= {f"{metric}_ok": percentiles(of, metric, successes_only=True) for metric in metrics}
    missing = {metric: why for metric in metrics if (why := missing_why(of, metric)) is not None}
    return LevelRow(
        **head, invalid_why=None,
        request_rate=stats.rate(int((mask & sets.completed).sum()), window_s),
        tokens=token_rate(ev.requests, sets, mask, window_s),
        latencies=latencies, missing=missing, goodput=_goodput(plan, times.level, mode, of),
        in_flight=_in_flight(ev, sets, mask, window_s),
        process=process_use(ev, [steps[code].times for code in valid], sets, source),
    )  # fmt: skip


def _unanswered(ev: Evidence, plan: SweepPlan, sets: Sets, mask: Bools) -> int:
    """Cut requests that were silent for the whole drain: slow, or lost for ever, which is not known."""
    cut = ev.requests[mask & sets.cut]
    heard = cut[["t_start_ns", "t_headers_ns", "t_event_ns", "t_last_ns"]].max(axis=1)
    return int((cut["t_over_ns"] - heard >= plan.drain_or_default_s * 1e9).sum())


def _in_flight(ev: Evidence, sets: Sets, mask: Bools, window_s: float) -> Value:
    """Time that requests of these steps spent inside their window, whatever phase they started in / the window."""
    if not window_s > 0:
        return stats.unknown("no time measured")
    rows = ev.requests[mask]
    begin = np.maximum(rows["t_start_ns"].to_numpy(dtype=np.int64), sets.t_window_ns[mask])
    end = np.minimum(rows["t_over_ns"].to_numpy(dtype=np.int64), sets.t_close_ns[mask])
    inside = end - begin
    return Value(float(inside[inside > 0].sum()) / 1e9 / window_s, int((inside > 0).sum()))


def _observed(
    ev: Evidence, head: dict[str, Any], valid: Sequence[int], steps: Sequence[StepRow], sets: Sets, source: str
) -> LevelRow:
    """Level 0: what the process did, and nothing of answers."""
    nothing = stats.unknown("level 0 asks nothing")
    return LevelRow(
        **head, invalid_why=None, request_rate=nothing, tokens=TokenRate(nothing, None), latencies={}, missing={},
        goodput=None, in_flight=nothing,
        process=process_use(ev, [steps[code].times for code in valid], sets, source),
    )  # fmt: skip


def _metrics(mode: str) -> tuple[str, ...]:
    return {"nonstream": ("e2e_ms",), "observe": ()}.get(mode, LATENCIES)


def _invalid(head: dict[str, Any], mode: str) -> LevelRow:
    why = "; ".join(dict.fromkeys(row.invalid_why or "" for row in head["rows"]))
    nothing = stats.unknown(f"invalid step: {why}")
    per_stat = dict.fromkeys(STATS, nothing)
    latencies = {f"{metric}{suffix}": per_stat for metric in _metrics(mode) for suffix in ("", "_ok")}
    return LevelRow(
        **head, invalid_why=why, request_rate=nothing, tokens=TokenRate(nothing, None), latencies=latencies, missing={},
        goodput=None, process=ProcessUse.unknown(f"invalid step: {why}"),
    )  # fmt: skip


def _flags(ev: Evidence, sets: Sets, mask: Bools) -> dict[str, int]:
    answered = mask & sets.offered & (sets.outcome == "ok")
    counts = Counter(flag for flags in ev.requests["flags"][answered] for flag in flags)
    return dict(sorted(counts.items()))


def _left_at(ev: Evidence, left: Bools) -> dict[str, int]:
    return dict(sorted(Counter(map(str, ev.requests["left_at"][left].dropna())).items()))


def _goodput(plan: SweepPlan, level: Level, mode: str, of: Timed) -> Value | None:
    """Requests that met every latency limit given for this level and mode, of those offered; None without a limit."""
    limits = [slo for slo in latency_slos(plan) if speaks_of(slo, level, mode)]
    if not limits:
        return None
    if of.mixed_tokens and any(slo.metric == "tpot_ms" for slo in limits):
        return stats.unknown(MIXED)
    n_offered = int((of.outcome != "cut").sum())
    return stats.share(int(is_good(of, limits).sum()), n_offered)
