"""OpenAI's responses: typed, numbered events; ends with response.completed, incomplete or failed, no [DONE]. Pure.

The type is read from the JSON: servers may leave the `event:` line out, and some the numbers (llama.cpp). Numbers that
come are checked: the API says they rise. One that does not means that the answer was put together wrong on the way (a
body that is not of the API); one left out may be an event of a kind that a gateway does not pass on, or a lost token:
the answer is remarked (`skipped`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sweep.dialect_types import (
    ANSWER,
    NOTHING,
    TOKEN,
    Answer,
    Ask,
    BadBodyError,
    Dialect,
    Told,
    count,
    decoded,
    is_error,
    messages_of,
    openai_names,
    says_error,
    take_names,
)

_ANSWERS = ("response.output_text.delta", "response.refusal.delta")
_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
# Items that the model generates beside its message; their names and arguments are tokens.
_CALL = "_call"


class _Usage(msgspec.Struct):
    input_tokens: Any = None
    output_tokens: Any = None


class _Reason(msgspec.Struct):
    reason: str | None = None


class _Part(msgspec.Struct):
    text: Any = None
    refusal: Any = None


class _Item(msgspec.Struct):
    type: str | None = None
    name: Any = None


class _WholeItem(_Item):
    content: list[_Part] | None = None
    summary: list[_Part] | None = None


class _Response(Told):
    status: str | None = None
    usage: _Usage | None = None
    incomplete_details: _Reason | None = None


class _Whole(_Response):
    output: list[_WholeItem] | None = None


class _Event(msgspec.Struct):
    type: str | None = None
    sequence_number: int | None = None
    delta: Any = None
    item: _Item | None = None
    response: _Response | None = None
    error: Any = None
    message: Any = None
    detail: Any = None
    code: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_body = msgspec.json.Decoder(_Whole).decode


def _body(ask: Ask) -> dict[str, Any]:
    """store: false, so that the server keeps nothing of the load."""
    asked = {
        "model": ask.model,
        "input": ask.prompt if ask.messages is None else messages_of(ask),
        "max_output_tokens": ask.max_tokens,
        "stream": ask.stream,
        "store": False,
    }
    return asked | dict(ask.extra_body)


def _read_event(data: bytes, answer: Answer) -> int:
    text = data.strip()
    if not text or text == b"[DONE]":  # a gateway's own; the API has none
        return NOTHING
    event = decoded(_decode_event, text)
    kind = event.type or ""
    if kind == "error" or event.error or (not kind and (event.detail or event.message or event.code)):
        return says_error(
            answer, event.error or event.detail or {"message": event.message, "code": event.code, "type": event.type}
        )
    if event.sequence_number is not None:
        _number(event.sequence_number, answer)
    if event.response is not None:
        _take(event.response, answer, kind in _ENDS)
    if kind.endswith(".delta"):
        return NOTHING if not event.delta else ANSWER if kind in _ANSWERS else TOKEN
    if kind == "response.output_item.added" and event.item is not None and _is_call(event.item):
        return TOKEN
    if kind in _ENDS and not answer.error:
        answer.done = True
        if answer.finish is None:
            answer.finish = kind.removeprefix("response.")
        if kind == "response.failed":
            return says_error(answer, {"code": "failed", "message": "the response failed, the server does not say why"})
    return NOTHING


def _read_body(data: bytes, answer: Answer, asked: Mapping[str, Any]) -> int:
    told = decoded(_decode_body, data)
    if told.status is None and is_error(told, answer, is_answer=told.output is not None):
        return NOTHING
    _take(told, answer, is_end=True)
    if answer.error:
        return NOTHING
    if told.output is None or answer.finish is None or told.status in ("in_progress", "queued"):
        raise BadBodyError(f"no whole response: its status is {told.status}")
    answer.done = True
    items = told.output
    if any(part.text or part.refusal for item in items if item.type == "message" for part in item.content or ()):
        return ANSWER
    thinks = any(part.text for item in items for part in (*(item.content or ()), *(item.summary or ())))
    return TOKEN if thinks or any(map(_is_call, items)) else NOTHING


def _take(told: _Response, answer: Answer, is_end: bool) -> None:
    if told.error:
        says_error(answer, told.error)
    take_names(told, answer)
    if told.usage is not None:
        answer.n_in = count(told.usage.input_tokens, answer.n_in)
        answer.n_out = count(told.usage.output_tokens, answer.n_out)
    if is_end:
        reason = None if told.incomplete_details is None else told.incomplete_details.reason
        answer.finish = reason or told.status


def _number(number: int, answer: Answer) -> None:
    """Takes an event's sequence number. Raises BadBodyError when it does not rise."""
    before = answer.sequence
    if before is not None and number <= before:
        raise BadBodyError(f"sequence number {number} after {before}: events came twice or out of order")
    answer.skipped = answer.skipped or (before is not None and number != before + 1)
    answer.sequence = number


def _is_call(item: _Item) -> bool:
    return (item.type or "").endswith(_CALL) and bool(item.name)


RESPONSES = Dialect(
    "openai-responses", "/v1/responses", _body, _read_body, "/v1/models", openai_names, read_event=_read_event,
    needs_done=True,
)  # fmt: skip
