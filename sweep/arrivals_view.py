"""The report's table of open-loop levels: result.json -> whether arrivals started when due, and times from either
instant. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweep.cells import Table, judged, plain, row_head

Json = Mapping[str, Any]

_METRICS = (("ttft_ms", "TTFT p95"), ("e2e_ms", "E2E p95"))


def arrivals_table(result: Json) -> Table:
    """One row a level like 5/s and mode; no row in a run of closed-loop levels."""
    heads = ["level", "due", "not started", "start lag p50", "start lag p99"]
    heads += [f"{title}, from {instant}" for _, title in _METRICS for instant in ("due", "start")]
    about = (
        "Requests due in the window. The latencies elsewhere count from when a request was due; what lies between due "
        "and start is the generator's own lateness."
    )
    table = Table("Arrivals", heads, [], [], about)
    for row in result["levels"]:
        seen = row.get("open_loop")
        if seen is None:
            continue
        cells = [plain(seen["due"], "", table.notes), plain(seen["unstarted"], "", table.notes)]
        cells += [judged(seen["start_lag_ms"].get(stat), "ms", table.notes) for stat in ("p50", "p99")]
        for metric, _ in _METRICS:
            absent = {"why": f"{row['mode']} requests have none"}
            for per in (row.get(metric), seen["from_start"].get(metric)):
                cells.append(judged(absent if per is None else per.get("p95"), "ms", table.notes))
        table.rows.append([row_head(row, table.notes), *cells])
    return table
