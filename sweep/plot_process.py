"""The gateway's process tree over time: memory, CPU and descriptors on one time axis, measured windows as bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sweep import wording
from sweep.evidence import Evidence
from sweep.plot_style import BAD, INK, LINES, MODE_COLOUR, MUTED, few_ticks, legend, panels, swatch, to_svg
from sweep.process_table import (
    CLK_TCK,
    HOLE_INTERVALS,
    interval_s,
    memory_bytes,
    memory_source,
    processes_of,
    samples_of,
    tree_sums,
)
from sweep.windows import step_times

Json = Mapping[str, Any]

MOST_LABELS = 24  # above the bands; more run into each other
PANELS = (
    ("memory_bytes", "Memory, MiB", 1 / 1024**2),
    ("cpu_cores", "CPU, cores", 1.0),
    ("n_fds", "Open file descriptors", 1.0),
)


def process(evidence: Evidence, result: Json) -> str | None:
    """Memory, CPU and descriptors of the first subject's tree, one point a sample; None without samples."""
    series = tree_series(evidence)
    shown = [panel for panel in PANELS if series[panel[0]].notna().any()]
    if not shown:
        return None
    figure, axes = panels(len(shown), 1.1 * len(shown) + 0.75, share_x=True)
    words = []
    for axis, (key, title, factor) in zip(axes, shown, strict=True):
        values = series[key].to_numpy() * factor
        axis.plot(series["t_s"], values, color=INK, linewidth=1.1, linestyle=LINES[0])
        axis.set_title(title + (f" ({series.attrs['memory_source']})" if key == "memory_bytes" else ""))
        top = float(np.nanmax(values))
        axis.set_ylim(0, top * 1.22 if top > 0 else 1)
        few_ticks(axis.yaxis, 4, integer=key == "n_fds")
        axis.grid(visible=False, axis="x")
        axis.margins(x=0.01)
        known = values[~np.isnan(values)]
        words.append(f"{title}: first {wording.number(float(known[0]))}, highest {wording.number(top)}, "
                     f"last {wording.number(float(known[-1]))}, n {len(known)} samples.")  # fmt: skip
    legend(figure, _bands(axes, result["steps"]))
    _death(axes, result)
    few_ticks(axes[-1].xaxis, 6)
    n = int(series[shown[0][0]].notna().sum())
    axes[-1].set_xlabel(f"seconds since the start of the run (n {n:,} samples)")
    return to_svg(figure, "process", "Gateway process tree over time", " ".join(words))


def tree_series(evidence: Evidence) -> pd.DataFrame:
    """One row a sample of the subject: t_s since the start mark, memory_bytes, cpu_cores, n_fds; NaN if unknown.

    A sum is unknown when one live process of the tree could not be read; a row of NaN stands in each hole.
    attrs["memory_source"] says what memory is.
    """
    samples = samples_of(evidence)
    series = pd.DataFrame(columns=["t_s", "memory_bytes", "cpu_cores", "n_fds"], dtype=float)
    if samples.empty or not evidence.marks:
        return series
    processes = processes_of(evidence)
    t_ns = samples["t_mono_ns"].to_numpy(dtype=np.int64)
    source = memory_source(evidence, step_times(evidence))
    columns = {
        "memory_bytes": memory_bytes(evidence, samples, source),
        "cpu_cores": _cpu_cores(evidence, t_ns, processes),
        "n_fds": tree_sums(processes, "n_fds").reindex(t_ns),
    }
    series = pd.DataFrame({"t_s": (t_ns - evidence.marks[0].t_mono_ns) / 1e9})
    for name, values in columns.items():
        series[name] = values.to_numpy()
    series = _with_holes(series, interval_s(evidence))
    series.attrs["memory_source"] = source
    return series


def _cpu_cores(evidence: Evidence, t_ns: npt.NDArray[np.int64], processes: pd.DataFrame) -> pd.Series[float]:
    """CPU time used since the sample before / time since then; a process's first sample adds nothing."""
    clk_tck = next((int(start["clk_tck"]) for start in evidence.sampler_starts if start.get("clk_tck")), CLK_TCK)
    ordered = processes.sort_values("t_mono_ns", kind="stable")
    used = (ordered["utime_ticks"] + ordered["stime_ticks"]).astype("Float64")
    grown = used.groupby([ordered["pid"], ordered["start_ticks"]]).diff().to_numpy(dtype=np.float64, na_value=np.nan)
    ticks = pd.Series(grown, index=ordered["t_mono_ns"].to_numpy(dtype=np.int64)).groupby(level=0).sum(min_count=1)
    since_s = pd.Series(t_ns, index=t_ns).diff() / 1e9
    return ticks.reindex(t_ns) / clk_tck / since_s


def _with_holes(series: pd.DataFrame, interval: float) -> pd.DataFrame:
    before = series["t_s"].shift()
    is_after_hole = series["t_s"] - before > HOLE_INTERVALS * interval
    breaks = pd.DataFrame({"t_s": (series["t_s"] + before)[is_after_hole] / 2}, columns=series.columns, dtype=float)
    return pd.concat([series, breaks]).sort_values("t_s", ignore_index=True) if len(breaks) else series


def _bands(axes: Sequence[Any], steps: Sequence[Json]) -> list[tuple[Any, str]]:
    """Each measured window as a band, hatched for nonstream, its level above the first panel; gives legend handles."""
    measured = [step for step in steps if step["t_window_s"] is not None and step["t_close_s"] is not None]
    handles: dict[str, tuple[Any, str]] = {}
    for step in measured:
        begin, end, mode = step["t_window_s"], step["t_close_s"], step["mode"]
        colour = MODE_COLOUR.get(mode, MUTED)
        # Fill and hatch apart: the SVG writer gives a hatch the fill of one opaque colour.
        fill = {"facecolor": colour, "alpha": 0.15, "linewidth": 0}
        hatch = {"facecolor": "none", "edgecolor": colour, "alpha": 0.5, "linewidth": 0, "hatch": "///"}
        looks: list[dict[str, Any]] = [fill, hatch] if mode == "nonstream" else [fill]
        for axis in axes:
            for look in looks:
                axis.axvspan(begin, end, **look)
        handles.setdefault(mode, (tuple(swatch(**look) for look in looks), f"{mode}: window of a level"))
        if len(measured) <= MOST_LABELS:
            axes[0].annotate(str(step["level"]), ((begin + end) / 2, 1), xycoords=("data", "axes fraction"),
                             xytext=(0, -1.5), textcoords="offset points", ha="center", va="top", color=INK,
                             fontsize=8.5)  # fmt: skip
    return list(handles.values())


def _death(axes: Sequence[Any], result: Json) -> None:
    at = result["survival"]["died_at_s"]
    if at is None:
        return
    for axis in axes:
        axis.axvline(at, color=BAD, linewidth=1.4, linestyle=LINES[1])
    axes[0].annotate("✕ gateway gone", (at, 0.5), xycoords=("data", "axes fraction"), xytext=(-4, 0),
                     textcoords="offset points", ha="right", va="center", color=BAD, fontsize=8.5)  # fmt: skip
