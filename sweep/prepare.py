"""From a plan to a run that may start: target and process looked at, OUT_DIR made, preflight sent, run.json written.

Every refusal is a PlanError, comes before any load, and leaves no OUT_DIR behind.
"""

from __future__ import annotations

import random
import resource
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from sweep import crew_options, guards, outdir, prompt_file
from sweep.access import Access
from sweep.access_refusals import check_tls
from sweep.answered import ask_build, doubts
from sweep.api_fit import fitted, remarks
from sweep.beside_target import look_beside, start_beside
from sweep.choosing import (
    Choice,
    choose_api_and_model,
    choose_scheme,
    choose_target,
    find_all_paths,
    with_kind,
)
from sweep.connections import WORKERS_ELSEWHERE
from sweep.endpoint import parse_endpoint
from sweep.errors import PlanError, RunError
from sweep.gateway import Watched, find_gateway
from sweep.health import Paths
from sweep.holdable import check_holdable
from sweep.listeners import Listener
from sweep.loaded import ask_loaded, kept_as_found
from sweep.marks import MarkFile
from sweep.others import FirstLook, counters_now, look_first, risen
from sweep.plan import SweepPlan
from sweep.plan_steps import steps
from sweep.preflight import Preflight, reach, run_preflight, unasked
from sweep.prepared import Prepared, write_run_file
from sweep.probe import Probe


def prepare(
    plan: SweepPlan,
    found: Sequence[Listener],
    out_dir: Path,
    run_name: str,
    scratch: Path,
    plan_file: Mapping[str, str] | None = None,
) -> Prepared:
    """Raises PlanError (mend the input) or RunError (ours). scratch: an empty folder for files that are no evidence.

    found: where the gateway listens, if --target was not given. plan_file: what run.json says of the file of --plan.
    """
    crew_options.check_bind(plan)
    access = Access(plan)
    chosen, probe, watched, others = _look_at_target(plan, found, access)
    prompt_file.check_prompts(chosen.plan)
    sent = prompt_file.evidence_of(chosen.plan)
    asked = ask_build(probe)
    seed = random.randrange(2**32) if plan.seed is None else plan.seed
    plan = replace(chosen.plan, seed=seed)
    beside = look_beside(plan)
    _check_room(out_dir)
    made = [folder for folder in (out_dir, *out_dir.parents) if not folder.exists()]
    outdir.create(out_dir)
    try:
        paths = find_all_paths(plan, probe)
        marks = MarkFile(out_dir)
        marks.make("start", run=run_name, loaded=(loaded := ask_loaded(probe)))
        if watched.gateway is not None:
            watched.gateway.start_sampler(out_dir, scratch / "sampler.log")
        counters = counters_now(probe, paths.metrics)
        preflight = _preflight(plan, seed, chosen, out_dir, scratch, access, loaded)
        too_many = check_holdable(plan, preflight.measured, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        risen_by = risen(counters, counters_now(probe, paths.metrics), preflight.n_sent)
        others = replace(others, counted=risen_by, place=WORKERS_ELSEWHERE if plan.expect_workers else others.place)
        started = start_beside(beside, out_dir, scratch)
        warnings = (
            *others.warnings, *_costs(plan, watched, paths), *doubts(plan.subject, asked), *remarks(plan),
            *preflight.warnings, *too_many, *(line for each in started for line in each.warnings),
        )  # fmt: skip
        named = {each.name: each for each in started}
        prepared = Prepared(plan, steps(plan), chosen.guesses, out_dir, scratch, watched, access, probe, paths, marks,
                            preflight, others, seed, warnings, asked, sent, named)  # fmt: skip
        write_run_file(prepared, run_name, plan_file)
        marks.make("preflight", sealed=True)
    except BaseException:
        _stop_quietly((watched, *(target.watched for target in beside)))
        _take_back(out_dir, made)
        raise
    return prepared


def _preflight(
    plan: SweepPlan, seed: int, chosen: Choice, out_dir: Path, scratch: Path, access: Access, loaded: dict[str, Any]
) -> Preflight:
    """One request of each mode; none for a plan that only observes."""
    if not plan.asks:
        return unasked(plan)
    return run_preflight(plan, seed, list(chosen.listed), out_dir, scratch, access, kept_as_found(plan, loaded))


def _look_at_target(
    plan: SweepPlan, found: Sequence[Listener], access: Access
) -> tuple[Choice, Probe, Watched, FirstLook]:
    """The plan completed by what the target shows: port, scheme, who listens, who else is there, API, model."""
    open_probe = cache(lambda url: access.probe(parse_endpoint(url)))
    # Until one is chosen, the ports of a tree may be anything: they get no secret.
    chosen = choose_target(with_kind(plan), found, lambda url: access.bare_probe(parse_endpoint(url)))
    watched = find_gateway(chosen.plan, access.environment(sends=False))
    reach(parse_endpoint(chosen.plan.target))
    chosen = choose_scheme(chosen, open_probe, access.shake_hands)
    check_tls(chosen.plan)
    probe = open_probe(chosen.plan.target)
    if not chosen.plan.asks:  # who observes a target in use disturbs nobody, and needs no model
        return chosen, probe, watched, look_first(replace(chosen.plan, quiet_check_s=0.0), probe)
    others = look_first(chosen.plan, probe)
    chosen = choose_api_and_model(chosen, found, open_probe)
    return replace(chosen, plan=fitted(chosen.plan)), probe, watched, others


def _costs(plan: SweepPlan, watched: Watched, paths: Paths) -> Iterator[str]:
    """What cannot be seen of the target, and which gates that costs."""
    _, ownership, look = watched
    if look is None or ownership is None:
        yield "no --gateway-pid: process gates are not tested, the verdict is at most READY WITH WARNINGS"
    else:
        for row in look["visibility"]:
            if not row["readable"] and row["why"] in _FORBIDDEN:
                cost = _COSTS.get(row["source"], "it stays unknown; no gate depends on it")
                yield f"this user may not read {row['source']} of pid {plan.gateway_pid} ({row['why']}): {cost}"
        if ownership.verdict == "declared":
            yield f"{ownership.why}: ownership is assumed, the verdict is at most READY WITH WARNINGS"
    if plan.insecure:
        yield "--insecure: the target's certificate is not verified, the verdict is at most READY WITH WARNINGS"
    for refused in paths.why:
        yield f"not polled: {refused}"
    if paths.health is None:
        yield "no liveness path was found: liveness is not tested; name it with --health-path"
    if paths.ready is None:
        yield "no readiness path was found: readiness is not tested; name it with --ready-path"


_FORBIDDEN = ("EACCES", "EPERM")
_COSTS = {
    "fd list": "whether it holds the port is assumed; the gate `ownership` cannot pass",
    "stat": "CPU, threads and identity stay unknown; the gates `same process` and `process evidence` cannot pass",
    "status": "memory stays unknown",
    "fd": "file descriptors stay unknown",
    "exe": "which program it is stays unknown",
    "exe_sha256": "which build it is stays unknown",
}


def _stop_quietly(every: Sequence[Watched]) -> None:
    """While another error is on its way, which the samplers' own must not hide."""
    for gateway in (each.gateway for each in every if each.gateway is not None):
        try:
            gateway.stop_sampler()
        except RunError:
            pass


def _check_room(out_dir: Path) -> None:
    there = next(folder for folder in (out_dir, *out_dir.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < guards.MIN_FREE_BYTES:
        least = guards.MIN_FREE_BYTES // 2**20
        raise PlanError(f"{free // 2**20} MiB are free at {there}, a run needs {least}; give --out-dir another disk")


def _take_back(out_dir: Path, made: list[Path]) -> None:
    """Removes what was put into OUT_DIR, and the folders that were not there before."""
    for entry in out_dir.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    for folder in made:
        try:
            folder.rmdir()
        except OSError:  # another run has put its folder there meanwhile
            return
