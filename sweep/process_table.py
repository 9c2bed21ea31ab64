"""Samples -> what the gateway's process tree used in some windows: CPU, memory, descriptors, threads. Pure.

Ticks, pages and kB of the evidence become cores, milliseconds and bytes here. A process is known by pid and start time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from sweep import stats
from sweep.evidence import Evidence
from sweep.stats import Value
from sweep.windows import Bools, Sets, StepTimes, ints

MIN_SAMPLES = 3  # in a window, for its two ends not to be the whole story (metrics.md)
SHOWN = 10  # processes named as having done the work
HOLE_INTERVALS = 2.5  # a longer time without a sample is a hole (facts §1.4)
EDGE_INTERVALS = 1.5  # a window's edge needs a sample this near
CGROUP, RSS_SUM = "cgroup anon", "sum of RssAnon"  # where memory comes from
NO_PID = "no gateway process was watched (no --gateway-pid)"
# One tick is 10 ms nearly everywhere; a start line always says it, this is for one that is lost.
CLK_TCK = 100


@dataclass(frozen=True, slots=True)
class Amount:
    """Median and maximum over samples of a window, or None and why."""

    v: float | None = None
    most: float | None = None
    why: str | None = NO_PID
    source: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {"v": self.v, "max": self.most, "source": self.source, "why": self.why}


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What the tree used, pooled over windows. by_process: the ones that did the work, most first."""

    cpu_cores: Value = field(default_factory=lambda: stats.unknown(NO_PID))
    cpu_ms_per_request: Value = field(default_factory=lambda: stats.unknown(NO_PID))
    by_process: tuple[dict[str, Any], ...] = ()
    memory_anon_bytes: Amount = field(default_factory=Amount)
    fds: Amount = field(default_factory=Amount)
    threads: Amount = field(default_factory=Amount)
    ctx_switches_per_s: Value = field(default_factory=lambda: stats.unknown(NO_PID))

    @staticmethod
    def unknown(why: str) -> ProcessUse:
        """Nothing is known, for one reason."""
        value, amount = stats.unknown(why), Amount(why=why)
        return ProcessUse(value, value, (), amount, amount, amount, value)

    def as_json(self) -> dict[str, Any]:
        """The process keys of a level row of result.json."""
        return {
            "cpu_cores": self.cpu_cores.as_json(),
            "cpu_ms_per_request": self.cpu_ms_per_request.as_json(),
            "cpu_by_process": list(self.by_process),
            "memory_anon_bytes": self.memory_anon_bytes.as_json(),
            "fds": self.fds.as_json(),
            "threads": self.threads.as_json(),
            "ctx_switches_per_s": self.ctx_switches_per_s.as_json(),
        }


def subject_of(ev: Evidence) -> dict[str, Any] | None:
    """The process that was watched, as run.json names it: the first of its subjects, None without --gateway-pid."""
    subjects = ev.run.get("subjects") or []
    return dict(subjects[0]) if subjects else None


def samples_of(ev: Evidence) -> pd.DataFrame:
    """Samples of the subject in time order."""
    subject = subject_of(ev)
    if subject is None:
        return ev.samples.iloc[:0]
    mine = (ev.samples["subject"] == subject["name"]).to_numpy(dtype=bool)
    samples: pd.DataFrame = ev.samples.loc[mine]
    return samples.sort_values("t_mono_ns")


def processes_of(ev: Evidence) -> pd.DataFrame:
    """Rows of the subject's processes, in the order of the file."""
    subject = subject_of(ev)
    if subject is None:
        return ev.processes.iloc[:0]
    mine = (ev.processes["subject"] == subject["name"]).to_numpy(dtype=bool)
    rows: pd.DataFrame = ev.processes.loc[mine]
    return rows


def interval_s(ev: Evidence) -> float:
    """Seconds between samples, as the sampler's start line says."""
    return next((float(start["interval_s"]) for start in ev.sampler_starts if start.get("interval_s")), 1.0)


def process_use(ev: Evidence, steps: Sequence[StepTimes], sets: Sets, source: str) -> ProcessUse:
    """What the tree used in the windows of these steps; unknown with the reason when it was not seen often enough.

    source: of memory, as `memory_source` says for the run.
    """
    if subject_of(ev) is None:
        return ProcessUse()
    t_samples, _ = ints(samples_of(ev)["t_mono_ns"])
    spans = []
    for times in steps:
        if times.t_window_ns is None or times.t_close_ns is None:
            continue
        inside = t_samples[(t_samples >= times.t_window_ns) & (t_samples <= times.t_close_ns)]
        if len(inside) >= MIN_SAMPLES:
            spans.append((int(inside[0]), int(inside[-1])))
    if len(spans) < len(steps) or not spans:
        return ProcessUse.unknown(f"fewer than {MIN_SAMPLES} samples in the window")
    parts = [_processes(ev, span) for span in spans]
    cores, per_request, by_process = _cpu(ev, parts, sum(_completions(ev, sets, span) for span in spans))
    return ProcessUse(
        cores, per_request, by_process, _memory(ev, spans, source), _sum(parts, "n_fds"), _sum(parts, "n_threads"),
        _switches(parts),
    )  # fmt: skip


def memory_source(ev: Evidence, steps: Sequence[StepTimes]) -> str:
    """CGROUP or RSS_SUM, decided once a run: CGROUP if the cgroup held only this tree in every sample of the windows.

    Otherwise two levels, or a level and the floor after it, would show two different quantities.
    """
    windows = [(t.t_window_ns, t.t_close_ns) for t in steps if t.t_window_ns is not None and t.t_close_ns is not None]
    inside = [_between(samples_of(ev), window) for window in windows]
    n = sum(len(part) for part in inside)
    return CGROUP if n and all(_is_alone(part).all() for part in inside) else RSS_SUM


def memory_bytes(ev: Evidence, samples: pd.DataFrame, source: str) -> pd.Series[float]:
    """Anonymous memory of the tree, one value a sample by its t_mono_ns; NaN where it is unknown."""
    t_ns = samples["t_mono_ns"].to_numpy(dtype=np.int64)
    if source == RSS_SUM:
        return tree_sums(processes_of(ev), "rss_anon_kb").reindex(t_ns) * 1024
    anon = samples["cgroup_memory_anon_bytes"].astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
    return pd.Series(np.where(_is_alone(samples), anon, np.nan), index=t_ns)


def tree_sums(processes: pd.DataFrame, name: str) -> pd.Series[float]:
    """Sum of a field over the tree by t_mono_ns, ascending; NaN where a live process of it could not be read.

    A zombie has no memory and no descriptors left, so its missing fields are nothing rather than unknown. A sample of
    nothing but zombies has no sum.
    """
    live = processes[(processes["state"] != "Z").fillna(True).to_numpy(dtype=bool)]
    values = live[name].astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
    by_time = pd.Series(values, index=live["t_mono_ns"].to_numpy(dtype=np.int64))
    return by_time.groupby(level=0).sum(skipna=False)


def _is_alone(samples: pd.DataFrame) -> Bools:
    """Samples whose cgroup held only this tree and told its anonymous memory."""
    alone = samples["cgroup_only_this_tree"].fillna(False).to_numpy(dtype=bool)
    return np.asarray(alone & samples["cgroup_memory_anon_bytes"].notna().to_numpy(dtype=bool), dtype=bool)


def _memory(ev: Evidence, spans: Sequence[tuple[int, int]], source: str) -> Amount:
    samples = pd.concat([_between(samples_of(ev), span) for span in spans])
    amount = _amount(memory_bytes(ev, samples, source), "memory of the tree")
    return amount if amount.v is None else replace(amount, source=source)


def _processes(ev: Evidence, span: tuple[int, int]) -> pd.DataFrame:
    return _between(processes_of(ev), span)


def _between(frame: pd.DataFrame, span: tuple[int, int]) -> pd.DataFrame:
    t_ns, _ = ints(frame["t_mono_ns"])
    return frame[(t_ns >= span[0]) & (t_ns <= span[1])]


def _sum(parts: Sequence[pd.DataFrame], name: str) -> Amount:
    return _amount(pd.concat([tree_sums(part, name) for part in parts]), f"{name} of the tree")


def _amount(values: pd.Series[float], what: str) -> Amount:
    known = values.dropna()
    if len(known) < MIN_SAMPLES:
        return Amount(why=f"{what} was readable in {len(known)} of {len(values)} samples")
    return Amount(float(known.median()), float(known.max()), None)


@dataclass(frozen=True, slots=True)
class _Growth:
    """What counters of each process grew by inside one span (columns pid, comm, grown), between two samples of it."""

    rows: pd.DataFrame
    duration_s: float
    n_samples: int


def _growth(part: pd.DataFrame, names: Sequence[str]) -> _Growth | None:
    """Growth of the sum of the named counters; None when the root's were readable in fewer than MIN_SAMPLES samples.

    A process born inside counts from 0; one that went counts up to its last sample, what it did after that is lost.
    """
    part = part.dropna(subset=["start_ticks"]).sort_values("t_mono_ns", kind="stable")
    total = part[list(names)].sum(axis=1, skipna=False)
    first_seen = part.groupby(["pid", "start_ticks"])["t_mono_ns"].transform("min")
    rows = part.assign(total=total, is_born=first_seen > part["t_mono_ns"].min())[total.notna().to_numpy(dtype=bool)]
    t_root = rows.loc[rows["is_root"].to_numpy(dtype=bool), "t_mono_ns"]
    if t_root.nunique() < MIN_SAMPLES:
        return None
    by_process = rows.groupby(["pid", "start_ticks"], sort=True)
    first, last = by_process.first(), by_process.last()
    before = np.where(first["is_born"].to_numpy(dtype=bool), 0.0, first["total"].to_numpy(dtype=np.float64))
    grown = last["total"].to_numpy(dtype=np.float64) - before
    table = pd.DataFrame({"comm": last["comm"], "grown": grown}).reset_index()
    return _Growth(table, (int(t_root.max()) - int(t_root.min())) / 1e9, t_root.nunique())


def _ended_children(part: pd.DataFrame) -> pd.DataFrame:
    """CPU ticks of children that lived between two samples, or on after their last one, as a row of the root's.

    A parent that waits for a child takes over its ticks, so the tree's sum with them loses nothing; what that sum grew
    by beyond its processes seen is theirs. Source: proc_pid_stat(5), fields 16 and 17.
    """
    names = ["utime_ticks", "stime_ticks", "cutime_ticks", "cstime_ticks"]
    whole = part.assign(total=part[names].sum(axis=1, skipna=False))
    by_time = whole.groupby("t_mono_ns", sort=True)["total"].agg(lambda each: each.sum(skipna=False))
    seen = _growth(part, names[:2])
    root = part[part["is_root"].to_numpy(dtype=bool)]
    if seen is None or by_time.isna().any() or len(by_time) < 2:
        return seen.rows.iloc[:0] if seen is not None else pd.DataFrame({"pid": [], "comm": [], "grown": []})
    missed = float(by_time.iloc[-1] - by_time.iloc[0]) - float(seen.rows["grown"].sum())
    row = {"pid": [int(root["pid"].iloc[0])], "comm": ["(ended children)"], "grown": [missed]}
    return pd.DataFrame(row if missed > 0 else {name: [] for name in row})


def _pooled(parts: Sequence[pd.DataFrame], names: Sequence[str], what: str) -> _Growth | str:
    """Growth over several spans, or why there is none."""
    growths = [_growth(part, names) for part in parts]
    known = [growth for growth in growths if growth is not None]
    if len(known) < len(growths):
        return f"{what} of the process could not be read"
    rows = pd.concat([growth.rows for growth in known], ignore_index=True)
    if (rows["grown"] < 0).any():
        return f"{what} of a process ran backwards"
    return _Growth(rows, sum(g.duration_s for g in known), sum(g.n_samples for g in known))


def _cpu(ev: Evidence, parts: Sequence[pd.DataFrame], n_done: int) -> tuple[Value, Value, tuple[dict[str, Any], ...]]:
    """(cores, ms a request, the processes that did the work)."""
    clk_tck = next((int(start["clk_tck"]) for start in ev.sampler_starts if start.get("clk_tck")), CLK_TCK)
    growth = _pooled(parts, ("utime_ticks", "stime_ticks"), "CPU ticks")
    if isinstance(growth, str):
        return stats.unknown(growth), stats.unknown(growth), ()
    rows = pd.concat([growth.rows, *(_ended_children(part) for part in parts)], ignore_index=True)
    used_s = rows["grown"] / clk_tck
    cores = Value(float(used_s.sum()) / growth.duration_s, growth.n_samples)
    by_process = used_s.groupby([rows["pid"], rows["comm"].fillna("?")], sort=True).sum()
    busy = by_process[by_process > 0].sort_values(ascending=False, kind="stable").head(SHOWN)
    keys = busy.index.to_list()
    named = [
        {"pid": int(pid), "comm": str(comm), "cores": float(seconds) / growth.duration_s}
        for (pid, comm), seconds in zip(keys, busy, strict=True)
    ]
    if n_done == 0:
        return cores, stats.unknown("no request was completed between the samples"), tuple(named)
    return cores, Value(float(used_s.sum()) * 1000 / n_done, n_done), tuple(named)


def _switches(parts: Sequence[pd.DataFrame]) -> Value:
    growth = _pooled(parts, ("ctx_voluntary", "ctx_involuntary"), "context switches")
    if isinstance(growth, str):
        return stats.unknown(growth)
    return Value(float(growth.rows["grown"].sum()) / growth.duration_s, growth.n_samples)


def _completions(ev: Evidence, sets: Sets, span: tuple[int, int]) -> int:
    """Requests answered between two samples."""
    t_end, known = ints(ev.requests["t_end_ns"])
    return int((known & (sets.code >= 0) & (sets.outcome == "ok") & (t_end > span[0]) & (t_end <= span[1])).sum())
