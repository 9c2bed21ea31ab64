"""Records of workers on other machines, brought to the clock of the run's own machine. Pure.

CLOCK_MONOTONIC starts at each machine's boot. The master wrote its own clock beside each generator line as it came: the
least difference is the clocks' and the way here. The window's opening, as the master said and the worker heard it,
gives the clocks' less the way there. Their middle is taken; half of both ways is the error. Which set a record belongs
to is asked on the worker's own clock all the same: the instants it noted are shifted like its records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Ahead = Mapping[tuple[str, str], int]  # (step, worker) -> ns to add to its instants


def ahead_ns(generator: pd.DataFrame, step_files: Mapping[str, Mapping[str, Any]]) -> Ahead:
    """What to add to the instants of each process of another machine; one of the run's own has no entry."""
    least: dict[tuple[str, str], int] = {}
    for name, report in step_files.items():
        processes = report.get("processes")
        for process in processes if isinstance(processes, list) else ():
            theirs, ours = (each.get("t_window_ns") if isinstance(each, dict) else None for each in (process, report))
            if isinstance(theirs, int) and isinstance(ours, int):
                least[name, str(process.get("worker"))] = ours - theirs
    there = generator[generator["t_master_ns"].notna()]
    most = {
        (str(pair[0]), str(pair[1])): int((lines["t_master_ns"] - lines["t_mono_ns"]).min())
        for pair, lines in there.groupby(["step", "worker"])
    }
    return {
        pair: (least.get(pair, most.get(pair, 0)) + most.get(pair, least.get(pair, 0))) // 2 for pair in least | most
    }


def on_our_clock(lines: pd.DataFrame, names: Sequence[str], ahead: Ahead) -> pd.DataFrame:
    """The lines with these columns shifted; lines must have `step` and `worker`."""
    if not ahead:
        return lines
    shift = _shift(lines, ahead)
    return lines.assign(**{name: lines[name] + shift for name in names})


def instants_of_workers(
    requests: pd.DataFrame, ours: npt.NDArray[np.int64], name: str, processes: Mapping[str, Sequence[Any]], ahead: Ahead
) -> npt.NDArray[np.int64]:
    """An instant of each request's step: the master's, or that of its own worker on another machine, shifted.

    ours: the master's, one a request. name: t_window_ns or t_close_ns. processes: each step's ProcessReports.
    """
    found = ours.copy()
    for step, reports in processes.items():
        for process in reports:
            theirs = getattr(process, name)
            if theirs is not None:
                mine = ((requests["step"] == step) & (requests["worker"] == process.worker)).to_numpy(dtype=bool)
                found[mine] = theirs + ahead.get((step, process.worker), 0)
    return found


def _shift(lines: pd.DataFrame, ahead: Ahead) -> npt.NDArray[np.int64]:
    shift = np.zeros(len(lines), dtype=np.int64)
    for (step, worker), ns in ahead.items():
        shift[((lines["step"] == step) & (lines["worker"] == worker)).to_numpy(dtype=bool)] = ns
    return shift
