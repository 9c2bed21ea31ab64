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
from sweep.arrivals import Arrivals
from sweep.evidence import Evidence
from sweep.lateness import LAG_LIMIT_MS, Second, seconds_inside
from sweep.lateness import late_why as generator_late_why
from sweep.punctual import Schedule, late_why, schedule
from sweep.records import FAILED, UNFIRED
from sweep.step_files import ProcessReport, disagreement
from sweep.windows import Floats, Ints, Sets, StepTimes, ints, t_zero


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step. counts_why, generator_why, key_why, others_why: what makes it invalid, None when all is well.

    shed: in every phase. failed_outside: failures that did not start in the window. late_s: of the window, with the
    generator late. achieved_min: of the worst second; connections_max: of the busiest process; ports_left_min: of any.
    schedule: None in a closed loop.
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
    schedule: Schedule | None = None
    others_why: str | None = None
    key_why: str | None = None
    achieved_min: float | None = None
    connections_max: float | None = None
    ports_left_min: float | None = None
    ports_why: str | None = None

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
            "unstarted": None if self.schedule is None else self.schedule.unstarted,
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
    kept = schedule(times, ev.requests, mine & (sets.offered | sets.cut))
    return StepRow(
        times=times,
        counts_why=_drive_why(ev, times.step) or _counts_why(times, records, sets.t_close_ns[mine]),
        generator_why=_generator_why(times, lines) or late_why(times, kept, _arrivals(ev)),
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
        achieved_min=stats.smallest(seen["achieved_ratio"].dropna()),
        connections_max=stats.largest(seen.groupby("worker")["connections"].max()),
        ports_left_min=stats.smallest(seen["ports_left"].dropna()),
        ports_why=next(iter(seen["ports_why"].dropna()), None) if seen["ports_left"].isna().all() else None,
        schedule=kept,
    )


def _arrivals(ev: Evidence) -> Arrivals:
    return "constant" if ev.run["plan"].get("arrivals") == "constant" else "poisson"


def _counts_why(times: StepTimes, records: pd.DataFrame, t_close_ns: Ints) -> str | None:
    """What does not agree between Locust's counts and the records, or None. t_close_ns: of each record's process."""
    report = times.report
    if times.level.value == 0 and report is not None:
        return "it only observes, and has records of requests" if len(records) else None
    if report is None:
        return f"no locust/{times.step}.json: the step was killed before its counts were written"
    if not report.processes:
        return "no load process told its counts"
    for process in report.processes:
        why = _process_why(process, records[records["worker"] == process.worker])
        if why is not None:
            return f"{process.worker}: {why}"
    n_early = 0 if times.t_close_ns is None else _cut_before(records, t_close_ns)
    if n_early:
        return f"{n_early} requests are said to be cut by the end of the step, and were over before it"
    strangers = sorted(set(records["worker"].unique()) - {process.worker for process in report.processes})
    if strangers:
        return f"records of {', '.join(strangers)}, which told no counts"
    if not report.counts_agree:
        return report.why or "Locust's counts disagree"
    if times.window_s <= 0:
        return "its window never opened"
    return _due_why(times, records)


def _due_why(times: StepTimes, records: pd.DataFrame) -> str | None:
    """Without its due instant, or with one after its start, an arrival's latency leaves out what it waited for."""
    if times.level.kind != "rate":
        return None
    due, is_due = ints(records["t_due_ns"])
    n_wrong = int((~is_due | (due > records["t_start_ns"].to_numpy(dtype=np.int64))).sum())
    return f"{n_wrong} arrivals have no due instant at or before their start" if n_wrong else None


def _cut_before(records: pd.DataFrame, t_close_ns: Ints) -> int:
    """Only the end of a step cuts, and it begins with the close of its window."""
    return int(((records["outcome"] == "cut") & (records["t_over_ns"] < t_close_ns)).sum())


def _drive_why(ev: Evidence, step: str) -> str | None:
    """The step in which the locustfile, or the prompts, were found changed: which of the two drove it is not known."""
    aborts = [mark.detail for mark in ev.marks if mark.mark == "abort" and mark.step == step]
    return next((str(detail.get("reason")) for detail in aborts if detail.get("by") in ("locustfile", "prompts")), None)


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
    assert times.t_window_ns is not None and times.t_close_ns is not None  # its window has a length
    return generator_late_why(_seconds(lines), times.t_window_ns, times.t_close_ns)


def _seconds(lines: pd.DataFrame) -> list[Second]:
    """The lines of one process, by time."""
    return [
        Second(int(t_ns), *(None if pd.isna(value) else float(value) for value in (cpu, lag, share)))
        for t_ns, cpu, lag, share in zip(
            lines["t_mono_ns"], lines["cpu_share"], lines["lag_p99_ms"], _ports_share(lines), strict=True
        )
    ]


def _ports_share(lines: pd.DataFrame) -> pd.Series[Any]:
    """Free ephemeral ports towards the target / all; NA where either is unknown."""
    share: pd.Series[Any] = lines["ports_left"].astype("Float64") / lines["ports"].astype("Float64")
    return share


def _late_s(times: StepTimes, lines: pd.DataFrame) -> float:
    """Seconds of the window in which a generator timer was late, whether or not that made the step invalid."""
    late = lines[lines["lag_p99_ms"].astype("Float64").fillna(np.inf) > LAG_LIMIT_MS]
    seconds = _seconds_inside(lines["t_mono_ns"].to_numpy(dtype=np.int64), times)
    return float(seconds[lines.index.isin(late.index)].sum())


def _seconds_inside(t_ns: Ints, times: StepTimes) -> Floats:
    if times.t_window_ns is None or times.t_close_ns is None:
        return np.zeros(len(t_ns))
    return np.array(seconds_inside([int(t) for t in t_ns], times.t_window_ns, times.t_close_ns), dtype=np.float64)


def _in_window(lines: pd.DataFrame, times: StepTimes) -> pd.DataFrame:
    """Lines that speak for any part of the window: the one after its close ends the last second."""
    if times.t_window_ns is None or times.t_close_ns is None:
        return lines.iloc[:0]
    t_ns = lines["t_mono_ns"]
    return lines[(t_ns > times.t_window_ns) & (t_ns < times.t_close_ns + 1_000_000_000)]
