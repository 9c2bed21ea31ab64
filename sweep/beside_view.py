"""Targets beside the first one, for the HTML report and the Markdown summary: result.json -> ready text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweep import wording
from sweep.cells import Cell, Table, judged

Json = Mapping[str, Any]

ABOUT = (
    "First target against this one, block by block in turns, never both at once; beneath a value its two-sided 95 % "
    "interval and the pairs it rests on. A ratio's interval that holds 1 shows no difference."
)


def sentences(target: Json) -> list[str]:
    """Who it is, what happened to it, and what was left out of the comparison."""
    gateway = target["gateway"]
    process = "no process watched" if gateway is None else f"pid {gateway['pid']} ({gateway['ownership']})"
    told = [f"{target['url']}, {target['api']} with model {target['model'] or 'unknown'}, {process}."]
    if target["survival"]["tested"]:
        told.append(f"{_sentence(target['survival']['text'])}")
    told += [f"A guard ended its turns: {reason}." for reason in target["guards"]]
    if target["not_run"]:
        told.append(f"{len(target['not_run'])} of its blocks were not run, {target['not_run'][0]} first.")
    for pairs in target["pairs"]:
        if pairs["dropped"]:
            first = pairs["dropped"][0]
            told.append(
                f"Level {pairs['level']} {pairs['mode']}: {len(pairs['dropped'])} pairs of blocks do not count; cycle "
                f"{first['cycle']} block {first['block']}: {first['why']}."
            )
    return told + [f"Left behind there: {line}." for line in target["left_behind"]]


def tables(result: Json) -> list[Table]:
    """For each target: the comparison, and its own levels."""
    found = []
    for target in result.get("beside") or []:
        found += [compared_table(target), level_table(target)]
    return found


def compared_table(target: Json) -> Table:
    """One row a level, mode and measure."""
    name = target["name"]
    what = "Gateway overhead: first target against direct" if name == "direct" else f"First target against {name}"
    table = Table(what, ["level", "measure", f"first ÷ {name}", f"first − {name}", "shown of the first"], [], [], ABOUT)
    for pairs in target["pairs"]:
        for row in pairs["measures"]:
            table.rows.append([
                Cell(f"{pairs['level']} {pairs['mode']}", is_number=False), Cell(row["title"], is_number=False),
                _compared(row["ratio"], "", table.notes), _compared(row["difference"], row["unit"], table.notes),
                Cell(row["shown"] or wording.MISSING, is_number=False),
            ])  # fmt: skip
    return table


def level_table(target: Json) -> Table:
    """Its own numbers: not judged."""
    heads = ["level", "offered", "ok", "error ratio", "TTFT p50", "TTFT p95", "TPOT p50", "E2E p50", "E2E p95",
             "requests", "CPU per request", "memory (anon)"]  # fmt: skip
    about = "All its blocks together; it is compared, not judged."
    table = Table(f"Levels of {target['name']}", heads, [], [], about)
    for row in target["levels"]:
        invalid = None if row["valid"] else f"invalid: {row['invalid_why']}"
        if invalid is not None and invalid not in table.notes:
            table.notes.append(invalid)
        note = None if invalid is None else table.notes.index(invalid) + 1
        latencies = [(row.get(metric) or {}).get(stat) for metric, stat in LATENCIES]
        table.rows.append([
            Cell(f"{row['level']} {row['mode']}", is_number=False, note=note),
            Cell(wording.number(row["offered"]), raw=row["offered"]), Cell(wording.number(row["ok"]), raw=row["ok"]),
            judged(row["error_ratio"], "ratio", table.notes),
            *(judged(value or {"why": "not streamed"}, "ms", table.notes) for value in latencies),
            judged(row["request_rate_per_s"], "1/s", table.notes), judged(row["cpu_ms_per_request"], "ms", table.notes),
            judged(row["memory_anon_bytes"], "bytes", table.notes),
        ])  # fmt: skip
    return table


def lines(result: Json) -> list[str]:
    """For the first screen: one part a target."""
    return [str(target["text"]) for target in result.get("beside") or []]


def _compared(value: Json, unit: str, notes: list[str]) -> Cell:
    """Value, and beneath it the interval in brackets: an end may be below 0."""
    if value["v"] is None:
        return judged(value, unit, notes)
    places = wording.places_of([value["v"], value["lo"], value["hi"]], None, unit)
    lo, hi = (wording.number(value[end], unit, places) for end in ("lo", "hi"))
    return Cell(wording.number(value["v"], unit, places), f"[{lo}, {hi}], {value['n']} pairs", value["v"])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


LATENCIES = (("ttft_ms", "p50"), ("ttft_ms", "p95"), ("tpot_ms", "p50"), ("e2e_ms", "p50"), ("e2e_ms", "p95"))
