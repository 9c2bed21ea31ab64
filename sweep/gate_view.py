"""result.json -> the gate table, as the HTML report, the Markdown summary and JUnit show it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sweep import wording

Json = Mapping[str, Any]

ANSWERED = "answered"  # the gate whose unknown makes every other of its level and mode unknown
STATUSES = ("fail", "unknown", "warn", "assumed", "pass", "skipped")  # the order of the gate table
ICONS = {"fail": "✗", "unknown": "?", "warn": "!", "assumed": "≈", "pass": "✓", "skipped": "○"}
VERDICT_STATUS = {"PASS": "pass", "WARN": "warn", "FAIL": "fail", "INCONCLUSIVE": "unknown"}


class Group(NamedTuple):
    """Findings of one gate with one status, its rule said once. remark: how the verdict takes them, "" as they are."""

    status: str
    remark: str
    gate: str
    rule: str
    findings: list[Json]


def meaning(verdict: str) -> str:
    """What a verdict means, where that is another word."""
    words = wording.VERDICT_WORDS[verdict]
    return "" if words == verdict else words


def gates(result: Json) -> list[Group]:
    """Findings by status and gate. First what failed, then what the verdict counts as unknown, warned, assumed, passed.

    Unknown findings that the verdict does not count follow those that passed: they are no reason to look twice.
    """
    groups: dict[tuple[str, str, str, str], Group] = {}
    for finding in sorted(_mute_as_one(result["findings"]), key=_rank):
        key = (finding["status"], remark(finding), finding["gate"], finding["rule"])
        group = groups.setdefault(key, Group(*key, []))
        group.findings.append({**finding, "printed": _printed(finding), "where": where(finding)})
    return list(groups.values())


def not_passed(groups: Sequence[Group]) -> list[Group]:
    """Those that a reader must look at: not those that passed or were not tested."""
    return [group for group in groups if group.status not in ("pass", "skipped")]


def folded(groups: Sequence[Group], status: str) -> list[str]:
    """One gate a text, `answered (8)` for eight findings, of the groups with a status."""
    n: dict[str, int] = {}
    for group in groups:
        if group.status == status:
            n[group.gate] = n.get(group.gate, 0) + len(group.findings)
    return [gate + (f" ({count})" if count > 1 else "") for gate, count in n.items()]


def _mute_as_one(findings: Sequence[Json]) -> list[Json]:
    """Of a level and mode without a good answer, one finding: that no other gate knows anything follows from it."""
    mute = {_place(each) for each in findings if each["gate"] == ANSWERED and each["status"] == "unknown"}
    also: dict[tuple[object, object], list[str]] = {place: [] for place in mute}
    kept: list[Json] = []
    for finding in findings:
        if _place(finding) in mute and finding["status"] == "unknown" and finding["gate"] != ANSWERED:
            also[_place(finding)].append(finding["gate"])
        else:
            kept.append(finding)
    return [
        {**finding, "reason": _also(finding["reason"], also[_place(finding)])}
        if finding["gate"] == ANSWERED and _place(finding) in mute else finding
        for finding in kept
    ]  # fmt: skip


def _place(finding: Json) -> tuple[object, object]:
    return finding["level"], finding["mode"]


def _also(reason: str, gates: Sequence[str]) -> str:
    names = list(dict.fromkeys(gates))
    return f"{reason}; so also unknown: {', '.join(names)}" if names else reason


def remark(finding: Json) -> str:
    """How the verdict takes a finding that did not pass, where it does not take it as it is.

    "exploring": not at all. "warns only": a failure that is not required. "not required": an unknown that another
    finding, the pooled one, stands for.
    """
    if finding["status"] not in ("fail", "unknown", "warn"):
        return ""
    if finding.get("exploring"):
        return "exploring"
    if finding["required"]:
        return ""
    return {"fail": "warns only", "unknown": "not required", "warn": ""}[finding["status"]]


def where(finding: Json) -> str:
    """`8 concurrent, stream`; `all levels, stream` for a pooled gate; `run` for one over the whole run."""
    level, mode = finding["level"], finding["mode"]
    if level is None:
        return f"all levels, {mode}" if mode else "run"
    return wording.level_name(level) + (f", {mode}" if mode else "")


def counted(finding: Json) -> str:
    """`n 12, 299 needed`: what an observed value rests on; the need is said only where it is not met."""
    n = finding["observed"].get("n")
    return "" if n is None else ", ".join(filter(None, [f"n {wording.number(n)}", needed(finding)]))


def needed(finding: Json) -> str:
    """`299 needed`, where an observed value rests on fewer requests than its gate needs."""
    n, wanted = finding["observed"].get("n"), finding["n_needed"]
    return f"{wording.number(wanted)} needed" if n is not None and wanted is not None and n < wanted else ""


def _rank(finding: Json) -> tuple[int, bool]:
    is_beside = finding["status"] == "unknown" and remark(finding) != ""
    return STATUSES.index("pass" if is_beside else finding["status"]), remark(finding) != ""


def _printed(finding: Json) -> wording.Printed:
    """The observed value beside its limit; a gate without an observed value prints "–"."""
    return wording.beside(finding["observed"], finding["limit"], finding["unit"] or "")
