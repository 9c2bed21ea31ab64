"""Writes marks.jsonl: instants with three clocks, and prefix seals of the raw files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sweep import outdir
from sweep.clocks import boot_id, read_clocks
from sweep.errors import EvidenceError
from sweep.records import Mark, MarkName, to_line
from sweep.seal import PrefixSeals
from sweep.step_files import StepReport


class MarkFile:
    """One run's marks, in the order they are made."""

    def __init__(self, out_dir: Path) -> None:
        self._lines = outdir.LineFile(out_dir / outdir.MARKS)
        self._seals = PrefixSeals(out_dir)

    def make(self, name: MarkName, step: str | None = None, *, sealed: bool = False, **detail: Any) -> Mark:
        """A mark of this instant."""
        seals = self._seals.take() if sealed else []
        mark = Mark(mark=name, step=step, detail=detail, seals=seals, **read_clocks())
        self._lines.append(to_line(mark))
        return mark

    def copy(self, report: StepReport) -> None:
        """The instants of a step as its Locust process saw them, on this machine's clocks."""
        boot_ns = report.clocks["t_boot_ns"] - report.clocks["t_mono_ns"]
        wall_ns = report.clocks["t_wall_ns"] - report.clocks["t_mono_ns"]
        instants: tuple[tuple[MarkName, int | None], ...] = (
            ("open", report.t_open_ns), ("window", report.t_window_ns), ("close", report.t_close_ns),
            ("end", report.t_end_ns),
        )  # fmt: skip
        for name, t_ns in instants:
            if t_ns is not None:
                detail = {"closed_by": report.closed_by} if name == "close" else {}
                mark = Mark(
                    mark=name, step=report.step, t_mono_ns=t_ns, t_boot_ns=t_ns + boot_ns, t_wall_ns=t_ns + wall_ns,
                    detail=detail,
                )  # fmt: skip
                self._lines.append(to_line(mark))

    def close(self) -> None:
        self._lines.close()


def read_report(out_dir: Path, step: str) -> StepReport | None:
    """What Locust counted; None when it ended without saying. Raises EvidenceError."""
    path = out_dir / outdir.locust_json(step)
    if not path.exists():
        return None
    try:
        report = msgspec.json.decode(path.read_bytes(), type=StepReport)
    except msgspec.DecodeError as error:
        raise EvidenceError(f"{path}: {error}; the file was damaged") from error
    if report.boot_id != boot_id():
        raise EvidenceError(f"{path}: its instants are of another boot")
    return report
