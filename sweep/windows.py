"""Evidence -> when each step's window was, and which request belongs to which of the three sets. Pure.

offered: started in [window, close), minus cut. completed: ok, with t_end in it. arrived: reads in it (token_rate.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from sweep.errors import EvidenceError, PlanError
from sweep.evidence import Evidence
from sweep.other_clocks import instants_of_workers
from sweep.plan import SweepPlan
from sweep.plan_json import from_json
from sweep.records import MarkName
from sweep.step_files import StepReport
from sweep.units import EITHER, Level, parse_level

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step that began: what it was, and its instants (CLOCK_MONOTONIC ns, None when not reached).

    guessed: the step left no locust/<step>.json and no marks, so window and close are those of its records' phases.
    """

    step: str
    level: Level
    mode: str
    cycle: int
    t_begin_ns: int | None
    t_open_ns: int | None
    t_window_ns: int | None
    t_close_ns: int | None
    t_end_ns: int | None
    t_idle_ns: int | None
    report: StepReport | None
    guessed: bool

    @property
    def window_s(self) -> float:
        """Length of the measured window; 0 when it never opened."""
        if self.t_window_ns is None or self.t_close_ns is None:
            return 0.0
        return max(0, self.t_close_ns - self.t_window_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Sets:
    """Arrays as long as the requests frame. code: index of the request's step, -1 for none (the preflight).

    t_zero_ns: t_due in the open loop, else t_start. t_window_ns and t_close_ns: those of the request's step.
    offered excludes cut; both started in the window.
    """

    code: Ints
    t_zero_ns: Ints
    t_window_ns: Ints
    t_close_ns: Ints
    outcome: npt.NDArray[np.object_]
    offered: Bools
    cut: Bools
    completed: Bools

    def of(self, codes: Sequence[int]) -> Bools:
        """The requests of these steps."""
        return np.isin(self.code, np.array(list(codes), dtype=np.int64))


def plan_of(run: dict[str, Any]) -> SweepPlan:
    """The plan as it was run. Raises EvidenceError when run.json does not hold one."""
    try:
        return from_json(run["plan"])
    except (PlanError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise EvidenceError(f"run.json: its plan cannot be read: {error!r}; the file was changed or damaged") from error


def step_times(ev: Evidence) -> tuple[StepTimes, ...]:
    """Steps that began, in the order of the plan."""
    marks: dict[str, dict[str, int]] = {}
    for mark in ev.marks:
        if mark.step is not None:
            marks.setdefault(mark.step, {})[mark.mark] = mark.t_mono_ns
    began = set(marks) | set(ev.step_files) | set(ev.requests["step"].dropna().unique())
    return tuple(
        _times(ev, planned, marks.get(planned["step"], {})) for planned in planned_steps(ev) if planned["step"] in began
    )


def planned_steps(ev: Evidence) -> list[dict[str, Any]]:
    """run.json's steps, each with `level` as a Level. Raises EvidenceError when one lacks a key."""
    found = []
    for planned in ev.run.get("steps", []):
        try:
            suffix = "/s" if planned["kind"] == "rate" and "/s" not in str(planned["level"]) else ""
            level = parse_level(f"{planned['level']}{suffix}")
            found.append({**planned, "level": level, "mode": str(planned["mode"]), "cycle": int(planned["cycle"])})
        except (KeyError, TypeError, ValueError, PlanError) as error:
            raise EvidenceError(f"run.json: a step cannot be read: {error!r}; the file was damaged") from error
    return found


def planned_modes(ev: Evidence, planned: Sequence[tuple[str, Level, str]]) -> tuple[tuple[Level, str], ...]:
    """(level, mode) of the planned steps, each once, in their order: what tables and gates speak of.

    A step of mode `mixed` or `user` stands for each mode it sent at that level, and for its own if it sent nothing.
    """
    pairs: dict[tuple[Level, str], None] = {}
    for _, level, mode in planned:
        if mode not in EITHER:
            pairs[level, mode] = None
            continue
        steps = [step for step, at, _ in planned if at == level]
        streamed = set(ev.requests["stream"][ev.requests["step"].isin(steps)])
        found = [name for name, stream in (("stream", True), ("nonstream", False)) if stream in streamed]
        pairs |= {(level, name): None for name in found or [mode]}
    return tuple(pairs)


def sets(ev: Evidence, steps: Sequence[StepTimes]) -> Sets:
    """Sorts every request by the window of its own step, as its own machine saw it."""
    requests = ev.requests
    index = pd.Index([step.step for step in steps], dtype="object")
    code = index.get_indexer(pd.Index(requests["step"].astype(object))).astype(np.int64)
    # The last row is for requests of no step: a window nothing lies in.
    window = np.array([_or(step.t_window_ns, 0) for step in steps] + [0], dtype=np.int64)[code]
    close = np.array([_or(step.t_close_ns, 0) for step in steps] + [0], dtype=np.int64)[code]
    told = {step.step: step.report.processes for step in steps if step.report is not None}
    window = instants_of_workers(requests, window, "t_window_ns", told, ev.ahead_ns)
    close = instants_of_workers(requests, close, "t_close_ns", told, ev.ahead_ns)
    due, is_due = ints(requests["t_due_ns"])
    zero = np.where(is_due, due, requests["t_start_ns"].to_numpy(dtype=np.int64))
    outcome = requests["outcome"].to_numpy(dtype=object)
    started = (zero >= window) & (zero < close)
    t_end, has_end = ints(requests["t_end_ns"])
    is_cut = outcome == "cut"
    return Sets(
        code=code, t_zero_ns=zero, t_window_ns=window, t_close_ns=close, outcome=outcome,
        offered=started & ~is_cut, cut=started & is_cut,
        completed=(outcome == "ok") & has_end & (t_end >= window) & (t_end < close),
    )  # fmt: skip


def ints(column: pd.Series[Any]) -> tuple[Ints, Bools]:
    """Values of an Int64 column (0 where missing) and which are known."""
    known = column.notna().to_numpy(dtype=bool)
    return column.fillna(0).to_numpy(dtype=np.int64), known


def t_mark(ev: Evidence, name: MarkName) -> int | None:
    """Monotonic ns of the first mark of a name."""
    return next((mark.t_mono_ns for mark in ev.marks if mark.mark == name), None)


def t_zero(ev: Evidence) -> int | None:
    """The instant that seconds since the start of the run count from: the start mark, else the first one."""
    start = t_mark(ev, "start")
    return start if start is not None else next((mark.t_mono_ns for mark in ev.marks), None)


def _times(ev: Evidence, planned: dict[str, Any], marks: dict[str, int]) -> StepTimes:
    step = planned["step"]
    report = _report(ev, step)
    instants = {
        name: getattr(report, f"t_{name}_ns") if report is not None else marks.get(name)
        for name in ("open", "window", "close", "end")
    }
    guessed = False
    if report is None and (instants["window"] is None or instants["close"] is None):
        rows = ev.requests[ev.requests["step"] == step]
        inside = rows[rows["phase"] == "window"]
        if len(inside):
            guessed = True
            instants["window"] = _or(instants["window"], int(inside["t_start_ns"].min()))
            instants["close"] = _or(instants["close"], int(rows["t_over_ns"].max()) + 1)
    return StepTimes(
        step=step, level=planned["level"], mode=planned["mode"], cycle=planned["cycle"],
        t_begin_ns=marks.get("begin"), t_open_ns=instants["open"], t_window_ns=instants["window"],
        t_close_ns=instants["close"], t_end_ns=instants["end"], t_idle_ns=marks.get("idle"),
        report=report, guessed=guessed,
    )  # fmt: skip


def _report(ev: Evidence, step: str) -> StepReport | None:
    content = ev.step_files.get(step)
    if content is None:
        return None
    try:
        return msgspec.convert(content, StepReport)
    except msgspec.ValidationError as error:
        raise EvidenceError(f"locust/{step}.json: {error}; the file was changed or damaged") from error


def _or(value: int | None, instead: int) -> int:
    return instead if value is None else value
