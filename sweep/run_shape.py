"""Whether what a report reads of run.json, beside the plan, has the shape that runs write. Pure.

A report renders these parts as they are: damage is found here, and not by a page that cannot be made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class _Guess(msgspec.Struct):
    value: str | int | float
    how: str


class _Subject(msgspec.Struct):
    pid: int | None = None
    ownership: str | None = None
    declared: str | None = None
    seen: dict[str, Any] | None = None


class _Check(msgspec.Struct):
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    connections: list[str]
    connections_why: str | None
    requests_per_s: _Amount | None
    counter: str | None
    requests_why: str | None
    cpu_share: _Amount | None
    cpu_why: str | None
    busy: list[str]
    acknowledged: str | None


class _Listener(msgspec.Struct):
    pid: int | None
    comm: str | None
    is_tunnel: bool | None


class _Counted(msgspec.Struct):
    sent: int = 0
    rose: dict[str, _Amount] = {}


class _Prompts(msgspec.Struct):
    path: str
    sha256: str
    count: int


class _Others(msgspec.Struct):
    quiet_check: _Check | None = None
    quiet_check_why: str | None = None
    listener: _Listener | None = None
    connections_why: str | None = None
    counted: _Counted | None = None


_PARTS: dict[str, Any] = {
    "others": _Others | None,
    "guesses": dict[str, _Guess] | None,
    "guessed": list[str],
    "warnings": list[str],
    "subjects": list[_Subject],
    "paths": dict[str, Any] | None,
    "beside": dict[str, dict[str, Any]] | None,
    "locustfile": dict[str, Any] | None,
    "prompts": _Prompts | None,
    "versions": dict[str, Any],
    "machine": dict[str, Any],
    "policy": dict[str, Any],
    "dialect": dict[str, bool] | None,
}


def sound(run: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """run.json without the parts of another shape, and what is wrong with the first of them; None: nothing is."""
    kept, faults = dict(run), []
    for name, shape in _PARTS.items():
        try:
            msgspec.convert(run[name], shape) if name in run else None
        except msgspec.ValidationError as error:
            faults.append(f"run.json: {name}: {error}; the file was changed or damaged")
            del kept[name]
    return kept, faults[0] if faults else None
