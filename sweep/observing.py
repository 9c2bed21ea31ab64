"""A step of level 0: nothing is sent, and what the target does meanwhile is recorded like in any other step."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sweep import outdir
from sweep.clocks import boot_id, read_clocks
from sweep.plan_steps import Step
from sweep.step_files import StepReport

_LOOK_S, _TELL_S = 0.1, 1.0


def observe(
    step: Step, out_dir: Path, seconds_left: float, look: Callable[[], None], tell: Callable[[float], None]
) -> StepReport:
    """Its window opens at once and closes after its duration, or seconds_left; gives and
    leaves the report of a load's driver.

    look: called several times a second; what it raises ends the step without a report. tell: once a second, with the
    seconds since it began.
    """
    began_s = next_s = time.monotonic()
    t_open_ns = time.monotonic_ns()
    over_ns = t_open_ns + int(min(step.duration_s, max(0.0, seconds_left)) * 1e9)
    while time.monotonic_ns() < over_ns:
        time.sleep(_LOOK_S)
        look()
        if time.monotonic() >= next_s:
            next_s += _TELL_S
            tell(time.monotonic() - began_s)
    t_close_ns = time.monotonic_ns()
    report = StepReport(
        step=step.id, t_open_ns=t_open_ns, t_window_ns=t_open_ns, t_close_ns=t_close_ns, t_end_ns=t_close_ns,
        clocks=read_clocks(), boot_id=boot_id(), closed_by="cap" if seconds_left < step.duration_s else "duration",
        users_wanted=0, users_min=0, processes=[], counts_agree=True,
    )  # fmt: skip
    outdir.write_atomic(out_dir / outdir.locust_json(step.id), msgspec.json.encode(report))
    return report
