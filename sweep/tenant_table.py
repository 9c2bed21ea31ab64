"""Evidence -> one row a level, mode and tenant, and how fairly the target served them. Pure.

Demand is what a tenant asked for: in a closed loop its clients, each for the whole window (one that waits long offers
fewer requests, which must not look like a smaller wish); in an open loop the requests due in the window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sweep import stats
from sweep.evidence import Evidence
from sweep.latency import is_good, percentiles, timed
from sweep.level_table import LevelRow, latency_slos, speaks_of
from sweep.plan import SweepPlan
from sweep.records import FAILED, REJECTED
from sweep.stats import Value
from sweep.step_table import StepRow
from sweep.tenants import Part, parts_of
from sweep.units import EITHER
from sweep.windows import Bools, Sets


@dataclass(frozen=True, slots=True)
class TenantRow:
    """One tenant at one level in one mode. part: its users, or arrivals a second. good: met every latency limit given.

    served: good answers per demand (a client's second, or a request due); None without demand. share: that, of the best
    served tenant's, 0..1. longest_gap_s: longest time of a window without a completion, its edges included.
    """

    level: str
    mode: str
    tenant: str
    part: float
    outcomes: Counter[str]
    cut: int
    good: int
    goodput: Value
    served: float | None
    share: float | None
    ttft_p95: Value
    e2e_p95: Value
    longest_gap_s: float | None

    def as_json(self) -> dict[str, Any]:
        counts = self.outcomes
        return {
            "level": self.level, "mode": self.mode, "tenant": self.tenant, "part": self.part,
            "offered": counts.total(), "ok": counts["ok"], "refused": sum(counts[name] for name in REJECTED),
            "failed": sum(counts[name] for name in FAILED), "left": counts["left"], "cut": self.cut, "good": self.good,
            "goodput": self.goodput.as_json(), "share": self.share, "ttft_p95_ms": self.ttft_p95.as_json(),
            "e2e_p95_ms": self.e2e_p95.as_json(), "longest_gap_s": self.longest_gap_s,
        }  # fmt: skip


def tenants_json(
    ev: Evidence, plan: SweepPlan, steps: Sequence[StepRow], sets: Sets, rows: Sequence[LevelRow]
) -> dict[str, Any] | None:
    """result.json's `tenants`: rows, fairness by level and mode, levels left out; None for a run without tenants."""
    if not plan.tenants:
        return None
    found, fairness, left_out = [], [], []
    for row in rows:
        if not row.valid:
            left_out.append(f"level {row.level} {row.mode}: invalid step: {row.invalid_why}")
            continue
        of_level = tenant_rows(ev, plan, steps, sets, row)
        found += [each.as_json() for each in of_level]
        fairness.append(_fairness(of_level))
    return {"rows": found, "fairness": fairness, "left_out": left_out}


def tenant_rows(
    ev: Evidence, plan: SweepPlan, steps: Sequence[StepRow], sets: Sets, row: LevelRow
) -> list[TenantRow]:
    """Of the valid steps of one level and mode, in the order of the plan's tenants."""
    used = {each.times.step for each in row.rows if each.valid}
    codes = [code for code, step in enumerate(steps) if step.times.step in used]
    mask = sets.of(codes)
    if row.rows[0].times.mode in EITHER:
        mask &= ev.requests["stream"].to_numpy(dtype=bool) == (row.mode == "stream")
    tenant = ev.requests["tenant"].to_numpy(dtype=object)
    found = [_row(ev, plan, steps, sets, row, codes, mask & (tenant == part.name), part)
             for part in parts_of(plan, row.level)]  # fmt: skip
    best = max((each.served for each in found if each.served is not None), default=0.0)
    return [_with_share(each, best) for each in found]


def jain(served: Sequence[float]) -> float | None:
    """(Σx)² / (n Σx²): 1 when all are served alike, 1/n when one gets everything; None when nobody gets anything."""
    squares = sum(x * x for x in served)
    return sum(served) ** 2 / (len(served) * squares) if squares else None


def _row(
    ev: Evidence, plan: SweepPlan, steps: Sequence[StepRow], sets: Sets, row: LevelRow, codes: Sequence[int],
    mask: Bools, part: Part,
) -> TenantRow:  # fmt: skip
    of = timed(ev.requests, sets, mask, stream=row.mode != "nonstream")
    limits = [slo for slo in latency_slos(plan) if speaks_of(slo, row.level, row.mode)]
    outcomes = Counter(str(name) for name in of.outcome if name != "cut")
    offered, good = outcomes.total(), int(is_good(of, limits).sum())
    cut = int((of.outcome == "cut").sum())
    # What the step's end cut was due too: a tenant that got no answer at all must not look like one without a wish.
    demand = float(offered + cut) if row.level.kind == "rate" else part.weight * row.window_s
    no_stream = stats.unknown("not a streaming mode")
    return TenantRow(
        level=str(row.level), mode=row.mode, tenant=part.name, part=part.weight, outcomes=outcomes,
        cut=cut, good=good, goodput=stats.share(good, offered),
        served=good / demand if demand > 0 else None, share=None,
        ttft_p95=percentiles(of, "ttft_ms")["p95"] if row.mode == "stream" else no_stream,
        e2e_p95=percentiles(of, "e2e_ms")["p95"],
        longest_gap_s=_longest_gap_s(ev, steps, sets, codes, mask) if demand > 0 else None,
    )  # fmt: skip


def _with_share(row: TenantRow, best: float) -> TenantRow:
    return replace(row, share=row.served / best) if row.served is not None and best > 0 else row


def _longest_gap_s(
    ev: Evidence, steps: Sequence[StepRow], sets: Sets, codes: Sequence[int], mask: Bools
) -> float | None:
    longest = None
    t_end = ev.requests["t_end_ns"]
    for code in codes:
        times = steps[code].times
        if times.t_window_ns is None or times.t_close_ns is None:
            continue
        ends = t_end[mask & sets.completed & (sets.code == code)].to_numpy(dtype=np.int64)
        edges = np.concatenate([[times.t_window_ns], np.sort(ends), [times.t_close_ns]])
        gap_s = float(np.diff(edges).max()) / 1e9
        longest = gap_s if longest is None else max(longest, gap_s)
    return longest


def _fairness(rows: Sequence[TenantRow]) -> dict[str, Any]:
    """Jain's index, the smallest share and the longest gap of one level and mode, and whose they are."""
    asked = [row for row in rows if row.served is not None]
    told: dict[str, Any] = {"level": rows[0].level, "mode": rows[0].mode, "jain": None, "min_share": None,
                            "least_served": None, "longest_gap_s": None, "longest_gap_of": None,
                            "why": None}  # fmt: skip
    if len(asked) < 2:
        return told | {"why": "fewer than two tenants asked for anything"}
    index = jain([row.served for row in asked if row.served is not None])
    if index is None:
        return told | {"why": "no tenant got a good answer"}
    least = min(asked, key=lambda row: 0.0 if row.share is None else row.share)
    waited = max(asked, key=lambda row: 0.0 if row.longest_gap_s is None else row.longest_gap_s)
    return told | {
        "jain": index, "min_share": least.share, "least_served": least.tenant,
        "longest_gap_s": waited.longest_gap_s, "longest_gap_of": waited.tenant,
    }  # fmt: skip
