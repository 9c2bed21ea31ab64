"""Targets beside the first one: the plan of each by itself, and the order in which their blocks take turns. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sweep.plan import BLOCKS, SweepPlan

RESERVED = ("target", "gateway")  # names that the first one has, in words and in evidence


def plan_beside(plan: SweepPlan, name: str) -> SweepPlan:
    """The plan as if this target were its only one: same load, its own address, model, key and process.

    What tells of the first one's gateway (paths, subject, where it listens) is left out. `beside_key_envs` then names
    every variable that holds a key of another target: none of its children gets to know it.
    """
    own_key = plan.beside_key_envs.get(name)
    others = {"target": plan.api_key_env, "metrics": plan.metrics_key_env}
    return replace(
        plan,
        target=plan.beside[name],
        model=plan.beside_models.get(name, plan.model),
        api_key_env=plan.api_key_env if own_key is None else own_key,
        api_key_cmd=plan.api_key_cmd if own_key is None else None,
        gateway_pid=None, gateway_pid_given=plan.beside_pids.get(name), gateway_listen=None, gateway=None,
        health_path=None, ready_path=None, metrics_path=None, metrics_key_env=None,
        subject=None, subject_digest=None, demo=False,
        beside={}, beside_pids={}, beside_models={},
        beside_key_envs={**plan.beside_key_envs, **{key: env for key, env in others.items() if env is not None}},
    )  # fmt: skip


def turns(names: Sequence[str]) -> Iterator[tuple[int, str | None]]:
    """(block, target) in the order they run; None: the first target.

    Every second round runs backwards and every third begins with another (BA AB AB BA), so that each target is as
    often early as late and a drift of the machine falls on all alike. The last block is the first target's: idle floors
    and the cool-down after the step are about it.
    """
    every: list[str | None] = [*names, None]
    for number in range(BLOCKS):
        begin = -(number // 2) % len(every)
        order = every[begin:] + every[:begin]
        yield from ((number + 1, name) for name in (order if number % 2 == 0 else reversed(order)))
