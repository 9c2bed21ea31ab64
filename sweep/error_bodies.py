"""What servers say instead of an answer: JSON of any shape, plain text, HTML -> (code, text). Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


def read_error(body: bytes) -> tuple[str | None, str | None]:
    """(code, text) of an error body: JSON of any shape, plain text or HTML; (None, None) when it is empty."""
    if not body.strip():
        return None, None
    try:
        return error_of(msgspec.json.decode(body))
    except (msgspec.DecodeError, RecursionError):
        return None, body[:4096].decode("utf-8", "replace")


def error_of(shape: object) -> tuple[str | None, str | None]:
    """(code, text) of what servers put under `error`, or answer instead of it: an object, a string, anything."""
    beside = None  # `{"error": "text", "code": "QUEUE_FULL"}`: Ollaya's
    while isinstance(shape, Mapping):
        code = next((shape[key] for key in ("code", "type", "status") if shape.get(key) is not None), beside)
        if not (inner := shape.get("error") or shape.get("detail")):
            return (None if code is None else _text(code)), _text(shape.get("message") or shape.get("msg") or shape)
        beside = shape.get("code", beside)
        shape = inner
    return (None if beside is None else _text(beside)), _text(shape)


def _text(shape: object) -> str:
    try:
        return shape if isinstance(shape, str) else msgspec.json.encode(shape).decode()
    except RecursionError:
        return "nested too deep to read"
