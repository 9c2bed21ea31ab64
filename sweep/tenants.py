"""Tenants of a run: who sends which part of each level, with whose key. Pure: texts of --tenant in, shares out.

A level's number is what the tenants with a weight share. One with numbers of its own (`NAME=ENV@1,1,1`, one for each
of the plan's levels, ascending) sends those beside it: level 8 with a steady tenant at 1 drives 9 users.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sweep.draws import shared_out
from sweep.errors import PlanError
from sweep.plan import SweepPlan
from sweep.secret_names import check_variable, is_key
from sweep.units import Level

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_WRITE = "write it like --tenant search=SEARCH_KEY, search=SEARCH_KEY:3 or search=SEARCH_KEY@1,1,1"
_MAX_NUMBER = 10_000


@dataclass(frozen=True, slots=True)
class Tenant:
    """key_env: the variable with its key. own: its number at each level, ascending; None: shares it by its weight."""

    name: str
    key_env: str
    weight: float = 1.0
    own: tuple[int, ...] | None = None


class Part(NamedTuple):
    """users: of a concurrency; of a rate 0. weight: its users, or its arrivals a second."""

    name: str
    key_env: str
    users: int
    weight: float


def tenants_of(plan: SweepPlan) -> tuple[Tenant, ...]:
    """In the order given. Raises PlanError, without repeating what may be a key, for a text that names none."""
    return tuple(_parsed(text) for text in plan.tenants)


def check_tenants(plan: SweepPlan) -> None:
    """Nothing, if every level can be shared out. Raises PlanError."""
    tenants = tenants_of(plan)
    if not tenants:
        return
    for what, given in (
        ("--api-key-cmd", plan.api_key_cmd is not None), ("-f", plan.locustfile is not None),
        ("--processes", plan.processes > 1), ("--expect-workers", plan.expect_workers > 0),
        ("--beside", bool(plan.beside)),
    ):  # fmt: skip
        if given:
            raise PlanError(
                f"--tenant and {what} do not go together: one load process sends the tenants' keys, to one target; "
                "drop one"
            )
    if len(tenants) == 1:
        raise PlanError("--tenant: one tenant is nothing to compare; give a second one, or use --api-key-env")
    for field, words in (("name", "is given twice"), ("key_env", "holds the key of two tenants")):
        seen = [getattr(tenant, field) for tenant in tenants]
        twice = next((each for each in seen if seen.count(each) > 1), None)
        if twice is not None:
            raise PlanError(f"--tenant: {twice} {words}; each tenant needs a name and a key of its own")
    header = "authorization" if plan.key_style == "bearer" else plan.key_style.lower()
    given_twice = next((name for name in (*plan.headers, *plan.headers_plain) if name.lower() == header), None)
    if given_twice is not None:
        raise PlanError(f"--tenant: its key goes into {given_twice}, which --header gives too; drop one")
    sharing = [tenant for tenant in tenants if tenant.own is None]
    if not sharing:
        raise PlanError("--tenant: all have numbers of their own (@), and nobody shares the levels; leave one without")
    for tenant in tenants:
        _check_own(plan, tenant)
    for level in plan.levels:
        _check_shares(level, sharing)


def parts_of(plan: SweepPlan, level: Level) -> list[Part]:
    """What each tenant drives in a step at a level of the plan; [] without tenants."""
    tenants = tenants_of(plan)
    sharing = [tenant for tenant in tenants if tenant.own is None]
    is_rate = level.kind == "rate"
    weights = [tenant.weight for tenant in sharing]
    if is_rate:
        parts = [float(level.value) * weight / sum(weights) for weight in weights]
    else:
        parts = [float(n) for n in shared_out(int(level.value), weights)] if sharing else []
    part_of = {tenant.name: part for tenant, part in zip(sharing, parts, strict=True)}
    part_of |= {tenant.name: float(_own_at(plan, tenant, level)) for tenant in tenants if tenant.own is not None}
    return [
        Part(tenant.name, tenant.key_env, 0 if is_rate else int(part_of[tenant.name]), part_of[tenant.name])
        for tenant in tenants
    ]


def driven(plan: SweepPlan, level: Level) -> float:
    """Users, or arrivals a second, of a step at a level: its number, and what tenants have of their own beside it."""
    return level.value + sum(_own_at(plan, tenant, level) for tenant in tenants_of(plan) if tenant.own is not None)


def can_share(plan: SweepPlan, level: Level) -> bool:
    """Whether each tenant that shares the levels gets a part of this one; True without tenants."""
    sharing = [tenant for tenant in tenants_of(plan) if tenant.own is None]
    try:
        _check_shares(level, sharing)
    except PlanError:
        return False
    return True


def texts_at(plan: SweepPlan, levels: Sequence[Level]) -> list[str]:
    """--tenant for a run of other levels: a tenant's own number there is that at the plan's next higher level."""
    texts = []
    for text, tenant in zip(plan.tenants, tenants_of(plan), strict=True):
        if tenant.own is not None:
            numbers = [_own_at(plan, tenant, _at_or_above(plan, level)) for level in levels]
            text = f"{tenant.name}={tenant.key_env}@{','.join(map(str, numbers))}"
        texts.append(text)
    return texts


def told(plan: SweepPlan) -> str:
    """`a 3/6; b 1/2; c 1/1, its own number beside the level's (at level 4/8)`; `one` without tenants."""
    tenants = tenants_of(plan)
    if not tenants:
        return "one"
    parts = []
    for tenant in tenants:
        numbers = [f"{part.weight:.4g}" for level in plan.levels for part in parts_of(plan, level)
                   if part.name == tenant.name]  # fmt: skip
        own = ", its own number beside the level's" if tenant.own is not None else ""
        parts.append(f"{tenant.name} {'/'.join(numbers)}{own}")
    return f"{'; '.join(parts)} (at level {'/'.join(map(str, plan.levels))})"


def _at_or_above(plan: SweepPlan, level: Level) -> Level:
    alike = [each for each in plan.levels if each.kind == level.kind]
    return next((each for each in alike if each.value >= level.value), alike[-1])


def _own_at(plan: SweepPlan, tenant: Tenant, level: Level) -> int:
    if tenant.own is None or level not in plan.levels:
        return 0
    return tenant.own[plan.levels.index(level)]


def _parsed(text: str) -> Tenant:
    name, equals, rest = text.partition("=")
    if not equals or not _NAME.fullmatch(name) or is_key(name):
        raise PlanError(f"--tenant: {_WRITE}")
    option = f"--tenant {name}"
    if "@" in rest:
        env_name, _, numbers = rest.partition("@")
        check_variable(option, env_name, "its key")
        return Tenant(name, env_name, own=_numbers(option, numbers))
    env_name, colon, weight = rest.partition(":")
    check_variable(option, env_name, "its key")
    return Tenant(name, env_name, _weight(option, weight) if colon else 1.0)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part[:9]) <= _MAX_NUMBER for part in parts):
        raise PlanError(f"{option}: after @ write a whole number for each level, like @1,1,1")
    return tuple(int(part[:9]) for part in parts)


def _weight(option: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 1 / _MAX_NUMBER <= weight <= _MAX_NUMBER:
        raise PlanError(
            f"{option}: its weight must be a number above 0, like {option}=KEY_ENV:3 (1/{_MAX_NUMBER} to {_MAX_NUMBER})"
        )
    return weight


def _check_own(plan: SweepPlan, tenant: Tenant) -> None:
    if tenant.own is None:
        return
    if plan.auto_max is not None:
        raise PlanError(f"--tenant {tenant.name}: --levels auto finds the levels; share them by weight, without @")
    if len(tenant.own) != len(plan.levels):
        raise PlanError(
            f"--tenant {tenant.name}: {len(tenant.own)} numbers after @ for {len(plan.levels)} levels; give one for "
            f"each of {','.join(map(str, plan.levels))}"
        )
    if not any(tenant.own):
        raise PlanError(f"--tenant {tenant.name}: its number is 0 at every level; leave it out")
    if any(n for n, level in zip(tenant.own, plan.levels, strict=True) if level.value == 0):
        raise PlanError(f"--tenant {tenant.name}: level 0 sends nothing; its number there must be 0")


def _check_shares(level: Level, sharing: Sequence[Tenant]) -> None:
    if level.kind != "concurrency" or level.value == 0:
        return
    n = int(level.value)
    if n < len(sharing):
        raise PlanError(
            f"level {level} is below the number of tenants that share it ({len(sharing)}); start the levels at "
            f"{len(sharing)}, or give a tenant numbers of its own: NAME=ENV@1,…"
        )
    parts = shared_out(n, [tenant.weight for tenant in sharing])
    without = next((tenant for tenant, part in zip(sharing, parts, strict=True) if part == 0), None)
    if without is not None:
        raise PlanError(
            f"--tenant {without.name}: its weight gives it no user at level {level}; raise the level or its weight"
        )
