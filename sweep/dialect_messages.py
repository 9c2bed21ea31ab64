"""Anthropic's messages, as llama.cpp and gateways serve it: typed events, content in blocks, message_stop last. Pure.

The type is read from the JSON. Usage is split: the prompt's count comes with message_start (cached parts apart, which
are tokens of the prompt too), the output's with message_delta; message_start's output count is a place holder.
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


class _Usage(msgspec.Struct):
    input_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None
    output_tokens: Any = None


class _Piece(msgspec.Struct):
    """A content block or a delta of one. stop_reason: of a message_delta's."""

    type: str | None = None
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    name: Any = None
    stop_reason: str | None = None


class _Message(Told):
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    type: str | None = None
    message: _Message | str | None = None
    content_block: _Piece | None = None
    delta: _Piece | None = None
    usage: _Usage | None = None
    error: Any = None
    detail: Any = None


class _Body(Told):
    content: list[_Piece] | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_body = msgspec.json.Decoder(_Body).decode


def _body(ask: Ask) -> dict[str, Any]:
    asked = {"model": ask.model, "messages": messages_of(ask), "max_tokens": ask.max_tokens, "stream": ask.stream}
    return asked | dict(ask.extra_body)


def _read_event(data: bytes, answer: Answer) -> int:
    text = data.strip()
    if not text or text == b"[DONE]":  # a gateway's own; the API has none
        return NOTHING
    event = decoded(_decode_event, text)
    kind = event.type
    if kind == "content_block_delta" or kind == "content_block_start":
        return _carried(event.delta or event.content_block)
    if kind == "error" or event.error or event.detail or isinstance(event.message, str):
        return says_error(answer, event.error or event.detail or {"type": kind, "message": event.message})
    if kind == "message_start" and event.message is not None:
        take_names(event.message, answer)
        _take_usage(event.message.usage, answer, counts_output=False)
    elif kind == "message_delta":
        if event.delta is not None and event.delta.stop_reason is not None:
            answer.finish = event.delta.stop_reason
        _take_usage(event.usage, answer)
    elif kind == "message_stop":
        answer.done = True
    return NOTHING


def _read_body(data: bytes, answer: Answer, asked: Mapping[str, Any]) -> int:
    told = decoded(_decode_body, data)
    if is_error(told, answer, is_answer=told.content is not None):
        return NOTHING
    if told.content is None or told.stop_reason is None:
        raise BadBodyError("no message with content and a stop_reason")
    answer.done = True
    answer.finish = told.stop_reason
    take_names(told, answer)
    _take_usage(told.usage, answer)
    return max(map(_carried, told.content), default=NOTHING)


def _carried(piece: _Piece | None) -> int:
    """A signature or a citation is no token; the name of a tool is the first of its call."""
    if piece is None:
        return NOTHING
    if piece.text:
        return ANSWER
    return TOKEN if piece.thinking or piece.partial_json or piece.name else NOTHING


def _take_usage(usage: _Usage | None, answer: Answer, counts_output: bool = True) -> None:
    if usage is None:
        return
    parts = (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    told = [n for n in map(count, parts) if n is not None]
    if told:  # some repeat it with message_delta, without the cached part, or as 0
        answer.n_in = max(sum(told), answer.n_in or 0)
    if counts_output:
        answer.n_out = count(usage.output_tokens, answer.n_out)


MESSAGES = Dialect(
    "anthropic-messages", "/v1/messages", _body, _read_body, "/v1/models", openai_names, read_event=_read_event,
    needs_done=True, headers={"anthropic-version": "2023-06-01"},
)  # fmt: skip
