"""Whether the requests of one step met every SLO, by the judge's rule: exact rank bounds, failures infinite. Pure.

For the running half, which may not load numpy; the judge counts again from the evidence (`search_gates`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low
from typing import NamedTuple

from sweep.bounds import clopper_pearson, rank, rank_bounds
from sweep.plan import ERROR_LIMIT
from sweep.records import FAILED, Record
from sweep.search import Answer
from sweep.slo import STATS, Slo
from sweep.units import MODES, Mode

CUT_LIMIT = 0.05  # more requests cut than this: latencies decide nothing (design §6a)
# Successes that lack a number are left out of its percentiles; with more than this share of them they decide nothing.
MISSING_LIMIT = 0.05
INTEGRITY_LIMIT = 0.001  # of the streams that end at all (built-in policy, design §8)
INTEGRITY = ("truncated", "error_event", "bad_body", "reset")
_ENDS = {"ttft_ms": "t_first_ns", "ttfa_ms": "t_answer_ns", "e2e_ms": "t_end_ns"}


class _Bounds(NamedTuple):
    """One-sided 95 % bounds; None: too few values for one."""

    lo: float | None
    hi: float | None


class Part(NamedTuple):
    """What one load process recorded of a step, of any phase, and the window by its own clock."""

    records: Sequence[Record]
    t_window_ns: int
    t_close_ns: int


def decide(slos: Sequence[Slo], mode: Mode, parts: Sequence[Part]) -> tuple[Answer, str]:
    """(met, not met or undecided, what decided it) of one step.

    mode: of the step; of `user` and `mixed` each mode that was sent is looked at by itself.
    """
    records = [each for part in parts for each in part.records]
    started = [
        each for part in parts for each in part.records if part.t_window_ns <= _zero_ns(each) < part.t_close_ns
    ]
    is_one = mode in MODES
    sent = [m for m in MODES if (m == mode if is_one else any(each.stream == (m == "stream") for each in records))]
    answers: list[tuple[Answer, str]] = []
    for one in sent:
        mine = started if is_one else [each for each in started if each.stream == (one == "stream")]
        answers += _alone(one, mine)
        answers += [_decide_slo(slo, slos, one, mine) for slo in slos if one in slo.modes]
    if not is_one:
        answers += [("undecided", f"{slo.text}: no such request") for slo in slos if not {*sent} & {*slo.modes}]
    for wanted in ("not met", "undecided"):
        for answer, why in answers:
            if answer == wanted:
                return answer, why
    return "met", "every SLO was met"


def _zero_ns(record: Record) -> int:
    return record.t_start_ns if record.t_due_ns is None else record.t_due_ns


def _alone(mode: Mode, records: Sequence[Record]) -> list[tuple[Answer, str]]:
    """What a level may fail by whatever the SLOs say: errors, refusals for want of room, broken streams, no answer."""
    offered = [each for each in records if each.outcome != "cut"]
    n_ok = sum(each.outcome == "ok" for each in offered)
    n_broken = sum(each.outcome in INTEGRITY for each in offered)
    counts = [
        (sum(each.outcome in FAILED for each in offered), len(offered), ERROR_LIMIT, "requests failed"),
        (sum(each.outcome == "shed" for each in offered), len(offered), ERROR_LIMIT, "requests refused as full"),
    ]
    if mode == "stream":
        counts.append((n_broken, n_ok + n_broken, INTEGRITY_LIMIT, "streams broke"))
    bad: list[tuple[Answer, str]] = [
        ("not met", f"{mode}: {k} of {n} {what}")
        for k, n, limit, what in counts
        if n and clopper_pearson(k, n)[0] > limit
    ]
    return bad if n_ok else [*bad, ("undecided", f"{mode}: no good answer")]


def _decide_slo(slo: Slo, slos: Sequence[Slo], mode: Mode, records: Sequence[Record]) -> tuple[Answer, str]:
    n_cut = sum(each.outcome == "cut" for each in records)
    offered = [each for each in records if each.outcome != "cut"]
    why_not = None
    if slo.stat is not None:
        bounds = _percentile(slo.metric, STATS[slo.stat], records)
        why_not = "too many were cut" if n_cut > CUT_LIMIT * len(records) else _missing(slo.metric, records)
    elif slo.metric == "goodput":
        limits = [each for each in slos if each.kind == "latency" and mode in each.modes]
        bounds = _share(sum(_is_good(each, limits) for each in offered), len(offered)) if limits else None
    else:
        outcomes = FAILED if slo.metric == "error_ratio" else ("shed",)
        bounds = _share(sum(each.outcome in outcomes for each in offered), len(offered))
    return _compare(slo, mode, bounds, why_not)


def _compare(slo: Slo, mode: Mode, bounds: _Bounds | None, why_not: str | None) -> tuple[Answer, str]:
    name = f"{mode}: {slo.text}"
    if bounds is None:
        return "undecided", f"{name}: no value"
    good, bad = (bounds.hi, bounds.lo) if slo.op == "<=" else (bounds.lo, bounds.hi)
    if bad is not None and (bad > slo.limit if slo.op == "<=" else bad < slo.limit):
        return "not met", name
    if why_not is not None:
        return "undecided", f"{name}: {why_not}"
    if good is not None and (good <= slo.limit if slo.op == "<=" else good >= slo.limit):
        return "met", name
    return "undecided", f"{name}: {'too few requests' if good is None else 'too near the limit'}"


def _share(k: int, n: int) -> _Bounds | None:
    return _Bounds(*clopper_pearson(k, n)) if n else None


def _percentile(metric: str, q: float, records: Sequence[Record]) -> _Bounds | None:
    """Bounds of a quantile of (value, censored) pairs; of gaps by as many ranks as there are requests."""
    oks = [each for each in records if each.outcome == "ok"]
    if oks and all(_value(metric, each) is None for each in oks):
        return None
    if metric == "tpot_ms" and len({each.token_source for each in oks if each.token_source is not None}) > 1:
        return None
    pairs, n_clusters = _gaps(records) if metric == "gap_ms" else _one_each(metric, records)
    n = len(pairs)
    if n == 0 or n_clusters == 0:
        return None
    least = sorted(value for value, _ in pairs)
    most = sorted(math.inf if is_censored else value for value, is_censored in pairs)
    lower, upper = rank_bounds(n_clusters, q)
    if metric == "gap_ms":
        lo = None if lower is None else least[max(0, math.floor((lower - 1) / n_clusters * n))]
        return _Bounds(lo, None if upper is None else most[rank(n, upper / n_clusters) - 1])
    return _Bounds(None if lower is None else least[lower - 1], None if upper is None else most[upper - 1])


def _one_each(metric: str, records: Sequence[Record]) -> tuple[list[tuple[float, bool]], int]:
    """One (ms, censored) of each request that counts; refused ones and those we left are in none."""
    pairs: list[tuple[float, bool]] = []
    for each in records:
        value = _value(metric, each)
        if each.outcome in FAILED:
            pairs.append((math.inf, False))
        elif each.outcome == "cut" and metric in ("ttft_ms", "ttfa_ms") and value is not None:
            pairs.append((value, False))
        elif each.outcome == "cut":
            pairs.append((0.0 if metric == "tpot_ms" else (each.t_over_ns - _zero_ns(each)) / 1e6, True))
        elif each.outcome == "ok" and value is not None:
            pairs.append((value, False))
    return pairs, len(pairs)


def _gaps(records: Sequence[Record]) -> tuple[list[tuple[float, bool]], int]:
    """All gaps of the successes; a failed request counts as the median success's number of gaps, each infinite."""
    inside = [each.gaps_us for each in records if each.outcome == "ok" and each.stream and each.gaps_us]
    lengths = sorted(map(len, inside))
    middle = (median_low(lengths) + lengths[len(lengths) // 2]) // 2 if lengths else 1
    typical = max(1, middle)
    n_failed = sum(each.outcome in FAILED for each in records)
    n_cut = sum(each.outcome == "cut" for each in records)
    pairs = [(gap / 1e3, False) for gaps in inside for gap in gaps]
    pairs += [(math.inf, False)] * (n_failed * typical) + [(0.0, True)] * (n_cut * typical)
    return pairs, len(inside) + n_failed + n_cut


def _value(metric: str, record: Record) -> float | None:
    """ms of one request; None where it has no such number."""
    if metric != "e2e_ms" and not record.stream:
        return None
    if metric == "gap_ms":
        return max(record.gaps_us) / 1e3 if record.gaps_us else None
    if metric == "tpot_ms":
        first, last, n = record.t_first_ns, record.t_last_ns, record.n_out
        if first is None or last is None or n is None or n < 2 or not record.gaps_us:
            return None
        return (last - first) / 1e6 / (n - 1)
    end: int | None = getattr(record, _ENDS[metric])
    return None if end is None else (end - _zero_ns(record)) / 1e6


def _has_few_tokens(record: Record) -> bool:
    return record.n_out is not None and record.n_out <= 1


def _missing(metric: str, records: Sequence[Record]) -> str | None:
    of_gaps = metric in ("tpot_ms", "gap_ms")
    should = [each for each in records if each.outcome == "ok" and not (of_gaps and _has_few_tokens(each))]
    lacking = sum(_value(metric, each) is None for each in should)
    return f"{lacking} of {len(should)} lack it" if lacking > MISSING_LIMIT * len(should) else None


def _is_good(record: Record, limits: Sequence[Slo]) -> bool:
    if record.outcome != "ok":
        return False
    for slo in limits:
        value = _value(slo.metric, record)
        if value is None and not (slo.metric in ("tpot_ms", "gap_ms") and _has_few_tokens(record)):
            return False
        if value is not None and value > slo.limit:
            return False
    return True
