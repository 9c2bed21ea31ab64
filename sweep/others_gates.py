"""Gates about who else was there: others' traffic before and during the load, and what leads to the target. Pure."""

from __future__ import annotations

from sweep import outdir
from sweep.finding import Facts, Finding, Gate, Status
from sweep.others_table import SHARE_LIMIT, Share, evidence_files
from sweep.stats import Value
from sweep.step_table import StepRow


def judge_others(facts: Facts, gate: Gate) -> list[Finding]:
    """One finding a step; a share nobody can tell is not tested, one whose evidence is gone is unknown.

    Someone seen before the load, and agreed to, warns.
    """
    if facts.others is None:
        return []
    busy = (facts.others.check or {}).get("busy") or []
    found = [
        Finding(gate.name, "warn", f"before the load: {text}", gate.rule, required=False, evidence=(outdir.RUN,))
        for text in busy
    ]
    for step in facts.steps:
        share = facts.others.of(step.times.step)
        if share is not None:
            found.append(_of_step(facts, gate, step, share))
    return found


def judge_path(facts: Facts, gate: Gate) -> list[Finding]:
    """A tunnel at the target's port: what is measured is the way through it as well."""
    listener = None if facts.others is None else facts.others.listener
    if not listener or not listener.get("is_tunnel"):
        return []
    reason = f"{listener.get('comm')} (pid {listener.get('pid')}) listens there, a tunnel: times include it"
    return [Finding(gate.name, "warn", reason, gate.rule, required=False, evidence=(outdir.RUN,))]


def _of_step(facts: Facts, gate: Gate, step: StepRow, share: Share) -> Finding:
    exploring = facts.plan.is_exploring(step.times.level)
    why = share.invalid_why if share.invalid_why is not None else step.invalid_why
    status: Status = "pass" if why is None else "unknown"
    if step.times.level.value == 0 and step.invalid_why is None and why is not None:
        status = "warn"  # what it observed is the others' load
    if share.is_removed:
        status, why = "unknown", why or share.why
    elif share.share is None:
        status, why = "skipped", f"not tested: {share.why}"
    elif why is None and step.ok == 0 and step.times.level.value > 0:
        status, why = "unknown", "no good answer in this step"
    observed = None if share.share is None else Value(share.share, step.sent)
    return Finding(
        gate.name, status, why or str(share.told), gate.rule, step.times.level, step.times.mode, step.times.step,
        required=not exploring and status != "skipped", exploring=exploring, observed=observed, limit=gate.limit,
        unit=gate.unit, n=step.sent, evidence=evidence_files(share),
    )  # fmt: skip


OTHERS_GATES = (
    Gate("others' traffic", f"at most {SHARE_LIMIT * 100:.0f} % of a step's requests are somebody else's",
         "who shares the gateway shares the blame", judge_others, SHARE_LIMIT, "ratio"),
    Gate("path", "no tunnel between the load and the gateway", "times would be the tunnel's too", judge_path),
)  # fmt: skip
