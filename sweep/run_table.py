"""Evidence -> what is about the whole run: what went wrong, survival, guards, idle floors, sampler. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sweep.evidence import Evidence
from sweep.left_open import leak_left_open
from sweep.process_table import (
    EDGE_INTERVALS,
    HOLE_INTERVALS,
    NO_PID,
    interval_s,
    memory_bytes,
    memory_source,
    processes_of,
    samples_of,
    subject_of,
    tree_sums,
)
from sweep.records import NOT_THE_TARGETS
from sweep.stats import median, rank
from sweep.units import Level, parse_level
from sweep.windows import StepTimes, ints, t_mark, t_zero

FLOOR_SAMPLES = 5  # a floor is the median of so many samples before the cool-down's end (design §8)
MIN_FLOOR_SAMPLES = 3  # of a cool-down too short for five; the row says how many there were
SHOWN_IDS = 3


@dataclass(frozen=True, slots=True)
class Survival:
    """Whether the process watched was the same to the end. same: None when unknown; why says so, or how it went."""

    tested: bool
    same: bool | None
    died_at_s: float | None
    died_in_step: str | None
    why: str

    def as_json(self) -> dict[str, Any]:
        return {
            "tested": self.tested, "same_process": self.same, "died_at_s": self.died_at_s,
            "died_in_step": self.died_in_step, "text": self.why,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class GuardTrip:
    """One guard that ended a step early, and with it the run or, above the sustained level, the exploring."""

    reason: str
    level: Level | None
    mode: str | None
    step: str | None


def error_table(ev: Evidence, steps: Sequence[StepTimes]) -> list[dict[str, Any]]:
    """One row per (outcome, status, error code) of requests that were not answered, any phase, most frequent first."""
    rows = ev.requests[~ev.requests["outcome"].isin(["ok", *NOT_THE_TARGETS]).to_numpy(dtype=bool)]
    start = t_zero(ev)
    level_of = {times.step: str(times.level) for times in steps}
    order = list(dict.fromkeys(level_of.values()))
    table = []
    for _, group in rows.groupby(["outcome", "status", "error_code"], dropna=False, sort=True):
        group = group.sort_values("t_over_ns", kind="stable")
        outcome, status, code = (group[name].iloc[0] for name in ("outcome", "status", "error_code"))
        seen = {level_of.get(step, step) for step in group["step"]}
        texts = group["error_text"].dropna()
        first, last = int(group["t_over_ns"].iloc[0]), int(group["t_over_ns"].iloc[-1])
        table.append({
            "outcome": str(outcome), "status": None if pd.isna(status) else int(status),
            "error_code": None if pd.isna(code) else str(code), "count": len(group),
            "first_at_s": None if start is None else (first - start) / 1e9,
            "last_at_s": None if start is None else (last - start) / 1e9,
            "levels": [level for level in order if level in seen] + sorted(seen - set(order)),
            "text": str(texts.iloc[0]) if len(texts) else None,
            "request_ids": [str(each) for each in group["request_id"].iloc[:SHOWN_IDS]],
        })  # fmt: skip
    return sorted(table, key=lambda row: (-row["count"], row["outcome"], str(row["status"]), str(row["error_code"])))


def survival(ev: Evidence, steps: Sequence[StepTimes]) -> Survival:
    """Same process to the end, gone, replaced, or unknown; from the samples, the end line and an abort mark."""
    abort = next((mark for mark in ev.marks if mark.mark == "abort" and mark.detail.get("by") == "target"), None)
    subject = subject_of(ev)
    if subject is None:
        if abort is None:
            return Survival(False, None, None, None, f"not tested: {NO_PID}")
        reason = str(abort.detail.get("reason") or "the target stopped answering")
        return Survival(True, False, *_when(ev, steps, abort.t_mono_ns), reason)
    # One sampler ends once. Where several end lines stand, what follows our own end is no death of the target's.
    ended = next((end for end in ev.sampler_ends if end.get("subject") == subject["name"]), {})
    gone = ended.get("reason") == "target_gone"
    if gone and abort is None and _took_the_demo_along(ev):
        return Survival(True, None, None, None, "unknown: the run was killed, and the demo gateway ends with it")
    if gone or abort is not None:
        told = ended if gone else {}
        how = told.get("target_gone") or told
        t_exit = how.get("exit_seen_t_mono_ns") or told.get("t_mono_ns") or (abort.t_mono_ns if abort else None)
        at, step = _when(ev, steps, t_exit)
        reason = "" if abort is None else str(abort.detail.get("reason") or "")
        what = f"the gateway process (pid {subject['pid']}) was gone" if gone else "the target was gone"
        text = what + _at(at, step) + (f": {reason}" if reason else "")
        return Survival(True, False, at, step, text)
    return _identity(ev, steps, subject)


def guard_trips(ev: Evidence, steps: Sequence[StepTimes]) -> tuple[GuardTrip, ...]:
    """Guards that ended the run (its abort mark) or the exploring (the idle mark of the step they closed)."""
    by_step = {times.step: times for times in steps}
    found = []
    for mark in ev.marks:
        if mark.mark == "abort" and mark.detail.get("by") == "guard":
            reason = mark.detail.get("reason")
        elif mark.mark == "idle" and mark.detail.get("guard") is not None:
            reason = mark.detail["guard"]
        else:
            continue
        times = by_step.get(mark.step or "")
        told = mark.detail.get("level")
        level = times.level if times is not None else None if told is None else parse_level(str(told))
        mode = None if times is None else times.mode
        found.append(GuardTrip(str(reason or "a guard tripped"), level, mode, mark.step))
    return tuple(found)


def _took_the_demo_along(ev: Evidence) -> bool:
    """A run that did not come to its end, of the embedded gateway, which the kernel ends with the tool."""
    return bool(ev.run["plan"].get("demo")) and t_mark(ev, "finish") is None


def _identity(ev: Evidence, steps: Sequence[StepTimes], subject: dict[str, Any]) -> Survival:
    rows = ev.processes[ev.processes["is_root"].to_numpy(dtype=bool)]
    rows = rows[(rows["subject"] == subject["name"]).to_numpy(dtype=bool)].dropna(subset=["start_ticks"])
    if rows.empty:
        return Survival(True, None, None, None, "unknown: the sampler left no sample of the gateway process")
    ticks = rows["start_ticks"].iloc[0] if subject.get("start_ticks") is None else subject["start_ticks"]
    same = (rows["pid"] == subject["pid"]) & (rows["start_ticks"] == ticks)
    other = rows[~same.to_numpy(dtype=bool)]
    if len(other) or rows["incarnation"].nunique() > 1:
        t_first = int(other["t_mono_ns"].iloc[0]) if len(other) else int(rows["t_mono_ns"].iloc[-1])
        at, step = _when(ev, steps, t_first)
        return Survival(True, False, at, step, "the gateway process was replaced by another one" + _at(at, step))
    if not any(end.get("subject") == subject["name"] for end in ev.sampler_ends):
        return Survival(True, None, None, None, "unknown: the sampler was stopped before it wrote its end line")
    ends = [times.t_end_ns for times in steps if times.t_end_ns is not None]
    if ends and int(rows["t_mono_ns"].max()) < max(ends):
        return Survival(True, None, None, None, "unknown: the sampler stopped before the last step ended")
    n, pid = len(rows), subject["pid"]
    return Survival(True, True, None, None, f"the same gateway process (pid {pid}) from first to last of {n} samples")


def floors(ev: Evidence, steps: Sequence[StepTimes]) -> list[dict[str, Any]]:
    """Memory, descriptors and threads of the tree at the end of each cycle's last cool-down."""
    if subject_of(ev) is None:
        return []
    found = []
    source = memory_source(ev, steps)
    for cycle in sorted({times.cycle for times in steps}):
        last = [times for times in steps if times.cycle == cycle][-1]
        row: dict[str, Any] = {"cycle": cycle, "n": 0, "memory_bytes": None, "fds": None, "threads": None,
                               "limit_bytes": None, "why": None}  # fmt: skip
        samples = samples_of(ev)
        t_ns, _ = ints(samples["t_mono_ns"])
        before = samples[t_ns <= last.t_idle_ns] if last.t_idle_ns is not None else samples.iloc[:0]
        idle = before[ints(before["t_mono_ns"])[0] >= _or_first(last.t_end_ns, t_ns)].tail(FLOOR_SAMPLES)
        row["n"] = len(idle)
        if len(idle) < MIN_FLOOR_SAMPLES:
            row["why"] = (
                "the cycle's last cool-down was not finished" if last.t_idle_ns is None
                else f"{len(idle)} of {MIN_FLOOR_SAMPLES} samples in the cycle's last cool-down"
            )  # fmt: skip
        else:
            row |= _floor(ev, idle, source)
        found.append(row)
    return found


def leak_text(ev: Evidence, steps: Sequence[StepTimes]) -> str:
    """Why growth from cycle to cycle was not judged, by the cycles that ran and the floors that were taken."""
    cycles = {times.cycle for times in steps}
    n_alone = sum(cycle > int(ev.run["plan"].get("cycles", 1)) for cycle in cycles)
    n_missing = sum(row["why"] is not None for row in floors(ev, steps))
    missing = f", {n_missing} without a floor" if n_missing and len(cycles) > 1 else ""
    return f"leak: not tested ({leak_left_open(len(cycles), n_alone)}{missing})"


def holes(ev: Evidence) -> list[tuple[int, int]]:
    """(from, to) in monotonic ns of each stretch without a sample that is longer than 2.5 intervals."""
    t_ns, _ = ints(samples_of(ev)["t_mono_ns"])
    wide = np.flatnonzero(np.diff(t_ns) > HOLE_INTERVALS * interval_s(ev) * 1e9)
    return [(int(t_ns[i]), int(t_ns[i + 1])) for i in wide]


def process_evidence_why(ev: Evidence, times: StepTimes) -> str | None:
    """Why the process evidence of a step's window is incomplete, or None."""
    if times.t_window_ns is None or times.t_close_ns is None:
        return "its window never opened"
    t_ns, _ = ints(samples_of(ev)["t_mono_ns"])
    if not len(t_ns):
        return "no sample"
    if not ev.sampler_starts:
        return "the sampler's start line is missing, so how often it was to sample is unknown"
    near_ns = EDGE_INTERVALS * interval_s(ev) * 1e9
    for edge, t_edge in (("start", times.t_window_ns), ("end", times.t_close_ns)):
        away_ns = int(np.abs(t_ns - t_edge).min())
        if away_ns > near_ns:
            return f"the nearest sample is {away_ns / 1e9:.1f} s from the window's {edge}"
    for begin, end in holes(ev):
        if begin < times.t_close_ns and end > times.t_window_ns:
            return f"a hole of {(end - begin) / 1e9:.1f} s without a sample in the window"
    return None


def sampler_summary(ev: Evidence) -> dict[str, Any] | None:
    """What the sampler cost and how late it was; None without samples."""
    samples = samples_of(ev)
    if samples.empty:
        return None
    start = t_zero(ev)
    t_ns, _ = ints(samples["t_mono_ns"])
    cpu, has_cpu = ints(samples["cpu_ns"])
    span_ns = int(t_ns[-1] - t_ns[0])
    used = cpu[has_cpu]
    lags = np.sort(samples["lag_ns"].dropna().to_numpy(dtype=np.float64))
    cost = median(samples["cost_ns"].dropna().to_numpy(dtype=np.float64))
    zero = int(t_ns[0]) if start is None else start
    return {
        "n_samples": len(samples),
        "n_processes": int(processes_of(ev).groupby("t_mono_ns").size().max()),
        "holes": [{"from_s": (a - zero) / 1e9, "to_s": (b - zero) / 1e9} for a, b in holes(ev)],
        "cpu_share": float(used[-1] - used[0]) / span_ns if len(used) > 1 and span_ns > 0 else None,
        "cost_us_median": None if cost is None else cost / 1e3,
        "lag_ms_p99": float(lags[rank(len(lags), 0.99) - 1]) / 1e6 if len(lags) else None,
    }


def visibility(ev: Evidence) -> list[dict[str, Any]]:
    """Sources of process evidence that could not be read, each with the reason."""
    seen = {
        (str(each.get("source")), each.get("why"))
        for start in ev.sampler_starts for each in start.get("visibility") or [] if each.get("readable") is False
    }  # fmt: skip
    return [{"source": source, "why": why} for source, why in sorted(seen, key=str)]


def _floor(ev: Evidence, idle: pd.DataFrame, source: str) -> dict[str, Any]:
    processes = ev.processes[ev.processes["t_mono_ns"].isin(idle["t_mono_ns"]).to_numpy(dtype=bool)]
    memory = memory_bytes(ev, idle, source)
    fds, threads = (tree_sums(processes, name) for name in ("n_fds", "n_threads"))
    limits, has_limit = ints(idle["cgroup_memory_limit_bytes"])
    return {
        name: median(np.asarray(values, dtype=np.float64))
        for name, values in (("memory_bytes", memory), ("fds", fds), ("threads", threads))
    } | {"limit_bytes": int(limits[has_limit].min()) if has_limit.any() else None}


def _when(ev: Evidence, steps: Sequence[StepTimes], t_ns: int | None) -> tuple[float | None, str | None]:
    """(seconds since the start of the run, the step that was going on) of an instant."""
    start = t_zero(ev)
    if t_ns is None:
        return None, None
    going = [times for times in steps if times.t_begin_ns is not None and times.t_begin_ns <= t_ns]
    inside = [times for times in going[-1:] if times.t_idle_ns is None or t_ns <= times.t_idle_ns]
    return None if start is None else (t_ns - start) / 1e9, inside[0].step if inside else None


def _at(at_s: float | None, step: str | None) -> str:
    return ("" if at_s is None else f" {at_s:.1f} s after the start") + ("" if step is None else f", in step {step}")


def _or_first(t_ns: int | None, times: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    return t_ns if t_ns is not None else int(times[0]) if len(times) else 0
