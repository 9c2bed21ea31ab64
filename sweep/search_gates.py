"""The gate of --levels auto: the judge counts every level again and must come to the same answers. Pure.

Also what a search found, as a sentence: `meets at 12, fails at 14`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sweep import outdir, search
from sweep.finding import Facts, Finding, Gate, level_json
from sweep.request_gates import REQUEST_GATES
from sweep.search import Tried
from sweep.slo_gates import SLO_GATES
from sweep.units import Level
from sweep.verdict import meets_all

_ENDED = {
    "highest": "--auto-max, the highest allowed, was met",
    "levels": "--auto-steps are used up",
    "time": "--max-time left no room for another level",
    "caps": "--max-requests or --max-output-tokens left no room for another level",
    "api_key": "the API key was refused",
}


def judge_search(facts: Facts, gate: Gate) -> list[Finding]:
    """Nothing for given levels. Each level's answer against the judge's own: another one makes the whole unknown."""
    if facts.search is None:
        return []
    findings = [
        replace(each, is_target=of.is_target) for of in (*REQUEST_GATES, *SLO_GATES) for each in of.judge(facts, of)
    ]
    other = [why for each in facts.search.tried if (why := _disagrees(facts, findings, each)) is not None]
    if other:
        return [Finding(gate.name, "unknown", "; ".join(other), gate.rule, evidence=(outdir.MARKS,))]
    n = len(facts.search.tried)
    return [Finding(gate.name, "pass", f"{n} levels, each as the search took it", gate.rule, evidence=(outdir.MARKS,))]


def search_json(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any] | None:
    """result.json's `search`; None for given levels."""
    found = facts.search
    if found is None:
        return None
    return {
        "meets": level_json(search.met(found.tried)), "fails": level_json(search.not_met(found.tried)),
        "ended": found.ended, "text": bracket(facts, findings),
        "tried": [{"level": level_json(t.level), "answer": t.answer, "why": t.why} for t in found.tried],
    }  # fmt: skip


def bracket(facts: Facts, findings: Sequence[Finding]) -> str:
    """`meets at 12, fails at 14`, or why there is no upper end."""
    found = facts.search
    if found is None or not found.tried:
        return "no level could be tried to its end"
    good, bad, last = search.met(found.tried), search.not_met(found.tried), found.tried[-1]
    low = "no level tried meets every SLO" if good is None else f"meets at {good}"
    parts = [low] if bad is None else [low, f"{_how(findings, bad)} at {bad}"]
    if last.answer == "invalid":
        parts.append(f"level {last.level} could not be judged ({last.why})")
    elif found.ended in _ENDED:
        parts.append(f"then {_ENDED[found.ended]}")
    elif found.ended is None:
        parts.append("the run ended before the search")
    return ", ".join(parts)


def _how(findings: Sequence[Finding], level: Level) -> str:
    """Whether the level failed beyond doubt, or was only not shown to hold."""
    return "fails" if any(each.level == level and each.status == "fail" for each in findings) else "not shown to hold"


def _disagrees(facts: Facts, findings: Sequence[Finding], tried: Tried) -> str | None:
    """The judge's own answer is by the gates of requests and SLOs at that level, which know of no search."""
    failed = any(each.level == tried.level and each.status == "fail" for each in findings)
    holds = not failed and meets_all(facts, findings, tried.level)
    if holds == (tried.answer == "met"):
        return None
    ours = "holds" if holds else "was not shown to hold"
    return f"level {tried.level} {ours} by the evidence, and the search took it as {tried.answer} ({tried.why})"


SEARCH_GATES = (
    Gate(
        "search",
        "each level that --levels auto took as met is met by the evidence, and no other",
        "the level found is only as true as the answers that led to it",
        judge_search,
    ),
)
