"""Gates about requests: answered at all, errors, refusals, stream integrity, flags. Pure: facts -> findings.

Pooled gates look at all levels up to the sustained one; a level alone can only fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sweep import stats
from sweep.finding import Facts, Finding, Gate, Status, compare, request_files
from sweep.level_table import LevelRow
from sweep.plan import ERROR_LIMIT, N_INTEGRITY
from sweep.slo_decision import CUT_LIMIT, INTEGRITY, INTEGRITY_LIMIT
from sweep.stats import Value
from sweep.units import Level


def judge_answered(facts: Facts, gate: Gate) -> list[Finding]:
    """Each level and mode gave at least one good answer: without one, nothing else can be said of it."""
    found = []
    for level, mode in facts.planned:
        if level.value == 0:  # observed only, nothing was asked
            continue
        row, why = facts.row(level, mode), facts.unusable_why(level, mode)
        exploring = facts.plan.is_exploring(level)
        n_ok = None if row is None else row.ok
        if why is not None:
            status: Status = "skipped" if facts.is_skipped(level, mode) else "unknown"
        else:
            status, why = ("pass", f"{n_ok} good answers") if n_ok else ("unknown", "no good answer at this level")
        found.append(
            Finding(gate.name, status, why, gate.rule, level, mode, required=not exploring, exploring=exploring,
                    limit=gate.limit, n=n_ok, observed=None if n_ok is None else Value(n_ok, n_ok),
                    evidence=() if row is None else request_files([row]))
        )  # fmt: skip
    return found


def judge_errors(facts: Facts, gate: Gate) -> list[Finding]:
    return _judge_share(facts, gate, _failed, "requests failed")


def _failed(row: LevelRow) -> int:
    return row.failed


def judge_shed(facts: Facts, gate: Gate) -> list[Finding]:
    return _judge_share(facts, gate, lambda row: row.outcomes.get("shed", 0), "requests refused as full")


def judge_limited(facts: Facts, gate: Gate) -> list[Finding]:
    return _judge_refused(facts, gate, "limited", "requests refused by the caller's own limit",
                          "the gateway's own capacity was not reached")  # fmt: skip


def judge_unclear(facts: Facts, gate: Gate) -> list[Finding]:
    return _judge_refused(facts, gate, "rejected_unclear", "requests refused", "whose limit it was is unknown")


def judge_integrity(facts: Facts, gate: Gate) -> list[Finding]:
    """Streams that break: any seen warns, a lower bound above the limit fails, none in 100 good answers passes.

    n counts good answers and broken streams only, so that other failures do not help it to its hundred.
    """
    if "stream" not in facts.modes:
        return [Finding(gate.name, "skipped", "not tested: no streaming", gate.rule, required=False)]
    scope = [(level, mode) for level, mode in facts.sustained() if mode == "stream"]
    rows = _usable(facts, scope)
    broken = sum(row.outcomes.get(name, 0) for row in rows for name in INTEGRITY)
    n_ok = sum(row.ok for row in rows)
    value = stats.share(broken, n_ok + broken)
    limit = gate.bound
    reason = _broke(rows, broken, n_ok + broken)
    if value.lo is not None and value.lo > limit:
        status: Status = "fail"
    elif (why := _incomplete(facts, scope)) is not None:
        status, reason = "unknown", f"{reason}; {why}"
    elif n_ok < N_INTEGRITY:
        status, reason = "unknown", f"{reason}; {n_ok} of {N_INTEGRITY} good answers"
    else:
        status = "warn" if broken else "pass"
    pooled = _pooled(gate, status, reason, value, N_INTEGRITY if n_ok < N_INTEGRITY else None, rows, "stream")
    return [pooled, *_broken_levels(facts, gate)]


def judge_flags(facts: Facts, gate: Gate) -> list[Finding]:
    """A warning for each flag on more than 1 % of a level's good answers."""
    found = []
    for level, mode in facts.planned:
        row = facts.usable(level, mode)
        for flag, count in (row.flags if row is not None else {}).items():
            if row is not None and count > gate.bound * row.ok and flag not in OF_THEIR_OWN:
                exploring = facts.plan.is_exploring(level)
                gate_of, words = FLAGS.get(flag, (f"flag {flag}", flag))
                found.append(
                    Finding(gate_of, "warn", f"{count} of {row.ok} good answers: {words}", gate.rule, level, mode,
                            required=False, exploring=exploring, observed=Value(count / row.ok, row.ok),
                            limit=gate.limit, unit=gate.unit, n=row.ok, evidence=request_files([row]))
                )  # fmt: skip
    return found


def judge_outside(facts: Facts, gate: Gate) -> list[Finding]:
    """Failures before the window or in its drain are in no ratio; that there were any is said."""
    steps = [step for step in facts.steps if not facts.plan.is_exploring(step.times.level)]
    n_failed = sum(step.failed_outside for step in steps)
    if not steps:
        return [Finding(gate.name, "unknown", "no step ran", gate.rule, required=False)]
    status: Status = "warn" if n_failed else "pass"
    where = ", ".join(step.times.step for step in steps if step.failed_outside)
    reason = f"{n_failed} failed before the window or after it" + (f", in {where}" if where else "")
    return [Finding(gate.name, status, reason, gate.rule, required=False)]


def _judge_share(facts: Facts, gate: Gate, count: Callable[[LevelRow], int], verb: str) -> list[Finding]:
    limit = gate.bound
    scope = facts.sustained()
    rows = _usable(facts, scope)
    k, n = sum(count(row) for row in rows), sum(row.offered for row in rows)
    value = stats.share(k, n)
    status, needed = compare(value, "<=", limit), None
    reason = f"{k} of {n} {verb}"
    if status != "fail" and (why := _incomplete(facts, scope)) is not None:
        status, reason = "unknown", f"{reason}; {why}"
    elif status != "fail" and not any(row.ok for row in rows):
        status, reason = "unknown", "no good answer"
    elif status == "pass" and count is _failed and any(row.cut_ratio > CUT_LIMIT for row in rows):
        n_cut = sum(row.cut for row in rows)
        status, reason = "unknown", f"{reason}; {n_cut} more were cut by the end of their step"
    elif status == "pass" and count is _failed and (lost := sum(row.unanswered for row in rows)):
        if compare(stats.share(k + lost, n + lost), "<=", limit) != "pass":
            status, reason = "unknown", f"{reason}; {lost} more had no byte of an answer when the drain was over"
    elif status == "unknown" and n:
        needed = stats.n_for_share(k, limit)
        reason = f"too few requests: {reason}, {needed} with {k} would show {limit * 100:g} % or less"
    found = [_pooled(gate, status, reason, value, needed, rows, None)]
    for level, mode in facts.planned:
        row = facts.usable(level, mode)
        if row is not None and compare(row.ratio(count(row)), "<=", limit) == "fail":
            found.append(_alone(facts, gate, row, row.ratio(count(row)), f"{count(row)} of {row.offered} {verb}"))
    return found


def _alone(facts: Facts, gate: Gate, row: LevelRow, value: Value, reason: str) -> Finding:
    """One level by itself can only fail: its success is left to the pooled gate."""
    exploring = facts.plan.is_exploring(row.level)
    return Finding(
        gate.name, "fail", reason, gate.rule, row.level, row.mode, required=not exploring, exploring=exploring,
        observed=value, limit=gate.limit, unit=gate.unit, n=value.n, evidence=request_files([row]),
    )  # fmt: skip


def _judge_refused(facts: Facts, gate: Gate, outcome: str, verb: str, meaning: str) -> list[Finding]:
    """More than 1 % refused for a reason that is not the gateway's fullness: its capacity is then unknown."""
    limit = gate.bound
    scope = facts.sustained()
    rows = _usable(facts, scope)
    k, n = sum(row.outcomes.get(outcome, 0) for row in rows), sum(row.offered for row in rows)
    value = stats.share(k, n)
    too_many = [row for row in rows if row.outcomes.get(outcome, 0) > limit * row.offered]
    if value.v is None:
        return [_pooled(gate, "unknown", "nothing offered", value, None, rows, None)]
    status: Status = "unknown" if too_many or value.v > limit else "pass"
    reason = f"{k} of {n} {verb}"
    if status == "unknown":
        where = ", ".join(f"{row.level} {row.mode}" for row in too_many)
        reason = f"{reason}, {meaning}" + (f" (level {where})" if where else "")
    elif (why := _incomplete(facts, scope)) is not None:
        status, reason = "unknown", f"{reason}; {why}"
    return [_pooled(gate, status, reason, value, None, rows, None)]


def _broken_levels(facts: Facts, gate: Gate) -> list[Finding]:
    """Exploring levels whose streams break beyond doubt; those up to the sustained level are in the pool."""
    found = []
    for level, mode in facts.planned:
        row = facts.usable(level, mode)
        if row is None or mode != "stream":
            continue
        broken = sum(row.outcomes.get(name, 0) for name in INTEGRITY)
        value = stats.share(broken, row.ok + broken)
        if facts.plan.is_exploring(level) and value.lo is not None and value.lo > (gate.bound):
            found.append(_alone(facts, gate, row, value, _broke([row], broken, row.ok + broken)))
    return found


def _broke(rows: Sequence[LevelRow], broken: int, n: int) -> str:
    """`7 of 820 streams broke: 6 truncated, 1 reset`."""
    kinds = {name: sum(row.outcomes.get(name, 0) for row in rows) for name in INTEGRITY}
    told = ", ".join(f"{count} {name}" for name, count in kinds.items() if count)
    return f"{broken} of {n} streams broke" + (f": {told}" if told else "")


def _pooled(gate: Gate, status: Status, reason: str, value: Value, needed: int | None,
            rows: Sequence[LevelRow], mode: str | None) -> Finding:  # fmt: skip
    return Finding(
        gate.name, status, reason, gate.rule, mode=mode, observed=value, limit=gate.limit, unit=gate.unit, n=value.n,
        n_needed=needed, evidence=request_files(rows),
    )  # fmt: skip


def _usable(facts: Facts, scope: Sequence[tuple[Level, str]]) -> list[LevelRow]:
    return [row for level, mode in scope if (row := facts.usable(level, mode)) is not None and level.value > 0]


def _incomplete(facts: Facts, scope: Sequence[tuple[Level, str]]) -> str | None:
    """Why a pool lacks a level it should hold, or None."""
    for level, mode in scope:
        if level.value > 0 and (why := facts.unusable_why(level, mode)) is not None:
            return f"level {level} {mode} is not in it: {why}"
    return None


# flag: the name its finding goes by, and what it means
FLAGS = {
    "no_done": ("flag no_done", "no [DONE] at the end"),
    "no_finish": ("flag no_finish", "no finish_reason"),
    "buffered": ("buffering", "the path holds streams back: most tokens came in one read near the end"),
    "not_streamed": ("not streamed", "a stream was asked for and a whole answer came"),
    "cold": ("flag cold", "the model was loaded for it"),
    "no_answer": ("flag no_answer", "nothing was answered, or only reasoning"),
    "late_tokens": ("flag late_tokens", "tokens came after the terminal event"),
    "lost_events": ("flag lost_events", "numbered events are missing: the path dropped some"),
    "late_end": ("flag late_end", "the body went on long after the terminal event"),
    "odd_count": ("flag odd_count", "the server counts more tokens than were asked for"),
    "retried_stale": ("flag retried_stale", "sent again after an idle connection turned out closed"),
}
OF_THEIR_OWN = ("other_model", "fallback")  # judged by the gates `other model` and `retries`

REQUEST_GATES = (
    Gate("answered", "each level and mode gives good answers", "a level without one says nothing", judge_answered, 1),
    Gate("errors", f"error ratio <= {ERROR_LIMIT * 100:g} % of the requests offered, by its 95 % upper bound",
         "above 1 % callers retry, and retries add load", judge_errors, ERROR_LIMIT, "ratio"),
    Gate("outside the window", "no failure in warm-up or drain up to the sustained level",
         "clients of a restarted gateway meet what a warm-up meets", judge_outside),
    Gate("shed", f"refused as full <= {ERROR_LIMIT * 100:g} % of the requests offered, by its 95 % upper bound",
         "a level that production needs must be admitted", judge_shed, ERROR_LIMIT, "ratio"),
    Gate("limited", "refused by the caller's own limit <= 1 % of what was offered up to the sustained level, as seen",
         "a rate limit below the load hides the gateway's own capacity", judge_limited, 0.01, "ratio"),
    Gate("refused, unclear", "refused without a reason <= 1 % of what was offered up to the sustained level, as seen",
         "a full server and a caller's limit call for different answers", judge_unclear, 0.01, "ratio"),
    Gate("stream integrity", "no truncated stream, error event, bad body or reset in 100; never above 0.1 %",
         "callers take a broken stream for a complete answer", judge_integrity, INTEGRITY_LIMIT, "ratio"),
    Gate("flags", "a flag on more than 1 % of a level's good answers warns", "what works by accident breaks later",
         judge_flags, 0.01, "ratio"),
)  # fmt: skip
