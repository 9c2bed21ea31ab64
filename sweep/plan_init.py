"""A commented plan file of the options given to `ha-sweep plan init`, built from the table of options."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from sweep import refusals
from sweep.errors import PlanError
from sweep.options import plan_fields
from sweep.plan import Level, SweepPlan, duration_text, parse_duration
from sweep.plan_json import as_json, option

_WIDTH = 110
_TABLES = {each.name for each in fields(SweepPlan) if each.default_factory is dict}
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ANY_TARGET = "http://127.0.0.1:1"
_WRITTEN = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.DEFAULT_MAP)  # not the environment
_HEAD = (
    "A plan of `ha-sweep run`, read by `ha-sweep run --plan FILE`. A flag wins over the environment (GATEWAY_PID, "
    "OUT_DIR), that over this file, this file over the default. A true given here can only be undone here. "
    "Relative paths count from the folder the run is started in. "
    "No key or password belongs here: name the environment variable that holds it."
)


def checked_plan_text(context: click.Context, given: Mapping[str, Any]) -> str:
    """The file of what flags, and a plan file, gave to the command. Raises PlanError for what `run` would refuse."""
    # beside_pids: of the option --gateway-pid too
    sources = {name: context.get_parameter_source("gateway_pid" if name == "beside_pids" else name) for name in given}
    kept = {name: value for name, value in given.items() if sources[name] in _WRITTEN}
    content = plan_fields(kept)
    # Another form of the PID than its number is resolved when the run starts.
    checked = {k: v for k, v in content.items() if k != "gateway_pid" or isinstance(v, int)}
    if "levels" not in checked:
        checked.pop("tenants", None)  # whether the levels can be shared out is not known yet
    refusals.check(_completed(checked), target_is_given="target" in checked)
    return plan_text(content, context.command.params)


def plan_text(given: Mapping[str, Any], parameters: Sequence[click.Parameter]) -> str:
    """What is given (fields of the plan) is set, the rest commented out with its default.

    Raises PlanError for a text that no file can hold.
    """
    content = as_json(_completed(given))
    defaults = {each.name: each.default for each in fields(SweepPlan)}
    lines = [*_comment(_HEAD)]
    for parameter in parameters:
        field = str(parameter.name)
        if field not in defaults:
            continue
        key = option(field)
        lines += ["", *_comment(_help(parameter))]
        if field == "gateway_pid" and given.get("beside_pids"):
            named = [f"{name}={form}" for name, form in given["beside_pids"].items()]
            lines.append(f"{key} = {_toml([*([given[field]] if field in given else []), *named], key)}")
        elif field in given and given[field] is not False:
            lines.append(f"{key} = {_toml(_natural(field, content[key]), key)}")
        else:
            lines.append(f"# {key} = {_default(field, defaults[field], parameter)}")
    return "\n".join(lines)


def write_new(path: str, text: str) -> None:
    """Raises PlanError when the file is there already or cannot be written."""
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text + "\n")
    except FileExistsError as error:
        raise PlanError(f"--to {path} is there already; remove it or give another name") from error
    except (OSError, ValueError) as error:
        raise PlanError(f"--to {path!r}: {getattr(error, 'strerror', None) or error}; give a file to write") from error


def _completed(given: Mapping[str, Any]) -> SweepPlan:
    """A plan of fields that may lack what every plan has; then ones of no consequence stand in."""
    stand_in: dict[str, Any] = {"levels": (given.get("sustain", Level(1)),), "target": _ANY_TARGET}
    return SweepPlan(**stand_in | dict(given))


def _help(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return (parameter.help or "") + (f" [env: {parameter.envvar}]" if parameter.envvar else "")
    return "Classes of the locustfile to drive. [default: all it has]"


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in textwrap.wrap(text, _WIDTH))


def _default(field: str, default: object, parameter: click.Parameter) -> str:
    """As the file would spell it; an option without a default shows the form of its value."""
    if field in _TABLES:
        return "{}"
    if parameter.multiple or parameter.nargs == -1:
        return "[]"
    if isinstance(default, (bool, int, float, str)):
        return _toml(_natural(field, default), field)
    return _toml((parameter.metavar or parameter.type.name.upper()).strip('"'), field)


def _natural(field: str, value: Any) -> Any:
    """Levels as numbers, durations with their unit where that loses nothing."""
    if field == "levels":
        return [int(level) if level.isdecimal() else level for level in value]
    if field.endswith("_s") and isinstance(value, (int, float)):
        text = duration_text(value)
        return text if parse_duration(text) == value else value
    if field == "extra_body" and "null" in json.dumps(value):
        return json.dumps(value, ensure_ascii=False)  # TOML has no null; the option's own form has
    return value


def _toml(value: Any, key: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise PlanError(f"{key} holds bytes that are no UTF-8; no plan file can hold them") from error
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        names = [name if _BARE.fullmatch(name) else _toml(name, key) for name in value]
        pairs = ", ".join(f"{name} = {_toml(item, key)}" for name, item in zip(names, value.values(), strict=True))
        return f"{{ {pairs} }}" if pairs else "{}"
    return "[" + ", ".join(_toml(item, key) for item in value) + "]"
