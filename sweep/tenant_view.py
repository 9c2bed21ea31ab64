"""How each tenant was served, for the HTML report and the Markdown summary: result.json -> ready text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweep import wording
from sweep.cells import Cell, Table, judged, plain

Json = Mapping[str, Any]

_NOTHING = "it asked for nothing at this level"


def sentences(result: Json) -> list[str]:
    """Fairness of each level and mode, and what is left out; none for a run without tenants."""
    told = result.get("tenants")
    if told is None:
        return []
    return [*map(_fairness, told["fairness"]), *(f"left out: {why}" for why in told["left_out"])]


def tenant_table(result: Json) -> Table:
    """One row a level, mode and tenant; no rows without tenants."""
    heads = ["level", "tenant", "part", "offered", "ok", "refused", "failed", "goodput", "share", "TTFT p95", "E2E p95",
             "longest wait"]  # fmt: skip
    about = (
        "Part: its users, or arrivals a second. Share: good answers for what it asked for, beside the best served "
        "tenant. Longest wait: time without a completed answer. Shown, not judged."
    )
    table = Table("Tenants", heads, [], [], about)
    for row in (result.get("tenants") or {"rows": []})["rows"]:
        left = f"left {row['left']}" if row["left"] else ""
        table.rows.append([
            Cell(f"{row['level']} {row['mode']}", is_number=False), Cell(row["tenant"], is_number=False),
            plain(row["part"], "", table.notes), plain(row["offered"], "", table.notes)._replace(small=left),
            *(plain(row[key], "", table.notes) for key in ("ok", "refused", "failed")),
            judged(row["goodput"], "ratio", table.notes),
            plain(row["share"], "ratio", table.notes, _NOTHING),
            judged(row["ttft_p95_ms"], "ms", table.notes), judged(row["e2e_p95_ms"], "ms", table.notes),
            plain(row["longest_gap_s"], "s", table.notes, _NOTHING),
        ])  # fmt: skip
    return table


def _fairness(row: Json) -> str:
    where = f"level {row['level']} {row['mode']}"
    if row["why"] is not None:
        return f"{where}: fairness unknown, {row['why']}"
    share, wait = wording.number(row["min_share"], "ratio"), wording.number(row["longest_gap_s"], "s")
    return (
        f"{where}: {row['least_served']} was served least, {share} of the best served for what it asked for; Jain's "
        f"index {wording.number(row['jain'])} (1 is even, alone it hides a starved tenant among many); longest time "
        f"without a completed answer {wait} ({row['longest_gap_of']})"
    )
