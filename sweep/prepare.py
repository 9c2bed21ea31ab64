"""From a plan to a run that may start: target and process looked at, OUT_DIR made, preflight sent, run.json written.

Every refusal is a PlanError, comes before any load, and leaves no OUT_DIR behind.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from sweep import guards, outdir, own_locustfile
from sweep.access import Access
from sweep.access_refusals import check_tls
from sweep.answered import Asked, ask_build, doubts
from sweep.choosing import (
    Choice,
    Guess,
    choose_api_and_model,
    choose_scheme,
    choose_target,
    find_all_paths,
    with_kind,
)
from sweep.endpoint import parse_endpoint
from sweep.errors import PlanError, RunError
from sweep.gateway import Gateway
from sweep.health import Paths
from sweep.listeners import Listener
from sweep.loaded import ask_loaded
from sweep.machine import machine, versions
from sweep.marks import MarkFile
from sweep.others import FirstLook, counters_now, look_first, risen
from sweep.ownership import Ownership, descendants, judge_ownership
from sweep.plan import Step, SweepPlan, as_json, steps
from sweep.preflight import WORKER, Preflight, reach, run_preflight
from sweep.probe import Probe
from sweep.records import FORMAT

_SAMPLER_START_S = 10.0
_Watched = tuple[Gateway | None, Ownership | None, dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A completed plan and what is open for it. `guesses`: the options the run filled in."""

    plan: SweepPlan
    steps: tuple[Step, ...]
    guesses: Mapping[str, Guess]
    out_dir: Path
    scratch: Path
    gateway: Gateway | None
    access: Access
    probe: Probe
    paths: Paths
    marks: MarkFile
    preflight: Preflight
    others: FirstLook
    seed: int
    warnings: tuple[str, ...]
    asked: Asked

    @property
    def steps_per_cycle(self) -> int:
        return len(self.steps) // self.plan.cycles


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
    access = Access(plan)
    chosen, probe, (gateway, ownership, look), others = _look_at_target(plan, found, access)
    asked = ask_build(probe)
    seed = random.randrange(2**32) if plan.seed is None else plan.seed
    plan = replace(chosen.plan, seed=seed)
    _check_room(out_dir)
    made = [folder for folder in (out_dir, *out_dir.parents) if not folder.exists()]
    outdir.create(out_dir)
    try:
        paths = find_all_paths(plan, probe)
        marks = MarkFile(out_dir)
        marks.make("start", run=run_name, loaded=ask_loaded(probe))
        if gateway is not None:
            gateway.start_sampler(out_dir, scratch / "sampler.log", access.environment(sends=False))
            _await_sampler(gateway, out_dir)
        counters = counters_now(probe, paths.metrics)
        preflight = run_preflight(plan, seed, list(chosen.listed), out_dir, scratch, access)
        n_sent = sum(record.t_sent_ns is not None for record in preflight.records)
        others = replace(others, counted=risen(counters, counters_now(probe, paths.metrics), n_sent))
        warnings = (
            *others.warnings, *_costs(plan, ownership, look, paths), *doubts(plan.subject, asked), *preflight.warnings,
        )  # fmt: skip
        prepared = Prepared(
            plan, steps(plan), chosen.guesses, out_dir, scratch, gateway, access, probe, paths, marks, preflight,
            others, seed,
            warnings, asked,
        )  # fmt: skip
        _write_run_file(prepared, run_name, ownership, look, plan_file)
        marks.make("preflight", sealed=True)
    except BaseException:
        _stop_quietly(gateway)
        _take_back(out_dir, made)
        raise
    return prepared


def _look_at_target(
    plan: SweepPlan, found: Sequence[Listener], access: Access
) -> tuple[Choice, Probe, _Watched, FirstLook]:
    """The plan completed by what the target shows: port, scheme, who listens, who else is there, API, model."""
    open_probe = cache(lambda url: access.probe(parse_endpoint(url)))
    # Until one is chosen, the ports of a tree may be anything: they get no secret.
    chosen = choose_target(with_kind(plan), found, lambda url: access.bare_probe(parse_endpoint(url)))
    watched = _find_gateway(chosen.plan, access)
    reach(parse_endpoint(chosen.plan.target))
    chosen = choose_scheme(chosen, open_probe, access.shake_hands)
    check_tls(chosen.plan)
    probe = open_probe(chosen.plan.target)
    others = look_first(chosen.plan, probe)
    return choose_api_and_model(chosen, found, open_probe), probe, watched, others


def _find_gateway(plan: SweepPlan, access: Access) -> _Watched:
    if plan.gateway_pid is None:
        return None, None, None
    gateway = Gateway(plan.gateway_pid, access.environment(sends=False))
    if os.getpid() in descendants(plan.gateway_pid):
        raise PlanError(f"--gateway-pid {plan.gateway_pid} is a parent of ha-sweep itself; give the gateway's PID")
    look = gateway.look()
    target = parse_endpoint(plan.target)
    listen = target if plan.gateway_listen is None else parse_endpoint(f"http://{plan.gateway_listen}")
    proxied = (listen.host, listen.port) != (target.host, target.port)
    ownership = judge_ownership(plan.gateway_pid, listen.host, listen.port, proxied=proxied)
    if ownership.verdict == "contradicted":
        raise PlanError(
            f"--gateway-pid {plan.gateway_pid}: {ownership.why}; give the PID of the gateway itself, or where it "
            "listens with --gateway-listen HOST:PORT"
        )
    return gateway, ownership, look


def _costs(plan: SweepPlan, ownership: Ownership | None, look: dict[str, Any] | None, paths: Paths) -> Iterator[str]:
    """What cannot be seen of the target, and which gates that costs."""
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


def _await_sampler(gateway: Gateway, out_dir: Path) -> None:
    until = time.monotonic() + _SAMPLER_START_S
    while not (out_dir / outdir.SAMPLES).exists():
        failure = gateway.sampler_failure()
        if failure is not None and gateway.sampler_refused():
            raise PlanError(failure)
        if failure is not None:
            raise RunError(f"the sampler does not start: {failure}")
        if time.monotonic() > until:
            raise RunError(f"the sampler has not started within {_SAMPLER_START_S:.0f} s")
        time.sleep(0.02)


def _stop_quietly(gateway: Gateway | None) -> None:
    """While another error is on its way, which the sampler's own must not hide."""
    try:
        if gateway is not None:
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


def _write_run_file(
    prepared: Prepared,
    run_name: str,
    ownership: Ownership | None,
    look: dict[str, Any] | None,
    plan_file: Mapping[str, str] | None,
) -> None:
    plan, paths = prepared.plan, prepared.paths
    subjects = []
    if look is not None and ownership is not None:
        identity = look["identity"]
        subjects.append(
            {
                "name": "gateway",
                "pid": plan.gateway_pid,
                "start_ticks": identity["start_ticks"],
                "boot_id": identity["boot_id"],
                "pid_ns": identity["pid_ns"],
                "ownership": ownership.verdict,
                "why": ownership.why,
                "declared": plan.subject,
                "seen": identity,
                "visibility": look["visibility"],
            }
        )
    run = {
        "format": FORMAT,
        "run": run_name,
        "plan": as_json(plan),
        "plan_file": plan_file,
        "guessed": list(prepared.guesses),
        "guesses": {option: guess._asdict() for option, guess in prepared.guesses.items()},
        "steps": [_step_row(step) for step in prepared.steps],
        "subjects": subjects,
        "answered": prepared.asked.as_json(),
        "hosts": {WORKER: os.uname().nodename},
        "versions": versions(),
        "machine": machine(),
        "policy": {"name": "builtin", "sha256": ""},
        "locustfile": own_locustfile.evidence_of(plan),
        "preflight": prepared.preflight.as_json(),
        "warnings": list(prepared.warnings),
        "others": prepared.others.as_json(),
        "paths": _paths_row(paths),
    }
    outdir.write_atomic(prepared.out_dir / outdir.RUN, msgspec.json.format(msgspec.json.encode(run), indent=1))


def _paths_row(paths: Paths) -> dict[str, Any]:
    asked = {"health": paths.health, "ready": paths.ready, "metrics": paths.metrics}
    return {**asked, "not_polled": list(paths.why)}


def _step_row(step: Step) -> dict[str, Any]:
    return {
        "step": step.id,
        "level": step.level.value,
        "kind": step.level.kind,
        "mode": step.mode,
        "cycle": step.cycle,
        "n_wanted": step.n_wanted,
    }
