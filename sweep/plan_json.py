"""A plan in run.json, and back; the names of its options. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from sweep.errors import PlanError
from sweep.plan import SINGULAR, SweepPlan
from sweep.slo import Slo, parse_slo
from sweep.units import Level, parse_level


def as_json(plan: SweepPlan) -> dict[str, Any]:
    """run.json's `plan`: options by long name with `_`; levels and SLOs as text, durations as float seconds.

    `drain` is filled in; `sustain` and what else was not given stay null.
    """
    return {option(each.name): _to_json(each.name, getattr(plan, each.name)) for each in fields(plan)} | {
        "drain": float(plan.drain_or_default_s)
    }


def from_json(content: Mapping[str, Any]) -> SweepPlan:
    """The plan back from `as_json`; keys of later versions are passed over. Raises PlanError if it is damaged."""
    given: dict[str, Any] = {}
    try:
        for each in fields(SweepPlan):
            if option(each.name) in content:
                given[each.name] = _from_json(each.name, content[option(each.name)])
        return SweepPlan(**given)
    except (TypeError, AttributeError) as error:  # a key missing, or its value of another type
        raise PlanError(f"plan in run.json: {error}; the file was changed or damaged") from error


def option(field_name: str) -> str:
    """Long option name of a plan's field, with `_`: duration_s is `duration`, slos is `slo`."""
    return SINGULAR.get(field_name, field_name.removesuffix("_s"))


def _to_json(name: str, value: object) -> object:
    if name == "levels":
        return [str(level) for level in cast(Sequence[Level], value)]
    if name == "slos":
        return [slo.text for slo in cast(Sequence[Slo], value)]
    if isinstance(value, Level):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if name.endswith("_s") and isinstance(value, int):
        return float(value)
    return value


def _from_json(name: str, value: Any) -> object:
    if name == "levels":
        return tuple(parse_level(text) for text in value)
    if name == "slos":
        return tuple(parse_slo(text) for text in value)
    if name in ("sustain", "auto_max") and value is not None:
        return parse_level(value)
    return tuple(value) if isinstance(value, list) else value
