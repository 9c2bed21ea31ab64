"""Cells and tables of a report, and how a value of result.json becomes one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sweep import wording

Json = Mapping[str, Any]


class Cell(NamedTuple):
    """One table cell: text, a smaller second line, the value as in result.json, and the number of its footnote."""

    text: str
    small: str = ""
    raw: object = None
    note: int | None = None
    is_number: bool = True


class Table(NamedTuple):
    """A table of ready text; a row's first cell names the row; `notes` are footnotes, from 1."""

    title: str
    heads: list[str]
    rows: list[list[Cell]]
    notes: list[str]
    about: str = ""


def judged(value: Json | None, unit: str, notes: list[str]) -> Cell:
    """A judged value as a cell: the value, and its interval and n beneath; a missing one carries its why as a note."""
    if not value or value.get("v") is None:
        return missing(value.get("why") if value else None, notes)
    lo, hi = value.get("lo"), value.get("hi")
    places = wording.places_of([value["v"], lo, hi], None, unit)
    n = value.get("n")
    small = ", ".join(
        filter(None, [wording.interval(lo, hi, unit, places), "" if n is None else f"n {wording.number(n)}"])
    )
    return Cell(wording.number(value["v"], unit, places), small, value["v"])


def plain(value: object, unit: str, notes: list[str], why: str | None = None, places: int | None = None) -> Cell:
    """A bare value as a cell; a missing one carries its why as a note."""
    return missing(why, notes) if value is None else Cell(wording.number(value, unit, places), raw=value)


def is_empty(table: Table) -> bool:
    """No cell of the table, row names aside, holds a value."""
    return all(cell.raw is None for row in table.rows for cell in row[1:])


def row_head(row: Json, notes: list[str]) -> Cell:
    head = noted(f"{row['level']} {row['mode']}", None if row["valid"] else f"invalid: {row['invalid_why']}", notes)
    remarks = [*(["exploring"] if row["exploring"] else []), *([] if row["valid"] else ["invalid"])]
    remarks += ["one step with the other mode"] if row.get("shares_step") else []
    return head._replace(small=", ".join(remarks))


def count(value: int | None) -> Cell:
    return Cell(wording.number(value), raw=value)


def peak(value: Json | None, unit: str, notes: list[str]) -> Cell:
    if not value or value["v"] is None:
        return missing(value.get("why") if value else None, notes)
    parts = [] if value.get("max") is None else [f"max {wording.number(value['max'], unit)}"]
    if value.get("source"):
        parts.append(str(value["source"]))
    return Cell(wording.number(value["v"], unit), ", ".join(parts), value["v"])


def missing(why: str | None, notes: list[str]) -> Cell:
    return noted(wording.MISSING, why or "not recorded", notes)._replace(is_number=True)


def noted(text: str, why: str | None, notes: list[str]) -> Cell:
    if why is None:
        return Cell(text, is_number=False)
    if why not in notes:
        notes.append(why)
    return Cell(text, note=notes.index(why) + 1, is_number=False)
