"""How the values of options are read: texts in, values of a plan out; a PlanError becomes the option's."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable
from typing import Any

import click

from sweep.errors import PlanError
from sweep.secret_names import without_keys
from sweep.units import parse_levels

AUTO = "auto"
_NAMED = re.compile(r"([A-Za-z0-9._-]+)=(.*)", re.DOTALL)  # the forms themselves begin with a word and a colon


class Parsed(click.ParamType[Any]):
    """A value read by one of the plan's parsers; its PlanError becomes the option's."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except PlanError as error:
            raise click.UsageError(without_keys(str(error))) from error


class OneOfEnvironment(Parsed):
    """For an option that is repeatable as a flag: its environment variable holds one value, blanks and all."""

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]


def parse_json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise PlanError("--extra-body is nested too deep; write an object, like '{\"temperature\": 0}'") from error
    except ValueError as error:
        raise PlanError(f"--extra-body is no JSON ({error}); write an object, like '{{\"temperature\": 0}}'") from error
    if not isinstance(value, dict):
        raise PlanError("--extra-body: write a JSON object, like '{\"temperature\": 0}'")
    return value


def pair(option: str, example: str) -> dict[str, Any]:
    """NAME=VALUE, each name once. What was written is not repeated: it may be a secret in the wrong place."""

    def parse(text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise PlanError(f"{option}: write it like {option} {example}")
        return name, value

    def once(_: click.Context, __: click.Parameter, given: tuple[tuple[str, str], ...]) -> Any:
        names = [name for name, _ in given]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise click.UsageError(f"{option} {without_keys(twice)} is given twice; drop one")
        return given

    return {"type": Parsed("NAME=VALUE", parse), "callback": once, "multiple": True}


def of_targets(field: str) -> Callable[[click.Context, click.Parameter, tuple[Any, ...]], Any]:
    """Callback of a repeatable option: the plain value is the first target's, NAME=VALUE go into `field` of the plan.

    The environment's value is the first target's also where flags name others only.
    """

    def split(ctx: click.Context, parameter: click.Parameter, given: tuple[Any, ...]) -> Any:
        option = max(parameter.opts, key=len)
        named = [_NAMED.fullmatch(each) if isinstance(each, str) else None for each in given]
        plain = [each for each, name in zip(given, named, strict=True) if name is None]
        pairs = [(found[1], found[2]) for found in named if found is not None]
        names = [name for name, _ in pairs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise click.UsageError(f"{option} {without_keys(twice)}=… is given twice; drop one")
        if len(plain) > 1:
            raise click.UsageError(f"{option} is given twice; drop one, or write NAME=… for the process of a --beside")
        if not plain and ctx.get_parameter_source(str(parameter.name)) == click.core.ParameterSource.COMMANDLINE:
            told = parameter.resolve_envvar_value(ctx)
            plain = [] if told is None else [parameter.type.convert(told, parameter, ctx)]
        ctx.params[field] = dict(pairs)
        return plain[0] if plain else None

    return split


def levels(text: str) -> Any:
    """Levels, or AUTO."""
    if text.strip() == AUTO:
        return AUTO
    if re.fullmatch(r"auto\s*/\s*s", text.strip()):
        raise PlanError("--levels auto/s: arrival rates are not searched for; write them out, like --levels 5/s,10/s")
    if AUTO in text:
        raise PlanError(f"--levels {text.strip()}: auto stands alone; it begins at --sustain, or at 1")
    return parse_levels(text, fd_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[1])
