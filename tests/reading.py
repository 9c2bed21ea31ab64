"""One event or body given to a dialect: what it carried, and what the answer says beyond an empty one."""

from __future__ import annotations

from collections.abc import Mapping

from sweep.dialects import Answer, Dialect

EMPTY = {name: getattr(Answer(), name) for name in Answer.__slots__}


def told(answer: Answer) -> dict:
    found = {name: getattr(answer, name) for name in Answer.__slots__}
    return {name: value for name, value in found.items() if value != EMPTY[name]}


def read_event(dialect: Dialect, data: bytes) -> tuple[int, dict]:
    answer = Answer()
    return dialect.read_event(data, answer), told(answer)


def read_body(dialect: Dialect, data: bytes, asked: Mapping | None = None) -> tuple[int, dict]:
    answer = Answer()
    return dialect.read_body(data, answer, asked or {}), told(answer)


def read_events(dialect: Dialect, *events: bytes) -> tuple[list[int], dict]:
    """All of one answer."""
    answer = Answer()
    return [dialect.read_event(data, answer) for data in events], told(answer)
