"""Requests of an open loop -> whether they started when they were due, and their times from either instant. Pure.

A latency counts from t_due, so what the generator was late by would be charged to the target: a step whose generator
did not keep the schedule is invalid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from sweep import stats
from sweep.arrivals import START_LAG_LIMIT_MS, STARTED_LIMIT, Arrivals, too_few_due
from sweep.latency import percentiles, timed
from sweep.slo import STATS
from sweep.stats import Value
from sweep.windows import Bools, Floats, Sets, StepTimes, ints

METRICS = ("ttft_ms", "e2e_ms")  # shown from both instants
LAG_STATS = ("p50", "p99")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Of one step. due: in its window, with unstarted; unstarted: of the whole step, for they are those of its end.

    lags_ms: how late each that was due in the window started. untold: a process whose report tells no due ones.
    """

    due: int
    unstarted: int
    lags_ms: Floats
    untold: str | None

    @property
    def lag_p99_ms(self) -> float | None:
        return _percentiles(self.lags_ms)["p99"].v


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Of one level and mode. due, unstarted: of its steps together. start_lag_ms, from_start: stat -> value, and metric
    -> stat -> value of latencies counted from t_start, beside those of the level that count from t_due."""

    due: int
    unstarted: int
    start_lag_ms: Mapping[str, Value]
    from_start: Mapping[str, Mapping[str, Value]]

    def as_json(self) -> dict[str, Any]:
        """A level's `open_loop` in result.json."""
        return {
            "due": self.due, "unstarted": self.unstarted,
            "start_lag_ms": {stat: value.as_json() for stat, value in self.start_lag_ms.items()},
            "from_start": {
                metric: {stat: value.as_json() for stat, value in values.items()}
                for metric, values in self.from_start.items()
            },
        }  # fmt: skip


def schedule(times: StepTimes, requests: pd.DataFrame, in_window: Bools) -> Schedule | None:
    """What one step shows of its schedule; None for a closed loop, and without the counts of its processes.

    in_window: of all requests, those of this step that were due in its window.
    """
    report = times.report
    if times.level.kind != "rate" or report is None:
        return None
    lags_ms = _lags_ms(requests[in_window])
    untold = next((process.worker for process in report.processes if process.due is None), None)
    unstarted = sum(max(0, process.due - process.started) for process in report.processes if process.due is not None)
    return Schedule(int(in_window.sum()) + unstarted, unstarted, lags_ms, untold)


def late_why(times: StepTimes, kept: Schedule | None, arrivals: Arrivals) -> str | None:
    """How the generator did not keep the schedule of an open-loop step, or None."""
    if kept is None or times.window_s <= 0:
        return None
    if kept.untold is not None:
        return f"{kept.untold}: how many requests were due is unknown"
    lag_ms = kept.lag_p99_ms
    started = kept.due - kept.unstarted
    if started < STARTED_LIMIT * kept.due:
        return f"generator late: {started} of {kept.due} due requests were started"
    if too_few_due(kept.due, times.level.value, times.window_s, arrivals):
        return f"generator late: {kept.due} requests were due in {times.window_s:.0f} s at {times.level}"
    if lag_ms is not None and lag_ms > START_LAG_LIMIT_MS:
        limit = f"limit {START_LAG_LIMIT_MS:.0f} ms"
        return f"generator late: requests started {lag_ms:.0f} ms after they were due at p99, {limit}"
    return None


def open_loop(
    requests: pd.DataFrame, sets: Sets, mask: Bools, schedules: Sequence[Schedule | None], *, stream: bool, valid: bool
) -> OpenLoop | None:
    """Of the steps of one level and mode, whose requests the mask holds; None for a closed loop.

    valid: else latencies are unknown; how late the generator was is shown all the same.
    """
    kept = [each for each in schedules if each is not None]
    if not kept:
        return None
    since_start = replace(sets, t_zero_ns=requests["t_start_ns"].to_numpy(dtype=np.int64))
    of = timed(requests, since_start, mask, stream=stream)
    lags = _percentiles(np.concatenate([each.lags_ms for each in kept]))
    return OpenLoop(
        due=sum(each.due for each in kept),
        unstarted=sum(each.unstarted for each in kept),
        start_lag_ms={stat: lags[stat] for stat in LAG_STATS},
        from_start={
            metric: percentiles(of, metric) if valid else dict.fromkeys(STATS, stats.unknown("invalid step"))
            for metric in (METRICS if stream else METRICS[1:])
        },
    )


def _lags_ms(requests: pd.DataFrame) -> Floats:
    due, is_due = ints(requests["t_due_ns"])
    start = requests["t_start_ns"].to_numpy(dtype=np.int64)
    return np.asarray((start - due)[is_due] / 1e6, dtype=np.float64)


def _percentiles(values: Floats) -> dict[str, Value]:
    none = np.zeros(len(values), dtype=bool)
    return {stat: stats.percentile(values, none, q) for stat, q in STATS.items()}
