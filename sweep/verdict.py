"""Findings -> capacity, verdict, sentence and exit code. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sweep.finding import Facts, Finding, level_json
from sweep.level_table import latency_slos
from sweep.plan import SweepPlan
from sweep.records import Mark
from sweep.sending import special
from sweep.units import Level, duration_text
from sweep.wording import VERDICT_WORDS, beside, level_name, number

Verdict = Literal["PASS", "WARN", "FAIL", "INCONCLUSIVE"]
RunStatus = Literal["COMPLETE", "ABORTED", "INVALID"]

MAX_WHY = 3
# Who ended a run early, as the first screen says it.
ENDED_BY = {
    "signal": "stopped by {who} ({reason})",
    "stop_file": "stopped by you ({reason})",
    "disk": "stopped for want of room ({reason})",
    "fault": "a fault of ours ({reason})",
    "api_key": "stopped for want of a key ({reason})",
    "locustfile": "its locustfile did not stay the same ({reason})",
    "prompts": "its prompts did not stay the same ({reason})",
    "guard": "a guard ended it ({reason})",
    "target": "the target was gone ({reason})",
}
# Gates whose reason is a whole statement; of others the name says what it is about.
SPEAKING = (
    "errors",
    "shed",
    "limited",
    "refused, unclear",
    "stream integrity",
    "outside the window",
    "same process",
    "slo",
)


@dataclass(frozen=True, slots=True)
class Capacity:
    """level: the highest that met every target, below which none failed; bracketed: a level above it failed.

    failed_at: the lowest level at which stopped_by, a gate, failed.
    """

    level: Level | None
    bracketed: bool
    stopped_by: str | None
    text: str
    failed_at: Level | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "level": level_json(self.level), "bracketed": self.bracketed, "stopped_by": self.stopped_by,
            "failed_at": level_json(self.failed_at), "text": self.text,
        }  # fmt: skip


def verdict(findings: Sequence[Finding], status: RunStatus) -> Verdict:
    """FAIL on a required fail; INCONCLUSIVE on a required unknown or an incomplete run; then WARN; then PASS.

    Above the sustained level nothing counts; up to it a fail that is not required still warns.
    """
    if any(each.required and each.status == "fail" for each in findings):
        return "FAIL"
    if status != "COMPLETE" or not findings or any(each.required and each.status == "unknown" for each in findings):
        return "INCONCLUSIVE"
    if any(_warns(each) for each in findings):
        return "WARN"
    return "PASS"


def run_status(marks: Sequence[Mark]) -> tuple[RunStatus, str | None, str | None]:
    """(status, reason, who ended it) by the marks. A guard that only ended the exploring makes no abort mark.

    A fault of ours counts before anything else, also one that came after every step was done.
    """
    aborts = [mark for mark in marks if mark.mark == "abort"]
    abort = next((mark for mark in aborts if mark.detail.get("by") == "fault"), aborts[0] if aborts else None)
    if abort is not None:
        by = str(abort.detail.get("by"))
        said = ENDED_BY.get(by, "ended early by {by}: {reason}")
        reason = str(abort.detail.get("reason") or by)
        told = said.format(by=by.replace("_", " "), reason=reason, who="you" if reason == "SIGINT" else "a signal")
        where = "" if abort.step is None else f" in step {abort.step}"
        kept = "" if by in ("guard", "target") else "; what was measured until then is kept"
        return "ABORTED", f"{told}{where}{kept}", by
    if not any(mark.mark == "finish" for mark in marks):
        return "ABORTED", "killed: the run has no finish mark", "killed"
    return "COMPLETE", None, None


def exit_code(decided: Verdict, status: RunStatus, by: str | None, *, strict: bool) -> int:
    """First that applies: 5 invalid evidence or our fault, 4 a signal, 1 FAIL, 4 stopped by us, 3 INCONCLUSIVE, 0.

    With --strict a WARN is 1. (2 is for plans that sent no load, so that there is nothing to judge.)
    """
    if status == "INVALID" or by == "fault":
        return 5
    if by == "signal":
        return 4
    if decided == "FAIL":
        return 1
    if status == "ABORTED":
        return 4
    if decided == "INCONCLUSIVE":
        return 3
    return 1 if decided == "WARN" and strict else 0


def capacity(facts: Facts, findings: Sequence[Finding]) -> Capacity:
    """Levels of the sustained level's kind, from below: up to the first that failed."""
    if not latency_slos(facts.plan):
        return Capacity(None, False, None, "not judged (no latency target, --slo)")
    sustained = facts.plan.sustained
    kind = {level for level, _ in facts.planned if level.kind == sustained.kind and level.value > 0}
    levels = sorted(kind, key=lambda level: level.value)
    best: Level | None = None
    for level in levels:
        failed = next((each for each in findings if each.level == level and each.status == "fail"), None)
        if failed is not None:
            return _stopped(facts.plan, best, level, failed)
        if meets_all(facts, findings, level):
            best = level
    if best is None:
        return Capacity(None, False, None, "unknown: no level could be shown to meet every target")
    text = f"at least {_load_name(facts.plan, best)}, not bracketed: no level above it failed"
    return Capacity(best, False, None, text)


def scope(plan: SweepPlan) -> str:
    """What a verdict is about: level, API, model."""
    level = plan.sustained
    if not level.value:
        return "for no load at all: level 0 observes and asks nothing, on one node"
    spaced = "evenly spaced" if plan.arrivals == "constant" else "Poisson"
    rate = f"{level.value:.12g} arrivals a second ({spaced})"
    what = f"{level} concurrent requests" if level.kind == "concurrency" else rate
    if level.kind == "concurrency" and level.value == 1:
        what = "1 concurrent request"
    if level.kind == "concurrency" and plan.think_time_s:
        who = "1 user who pauses" if level.value == 1 else f"{level} users who pause"
        what = f"{who} {duration_text(plan.think_time_s)} between two requests,"
    model = f" with model {plan.model}" if plan.model else ""
    by = ""
    if plan.locustfile is not None:
        what = "1 user" if level.value == 1 else f"{level} users"
        by = f" by {' and '.join(plan.user_classes)} of {plan.locustfile.rpartition('/')[2]}"
    more = "".join(f", {each}" for each in special(plan))
    more += "," if more else ""
    return f"for {what} of {plan.api or 'an unknown API'}{model}{by}{more} on one node"


def sentence(facts: Facts, decided: Verdict, not_tested: Sequence[str], found: str | None = None) -> str:
    """The verdict with its scope, in one sentence. found: what a search for the level found."""
    found = "" if found is None else f"; --levels auto: {found}"
    left = f"; not tested: {', '.join(not_tested)}" if not_tested else ""
    return f"{VERDICT_WORDS[decided]} {scope(facts.plan)}{found}{left}"


def why(facts: Facts, findings: Sequence[Finding], decided: Verdict, reason: str | None) -> list[str]:
    """Up to three lines, what decided first: one a gate and reason, with the level, value and limit."""
    wanted = {
        "FAIL": [each for each in findings if each.required and each.status == "fail"],
        "INCONCLUSIVE": [each for each in findings if each.required and each.status == "unknown"],
        "WARN": [each for each in findings if _warns(each)],
        "PASS": [],
    }[decided]
    # A level that failed by itself says more than the pool it is in.
    alone = {each.gate for each in wanted if each.level is not None and each.status == "fail"}
    wanted = [each for each in wanted if each.level is not None or each.gate not in alone]
    causes = [_why_line(each) for each in wanted]
    # A guard is set off by what a gate tells better.
    first = 1 if decided == "FAIL" and any(each.gate != "guard" for each in wanted) else 0
    lines = causes if reason is None else [*causes[:first], reason, *causes[first:]]
    if decided == "PASS":
        passed = {each.gate for each in findings if each.status == "pass"}
        lines.append(f"every required gate passed, {len(passed)} in all")
    return list(dict.fromkeys(lines))[:MAX_WHY]


def _warns(finding: Finding) -> bool:
    return not finding.exploring and finding.status in ("warn", "assumed", "fail")


def _stopped(plan: SweepPlan, best: Level | None, level: Level, failed: Finding) -> Capacity:
    what = f"{_reason(failed)}{_value(failed)}"
    at = _load_name(plan, level)
    if best is None:
        return Capacity(None, False, failed.gate, f"less than {at}: there {what}", level)
    return Capacity(best, True, failed.gate, f"{_load_name(plan, best)}; at {at} {what}", level)


def _load_name(plan: SweepPlan, level: Level) -> str:
    """`8 concurrent` or `5/s`; `8 users` where they pause, so that fewer requests are in flight."""
    pause = level.kind == "concurrency" and (plan.locustfile is not None or plan.think_time_s > 0)
    return f"{level} users" if pause else level_name(level)


def meets_all(facts: Facts, findings: Sequence[Finding], level: Level) -> bool:
    """Every mode gave good answers that may be judged, and each target at this level was met, at least one of them."""
    targets = [each for each in findings if each.level == level and each.is_target]
    rows = [facts.usable(at, mode) for at, mode in facts.planned if at == level]
    return (
        bool(targets) and all(each.status == "pass" for each in targets)
        and all(row is not None and row.ok > 0 for row in rows)
    )  # fmt: skip


def _why_line(finding: Finding) -> str:
    place = "" if finding.level is None else f" at level {finding.level}"
    place += "" if finding.mode is None or finding.level is None else f" {finding.mode}"
    return f"{_reason(finding)}{_value(finding)}{place}"


def _reason(finding: Finding) -> str:
    """A promise that was broken is named by its metric: the value and the limit follow."""
    if finding.gate.startswith("slo ") and finding.status == "fail" and _value(finding):
        metric, op, _ = re.split("(<=|>=)", finding.gate.removeprefix("slo "), maxsplit=1)
        return f"{metric.strip()} is {'above' if op == '<=' else 'below'} its limit"
    return finding.reason if finding.gate in SPEAKING else f"{finding.gate.removeprefix('slo ')}: {finding.reason}"


def _value(finding: Finding) -> str:
    """` (3.53 %, limit 1.00 %)`; the number of requests only where the reason does not say it."""
    if finding.observed is None or finding.observed.v is None or finding.limit is None or not finding.unit:
        return ""
    shown = beside(finding.observed.as_json(), finding.limit, finding.unit)
    n = "" if finding.gate in SPEAKING else f", n {number(finding.observed.n)}"
    return f" ({shown.v}, limit {shown.limit}{n})"
