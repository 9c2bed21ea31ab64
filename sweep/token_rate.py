"""Requests -> output tokens by arrival inside the window (the set `arrived`), per second. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from sweep import stats
from sweep.stats import Value
from sweep.windows import Bools, Floats, Ints, Sets, ints

# Successes without any token count that a rate may leave out; more of them and it is unknown.
UNCOUNTED_LIMIT = 0.01
MIXED = "token source mixed: some answers have the server's token count and some only ours"
BLOCK = 20_000  # requests whose reads are laid out at once: some 100 MB at 128 tokens


class TokenRate(NamedTuple):
    """Tokens per second, and who counted them: `usage` (the server), `events` (we), `mixed`, or None."""

    value: Value
    source: str | None


def token_rate(requests: pd.DataFrame, sets: Sets, mask: Bools, window_s: float) -> TokenRate:
    """Output tokens that arrived in the windows of the requests' steps, whatever phase their request started in.

    Read times are rebuilt from t_first and the gaps; with the server's count a read's events are scaled to it. An
    answer that was not streamed arrives at its end. Bounds: those of the request rate, for tokens come in requests.
    """
    rows = requests[mask]
    outcome = sets.outcome[mask]
    ok = np.asarray(outcome == "ok", dtype=bool)
    source, why = _source(rows[ok])
    if why is not None:
        return TokenRate(stats.unknown(why), source)
    if not window_s > 0:
        return TokenRate(stats.unknown("no time measured"), source)
    n_tokens = _arrived(rows, ok, sets.t_window_ns[mask], sets.t_close_ns[mask])
    k = int((sets.completed & mask).sum())
    lo, hi = stats.poisson_bounds(k)
    v = n_tokens / window_s
    bounds = (v * lo / k, v * hi / k) if k else (None, None)
    return TokenRate(Value(v, k, *bounds), source)


def _source(answered: pd.DataFrame) -> tuple[str | None, str | None]:
    """(who counted, why there is no rate)."""
    if answered.empty:
        return None, "no successful answer"
    told = answered["token_source"].dropna()
    sources = sorted(told.unique())
    if len(sources) > 1:
        return "mixed", MIXED
    n_untold = len(answered) - len(told)
    if n_untold > UNCOUNTED_LIMIT * len(answered):
        return (sources[0] if sources else None), f"{n_untold} of {len(answered)} answers have no token count"
    return sources[0], None


def _arrived(rows: pd.DataFrame, ok: Bools, t_window_ns: Ints, t_close_ns: Ints) -> float:
    t_first, has_first = ints(rows["t_first_ns"])
    t_end, has_end = ints(rows["t_end_ns"])
    n_out, has_n = ints(rows["n_out"])
    n_events = rows["n_events"].to_numpy(dtype=np.int64)
    whole = ok & ~has_first & has_end & has_n
    inside = whole & (t_end >= t_window_ns) & (t_end < t_close_ns)
    total = float(n_out[inside].sum())
    streamed = np.flatnonzero(has_first)
    scale = _scale(n_out, n_events, has_n)
    gaps, read_tokens = (rows[name].to_numpy(dtype=object) for name in ("gaps_us", "read_tokens"))
    for begin in range(0, len(streamed), BLOCK):
        some = streamed[begin : begin + BLOCK]
        n_reads = np.fromiter((len(each) + 1 for each in gaps[some]), dtype=np.int64, count=len(some))
        since_ns = _since_first(list(gaps[some]), n_reads) * 1000
        t_read = np.repeat(t_first[some], n_reads) + since_ns
        is_in = (t_read >= np.repeat(t_window_ns[some], n_reads)) & (t_read < np.repeat(t_close_ns[some], n_reads))
        ones = [np.ones(n) if each is None else each for each, n in zip(read_tokens[some], n_reads, strict=True)]
        total += float((np.concatenate(ones) * np.repeat(scale[some], n_reads))[is_in].sum())
    return total


def _since_first(gaps: list[Ints], n_reads: Ints) -> Ints:
    """Microseconds of every read after the first read of its request, flat."""
    steps = np.zeros(int(n_reads.sum()), dtype=np.int64)
    firsts = np.cumsum(n_reads) - n_reads
    later = np.ones(len(steps), dtype=bool)
    later[firsts] = False
    steps[later] = np.concatenate(gaps)
    run = np.cumsum(steps)
    return np.asarray(run - np.repeat(run[firsts], n_reads), dtype=np.int64)


def _scale(n_out: Ints, n_events: Ints, has_n: Bools) -> Floats:
    """Tokens an event stands for: by the request's own count, else by that of all which have one."""
    counted = has_n & (n_events > 0)
    overall = float(n_out[counted].sum() / n_events[counted].sum()) if counted.any() else 1.0
    return np.where(counted, n_out / np.maximum(n_events, 1), overall)
