"""Evidence -> what the probes of one health path found during load, and whether they cover it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sweep import stats
from sweep.evidence import Evidence
from sweep.stats import Value
from sweep.windows import Bools, Floats, Ints, StepTimes, ints

# A probe is due each second and may take its whole time-out of 5 s; a longer silence says nothing of the gateway.
GAP_LIMIT_S = 6.0
PROBE_LIMIT_MS = 1000.0  # a slower answer is late; liveness fails when its p99 surely is
_PROBE_TIMEOUT_MS = 5000.0  # of probe.py


@dataclass(frozen=True, slots=True)
class Probes:
    """Answers of one health path during load. longest_row: most probes missed one after another within a step.

    p99_ms: a missed probe counts as infinite. gap_why: where no probe was sent for too long, None when nowhere.
    left_out: probes that tell nothing, because our own process stood still while they were under way.
    """

    n: int
    missed: int
    longest_row: int
    p99_ms: Value
    gap_why: str | None = None
    left_out: int = 0

    def as_json(self, path: str | None) -> dict[str, Any]:
        """One entry of result.json's `health`."""
        return {
            "n": self.n, "missed": self.missed, "p99_ms": self.p99_ms.as_json()["v"], "path": path,
            "left_out": self.left_out,
        }  # fmt: skip


def probes(ev: Evidence, what: str, steps: Sequence[StepTimes]) -> Probes:
    """Probes of one path sent between the open and the end of these steps. Missed: no answer, or not 2xx.

    What a standstill of our own may have made late is left out: a hole, neither slow nor good.
    """
    asked = ev.health[(ev.health["what"] == what).to_numpy(dtype=bool)].sort_values("t_mono_ns")
    all_ns = asked["t_mono_ns"].to_numpy(dtype=np.int64)
    status, has_status = ints(asked["status"])
    all_ms = _ms(asked, "ms", np.inf)
    answered = has_status & (status >= 200) & (status < 300) & ~np.isinf(all_ms)
    told = ~_is_ours(asked, answered, all_ms)
    t_ns, times_ms, missed = all_ns[told], all_ms[told], ~answered[told]
    inside = np.zeros(len(t_ns), dtype=bool)
    longest = left_out = 0
    for step in steps:
        begin = step.t_open_ns if step.t_open_ns is not None else step.t_begin_ns
        end = step.t_end_ns if step.t_end_ns is not None else step.t_idle_ns
        if begin is None:
            continue
        in_step = (all_ns >= begin) & ((all_ns <= end) if end is not None else True)
        left_out += int((in_step & ~told).sum())
        mine = in_step[told]
        inside |= mine
        longest = max(longest, _longest_row(missed[mine]))
    counted_ms = np.where(missed, np.inf, times_ms)[inside]
    p99 = stats.percentile(counted_ms, np.zeros(len(counted_ms), dtype=bool), 0.99)
    n, n_missed = int(inside.sum()), int((inside & missed).sum())
    return Probes(n, n_missed, longest, p99, _gap_why(t_ns, steps), left_out)


def _ms(asked: pd.DataFrame, name: str, missing: float) -> Floats:
    return np.asarray(asked[name].fillna(missing), dtype=np.float64)


def _is_ours(asked: pd.DataFrame, answered: Bools, times_ms: Floats) -> Bools:
    """Which probes our own standstill made late or ran into the time-out, for all that is known.

    One that is late without that time too is the target's, and so is a refusal: no standstill of ours makes those.
    """
    stood_ms = _ms(asked, "stood_still_ms", 0.0)
    timed_out = asked["error"].fillna("").str.endswith("Timeout").to_numpy(dtype=bool)
    took_ms = np.where(timed_out, _PROBE_TIMEOUT_MS, times_ms)
    return (stood_ms > 0) & (answered | timed_out) & (took_ms - stood_ms <= PROBE_LIMIT_MS)


def _gap_why(t_ns: Ints, steps: Sequence[StepTimes]) -> str | None:
    """The longest silence in the window of any step, when it is too long, or None."""
    worst_s, where = 0.0, ""
    for step in steps:
        if step.t_window_ns is None or step.t_close_ns is None:
            continue
        edges = (step.t_window_ns, step.t_close_ns)
        inside = t_ns[(t_ns > edges[0]) & (t_ns < edges[1])]
        silences_ns = list(np.diff(np.array([edges[0], *inside, edges[1]])))
        silences_ns += [np.abs(t_ns - edge).min() for edge in edges if len(t_ns)]
        silent_s = float(max(silences_ns)) / 1e9
        if silent_s > worst_s:
            worst_s, where = silent_s, step.step
    return f"no probe for {worst_s:.1f} s of step {where}" if worst_s > GAP_LIMIT_S else None


def _longest_row(missed: Bools) -> int:
    longest = row = 0
    for each in missed:
        row = row + 1 if each else 0
        longest = max(longest, row)
    return longest
