"""Whether a rate's requests can be held open at once, by what the preflight measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from sweep.errors import PlanError
from sweep.estimate import Measured
from sweep.plan import SweepPlan
from sweep.units import SPARE_FDS, Mode


def check_holdable(plan: SweepPlan, measured: Mapping[Mode, Measured], fd_limit: int) -> list[str]:
    """Warnings about rates that may need more connections at once than there are descriptors for.

    By Little's law a rate keeps rate × answer time in flight; measured: one request a mode, alone, so that a queue can
    only add to it. Raises PlanError when even that does not fit.
    """
    warnings = []
    most = fd_limit - SPARE_FDS
    slowest_s = max((each.e2e_s for each in measured.values() if each.e2e_s is not None), default=0.0)
    for level in plan.levels:
        if level.kind != "rate":
            continue
        n = level.value / (plan.expect_workers or plan.processes) * slowest_s
        told = f"level {level}: answers take {slowest_s:.3g} s, so about {n:,.0f} requests are in flight at once"
        if n > most:
            raise PlanError(f"{told}, and one process may open {fd_limit} files (ulimit -Hn); lower it or raise that")
        if n > most / 2:
            warnings.append(f"{told}, of {most:,} that the open files of one process allow (ulimit -Hn)")
    return warnings
