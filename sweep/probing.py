"""What one finished step says of the SLOs, read from its evidence: the answer that steers `--levels auto`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sweep import outdir
from sweep.lateness import Second, late_why
from sweep.plan import SweepPlan
from sweep.plan_steps import Step
from sweep.records import GeneratorLine, Record, from_lines
from sweep.search import Answer
from sweep.slo_decision import Part, decide
from sweep.step_files import ProcessReport, StepReport


def answer_of(plan: SweepPlan, step: Step, report: StepReport, guard: str | None, out_dir: Path) -> tuple[Answer, str]:
    """(answer, what decided it). guard: words of one that closed the step early: the level is too high.

    Raises EvidenceError for lines that cannot be read.
    """
    if guard is not None:
        return "not met", f"{step.mode}: {guard}"
    if report.t_window_ns is None or report.t_close_ns is None:
        return "invalid", f"{step.mode}: its window never opened"
    parts = [_part(step, process, report.t_window_ns, report.t_close_ns, out_dir) for process in report.processes]
    invalid = _invalid_why(step, report, parts, out_dir)
    return ("invalid", f"{step.mode}: {invalid}") if invalid is not None else decide(plan.slos, step.mode, parts)


def _part(step: Step, process: ProcessReport, t_window_ns: int, t_close_ns: int, out_dir: Path) -> Part:
    name = outdir.requests_file(step.id, process.worker)
    return Part(
        from_lines(Record, outdir.read_lines(out_dir / name)[0], name),
        t_window_ns if process.t_window_ns is None else process.t_window_ns,
        t_close_ns if process.t_close_ns is None else process.t_close_ns,
    )


def _invalid_why(step: Step, report: StepReport, parts: Sequence[Part], out_dir: Path) -> str | None:
    """Why the step says nothing about the target; the judge looks more closely (`step_table`)."""
    if not report.counts_agree:
        return report.why or "the counts disagree"
    n_started, n_records = sum(p.started for p in report.processes), sum(len(part.records) for part in parts)
    if n_started != n_records:
        return f"{n_started} requests started but {n_records} records"
    if report.users_min is None or report.users_min < report.users_wanted:
        return f"{report.users_min} of {report.users_wanted} users alive during the window"
    if any(part.t_close_ns <= part.t_window_ns for part in parts):
        return "its window never opened"
    for process, part in zip(report.processes, parts, strict=True):
        name = outdir.generator_file(step.id, process.worker)
        lines = from_lines(GeneratorLine, outdir.read_lines(out_dir / name)[0], name)
        why = late_why([_second(line) for line in lines], part.t_window_ns, part.t_close_ns)
        if why is not None:
            return f"{process.worker}: {why}"
    return None


def _second(line: GeneratorLine) -> Second:
    known = line.ports is not None and line.ports_left is not None
    share = line.ports_left / line.ports if known and line.ports and line.ports_left is not None else None
    return Second(line.t_mono_ns, line.cpu_share, line.lag_p99_ms, share)
