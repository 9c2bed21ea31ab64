"""Gates about the evidence of each step, the gateway's process and its health paths. Pure: facts -> findings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sweep import outdir
from sweep.arrivals import START_LAG_LIMIT_MS, STARTED_LIMIT
from sweep.finding import Facts, Finding, Gate, Status, step_request_files
from sweep.health_table import GAP_LIMIT_S, PROBE_LIMIT_MS, Probes
from sweep.lateness import CPU_SHARE_LIMIT, LAG_LIMIT_MS, LATE_S
from sweep.left_open import leak_left_open
from sweep.process_table import EDGE_INTERVALS, HOLE_INTERVALS, NO_PID
from sweep.stats import Value
from sweep.step_table import StepRow
from sweep.units import EITHER

MIN_PROBES = 10
MISSED_IN_A_ROW = 3
_COVERED = f"{MIN_PROBES} probes or more, no {GAP_LIMIT_S:.0f} s of a window without one"


def judge_counts(facts: Facts, gate: Gate) -> list[Finding]:
    """Also a step that was not run, where another cycle hides it; a whole level is named by the gate `answered`."""
    found = [
        _of_step(facts, gate, step, step.counts_why, f"{step.lines} records", _count_files(step))
        for step in facts.steps
    ]
    ran = {step.times.step for step in facts.steps}
    for step_id, level, mode in facts.planned_steps:
        others = any(row.level == level and mode in (row.mode, *EITHER) for row in facts.rows)
        if step_id not in ran and others and facts.exploring_ended(level) is None:
            exploring = facts.plan.is_exploring(level)
            found.append(
                Finding(gate.name, "unknown", f"step {step_id} was not run", gate.rule, level, mode, step_id,
                        required=not exploring, exploring=exploring, evidence=(outdir.MARKS,))
            )  # fmt: skip
    return found


def judge_generator(facts: Facts, gate: Gate) -> list[Finding]:
    found = []
    for step in facts.steps:
        share, lag = step.cpu_share_max, step.lag_p99_ms_max
        seen = (
            "in time"
            if share is None or lag is None
            else f"in its worst second {share:.2f} of a core, a timer late by {lag:.1f} ms at p99"
        )
        if step.schedule is not None and step.schedule.lag_p99_ms is not None:
            seen += f"; requests started {step.schedule.lag_p99_ms:.1f} ms after they were due at p99"
        seen = "nothing was to be sent" if step.times.level.value == 0 else seen
        report = step.times.report
        workers = () if report is None else tuple(process.worker for process in report.processes)
        files = tuple(outdir.generator_file(step.times.step, worker) for worker in workers)
        found.append(_of_step(facts, gate, step, step.generator_why, seen, files))
    return found


def judge_process_evidence(facts: Facts, gate: Gate) -> list[Finding]:
    if facts.subject is None:
        return [Finding(gate.name, "skipped", f"not tested: {NO_PID}", gate.rule, required=False)]
    return [
        _of_step(facts, gate, step, facts.process_why[step.times.step], "complete", (outdir.SAMPLES,))
        for step in facts.steps
    ]


def judge_same_process(facts: Facts, gate: Gate) -> list[Finding]:
    seen = facts.survival
    files = (outdir.SAMPLES, outdir.MARKS)
    if not seen.tested:
        return [Finding(gate.name, "skipped", seen.why, gate.rule, required=False)]
    status: Status = "unknown" if seen.same is None else "pass" if seen.same else "fail"
    died_in = next((step.times for step in facts.steps if step.times.step == seen.died_in_step), None)
    level, mode = (None, None) if died_in is None else (died_in.level, died_in.mode)
    return [Finding(gate.name, status, seen.why, gate.rule, level, mode, seen.died_in_step, evidence=files)]


def judge_ownership(facts: Facts, gate: Gate) -> list[Finding]:
    """Whether the process watched is the one behind the port; without a PID it is client side only, which warns."""
    if facts.subject is None:
        return [Finding("client side only", "warn", NO_PID, gate.rule, required=False, evidence=(outdir.RUN,))]
    told = str(facts.subject.get("ownership"))
    statuses: dict[str, Status] = {"proved": "pass", "declared": "assumed"}
    reason = f"{told}: {facts.subject.get('why') or 'no reason recorded'}"
    return [Finding(gate.name, statuses.get(told, "unknown"), reason, gate.rule, evidence=(outdir.RUN,))]


def judge_certificate(facts: Facts, gate: Gate) -> list[Finding]:
    """Said only where it was not looked at; where it was, no request was sent to a server that failed it."""
    if not facts.plan.insecure:
        return []
    reason = "not verified (--insecure): who answered is not proven"
    return [Finding(gate.name, "warn", reason, gate.rule, required=False, evidence=(outdir.RUN,))]


def judge_oom(facts: Facts, gate: Gate) -> list[Finding]:
    """OOM kills fail when the cgroup holds only the gateway; in a shared one anybody may be the victim: warn."""
    if facts.oom_kills is None:
        return [Finding(gate.name, "skipped", "not tested: no cgroup counter of OOM kills", gate.rule, required=False)]
    status: Status = "pass" if facts.oom_kills == 0 else "fail" if facts.oom_alone else "warn"
    whose = "the gateway's cgroup" if facts.oom_alone else "the cgroup the gateway shares"
    return [
        Finding(gate.name, status, f"{facts.oom_kills} in {whose}", gate.rule, observed=Value(facts.oom_kills, 1),
                limit=gate.limit, evidence=(outdir.SAMPLES,))
    ]  # fmt: skip


def judge_guards(facts: Facts, gate: Gate) -> list[Finding]:
    """A guard that ended the run at a level production needs, or the exploring above it."""
    found = []
    for trip in facts.guards:
        exploring = trip.level is not None and facts.plan.is_exploring(trip.level)
        found.append(
            Finding(gate.name, "fail", trip.reason, gate.rule, trip.level, trip.mode, trip.step,
                    required=not exploring, exploring=exploring, evidence=(outdir.MARKS,))
        )  # fmt: skip
    return found


def judge_liveness(facts: Facts, gate: Gate) -> list[Finding]:
    seen = facts.live
    if seen is None:
        return [Finding(gate.name, "skipped", "not tested: no liveness path", gate.rule, required=False)]
    # One probe missed of fewer than a hundred makes p99 infinite and proves nothing: the bound decides, p99 warns.
    is_late = seen.p99_ms.lo is not None and seen.p99_ms.lo > gate.bound
    seems_late = seen.p99_ms.v is not None and seen.p99_ms.v > gate.bound
    failed = is_late or seen.longest_row >= MISSED_IN_A_ROW
    return [_of_probes(gate, seen, failed=failed, warns=seems_late, steps=facts.steps)]


def judge_readiness(facts: Facts, gate: Gate) -> list[Finding]:
    """Three in a row, or too many beyond doubt, and a balancer takes the gateway out; a few may be an accident."""
    seen = facts.ready
    if seen is None:
        return [Finding(gate.name, "skipped", "not tested: no readiness path", gate.rule, required=False)]
    asked = [step for step in facts.steps if is_readiness_asked(facts.plan.is_exploring(step.times.level), step)]
    if facts.steps and not asked:
        reason = "not tested: each step refused requests, when not being ready is right"
        return [Finding(gate.name, "skipped", reason, gate.rule, required=False)]
    failed = seen.longest_row >= MISSED_IN_A_ROW or seen.p99_ms.lo == math.inf
    return [_of_probes(gate, seen, failed=failed, warns=seen.p99_ms.v == math.inf, steps=asked)]


def judge_leak(facts: Facts, gate: Gate) -> list[Finding]:
    reason = f"not tested: {leak_left_open(facts.plan.n_cycles, facts.plan.leak_cycles)}"
    return [Finding(gate.name, "skipped", reason, gate.rule, required=False)]


def is_readiness_asked(exploring: bool, step: StepRow) -> bool:
    """Whether readiness must hold in a step: up to the sustained level, unless it sheds (then 503 is honest)."""
    return not exploring and step.shed == 0


def _of_step(facts: Facts, gate: Gate, step: StepRow, why: str | None, good: str, evidence: tuple[str, ...]) -> Finding:
    times = step.times
    exploring = facts.plan.is_exploring(times.level)
    why = why if why is not None else step.invalid_why  # an invalid step makes all its gates unknown
    status: Status = "pass" if why is None else "unknown"
    if status == "pass" and step.ok == 0 and times.level.value > 0:
        status, why = "unknown", "no good answer in this step"
    return Finding(
        gate.name, status, why or good, gate.rule, times.level, times.mode, times.step, required=not exploring,
        exploring=exploring, n=step.lines, evidence=evidence,
    )  # fmt: skip


def _of_probes(gate: Gate, seen: Probes, *, failed: bool, warns: bool, steps: Sequence[StepRow]) -> Finding:
    reason = f"{seen.missed} of {seen.n} missed, at most {seen.longest_row} in a row"
    status: Status = "fail"
    if not failed and seen.n < MIN_PROBES:
        status, reason = "unknown", f"{seen.n} of {MIN_PROBES} probes during {len(steps)} steps"
    elif not failed and seen.gap_why is not None:
        status, reason = "unknown", f"{reason}; {seen.gap_why}"
    elif not failed:
        status = "warn" if warns else "pass"
    return Finding(
        gate.name, status, reason, gate.rule, observed=seen.p99_ms, limit=gate.limit, unit=gate.unit, n=seen.n,
        n_needed=MIN_PROBES if seen.n < MIN_PROBES else None, evidence=(outdir.HEALTH,),
    )  # fmt: skip


def _count_files(step: StepRow) -> tuple[str, ...]:
    return (outdir.locust_json(step.times.step), *step_request_files(step))


RUN_GATES = (
    Gate("counts agree", "records = requests started = Locust's own counts", "a lost record is a lost failure",
         judge_counts),
    Gate("generator",
         f"no {LATE_S:.0f} s above {CPU_SHARE_LIMIT:.0%} of a core or {LAG_LIMIT_MS:.0f} ms late; every user alive; "
         f"of arrivals {STARTED_LIMIT:.0%} started, at most {START_LAG_LIMIT_MS:.0f} ms late at p99",
         "a late generator's numbers are about itself", judge_generator),
    Gate("process evidence",
         f"no hole over {HOLE_INTERVALS} intervals, a sample within {EDGE_INTERVALS} of both edges of the window",
         "what was not sampled was not seen", judge_process_evidence, not_tested="process evidence (no --gateway-pid)"),
    Gate("same process", "the same process, from the first sample to the last", "a restart loses what was in flight",
         judge_same_process),
    Gate("ownership", "the process watched holds the listening socket", "evidence of another process proves nothing",
         judge_ownership),
    Gate("certificate", "the target's certificate is verified", "another server's answers prove nothing",
         judge_certificate),
    Gate("oom", "no OOM kill in the gateway's cgroup", "a killed worker loses what was in flight", judge_oom, 0,
         not_tested="OOM kills (no counter)"),
    Gate("guard", "no guard tripped", "a gateway at its limits takes others down with it", judge_guards),
    Gate("liveness",
         f"never {MISSED_IN_A_ROW} probes in a row missed, p99 <= 1 s with a missed one as never, at every level; "
         f"{_COVERED}",
         "an orchestrator kills what does not answer", judge_liveness, PROBE_LIMIT_MS, "ms",
         not_tested="liveness (no path)"),
    Gate("readiness",
         f"never {MISSED_IN_A_ROW} probes in a row missed, nor beyond doubt 1 in 100, up to the sustained level; "
         f"1 in 100 as seen warns; {_COVERED}",
         "a balancer takes what is not ready out", judge_readiness, None, "ms",
         not_tested="readiness (no path or each step refused requests)"),
    Gate("leak", "no growth of the idle floors from cycle to cycle", "what grows each cycle ends the process",
         judge_leak),
)  # fmt: skip
