"""OpenAI's chat.completions: a delta an event; ends with [DONE], or with a finish reason before a clean end. Pure.

Decoding is typed (msgspec): at 0.6 µs an event it is cheaper than scanning the bytes for the same keys (1.0 µs).
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
    count,
    messages_of,
    openai_names,
    says_error,
)


class Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class ToolCall(msgspec.Struct):
    function: Function | None = None


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: list[ToolCall] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None


class _Chat(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None
    detail: Any = None
    code: Any = None
    model: str | None = None
    id: Any = None


_decode = msgspec.json.Decoder(_Chat).decode


def body(ask: Ask) -> dict[str, Any]:
    return limited(ask, {"model": ask.model, "messages": messages_of(ask)})


def limited(ask: Ask, asked: dict[str, Any]) -> dict[str, Any]:
    """`asked` with the limit, the mode, and the usage of a stream, as chat and completions spell them."""
    asked |= {"max_tokens": ask.max_tokens, "stream": ask.stream}
    if ask.stream:
        asked["stream_options"] = {"include_usage": True}
    return asked | dict(ask.extra_body)


def read_event(data: bytes, answer: Answer) -> int:
    text = data.strip()
    if not text or text == b"[DONE]":
        answer.done = answer.done or bool(text)
        return NOTHING
    return _read(text, answer)


def read_body(data: bytes, answer: Answer, asked: Mapping[str, Any]) -> int:
    return ended(_read(data, answer), answer)


def ended(carried: int, answer: Answer) -> int:
    """A whole body was read. Raises BadBodyError when it says no finish reason."""
    if not answer.error and answer.finish is None:
        raise BadBodyError("no choice with a finish_reason")
    answer.done = True
    return carried


def calls_a_tool(calls: list[ToolCall] | None) -> bool:
    return any(call.function and (call.function.name or call.function.arguments) for call in calls or ())


def _read(data: bytes, answer: Answer) -> int:
    try:
        chat = _decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadBodyError(str(error)) from error
    told_instead = chat.choices is None and chat.usage is None and (chat.detail or chat.message or chat.code)
    if chat.error or chat.object == "error" or told_instead:
        return says_error(answer, chat.error or chat.detail or {"message": chat.message, "code": chat.code})
    if answer.model is None:
        answer.model = chat.model
        answer.server_id = chat.id if isinstance(chat.id, str) else None
    if chat.usage is not None:
        answer.n_in = count(chat.usage.prompt_tokens, answer.n_in)
        answer.n_out = count(chat.usage.completion_tokens, answer.n_out)
    carried = NOTHING
    for choice in chat.choices or ():
        if choice.finish_reason is not None:
            answer.finish = choice.finish_reason
        delta = choice.delta or choice.message
        if delta is None:
            continue
        if delta.content or delta.refusal:
            carried = ANSWER
        elif delta.reasoning or delta.reasoning_content or calls_a_tool(delta.tool_calls):
            carried = max(carried, TOKEN)
    return carried


CHAT = Dialect(
    "openai-chat", "/v1/chat/completions", body, read_body, "/v1/models", openai_names, read_event=read_event
)
