"""A run that may start: its completed plan, what is open for it, and its run.json."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sweep import crew_options, outdir, own_locustfile
from sweep.access import Access
from sweep.answered import Asked
from sweep.beside_target import Beside
from sweep.choosing import Guess
from sweep.dialects import BY_NAME
from sweep.gateway import Gateway, Watched
from sweep.health import Paths
from sweep.machine import machine, versions
from sweep.marks import MarkFile
from sweep.others import FirstLook
from sweep.plan import SweepPlan
from sweep.plan_json import as_json
from sweep.plan_steps import Step
from sweep.preflight import Preflight
from sweep.probe import Probe
from sweep.records import FORMAT


@dataclass(frozen=True, slots=True)
class Prepared:
    """A completed plan and what is open for it. `guesses`: the options the run filled in.

    prompts: the file of --prompts by its hash.
    """

    plan: SweepPlan
    steps: tuple[Step, ...]
    guesses: Mapping[str, Guess]
    out_dir: Path
    scratch: Path
    watched: Watched
    access: Access
    probe: Probe
    paths: Paths
    marks: MarkFile
    preflight: Preflight
    others: FirstLook
    seed: int
    warnings: tuple[str, ...]
    asked: Asked
    prompts: Mapping[str, Any] | None = None
    beside: Mapping[str, Beside] = field(default_factory=dict)

    @property
    def gateway(self) -> Gateway | None:
        return self.watched.gateway

    def at(self, step: Step) -> Prepared | Beside:
        """Where a step is driven: plan, access, preflight, gateway, probe and paths of its target."""
        return self if step.target is None else self.beside[step.target]

    @property
    def everywhere(self) -> tuple[Prepared | Beside, ...]:
        """Every target, the first one first."""
        return (self, *self.beside.values())


def write_run_file(prepared: Prepared, run_name: str, plan_file: Mapping[str, str] | None) -> None:
    plan, paths = prepared.plan, prepared.paths
    dialect = BY_NAME.get(plan.api or "")  # none, if nothing is asked
    subjects = [
        _subject_row("gateway", plan.gateway_pid, prepared.watched, plan.subject),
        *(
            {**row, "target": name}
            for name, each in prepared.beside.items()
            if (row := _subject_row(name, each.plan.gateway_pid, each.watched, None)) is not None
        ),
    ]
    run = {
        "format": FORMAT,
        "run": run_name,
        "plan": as_json(plan),
        "plan_file": plan_file,
        "guessed": list(prepared.guesses),
        "guesses": {option: guess._asdict() for option, guess in prepared.guesses.items()},
        "steps": [step_row(step) for step in prepared.steps],
        "subjects": [row for row in subjects if row is not None],
        "answered": prepared.asked.as_json(),
        "hosts": dict.fromkeys(_local_workers(prepared), os.uname().nodename),
        "versions": versions(),
        "machine": machine(),
        "policy": {"name": "builtin", "sha256": ""},
        "locustfile": own_locustfile.evidence_of(plan),
        "dialect": None if dialect is None else {"streams": dialect.streams, "has_tokens": dialect.has_tokens},
        "prompts": prepared.prompts,
        "preflight": prepared.preflight.as_json(),
        "warnings": list(prepared.warnings),
        "others": prepared.others.as_json(),
        "paths": _paths_row(paths),
        **({"beside": {name: each.as_json() for name, each in prepared.beside.items()}} if prepared.beside else {}),
    }
    outdir.write_atomic(prepared.out_dir / outdir.RUN, msgspec.json.format(msgspec.json.encode(run), indent=1))


def _subject_row(name: str, pid: int | None, watched: Watched, declared: str | None) -> dict[str, Any] | None:
    """One process that was watched; None without one."""
    _, ownership, look = watched
    if look is None or ownership is None:
        return None
    identity = look["identity"]
    return {
        "name": name,
        "pid": pid,
        "start_ticks": identity["start_ticks"],
        "boot_id": identity["boot_id"],
        "pid_ns": identity["pid_ns"],
        "ownership": ownership.verdict,
        "why": ownership.why,
        "declared": declared,
        "seen": identity,
        "visibility": look["visibility"],
    }


def add_hosts(out_dir: Path, hosts: Mapping[str, str]) -> None:
    """run.json's `hosts`, once workers of other machines have shown theirs."""
    path = out_dir / outdir.RUN
    run = msgspec.json.decode(path.read_bytes())
    if hosts.items() - run["hosts"].items():
        run["hosts"] |= hosts
        outdir.write_atomic(path, msgspec.json.format(msgspec.json.encode(run), indent=1))


def _local_workers(prepared: Prepared) -> tuple[str, ...]:
    plan = prepared.plan
    n = max((crew_options.n_processes(plan, level) for level in plan.levels), default=1)
    return () if plan.expect_workers else crew_options.names(n)


def _paths_row(paths: Paths) -> dict[str, Any]:
    asked = {"health": paths.health, "ready": paths.ready, "metrics": paths.metrics}
    return {**asked, "not_polled": list(paths.why)}


def step_row(step: Step) -> dict[str, Any]:
    """One of run.json's `steps`."""
    return {
        "step": step.id,
        "level": step.level.value,
        "kind": step.level.kind,
        "mode": step.mode,
        "cycle": step.cycle,
        "n_wanted": step.n_wanted,
        **({} if step.block is None else {"target": step.target, "block": step.block}),
    }
