"""Targets beside the first one, opened like it: process, reach, scheme, others' traffic, model, preflight.

A refusal names the options of that target, comes before any load, and is a PlanError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from sweep.access import Access
from sweep.answered import Asked, ask_build
from sweep.beside_plan import plan_beside
from sweep.choosing import Choice, choose_api_and_model, choose_scheme
from sweep.endpoint import parse_endpoint
from sweep.errors import PlanError
from sweep.gateway import Gateway, Watched, find_gateway
from sweep.health import Paths
from sweep.loaded import ask_loaded, kept_as_found
from sweep.others import FirstLook, look_first
from sweep.pid_forms import resolve
from sweep.plan import SweepPlan
from sweep.preflight import Preflight, reach, run_preflight
from sweep.probe import Probe
from sweep.records import PREFLIGHT

# Options of the first target, and how the same is said of another.
_ITS_OPTIONS = (
    ("--target", "--beside {name}=URL"),
    ("--gateway-pid ", "--gateway-pid {name}="),
    ("--api-key-env", "--beside-key-env {name}=ENV"),
    ("--model", "--beside-model {name}=MODEL"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Looked:
    """A target that may be driven; nothing was started for it yet. seed: of the run's prompts."""

    name: str
    plan: SweepPlan
    access: Access
    probe: Probe
    watched: Watched
    others: FirstLook
    asked: Asked
    loaded: dict[str, Any]
    listed: tuple[str, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Beside:
    """A target that gets its blocks of every step. plan: as if it were the only one."""

    name: str
    plan: SweepPlan
    access: Access
    probe: Probe
    watched: Watched
    others: FirstLook
    asked: Asked
    loaded: dict[str, Any]
    preflight: Preflight

    @property
    def gateway(self) -> Gateway | None:
        return self.watched.gateway

    @property
    def paths(self) -> Paths:
        """None: it is compared, and its health is not judged."""
        return Paths(None, None, None)

    @property
    def warnings(self) -> Iterator[str]:
        """For the person before the load."""
        ownership = self.watched.ownership
        if ownership is None:
            yield f"beside {self.name}: no --gateway-pid {self.name}=…: its CPU and memory are not compared"
        elif ownership.verdict == "declared":
            yield f"beside {self.name}: {ownership.why}: ownership is assumed"
        yield from (f"beside {self.name}: {line}" for line in (*self.others.warnings, *self.preflight.failures))

    def is_gone(self) -> bool:
        """Its process has ended; False where none is watched."""
        return self.gateway is not None and self.gateway.is_gone()

    def as_json(self) -> dict[str, Any]:
        """run.json's `beside`, by name."""
        return {
            "url": self.plan.target, "api": self.plan.api, "model": self.plan.model, "answered": self.asked.as_json(),
            "loaded": self.loaded,
            "preflight": self.preflight.as_json(), "others": self.others.as_json(),
        }  # fmt: skip


def look_beside(plan: SweepPlan) -> tuple[_Looked, ...]:
    """Looks at every target of --beside. plan: with the first one's API, model and seed. Raises PlanError."""
    found = []
    for name in plan.beside:
        with _its_words(name):
            found.append(_look(plan, name))
    return tuple(found)


def start_beside(found: Sequence[_Looked], out_dir: Path, scratch: Path) -> tuple[Beside, ...]:
    """Starts their samplers and sends their preflights, one after the other. Raises PlanError or RunError."""
    started = []
    for each in found:
        with _its_words(each.name):
            if each.watched.gateway is not None:
                each.watched.gateway.start_sampler(out_dir, scratch / f"sampler.{each.name}.log", each.name)
            preflight = run_preflight(
                each.plan, each.seed, list(each.listed), out_dir, scratch, each.access,
                kept_as_found(each.plan, each.loaded), f"{PREFLIGHT}.{each.name}",
            )  # fmt: skip
            started.append(
                Beside(
                    each.name, each.plan, each.access, each.probe, each.watched, each.others, each.asked, each.loaded,
                    preflight,
                )
            )  # fmt: skip
    return tuple(started)


def _look(plan: SweepPlan, name: str) -> _Looked:
    alone = plan_beside(plan, name)
    if alone.gateway_pid_given is not None:
        alone = replace(alone, gateway_pid=resolve(alone.gateway_pid_given))
    access = Access(alone)
    open_probe = cache(lambda url: access.probe(parse_endpoint(url)))
    watched = find_gateway(alone, access.environment(sends=False))
    reach(parse_endpoint(alone.target))
    chosen = choose_scheme(Choice(alone), open_probe, access.shake_hands)
    probe = open_probe(alone.target)
    is_known = alone.target == plan.target  # a target against itself was looked at already
    others = look_first(replace(alone, quiet_check_s=0.0) if is_known else alone, probe)
    chosen = choose_api_and_model(chosen, (), open_probe)
    asked, loaded = ask_build(probe), ask_loaded(probe)
    return _Looked(name, chosen.plan, access, probe, watched, others, asked, loaded, chosen.listed, plan.seed or 0)


@contextmanager
def _its_words(name: str) -> Iterator[None]:
    """A refusal in terms of the target's own options."""
    try:
        yield
    except PlanError as error:
        text = str(error)
        for option, own in _ITS_OPTIONS:
            text = text.replace(option, own.format(name=name))
        raise PlanError(f"beside {name}: {text}") from error
