"""OUT_DIR -> the content of result.json. Reads evidence only, no clock: the same files give the same result."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sweep import (
    beside_evidence,
    beside_table,
    evidence,
    gates,
    health_table,
    others_table,
    outdir,
    run_table,
    search_table,
    step_table,
    subject_table,
    tenant_table,
    verdict,
)
from sweep.errors import EvidenceError
from sweep.evidence import Evidence
from sweep.expiry import without_refused_probes
from sweep.finding import Facts, level_json
from sweep.knee import knee, proposed_slos
from sweep.left_behind import left_behind
from sweep.left_open import not_tested as plan_leaves_open
from sweep.level_table import level_rows
from sweep.next_step import after_invalid, next_step
from sweep.plan import SweepPlan
from sweep.plan_steps import steps
from sweep.process_table import samples_of, subject_of
from sweep.records import FORMAT
from sweep.run_gates import is_readiness_asked
from sweep.run_shape import sound
from sweep.seal import seal_faults
from sweep.search_gates import search_json
from sweep.search_table import Search
from sweep.sending import prefix_caches
from sweep.windows import ints, plan_of, planned_modes, planned_steps, sets, step_times, t_mark

RULES = "1"  # version of the rules of judgement; rises when the same evidence would be judged otherwise


def judge(out_dir: Path) -> dict[str, Any]:
    """The judgement of a run. Damaged or contradicting evidence gives run_status INVALID and exit code 5.

    Raises EvidenceError when run.json itself is missing or unreadable: then it is not known what was run.
    """
    return read_and_judge(out_dir)[0]


def read_and_judge(out_dir: Path) -> tuple[dict[str, Any], Evidence | None]:
    """The judgement and the evidence it was made from, None for evidence that cannot be trusted. Raises as `judge`."""
    whole, fault = sound(evidence.read_run(out_dir))
    plan = plan_of(whole)
    run = {**whole, "subjects": beside_evidence.subjects_of(whole, None)}
    if fault is not None:
        return invalid_result(run, plan, fault), None
    try:
        for fault in seal_faults(out_dir):
            raise EvidenceError(fault)
        everything, plan, found = search_table.completed(evidence.read(out_dir), plan)
        beside_table.check_steps(everything, plan)
        ev = beside_evidence.part(everything, None)
        return _judged(ev, plan, everything, found), ev
    except EvidenceError as error:
        return invalid_result(run, plan, str(error)), None
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        # Files of another shape than any run writes (numbers beyond 64 bits, lists for objects); or a fault of ours,
        # which then ends with the same exit code and names itself.
        return invalid_result(run, plan, f"the evidence cannot be read as that of a run: {error!r}"), None


def facts_of(ev: Evidence, plan: SweepPlan, found: Search | None = None) -> Facts:
    """Everything the gates look at, out of the evidence; all three as `search_table.completed` gives them."""
    times = step_times(ev)
    in_sets = sets(ev, times)
    rows = step_table.step_rows(ev, times, in_sets)
    others = others_table.others_of(ev, rows)
    rows = others_table.marked(rows, others)
    planned = tuple((each["step"], each["level"], each["mode"]) for each in _planned(ev, plan))
    level_modes = planned_modes(ev, planned)
    paths = ev.run.get("paths") or {}
    ready_steps = [row.times for row in rows if is_readiness_asked(plan.is_exploring(row.times.level), row)]
    kills, alone = _oom_kills(ev)
    healthy = without_refused_probes(ev, [row.times for row in rows if row.key_why is not None])
    return Facts(
        plan=plan,
        planned=level_modes,
        planned_steps=planned,
        rows=level_rows(ev, plan, rows, in_sets, level_modes),
        steps=rows,
        guards=run_table.guard_trips(ev, times),
        survival=run_table.survival(ev, times),
        subject=subject_of(ev),
        process_why={each.step: run_table.process_evidence_why(ev, each) for each in times},
        live=health_table.probes(healthy, "live", times) if paths.get("health") else None,
        ready=health_table.probes(healthy, "ready", ready_steps) if paths.get("ready") else None,
        oom_kills=kills,
        oom_alone=alone,
        seen=subject_table.seen(ev),
        others=others,
        search=found,
    )


def _planned(ev: Evidence, plan: SweepPlan) -> list[dict[str, Any]]:
    """run.json's steps. Raises EvidenceError when they are not those of its plan: one that is left out would pass."""
    planned = planned_steps(ev)
    if plan.is_auto:
        return planned  # `search_table` has looked
    if {(p["level"], p["mode"], p["cycle"]) for p in planned} != {(s.level, s.mode, s.cycle) for s in steps(plan)}:
        raise EvidenceError(f"{outdir.RUN}: its steps are not those of its plan; the file was changed or damaged")
    return planned


def _judged(ev: Evidence, plan: SweepPlan, everything: Evidence, search: Search | None) -> dict[str, Any]:
    """everything: of all targets; ev: of the first, which the verdict is about."""
    facts = facts_of(ev, plan, search)
    findings = gates.judge_findings(facts)
    found = search_json(facts, findings)
    status, status_reason, by = verdict.run_status(ev.marks)
    decided = verdict.verdict(findings, status)
    errors = run_table.error_table(ev, [row.times for row in facts.steps])
    what_next = next_step(
        facts, findings, decided, by=by, guessed=ev.run.get("guessed", []), errors=errors, proposed=proposed_slos(facts)
    )  # fmt: skip
    in_sets = sets(ev, [row.times for row in facts.steps])
    planned_open = plan_leaves_open(plan, facts.modes, streams=_dialect(ev.run)["streams"])
    open_ = list(dict.fromkeys([*planned_open, *gates.not_tested(findings)]))
    return {
        **_head(ev.run, plan),
        "sustain_default": plan.sustain is None or (search is not None and not search.was_given),
        "verdict": decided,
        "sentence": verdict.sentence(facts, decided, open_, None if found is None else found["text"]),
        "why": verdict.why(facts, findings, decided, status_reason),
        "exit_code": verdict.exit_code(decided, status, by, strict=plan.strict),
        "run_status": status,
        "status_reason": status_reason,
        "capacity": verdict.capacity(facts, findings).as_json(),
        "search": found,
        "target": _target(ev.run, plan) | _when(ev),
        "findings": [finding.as_json() for finding in findings],
        "levels": [row.as_json() for row in facts.rows],
        "tenants": tenant_table.tenants_json(ev, plan, facts.steps, in_sets, facts.rows),
        "steps": step_table.step_table(ev, facts.steps),
        "errors": errors,
        **_process_part(ev, facts),
        "subject": subject_table.subject_json(plan, facts.seen),
        "others": None if facts.others is None else facts.others.as_json(),
        "beside": beside_table.beside_json(everything, plan, facts),
        "knee": knee(facts),
        "not_tested": open_,
        "left_behind": left_behind(ev, plan),
        "next": what_next.command,
        "next_text": what_next.text,
        "problems": ev.problems,
    }


def _process_part(ev: Evidence, facts: Facts) -> dict[str, Any]:
    times = [row.times for row in facts.steps]
    return {
        "survival": facts.survival.as_json(),
        "floors": run_table.floors(ev, times),
        "leak": run_table.leak_text(ev, times),
        "sampler": run_table.sampler_summary(ev),
        "visibility": run_table.visibility(ev),
        "health": _health(ev, facts),
    }


def invalid_result(run: dict[str, Any], plan: SweepPlan, reason: str) -> dict[str, Any]:
    """A result of evidence that cannot be trusted: nothing in it is judged."""
    after = after_invalid(plan, run.get("guessed", []))
    return {
        **_head(run, plan),
        "verdict": "INCONCLUSIVE",
        "sentence": f"INCONCLUSIVE: the evidence is damaged or contradicts itself: {reason}",
        "why": [reason],
        "exit_code": 5,
        "run_status": "INVALID",
        "status_reason": reason,
        "capacity": verdict.Capacity(None, False, None, "not judged: the evidence is invalid").as_json(),
        "search": None,
        "target": _target(run, plan) | {"started_at": None, "duration_s": None},
        "findings": [], "levels": [], "steps": [], "errors": [],
        "survival": run_table.Survival(False, None, None, None, "unknown: the evidence is invalid").as_json(),
        "floors": [], "leak": "leak: not tested (invalid evidence)", "sampler": None, "visibility": [], "health": None,
        "subject": None, "others": None, "beside": None, "knee": None, "tenants": None,
        "not_tested": ["everything: the evidence is invalid"],
        "left_behind": [], "next": after.command, "next_text": after.text, "problems": [reason],
    }  # fmt: skip


def _head(run: dict[str, Any], plan: SweepPlan) -> dict[str, Any]:
    return {
        "format": FORMAT, "rules": RULES, "run": run.get("run"), "sustain": level_json(plan.sustained),
        "sustain_default": plan.sustain is None, "versions": run.get("versions", {}), "machine": run.get("machine", {}),
        "policy": run.get("policy", {}), "scope": verdict.scope(plan), "guessed": run.get("guessed", []),
        "labels": dict(plan.labels), "warnings": run.get("warnings", []),
    }  # fmt: skip


def _target(run: dict[str, Any], plan: SweepPlan) -> dict[str, Any]:
    subjects = run.get("subjects") or [None]
    subject = subjects[0]
    gateway = None
    if subject is not None:
        seen = subject.get("seen") or {}
        gateway = {
            "pid": subject.get("pid"), "ownership": subject.get("ownership"), "comm": seen.get("comm"),
            "declared": subject.get("declared"),
        }  # fmt: skip
    return {
        "url": plan.target, "api": plan.api, "model": plan.model, "name": plan.name,
        "levels": [str(level) for level in plan.levels], "modes": list(plan.modes), "gateway": gateway,
        "acknowledged": plan.acknowledge_load, "guesses": run.get("guesses", {}), "insecure": plan.insecure,
        "locustfile": run.get("locustfile"), "dialect": _dialect(run), "prompts": run.get("prompts"),
        "prefix_caches": prefix_caches(plan), "think_time_s": plan.think_time_s,
    }  # fmt: skip


def _dialect(run: dict[str, Any]) -> dict[str, bool]:
    """What the API can have; of runs before it was recorded all of it."""
    return {"streams": True, "has_tokens": True} | (run.get("dialect") or {})


def _when(ev: Evidence) -> dict[str, Any]:
    start = t_mark(ev, "start")
    last = max((mark.t_mono_ns for mark in ev.marks), default=None)
    return {"started_at": _at(ev), "duration_s": None if start is None or last is None else (last - start) / 1e9}


def _at(ev: Evidence) -> str | None:
    """When the run started, for people."""
    start = next((mark for mark in ev.marks if mark.mark == "start"), None)
    if start is None:
        return None
    return datetime.fromtimestamp(start.t_wall_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _health(ev: Evidence, facts: Facts) -> dict[str, Any] | None:
    paths = ev.run.get("paths") or {}
    if facts.live is None and facts.ready is None:
        return None
    return {
        "live": None if facts.live is None else facts.live.as_json(paths.get("health")),
        "ready": None if facts.ready is None else facts.ready.as_json(paths.get("ready")),
    }


def _oom_kills(ev: Evidence) -> tuple[int | None, bool]:
    """OOM kills in the gateway's cgroup between the first and the last sample, and whether it holds only its tree."""
    samples = samples_of(ev)
    counts, known = ints(samples["cgroup_oom_kill"])
    if not known.any():
        return None, False
    alone = samples["cgroup_only_this_tree"].fillna(False).to_numpy(dtype=bool)
    return int(counts[known][-1] - counts[known][0]), bool(alone.all())
