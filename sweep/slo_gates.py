"""The gate of the SLOs given with --slo, each at every level and mode it speaks of. Pure: facts -> findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sweep import stats
from sweep.finding import Facts, Finding, Gate, compare, request_files
from sweep.level_table import LevelRow, latency_slos, speaks_of
from sweep.slo import STATS, Slo, n_needed, sentence
from sweep.slo_decision import CUT_LIMIT
from sweep.stats import Value
from sweep.units import Level

_REASONS = {
    ("pass", "<="): "within the limit, beyond doubt", ("fail", "<="): "above the limit, beyond doubt",
    ("pass", ">="): "at the limit or above, beyond doubt", ("fail", ">="): "below the limit, beyond doubt",
}  # fmt: skip
_UNITS = {"latency": "ms", "ratio": "ratio", "rate": "1/s"}


def judge_slos(facts: Facts, gate: Gate) -> list[Finding]:
    """Every SLO at every level it speaks of, and above the sustained level too, where it only brackets the capacity."""
    found = []
    sustained = facts.plan.sustained
    latencies = latency_slos(facts.plan)
    if not any(slo.applies(sustained, mode, sustained) for slo in latencies for mode in facts.plan.sent_modes):
        which = f"speaks of the sustained level {sustained}" if latencies else "was given: capacity is not judged"
        found.append(Finding(gate.name, "warn", f"no latency target {which}", gate.rule, required=False))
    for slo in facts.plan.slos:
        for level, mode in facts.planned:
            if level.value > 0 and speaks_of(slo, level, mode):
                found.append(_judge_slo(facts, slo, level, mode))
        found += _never_sent(facts, slo)
    return found


def _never_sent(facts: Facts, slo: Slo) -> Iterator[Finding]:
    """Levels an SLO speaks of at which an own locustfile sent no request of any of its modes: unknown, never kept."""
    for level in dict.fromkeys(level for level, _ in facts.planned if level.value):
        sent = [mode for at, mode in facts.planned if at == level]
        if not set(sent) & set(slo.modes) and speaks_of(slo, level, slo.modes[0]):
            reason = f"no {' or '.join(slo.modes)} request was sent at this level"
            yield Finding(f"slo {slo.text}", "unknown", reason, **_common(facts, slo, level, slo.modes[0]))


def _common(facts: Facts, slo: Slo, level: Level, mode: str) -> dict[str, Any]:
    exploring = facts.plan.is_exploring(level)
    return {
        "rule": _rule(slo, level, sustained=facts.plan.sustained), "level": level, "mode": mode, "exploring": exploring,
        "required": not exploring and (slo.at is not None or level == facts.plan.sustained),
        "limit": slo.limit, "unit": _UNITS[slo.kind],
    }  # fmt: skip


def slo_value(row: LevelRow, slo: Slo) -> Value:
    """The number of a level that an SLO speaks of."""
    if slo.stat is not None:
        return row.latencies.get(slo.metric, {}).get(slo.stat) or stats.unknown(f"{slo.metric} does not exist here")
    if slo.metric == "goodput":
        return row.goodput if row.goodput is not None else stats.unknown("goodput needs a latency SLO")
    values = {
        "error_ratio": row.ratio(row.failed), "shed_ratio": row.ratio(row.outcomes.get("shed", 0)),
        "request_rate_per_s": row.request_rate, "token_rate_per_s": row.tokens.value,
    }  # fmt: skip
    return values[slo.metric]


def _judge_slo(facts: Facts, slo: Slo, level: Level, mode: str) -> Finding:
    name = f"slo {slo.text}"
    common = _common(facts, slo, level, mode)
    why, row = facts.unusable_why(level, mode), facts.row(level, mode)
    if why is not None or row is None:
        return Finding(name, "skipped" if facts.is_skipped(level, mode) else "unknown", why or "", **common)
    value = slo_value(row, slo)
    common |= {"observed": value, "n": value.n, "evidence": request_files([row])}
    status, needed = compare(value, slo.op, slo.limit), None
    if slo.stat is not None and n_needed(STATS[slo.stat]) > value.n:
        needed = n_needed(STATS[slo.stat])
    reason = _REASONS.get((status, slo.op), "")
    if status == "fail" and (why := _may_be_ours(row, slo, value)) is not None:
        status, reason = "unknown", why
    elif value.v is None:
        reason = value.why or "unknown"
    elif row.ok == 0 and status != "fail":
        status, reason = "unknown", "no good answer at this level"
    elif slo.kind == "latency" and row.cut_ratio > CUT_LIMIT and status != "fail":
        status, reason = "unknown", f"answers longer than the drain: {row.cut} of {row.offered + row.cut} cut"
    elif slo.metric in row.missing:
        status, reason = "unknown", row.missing[slo.metric]
    elif status == "unknown":
        reason = f"{value.n} of {needed} requests" if needed is not None else "too near the limit for so few requests"
        needed = needed if needed is not None else slo_n_needed(value, slo)
    return Finding(name, status, reason, n_needed=needed, **common)


def _rule(slo: Slo, level: Level, sustained: Level) -> str:
    """The promise; at a level that it does not speak of, what it is shown for."""
    if slo.at is not None or level == sustained:
        return sentence(slo)
    words = sentence(slo).replace("at the sustained level", "at other levels")
    return f"{words}: not asked there, but it shows where the promise holds"


def _may_be_ours(row: LevelRow, slo: Slo, value: Value) -> str | None:
    """Why a latency above its limit may be our own lateness: enough of the window late, by more than what it is above.

    A stall of one second in six moves a p95, in sixty it does not.
    """
    if slo.stat is None or slo.op != "<=" or value.lo is None or not row.window_s:
        return None
    share = sum(step.late_s for step in row.rows if step.valid) / row.window_s
    lags_ms = [step.lag_p99_ms_max for step in row.rows if step.valid]
    known_ms = [lag for lag in lags_ms if lag is not None]
    is_known = len(known_ms) == len(lags_ms) > 0
    if share <= 1 - STATS[slo.stat] or (is_known and max(known_ms) < value.lo - slo.limit):
        return None
    by = f"{max(known_ms):.0f} ms" if is_known else "an unknown time"
    return f"the generator itself was late by {by} in {share:.0%} of the window"


def slo_n_needed(value: Value, slo: Slo) -> int | None:
    """Requests that would decide a share as it was seen; four times as many as seen where no formula tells."""
    if slo.kind == "ratio" and slo.op == "<=" and value.v is not None and value.v < slo.limit:
        return stats.n_for_share(round(value.v * value.n), slo.limit)
    return 4 * value.n  # half as wide an interval


SLO_GATES = (
    Gate(
        "slo",
        "the latency targets given with --slo",
        "capacity is the load under which a promise holds",
        judge_slos,
        is_target=True,
    ),
)
