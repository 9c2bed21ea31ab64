"""Requests -> latencies as values with bounds, and which requests met every latency limit. Pure.

Failure-aware: a failed or truncated request counts as infinite, a cut one as "that long or longer"; refused ones and
those we left ourselves have gates of their own and are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sweep import stats
from sweep.records import FAILED
from sweep.slo import STATS, Slo
from sweep.slo_decision import MISSING_LIMIT
from sweep.stats import Value
from sweep.token_rate import MIXED
from sweep.windows import Bools, Floats, Sets, ints

LATENCIES = ("ttft_ms", "ttfa_ms", "tpot_ms", "gap_ms", "e2e_ms")

_ENDS = {"ttft_ms": "t_first_ns", "ttfa_ms": "t_answer_ns", "e2e_ms": "t_end_ns"}


@dataclass(frozen=True, slots=True)
class Timed:
    """The requests of one level and mode that started in the window, in step with each other.

    values[metric]: ms of each request, NaN where it has none. gap_ms: its longest gap; gaps: all of each.
    mixed_tokens: the successes' tokens were counted by the server for some and by us for others.
    """

    outcome: np.ndarray[tuple[int], np.dtype[np.object_]]
    values: Mapping[str, Floats]
    over_ms: Floats
    few_tokens: Bools
    gaps: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]]
    mixed_tokens: bool = False

    @property
    def ok(self) -> Bools:
        return np.asarray(self.outcome == "ok", dtype=bool)


def timed(requests: pd.DataFrame, sets: Sets, mask: Bools, stream: bool) -> Timed:
    """Latencies of the requests in the mask that started in their window.

    stream: also those that need a stream; without it only e2e_ms has values.
    """
    mask = mask & (sets.offered | sets.cut)
    rows, zero = requests[mask], sets.t_zero_ns[mask]
    values = {}
    for metric, end in _ENDS.items():
        t_end, known = ints(rows[end])
        values[metric] = np.where(known, (t_end - zero) / 1e6, np.nan)
    first, has_first = ints(rows["t_first_ns"])
    last, has_last = ints(rows["t_last_ns"])
    n_out, has_n = ints(rows["n_out"])
    gaps = list(rows["gaps_us"])
    n_gaps = np.fromiter((len(each) for each in gaps), dtype=np.int64, count=len(gaps))
    is_tpot = has_first & has_last & has_n & (n_out >= 2) & (n_gaps >= 1)
    values["tpot_ms"] = np.where(is_tpot, (last - first) / 1e6 / np.maximum(n_out - 1, 1), np.nan)
    longest = [each.max() / 1e3 if len(each) else np.nan for each in gaps]
    values["gap_ms"] = np.array(longest, dtype=np.float64)
    is_stream = rows["stream"].to_numpy(dtype=bool) if stream else np.zeros(len(rows), dtype=bool)
    for metric in ("ttft_ms", "ttfa_ms", "tpot_ms", "gap_ms"):
        values[metric] = np.where(is_stream, values[metric], np.nan)
    return Timed(
        outcome=sets.outcome[mask],
        values=values,
        over_ms=(rows["t_over_ns"].to_numpy(dtype=np.int64) - zero) / 1e6,
        few_tokens=has_n & (n_out <= 1),
        gaps=gaps,
        mixed_tokens=rows["token_source"][sets.outcome[mask] == "ok"].nunique() > 1,
    )


def percentiles(of: Timed, metric: str, *, successes_only: bool = False) -> dict[str, Value]:
    """p50, p90, p95, p99 of a metric; of every request, or of the successes alone. Unknown values carry why."""
    if metric == "tpot_ms" and of.mixed_tokens:
        return dict.fromkeys(STATS, stats.unknown(MIXED))
    if of.ok.any() and np.isnan(of.values[metric][of.ok]).all():
        why = missing_why(of, metric) or f"no successful answer has a {metric}"
        return {stat: stats.unknown(why) for stat in STATS}
    if metric == "gap_ms":
        values, censored, n_clusters = _pooled_gaps(of, successes_only)
        return {stat: stats.clustered_percentile(values, censored, n_clusters, q) for stat, q in STATS.items()}
    values, censored = one_each(of, metric, successes_only=successes_only)
    return {stat: stats.percentile(values, censored, q) for stat, q in STATS.items()}


def missing_why(of: Timed, metric: str) -> str | None:
    """Why too many successes lack the number for it to decide anything, or None. An answer of one token has no gap."""
    should = of.ok & ~of.few_tokens if metric in ("tpot_ms", "gap_ms") else of.ok
    lacking = int((should & np.isnan(of.values[metric])).sum())
    n = int(should.sum())
    if lacking and lacking > MISSING_LIMIT * n:
        return f"{lacking} of {n} successful answers have no {metric}"
    return None


def is_good(of: Timed, limits: Sequence[Slo]) -> Bools:
    """Successes that met every latency limit, whatever its percentile; a number that should be there and is not: no."""
    good = of.ok.copy()
    for slo in limits:
        values = of.values[slo.metric]
        met = np.nan_to_num(values, nan=np.inf) <= slo.limit
        if slo.metric in ("tpot_ms", "gap_ms"):
            met |= np.isnan(values) & of.few_tokens
        good &= met
    return good


def one_each(of: Timed, metric: str, *, successes_only: bool = False) -> tuple[Floats, Bools]:
    """(values, censored), one of each request that counts and has a value; a failed one's is infinite."""
    values = np.where(of.ok, of.values[metric], np.nan)
    censored = np.zeros(len(values), dtype=bool)
    if not successes_only:
        values[np.isin(of.outcome, FAILED)] = np.inf
        cut = of.outcome == "cut"
        if metric in ("ttft_ms", "ttfa_ms"):
            # The first token may have come before the step cut the rest: then its time is known.
            known = cut & ~np.isnan(of.values[metric])
            values[known] = of.values[metric][known]
            cut = cut & ~known
        # A token rate may still fall or rise: of a cut request's TPOT only "at least 0" is known.
        values[cut] = 0.0 if metric == "tpot_ms" else of.over_ms[cut]
        censored[cut] = True
    has = ~np.isnan(values)
    return values[has], censored[has]


def _pooled_gaps(of: Timed, successes_only: bool) -> tuple[Floats, Bools, int]:
    """(all gaps, censored, requests they are of).

    A failed request counts as the gaps it did not deliver, as many as the median success has, each infinite; a cut one
    likewise, each "0 or longer": otherwise one long answer would hide many that never came.
    """
    inside = of.ok & ~np.isnan(of.values["gap_ms"])
    parts = [gaps for gaps, counts in zip(of.gaps, inside, strict=True) if counts]
    flat = np.concatenate(parts) / 1e3 if parts else np.empty(0)
    if successes_only:
        return flat, np.zeros(len(flat), dtype=bool), len(parts)
    typical = max(1, int(np.median([len(part) for part in parts]))) if parts else 1
    n_failed, n_cut = int(np.isin(of.outcome, FAILED).sum()), int((of.outcome == "cut").sum())
    values = np.concatenate([flat, np.full(n_failed * typical, np.inf), np.zeros(n_cut * typical)])
    censored = np.zeros(len(values), dtype=bool)
    censored[len(values) - n_cut * typical :] = True
    return values, censored, len(parts) + n_failed + n_cut
