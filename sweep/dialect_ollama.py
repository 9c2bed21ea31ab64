"""Ollama's native chat and generate: a JSON object a line, the last with done:true, counts and durations. Pure.

The server leaves out every metric that is zero: what is absent is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sweep.dialect_chat import ToolCall, calls_a_tool
from sweep.dialect_types import (
    ANSWER,
    NDJSON,
    NOTHING,
    TOKEN,
    Answer,
    Ask,
    BadBodyError,
    Dialect,
    count,
    decoded,
    messages_of,
    ollama_names,
    prompt_of,
    says_error,
)
from sweep.stream import NdjsonReader


class _Message(msgspec.Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None


class _Ollama(msgspec.Struct):
    model: str | None = None
    message: _Message | None = None
    response: str | None = None
    thinking: str | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: Any = None
    eval_count: Any = None
    total_duration: Any = None
    load_duration: Any = None
    prompt_eval_duration: Any = None
    eval_duration: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_Ollama).decode


def _body(ask: Ask, prompt: dict[str, Any]) -> dict[str, Any]:
    extra = dict(ask.extra_body)
    options = {"num_predict": ask.max_tokens} | dict(extra.pop("options", {}))
    return {"model": ask.model, **prompt, "stream": ask.stream, "options": options, **extra}


def _chat_body(ask: Ask) -> dict[str, Any]:
    return _body(ask, {"messages": messages_of(ask)})


def _generate_body(ask: Ask) -> dict[str, Any]:
    return _body(ask, {"prompt": prompt_of(ask, "ollama-generate")})


def _read_event(data: bytes, answer: Answer) -> int:
    event = decoded(_decode, data)
    if event.error:
        return says_error(answer, event.error)
    if event.model is not None:
        answer.model = event.model
    if event.done:
        answer.done = True
        answer.finish = event.done_reason
        answer.n_in = count(event.prompt_eval_count, answer.n_in)
        answer.n_out = count(event.eval_count, answer.n_out)
        answer.total_ns = count(event.total_duration)
        answer.load_ns = count(event.load_duration)
        answer.prompt_eval_ns = count(event.prompt_eval_duration)
        answer.eval_ns = count(event.eval_duration)
    message = event.message
    if event.response or (message is not None and message.content):
        return ANSWER
    if event.thinking or (message is not None and (message.thinking or calls_a_tool(message.tool_calls))):
        return TOKEN
    return NOTHING


def _read_body(data: bytes, answer: Answer, asked: Mapping[str, Any]) -> int:
    carried = _read_event(data, answer)
    if not answer.error and not answer.done:
        raise BadBodyError("no done:true")
    return carried


# fmt: off
OLLAMA_CHAT = Dialect(
    "ollama-chat", "/api/chat", _chat_body, _read_body, "/api/tags", ollama_names, read_event=_read_event,
    reader=NdjsonReader, stream_type=NDJSON, needs_done=True, replaceable=("options",),
)
OLLAMA_GENERATE = Dialect(
    "ollama-generate", "/api/generate", _generate_body, _read_body, "/api/tags", ollama_names, read_event=_read_event,
    reader=NdjsonReader, stream_type=NDJSON, needs_done=True, replaceable=("options",),
)
# fmt: on
