"""A plan file: TOML whose keys are the long option names of `run`, read into click's defaults.

A flag wins over the environment (GATEWAY_PID, OUT_DIR), that over the file, the file over the plan's own default; an
option given as a flag replaces the file's whole list. Relative paths count from the working folder, as in flags.
Every refusal is one PlanError with file and key, and never repeats a value that may be a secret.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from sweep.errors import PlanError
from sweep.plan import SweepPlan
from sweep.plan_json import option
from sweep.secret_names import without_keys
from sweep.wording import visible

# Said to one call; in a file it would be silently true for all.
_ONLY_FLAGS = ("plan", "dry_run", "to", "help")
_TABLES = {each.name for each in fields(SweepPlan) if each.default_factory is dict}
# Keys that a request body has too, and that may therefore stand in [extra_body].
_BODY_KEYS = ("seed",)
_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list",
          dict: "a section"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanFile:
    """path: as it was given. values: by parameter name, as the option's own type gives them."""

    path: str
    sha256: str
    values: Mapping[str, Any]

    def as_json(self) -> dict[str, str]:
        """run.json's `plan_file`."""
        return {"path": self.path, "sha256": self.sha256}


def read_plan_file(path: str, parameters: Sequence[click.Parameter]) -> PlanFile:
    """The file's values for these parameters of a command. Raises PlanError."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise PlanError(
            f"--plan {path}: {error.strerror}; give a TOML file (`ha-sweep plan init` writes one)"
        ) from error
    except ValueError as error:
        raise PlanError(f"--plan {path!r} is no file name; give a TOML file") from error
    try:
        read = tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise PlanError(f"{path}: byte {error.start} is no UTF-8; save the file as UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is no TOML: {error}; texts stand in quotes, lists in [ ]") from error
    known = {option(each.name): each for each in parameters if each.name and each.name not in _ONLY_FLAGS}
    values = {}
    for key, value in read.items():
        parameter = known.get(key)
        if parameter is None:
            raise PlanError(f"{path}: {_unknown(key, value, known)}")
        try:
            values[str(parameter.name)] = _converted(parameter, value, known)
        except (PlanError, click.UsageError) as error:
            said = error.message if isinstance(error, click.UsageError) else str(error)
            raise PlanError(f"{path}: {key}: {without_keys(said)}") from error
    return PlanFile(path, hashlib.sha256(content).hexdigest(), values)


def _unknown(key: str, value: object, known: Mapping[str, object]) -> str:
    import difflib

    if key in _ONLY_FLAGS:
        return f"{key} belongs on the command line, not in a plan file; remove it"
    near = difflib.get_close_matches(key.replace("-", "_"), known, n=3, cutoff=0.65)
    instead = f"; did you mean {' or '.join(near)}?" if near else "; `ha-sweep plan init` writes all that exist"
    name = visible(without_keys(key)[:40])
    if isinstance(value, dict) and not near:
        return f"unknown section [{name}]; options stand at the top, without a section"
    return f"unknown key {name}{instead}"


def _converted(parameter: click.Parameter, value: object, known: Mapping[str, object]) -> Any:
    """Raises PlanError or click.UsageError, without file and key."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        if not isinstance(value, bool):
            raise _wrong("write true or false", value)
        return value
    if parameter.name in _TABLES and isinstance(value, dict):
        swallowed = [key for key in value if key in known and key not in _BODY_KEYS]
        if swallowed:
            raise PlanError(
                f"{swallowed[0]} stands within this section, as every line after its heading does; move it above the "
                "first section"
            )
        return _pairs(value) if parameter.multiple else _body(value)
    if parameter.multiple or parameter.nargs == -1:
        items = value if isinstance(value, list) else [value]
        values = tuple(_one(parameter, item) for item in items)
        names = [value[0] for value in values] if parameter.name in _TABLES else []
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise PlanError(f"{twice} is given twice; drop one")
        return values
    if parameter.name == "levels" and isinstance(value, list):
        value = ",".join(_text(item, "write levels like [1, 2, 4]") for item in value)
    return _one(parameter, value)


def _one(parameter: click.Parameter, value: object) -> Any:
    kind = parameter.type.name.upper()
    example = parameter.metavar or {"DURATION": "90s", "LEVEL": "8", "INTEGER": "8"}.get(kind, kind)
    if parameter.name in _TABLES:
        heading = option(str(parameter.name))
        text = _text(value, f"write a section [{heading}] or texts like {example!r}", numbers=())
    elif isinstance(parameter.type, click.types.StringParamType):
        text = _text(value, f"write a text in quotes, like {example!r}", numbers=(int,))
    else:
        text = _text(value, f"write it like {example!r}")
    return parameter.type.convert(text, parameter, None)


def _text(value: object, advice: str, numbers: tuple[type, ...] = (int, float)) -> str:
    """A text as it is; a number as it was most likely written. 1.10 as a text would be 1.1: not where text is meant."""
    if isinstance(value, str):
        return value
    if type(value) in numbers:
        return str(value)
    raise _wrong(advice, value)


def _pairs(table: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple((key, _text(value, f"{key} = …: write a text in quotes", (int,))) for key, value in table.items())


def _body(table: dict[str, Any]) -> dict[str, Any]:
    """What JSON can hold: TOML also has dates and times."""
    import json

    try:
        json.dumps(table, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PlanError("it holds a date, a time or a number that JSON does not have; write it as a text") from error
    return table


def _wrong(advice: str, value: object) -> PlanError:
    return PlanError(f"{advice}; it is {_TYPES.get(type(value), 'a date or time')}")
