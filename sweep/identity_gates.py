"""Gates about who was tested and who answered: subject, same build, program, other model, retries. Pure."""

from __future__ import annotations

from sweep import outdir
from sweep.finding import Facts, Finding, Gate, Status, request_files
from sweep.level_table import LevelRow
from sweep.stats import Value
from sweep.subject_table import compare_digest, compare_version

OTHER_MODEL_LIMIT = 0.01  # of a level's good answers, as for every flag


def judge_subject(facts: Facts, gate: Gate) -> list[Finding]:
    """--subject against the versions answered; nothing declared is no finding, the first screen says what is known."""
    if facts.plan.subject is None:
        return []
    compared = compare_version(facts.plan, facts.seen)
    statuses: dict[str, Status] = {"equal": "pass", "differs": "fail", "both": "assumed", "unanswered": "assumed"}
    return [Finding(gate.name, statuses[compared.how], compared.reason, gate.rule, evidence=(outdir.RUN,))]


def judge_digest(facts: Facts, gate: Gate) -> list[Finding]:
    if facts.plan.subject_digest is None:
        return []
    how, reason = compare_digest(facts.plan, facts.seen)
    statuses: dict[str, Status] = {"equal": "pass", "differs": "unknown", "incomparable": "assumed"}
    return [Finding(gate.name, statuses[how], reason, gate.rule, evidence=(outdir.RUN,))]


def judge_same_build(facts: Facts, gate: Gate) -> list[Finding]:
    """Another version later, or another program in the same process: the numbers are of two builds, and of neither."""
    seen = facts.seen
    if seen.changes:
        reason = f"the target was changed during the run: {'; '.join(seen.changes[:3])}"
        return [Finding(gate.name, "unknown", reason, gate.rule, evidence=(outdir.RUN, f"{outdir.SNAPSHOTS}/"))]
    if not seen.answers:
        return []
    told = str(seen.answers[0])
    if not seen.again:
        reason = f"not tested: {told} before the load, and no answer after the last step"
        return [Finding(gate.name, "skipped", reason, gate.rule, required=False)]
    return [Finding(gate.name, "pass", f"{told} before and after", gate.rule, evidence=(f"{outdir.SNAPSHOTS}/",))]


def judge_program(facts: Facts, gate: Gate) -> list[Finding]:
    """A program file that is gone or replaced: what runs is not what a restart would start."""
    if not facts.seen.is_deleted:
        return []
    reason = f"{facts.seen.exe}: the file was deleted or replaced under the running process; a restart runs another"
    return [Finding(gate.name, "warn", reason, gate.rule, required=False, evidence=(outdir.RUN,))]


def judge_other_model(facts: Facts, gate: Gate) -> list[Finding]:
    """Answers that name another model than was asked for.

    Where the model asked for answers too, more than the limit fails: the numbers are a mixture. One other name
    throughout may be an alias of the same model, which is not to be told from outside: it warns.
    """
    rows = _usable(facts)
    found = [_of_model(facts, gate, row) for row in rows if row.flags.get("other_model")]
    if found:
        return found
    n = sum(sum(row.told.models.values()) for row in rows if not row.exploring)
    if not n:
        reason = "not tested: no good answer names a model"
        return [Finding(gate.name, "skipped", reason, gate.rule, required=False)]
    return [Finding(gate.name, "pass", f"all of {n} name the model asked for", gate.rule, limit=gate.limit,
                    unit=gate.unit, n=n, observed=Value(0.0, n))]  # fmt: skip


def _of_model(facts: Facts, gate: Gate, row: LevelRow) -> Finding:
    n, named = row.flags["other_model"], sum(row.told.models.values())
    asked = (facts.plan.model or "").removesuffix(":latest")
    others = [f"{name} ({k})" for name, k in row.told.models.items() if name.removesuffix(":latest") != asked]
    reason = f"{n} of {row.ok} good answers name another: {', '.join(others[:3])}"
    is_mixed = n < named
    status: Status = "fail" if is_mixed and n > gate.bound * row.ok else "warn"
    if not is_mixed:
        reason += "; no answer names the one asked for: an alias of it, or another model"
    required = status == "fail" and not row.exploring
    return Finding(
        gate.name, status, reason, gate.rule, row.level, row.mode, required=required, exploring=row.exploring,
        observed=Value(n / row.ok, row.ok), limit=gate.limit, unit=gate.unit, n=row.ok, evidence=request_files([row]),
    )  # fmt: skip


def judge_retries(facts: Facts, gate: Gate) -> list[Finding]:
    """The gateway tried more than once, or another model or provider: its errors are hidden, its load multiplied."""
    rows = _usable(facts)
    found = [_of_retries(gate, row) for row in rows if row.told.retried_or_fallback]
    if found:
        return found
    n = sum(row.told.n_attempts for row in rows if not row.exploring)
    if not n:
        reason = "not tested: no answer carries a known header of attempts"
        return [Finding(gate.name, "skipped", reason, gate.rule, required=False)]
    return [Finding(gate.name, "pass", f"none of the {n} answers that tell", gate.rule, required=False, n=n)]


def _of_retries(gate: Gate, row: LevelRow) -> Finding:
    told = row.told
    parts = []
    if told.retried:
        parts.append(f"{told.retried} of {told.n_attempts} answers that tell took more than one attempt")
    if told.fallbacks:
        parts.append(f"{told.fallbacks} of {told.answers} answers came after a fallback")
    share = told.retried_or_fallback / told.answers
    return Finding(
        gate.name, "warn", "; ".join(parts), gate.rule, row.level, row.mode, required=False, exploring=row.exploring,
        observed=Value(share, told.answers), unit=gate.unit, n=told.answers, evidence=request_files([row]),
    )  # fmt: skip


def _usable(facts: Facts) -> list[LevelRow]:
    rows = (facts.usable(level, mode) for level, mode in facts.planned)
    return [row for row in rows if row is not None and row.ok > 0]


IDENTITY_GATES = (
    Gate("subject", "the version answered is the one declared (--subject)",
         "a verdict about another build is about nothing that is to be released", judge_subject),
    Gate("subject digest", "the running program has the sha256 declared (--subject-digest)",
         "the same version may have been built twice", judge_digest),
    Gate("same build", "the same version and program after every step as before the load",
         "numbers of two builds are numbers of neither", judge_same_build),
    Gate("program", "the file of the running program is still in its place",
         "after the next restart another build would run", judge_program),
    Gate("other model", "answers name the model asked for; a mixture with more than 1 % of another fails",
         "numbers of a mixture are about no model", judge_other_model, OTHER_MODEL_LIMIT, "ratio"),
    Gate("retries", "no answer after a retry or fallback inside the gateway", "retries hide errors and multiply load",
         judge_retries, None, "ratio"),
)  # fmt: skip
