"""result.json -> who was tested and who answered, as tables of the HTML report and the Markdown summary. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweep import wording
from sweep.cells import Cell, Table

Json = Mapping[str, Any]

NO_ANSWER = "no answer tells"
_DECLARED = (("declared", "declared", "--subject"), ("digest", "declared digest", "--subject-digest"))


def subject_line(result: Json) -> str:
    """One line of at most 60 columns: what was tested, or why that is unknown."""
    subject = result.get("subject")
    return "unknown: the evidence is invalid" if subject is None else str(subject["text"])


def seen_table(result: Json) -> Table:
    """What was declared and what was seen of the build, each with its source; no rows when nothing was."""
    table = Table("Declared and seen", ["what", "value", "source"], [], [])
    subject = result.get("subject") or {}
    declared = [
        {"what": what, "value": subject[key], "source": source}
        for key, what, source in _DECLARED
        if subject.get(key) is not None
    ]
    for row in [*declared, *subject.get("seen", [])]:
        value = _text(row["value"], row["value"])._replace(small=row.get("remark", ""))
        table.rows.append([_text(row["what"]), value, _text(row["source"])])
    return table


def answer_table(result: Json) -> Table:
    """Models named, attempts, fallbacks, backends and kept headers, per level and mode."""
    rows = [(row, row["told"]) for row in result["levels"] if row.get("told")]
    names = list(dict.fromkeys(name for _, told in rows for name in told["headers"]))
    heads = ["level", "model named", "after retries", "after fallbacks", "backend", *names]
    table = Table("Who answered", heads, [], [], "Of the requests that started in the window; value: answers.")
    for row, told in rows:
        models = [[name, n] for name, n in told["models"].items()]
        n = told["attempts_told"]
        retried = f"{told['retried']} of {wording.number(n)}" if n else NO_ANSWER
        fallbacks = f"{told['fallbacks']} of {wording.number(told['answers'])}" if told["fallbacks"] or n else NO_ANSWER
        table.rows.append([
            _text(f"{row['level']} {row['mode']}"), _text(_listed({"values": models}), models or None),
            _text(retried, n or None), _text(fallbacks, told["fallbacks"] or n or None),
            *(_text(_listed(values), values["values"] or None)
              for values in (told["backends"], *(told["headers"].get(name, {"values": []}) for name in names))),
        ])  # fmt: skip
    return table


def _listed(values: Json) -> str:
    """`a: 120; b: 40; 3 other values; none in 2`."""
    parts = [f"{value}: {wording.number(n)}" for value, n in values["values"]]
    if not parts:
        return NO_ANSWER
    parts += [f"{values['others']} other values"] if values.get("others") else []
    parts += [f"none in {values['absent']}"] if values.get("absent") else []
    return "; ".join(parts)


def _text(text: str, raw: object = None) -> Cell:
    return Cell(text, raw=raw, is_number=False)
