"""Evidence -> one row a step: its counts, its instants, and whether its numbers are about the target at all. Pure.

A step is invalid when its counts disagree, a worker was lost, the load generator was late or saturated, our key expired
in it, or others' traffic (others_table.py) was too much of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from sweep import expiry, stats
from sweep.evidence import Evidence
from sweep.records import FAILED, UNFIRED
from sweep.step_files import ProcessReport, disagreement
from sweep.windows import Bools, Floats, Ints, Sets, StepTimes, t_zero

CPU_SHARE_LIMIT = 0.7  # of one core, by one Locust process; above it gevent answers late
LAG_LIMIT_MS = 20.0  # p99 lateness of a 10 ms timer
# A single late second (a garbage collection, a neighbour) does not spoil a window; this many in a row do, and more than
# this share of it. Windows under 6 s: half of them.
LATE_S = 3.0
LATE_SHARE = 0.1
_ROUNDING_S = 0.5  # generator lines are about a second apart, and the window opens between two of them


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step. counts_why, generator_why, key_why, others_why: what makes it invalid, None when all is well.

    shed: in every phase. failed_outside: failures that did not start in the window. late_s: of the window, with the
    generator late.
    """

    times: StepTimes
    counts_why: str | None
    generator_why: str | None
    started: int | None
    lines: int
    sent: int
    offered: int
    ok: int
    cut: int
    shed: int
    failed_outside: int
    cpu_share_max: float | None
    lag_p99_ms_max: float | None
    late_s: float = 0.0
    others_why: str | None = None
    key_why: str | None = None

    @property
    def valid(self) -> bool:
        return self.invalid_why is None

    @property
    def invalid_why(self) -> str | None:
        whys = (self.counts_why, self.generator_why, self.key_why, self.others_why)
        return "; ".join(why for why in whys if why is not None) or None

    @property
    def users_min(self) -> int | None:
        return None if self.times.report is None else self.times.report.users_min

    def as_json(self, t_zero_ns: int | None) -> dict[str, Any]:
        """The row in result.json; instants in seconds since the start of the run."""
        times = self.times

        def since(t_ns: int | None) -> float | None:
            return None if t_ns is None or t_zero_ns is None else (t_ns - t_zero_ns) / 1e9

        return {
            "step": times.step, "level": str(times.level), "mode": times.mode, "cycle": times.cycle,
            "valid": self.valid, "invalid_why": self.invalid_why,
            "closed_by": None if times.report is None else times.report.closed_by,
            "started": self.started, "lines": self.lines, "sent": self.sent,
            "offered": self.offered, "ok": self.ok, "cut": self.cut, "window_s": times.window_s,
            "t_open_s": since(times.t_open_ns), "t_window_s": since(times.t_window_ns),
            "t_close_s": since(times.t_close_ns), "t_end_s": since(times.t_end_ns),
        }  # fmt: skip


def step_rows(ev: Evidence, steps: Sequence[StepTimes], sets: Sets) -> tuple[StepRow, ...]:
    """One row a step that began, in the order of the plan."""
    expired = expiry.expired(ev, steps, sets)
    return tuple(replace(_row(ev, times, sets, code), key_why=expired.get(code)) for code, times in enumerate(steps))


def step_table(ev: Evidence, rows: Sequence[StepRow]) -> list[dict[str, Any]]:
    """result.json's `steps`."""
    start = t_zero(ev)
    return [row.as_json(start) for row in rows]


def _row(ev: Evidence, times: StepTimes, sets: Sets, code: int) -> StepRow:
    mine = sets.code == code
    records = ev.requests[mine]
    lines = ev.generator[ev.generator["step"] == times.step]
    seen = _in_window(lines, times)
    report = times.report
    return StepRow(
        times=times,
        counts_why=_drive_why(ev, times.step) or _counts_why(times, records),
        generator_why=_generator_why(times, lines),
        started=None if report is None else sum(process.started for process in report.processes),
        lines=len(records),
        sent=int(records["t_sent_ns"].notna().sum()),
        offered=int((mine & sets.offered).sum()),
        ok=int((mine & sets.offered & (sets.outcome == "ok")).sum()),
        cut=int((mine & sets.cut).sum()),
        shed=int((mine & (sets.outcome == "shed")).sum()),
        failed_outside=int((mine & ~sets.offered & np.isin(sets.outcome, FAILED)).sum()),
        cpu_share_max=stats.largest(seen["cpu_share"].dropna()),
        lag_p99_ms_max=stats.largest(seen["lag_p99_ms"].dropna()),
        late_s=_late_s(times, lines),
    )


def _counts_why(times: StepTimes, records: pd.DataFrame) -> str | None:
    """What does not agree between Locust's counts and the records, or None."""
    report = times.report
    if report is None:
        return f"no locust/{times.step}.json: the step was killed before its counts were written"
    if not report.processes:
        return "no load process told its counts"
    for process in report.processes:
        why = _process_why(process, records[records["worker"] == process.worker])
        if why is not None:
            return f"{process.worker}: {why}"
    n_early = 0 if times.t_close_ns is None else _cut_before(records, times.t_close_ns)
    if n_early:
        return f"{n_early} requests are said to be cut by the end of the step, and were over before it"
    strangers = sorted(set(records["worker"].unique()) - {process.worker for process in report.processes})
    if strangers:
        return f"records of {', '.join(strangers)}, which told no counts"
    if not report.counts_agree:
        return report.why or "Locust's counts disagree"
    if times.window_s <= 0:
        return "its window never opened"
    return None


def _cut_before(records: pd.DataFrame, t_close_ns: int) -> int:
    """Only the end of a step cuts, and it begins with the close of its window."""
    return int(((records["outcome"] == "cut") & (records["t_over_ns"] < t_close_ns)).sum())


def _drive_why(ev: Evidence, step: str) -> str | None:
    """The step in which the locustfile was found changed: which of the two drove it is not known."""
    aborts = [mark.detail for mark in ev.marks if mark.mark == "abort" and mark.step == step]
    return next((str(detail.get("reason")) for detail in aborts if detail.get("by") == "locustfile"), None)


def _lost(records: pd.DataFrame) -> int:
    """Each load process numbers its requests from 1, whatever else is counted; ids of another form tell nothing."""
    numbers = records["request_id"].str.extract(r"-(\d+)$")[0].dropna().astype(np.int64)
    return 0 if len(numbers) < len(records) or numbers.empty else int(numbers.max()) - numbers.nunique()


def _process_why(process: ProcessReport, records: pd.DataFrame) -> str | None:
    if not process.ended:
        return "worker lost: it sent no end"
    if len(records) != process.started:
        return f"{process.started} requests started but {len(records)} records in requests/"
    n_lost = _lost(records)
    if n_lost:
        return f"by the numbers in their ids {n_lost} requests were sent that have no record"
    counted = {name: count for name, count in process.outcomes.items() if count}
    written = {str(name): int(count) for name, count in records["outcome"].value_counts().items()}
    if counted != written:
        return "the records' outcomes are not those the process counted"
    n_sent = int(records["t_sent_ns"].notna().sum())
    if n_sent != process.sent:
        return f"{process.sent} requests sent but {n_sent} records say so"
    finished = len(records) - sum(written.get(name, 0) for name in UNFIRED)
    if finished != process.locust_requests:
        return f"{finished} finished records but Locust counted {process.locust_requests}"
    return disagreement(process)


def _generator_why(times: StepTimes, lines: pd.DataFrame) -> str | None:
    """How the load generator was not what it should be during the window, or None."""
    report = times.report
    if report is None or times.level.value == 0:
        return None
    if times.level.kind == "concurrency":
        if report.users_min is None:
            return "how many users were alive is unknown"
        if report.users_min < report.users_wanted:
            return f"{report.users_min} of {report.users_wanted} users alive during the window"
    if times.window_s <= 0:
        return None
    for process in report.processes:
        mine = lines[lines["worker"] == process.worker].sort_values("t_mono_ns")
        why = _late_why(times, mine)
        if why is not None:
            return f"{process.worker}: {why}"
    return None


def _late_why(times: StepTimes, lines: pd.DataFrame) -> str | None:
    if _in_window(lines, times).empty:
        return "no generator/ line of the window, so whether it was saturated is unknown"
    limit_s = min(LATE_S, times.window_s / 2)
    seconds = _seconds_inside(lines["t_mono_ns"].to_numpy(dtype=np.int64), times)
    silent_s = times.window_s - float(seconds.sum())
    if silent_s > limit_s:
        return f"no generator/ line for {silent_s:.0f} s of {times.window_s:.0f} s"
    for name, limit, text in (
        ("cpu_share", CPU_SHARE_LIMIT, "generator saturated: CPU share {:.2f} of a core, limit {:.1f}"),
        ("lag_p99_ms", LAG_LIMIT_MS, "generator late: timer p99 {:.1f} ms, limit {:.0f} ms"),
    ):
        values = lines[name].astype("Float64").to_numpy(dtype=np.float64, na_value=np.inf)
        bad = values > limit
        total_s = float(seconds[bad].sum())
        longest_s = max((float(seconds[run].sum()) for run in _runs(bad)), default=0.0)
        if total_s > 0 and (longest_s > limit_s - _ROUNDING_S or total_s > max(limit_s, LATE_SHARE * times.window_s)):
            worst = float(values[bad & (seconds > 0)].max())
            told = text.format(worst, limit) if np.isfinite(worst) else f"{name} unknown"
            return f"{told}; {total_s:.0f} s of {times.window_s:.0f} s"
    return None


def _late_s(times: StepTimes, lines: pd.DataFrame) -> float:
    """Seconds of the window in which a generator timer was late, whether or not that made the step invalid."""
    late = lines[lines["lag_p99_ms"].astype("Float64").fillna(np.inf) > LAG_LIMIT_MS]
    seconds = _seconds_inside(lines["t_mono_ns"].to_numpy(dtype=np.int64), times)
    return float(seconds[lines.index.isin(late.index)].sum())


def _seconds_inside(t_ns: Ints, times: StepTimes) -> Floats:
    """Time of the window each line speaks for: from the line before (1 s for the first) to its own instant.

    A process that stood still wrote nothing meanwhile; the line after it speaks for all that time.
    """
    before = np.concatenate([t_ns[:1] - 1_000_000_000, t_ns[:-1]])
    if times.t_window_ns is None or times.t_close_ns is None:
        return np.zeros(len(t_ns))
    seconds: Floats = (np.minimum(t_ns, times.t_close_ns) - np.maximum(before, times.t_window_ns)) / 1e9
    return np.clip(seconds, 0, None)


def _runs(bad: Bools) -> list[slice]:
    """Stretches of consecutive true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], bad, [False]]).astype(np.int8)))
    return [slice(int(begin), int(end)) for begin, end in zip(edges[::2], edges[1::2], strict=True)]


def _in_window(lines: pd.DataFrame, times: StepTimes) -> pd.DataFrame:
    """Lines that speak for any part of the window: the one after its close ends the last second."""
    if times.t_window_ns is None or times.t_close_ns is None:
        return lines.iloc[:0]
    t_ns = lines["t_mono_ns"]
    return lines[(t_ns > times.t_window_ns) & (t_ns < times.t_close_ns + 1_000_000_000)]
