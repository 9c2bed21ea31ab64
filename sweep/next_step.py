"""What to do after a run: in words for the first screen, and the command that would decide or narrow it. Pure.

INCONCLUSIVE always says what would decide it, and gives the command where one can be written down. A run that failed
under its load is narrowed by levels between the last that held and the first that failed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sweep.finding import Facts, Finding
from sweep.level_table import LevelRow
from sweep.next_command import command, raised
from sweep.plan import ERROR_LIMIT, SweepPlan
from sweep.run_gates import MIN_PROBES
from sweep.slo_decision import CUT_LIMIT
from sweep.tenants import can_share, texts_at
from sweep.units import Level, duration_text

AGAIN = "then the same again"
BETWEEN = 3  # levels put between one that held and one that failed
# Failures of these gates come from the load, so that fewer requests at once may do.
OF_THE_LOAD = ("errors", "shed", "guard", "stream integrity", "slo")
ABORTED = {
    "signal": "the same again, and let it come to its end",
    "stop_file": "the same again, without the STOP file",
    "disk": f"make room on the disk of OUT_DIR, {AGAIN}",
    "api_key": f"see why --api-key-cmd gave no key, {AGAIN}",
    "locustfile": f"leave the locustfile as it is until the run has ended, {AGAIN}",
    "prompts": f"leave the file of --prompts as it is until the run has ended, {AGAIN}",
    "fault": f"report the fault of ours with the files of this run, {AGAIN}",
    "killed": "the same again: this run was killed from outside",
}

# Gates about who was tested, when they failed or are unknown.
IDENTITY = {
    "subject": f"see which version answers; deploy the one declared or correct --subject, {AGAIN}",
    "subject digest": f"see which program runs; deploy the one declared or correct --subject-digest, {AGAIN}",
    "same build": f"keep one build running from the first request to the last, {AGAIN}",
    "other model": f"find out why the gateway answers with another model, or ask for that one by --model, {AGAIN}",
}


class NextStep(NamedTuple):
    """text: what to do, None when there is nothing to. command: one line for a shell, None where none can be given."""

    text: str | None
    command: str | None


class _Run(NamedTuple):
    facts: Facts
    findings: Sequence[Finding]
    guessed: Collection[str]
    errors: Sequence[Mapping[str, Any]]
    proposed: Sequence[str]

    def again(self, text: str, **changed: Any) -> NextStep:
        """The same run with what is changed. One without a latency target gets the one computed from this run."""
        if self.proposed and "slo" not in changed:
            text = f"{text}; with {self.options}"
            changed |= {"slo": [*(slo.text for slo in self.facts.plan.slos), *self.proposed]}
        return NextStep(text, command(self.facts.plan, self.guessed, self._of_the_search(changed) | changed))

    def _of_the_search(self, changed: Mapping[str, Any]) -> dict[str, Any]:
        """The level that a search found was asked for by nobody, and its leak cycles may not all have had room."""
        search = self.facts.search
        if search is None:
            return {}
        bounds = ["auto_max", "auto_steps"] if "levels" in changed else []
        asked = {"leak_cycles": search.leak_cycles_asked} if search.leak_cycles_asked else {}
        return dict.fromkeys(bounds if search.was_given else [*bounds, "sustain"]) | asked

    @property
    def options(self) -> str:
        """The proposed latency target, as it is given."""
        return " ".join(f"--slo '{slo}'" for slo in self.proposed)


def next_step(
    facts: Facts, findings: Sequence[Finding], decided: str, *, by: str | None, guessed: Collection[str] = (),
    errors: Sequence[Mapping[str, Any]] = (), proposed: Sequence[str] = (),
) -> NextStep:  # fmt: skip
    """by: who ended the run early, None for nobody. errors: result.json's. proposed: SLOs computed from it."""
    run = _Run(facts, findings, guessed, errors, proposed)
    if decided == "FAIL":
        return _after_fail(run)
    if decided == "INCONCLUSIVE":
        return run.again(ABORTED[by]) if by in ABORTED else _undecided(run)
    if not facts.plan.asks:
        return NextStep("only a level with load says whether it holds one, like --levels 0,1,2,4", None)
    if proposed:
        text = f"with a latency target, computed from this run: {run.options}"
        return run.again("")._replace(text=text)
    if facts.subject is None:
        return NextStep("give --gateway-pid PID as well, and the gateway's process is judged too", None)
    if decided == "WARN":
        return NextStep("read what warns, under Gates in the report, and accept it or mend it", None)
    at = facts.plan.sustained
    return _between(run) or NextStep(f"nothing to decide; levels above {at} with --sustain {at} show its end", None)


def after_invalid(plan: SweepPlan, guessed: Collection[str] = ()) -> NextStep:
    """Evidence that was changed after the run decides nothing any more."""
    text = "`ha-sweep verify` on this folder names what was damaged; bring the sealed files back, or run it again"
    return NextStep(text, command(plan, guessed))


def _undecided(run: _Run) -> NextStep:
    """By the first cause that applies: what spoils every number comes before what is only too little."""
    open_ = {_gate(each) for each in run.findings if each.required and each.status == "unknown"}
    if "ownership" in open_:
        target = urlsplit(run.facts.plan.target)
        port = target.port or (443 if target.scheme == "https" else 80)
        return run.again("watch the process that listens at the target's port", gateway_pid=f"port:{port}")
    if (named := next((gate for gate in IDENTITY if gate in open_), None)) is not None:
        return run.again(IDENTITY[named])
    for step in run.facts.steps:
        if run.facts.plan.is_exploring(step.times.level):
            continue
        if step.counts_why is not None:
            return run.again(f"see locust/{step.times.step}.json and .log for what was lost, {AGAIN}")
        if step.generator_why is not None:
            return run.again(f"give the load generator a free core, another machine or fewer levels, {AGAIN}")
        if not step.valid:
            return run.again(f"mend what spoilt {step.times.step} ({step.invalid_why}), {AGAIN}")
    if "limited" in open_ and _has_many(run, "limited"):
        return run.again(f"raise the caller's own limit at the gateway, or give a key without one, {AGAIN}")
    if "refused, unclear" in open_ and _has_many(run, "rejected_unclear"):
        return run.again(f"look up these request ids in the gateway's log for why it refused, {AGAIN}")
    return _too_little(run, open_)


def _has_many(run: _Run, outcome: str) -> bool:
    rows = (run.facts.row(level, mode) for level, mode in run.facts.sustained())
    return any(row is not None and row.outcomes.get(outcome, 0) > ERROR_LIMIT * row.offered for row in rows)


def _too_little(run: _Run, open_: Collection[str]) -> NextStep:
    plan = run.facts.plan
    rows = [row for level, mode in run.facts.sustained() if (row := run.facts.row(level, mode)) is not None]
    if any(row.unanswered or row.cut_ratio > CUT_LIMIT for row in rows):
        drain_s = min(4 * plan.drain_or_default_s, plan.timeout_s)
        if drain_s > plan.drain_or_default_s:
            text = f"let long answers finish: --drain {duration_text(drain_s)}"
            return run.again(text, drain=duration_text(drain_s), **raised(run.facts, run.findings))
        return run.again("ask for shorter answers: half the --max-tokens", max_tokens=max(1, plan.max_tokens // 2))
    missing = {metric for row in rows for metric in row.missing}
    if "slo" in open_ and (kept := [slo.text for slo in plan.slos if slo.metric not in missing]) != [
        slo.text for slo in plan.slos
    ]:
        text = f"{', '.join(sorted(missing))}: too few answers tell it here; leave that --slo out"
        return run.again(text, slo=kept or None)
    if "answered" in open_ and (why := _unanswered_why(run, rows)) is not None:
        return why
    longer = raised(run.facts, run.findings)
    if longer:
        options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in longer.items())
        return run.again(f"longer, for the requests its open gates need: {options}", **longer)
    return _disturbed(run, open_)


def _disturbed(run: _Run, open_: Collection[str]) -> NextStep:
    plan = run.facts.plan
    if "liveness" in open_ or "readiness" in open_:
        duration_s = float(math.ceil(max(plan.duration_s, 2.0 * MIN_PROBES)))
        changed = {} if duration_s <= plan.duration_s else {"duration": duration_text(duration_s)}
        if duration_s > plan.max_step_s:
            changed["max_step"] = duration_text(duration_s)
        return run.again(f"the health paths were asked too seldom: run longer, on a quieter machine{_told(changed)}",
                         **changed)  # fmt: skip
    if "process evidence" in open_:
        return run.again(f"the sampler was held up: leave it room on the gateway's machine, {AGAIN}")
    if any(each.n_needed and each.n is not None and each.n < each.n_needed for each in run.findings if each.required):
        return run.again("the same again, to its end: its steps then go on for the requests that they need")
    return run.again("the same again, on a machine with nothing else to do")


def _told(changed: Mapping[str, Any]) -> str:
    return "".join(f" --{name.replace('_', '-')} {value}" for name, value in changed.items())


def _unanswered_why(run: _Run, rows: Sequence[LevelRow]) -> NextStep | None:
    if not any(row.valid and not row.ok for row in rows):
        return None
    nobody = not any(row.ok for row in run.facts.rows)
    refused = _after_refusal(run) if nobody else None
    return refused or run.again(f"see the errors above for why nothing was answered, mend that, {AGAIN}")


def _after_refusal(run: _Run) -> NextStep | None:
    """What a target that answered nobody asks for, by the most frequent of its errors."""
    if not run.errors:
        return None
    plan, first = run.facts.plan, run.errors[0]
    if first["status"] in (401, 403):
        source = _key_source(plan)
        if source is None:
            return run.again("the target wants a key: name its variable with --api-key-env", api_key_env="API_KEY")
        return run.again(f"the target wants another key: check {source}, {AGAIN}")
    if first["status"] in (404, 405):
        return run.again(f"check --api ({plan.api}), --model ({plan.model}) and the target's path, {AGAIN}")
    if first["outcome"] == "connect":
        return run.again(f"see that the gateway listens at {plan.target}, {AGAIN}")
    return None


def _key_source(plan: SweepPlan) -> str | None:
    if plan.api_key_cmd is not None:
        return "what --api-key-cmd prints"
    if plan.api_key_env is not None:
        return f"the key in {plan.api_key_env}"
    return f"the values of --header {', '.join(plan.headers)}" if plan.headers else None


def _after_fail(run: _Run) -> NextStep:
    failed = {each.gate for each in run.findings if each.required and each.status == "fail"}
    if failed & {"same process", "oom"}:
        return run.again(f"find out why the process ended (its log, the kernel's log), mend it, {AGAIN}")
    served = any(row.ok for row in run.facts.rows)
    if (named := next((gate for gate in IDENTITY if gate in failed), None)) is not None:
        return run.again(IDENTITY[named])
    narrower = _between(run) if served else _after_refusal(run)
    if narrower is not None:
        return narrower
    if run.errors:
        return run.again(f"look up the request ids of the errors in the gateway's log, mend it, {AGAIN}")
    return run.again(f"see the failed gates in the report, mend the gateway or the target it must meet, {AGAIN}")


def _between(run: _Run) -> NextStep | None:
    """Levels between the last that held and the first that failed; None when none lies between."""
    kind = run.facts.plan.sustained.kind
    levels = sorted({level for level, _ in run.facts.planned if level.kind == kind and level.value > 0},
                    key=lambda level: level.value)  # fmt: skip
    bad = next((level for level in levels if any(_is_of_the_load(each, level) for each in run.findings)), None)
    if bad is None:
        return None
    mode = run.facts.modes[0]
    below = [level for level in levels if level.value < bad.value and run.facts.row(level, mode) is not None]
    low = below[-1].value if below else 0
    plan = run.facts.plan
    inner = [level for level in _inner(low, bad) if can_share(plan, level)]
    if not inner:
        return None
    tried = [*([below[-1]] if below else []), *inner, bad]
    open_ = any(each.required and each.status == "unknown" and each.level in (None, below[-1]) for each in run.findings
                ) if below else False
    held = "none" if not below else f"{below[-1]} ({'not decided' if open_ else 'held'})"
    named = ",".join(map(str, tried))
    changed = {"tenant": texts_at(plan, tried)} if plan.tenants else {}
    text = f"between {held} and {bad} (failed): levels {named}"
    return run.again(text, levels=named, sustain=str(tried[0]), **changed)


def _inner(low: float, bad: Level) -> list[Level]:
    """At most BETWEEN levels below one that failed and above low; whole numbers, of a rate three digits of any."""
    between = [low + (bad.value - low) * number / (BETWEEN + 1) for number in range(1, BETWEEN + 1)]
    if bad.kind == "rate":
        rates = [float(f"{value:.3g}") for value in between]
        return [Level(value, "rate") for value in rates if low < value < bad.value]
    values = range(int(low) + 1, int(bad.value))
    return [Level(value) for value in (values if len(values) <= BETWEEN else sorted({round(each) for each in between}))]


def _is_of_the_load(finding: Finding, level: Level) -> bool:
    return finding.status == "fail" and finding.level == level and _gate(finding) in OF_THE_LOAD


def _gate(finding: Finding) -> str:
    """The gate's name; `slo` for each one that was given."""
    return "slo" if finding.gate.startswith("slo ") else finding.gate
