"""One row an API: what is sent, how its answer is read, and when it is complete. Pure.

`read_event` takes the data of one event, writes what it tells into an `Answer` and returns what it carried: NOTHING, a
TOKEN of reasoning or tool call, or ANSWER text. Bytes that are not of the API raise BadBodyError.
Decoding is typed (msgspec): at 0.6 µs an event it is cheaper than scanning the bytes for the same keys (1.0 µs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sweep.error_bodies import error_of
from sweep.stream import EventReader, NdjsonReader, SseReader

NOTHING, TOKEN, ANSWER = 0, 1, 2
# Finish reasons with which a server says that it failed.
FAILED_FINISH = ("error", "abort", "aborted", "cancelled")
# Past this a server's count is nonsense, and would not fit a table.
_MAX_COUNT = 2**53


class BadBodyError(ValueError):
    """Bytes that are not valid for the API."""


class Answer:
    """What an answer has told so far."""

    __slots__ = (
        "done", "error", "error_code", "error_text", "finish", "load_ns", "model", "n_in", "n_out", "server_id",
    )  # fmt: skip

    def __init__(self) -> None:
        self.done = False
        self.error = False
        self.error_code: str | None = None
        self.error_text: str | None = None
        self.finish: str | None = None
        self.load_ns: int | None = None
        self.model: str | None = None
        self.n_in: int | None = None
        self.n_out: int | None = None
        self.server_id: str | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One request before it is bytes. messages: a whole conversation instead of the prompt, for APIs that take one."""

    model: str
    prompt: str
    max_tokens: int
    stream: bool
    extra_body: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one API is spoken. `models` is the path that lists models, `names` reads their names from its answer."""

    name: str
    path: str
    stream_type: str
    reader: Callable[[], EventReader]
    body: Callable[[Ask], dict[str, Any]]
    read_event: Callable[[bytes, Answer], int]
    read_body: Callable[[bytes, Answer], int]
    needs_done: bool
    models: str
    names: Callable[[Any], list[str]]

    def is_complete(self, answer: Answer) -> bool:
        """The terminal rule at a clean end of the body."""
        return answer.done or (not self.needs_done and answer.finish is not None)


# -- OpenAI chat.completions ------------------------------------------------------------------------------------------


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None


class _Chat(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None
    detail: Any = None
    code: Any = None
    model: str | None = None
    id: Any = None


_decode_chat = msgspec.json.Decoder(_Chat).decode


def _chat_body(ask: Ask) -> dict[str, Any]:
    body = {
        "model": ask.model,
        "messages": _messages(ask),
        "max_tokens": ask.max_tokens,
        "stream": ask.stream,
    }
    if ask.stream:
        body["stream_options"] = {"include_usage": True}
    return body | dict(ask.extra_body)


def _messages(ask: Ask) -> list[Mapping[str, Any]]:
    return [{"role": "user", "content": ask.prompt}] if ask.messages is None else list(ask.messages)


def _chat_event(data: bytes, answer: Answer) -> int:
    text = data.strip()
    if not text or text == b"[DONE]":
        answer.done = answer.done or bool(text)
        return NOTHING
    return _chat_object(text, answer)


def _chat_body_answer(data: bytes, answer: Answer) -> int:
    carried = _chat_object(data, answer)
    if not answer.error and answer.finish is None:
        raise BadBodyError("no choice with a finish_reason")
    answer.done = True
    return carried


def _chat_object(data: bytes, answer: Answer) -> int:
    try:
        chat = _decode_chat(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadBodyError(str(error)) from error
    told_instead = chat.choices is None and chat.usage is None and (chat.detail or chat.message or chat.code)
    if chat.error or chat.object == "error" or told_instead:
        answer.error = True
        shape = chat.error or chat.detail or {"message": chat.message, "code": chat.code}
        answer.error_code, answer.error_text = error_of(shape)
        return NOTHING
    if answer.model is None:
        answer.model = chat.model
        answer.server_id = chat.id if isinstance(chat.id, str) else None
    if chat.usage is not None:
        answer.n_in = _count(chat.usage.prompt_tokens, answer.n_in)
        answer.n_out = _count(chat.usage.completion_tokens, answer.n_out)
    carried = NOTHING
    for choice in chat.choices or ():
        if choice.finish_reason is not None:
            answer.finish = choice.finish_reason
        delta = choice.delta or choice.message
        if delta is None:
            continue
        if delta.content or delta.refusal:
            carried = ANSWER
        elif delta.reasoning or delta.reasoning_content or _calls_a_tool(delta.tool_calls):
            carried = max(carried, TOKEN)
    return carried


def _calls_a_tool(calls: list[_ToolCall] | None) -> bool:
    return any(call.function and (call.function.name or call.function.arguments) for call in calls or ())


def _count(told: object, before: int | None) -> int | None:
    """The later of two counts a server tells; a word, a negative or an absurd number tells nothing."""
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 <= told < _MAX_COUNT else before


# -- Ollama chat and generate -----------------------------------------------------------------------------------------


class _Message(msgspec.Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Ollama(msgspec.Struct):
    model: str | None = None
    message: _Message | None = None
    response: str | None = None
    thinking: str | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: Any = None
    eval_count: Any = None
    load_duration: Any = None
    error: Any = None


_decode_ollama = msgspec.json.Decoder(_Ollama).decode


def _ollama_body(ask: Ask, prompt: dict[str, Any]) -> dict[str, Any]:
    extra = dict(ask.extra_body)
    options = {"num_predict": ask.max_tokens} | dict(extra.pop("options", {}))
    return {"model": ask.model, **prompt, "stream": ask.stream, "options": options, **extra}


def _ollama_chat_body(ask: Ask) -> dict[str, Any]:
    return _ollama_body(ask, {"messages": _messages(ask)})


def _ollama_generate_body(ask: Ask) -> dict[str, Any]:
    if ask.messages is not None:
        raise ValueError("ollama-generate takes no messages; give a prompt")
    return _ollama_body(ask, {"prompt": ask.prompt})


def _ollama_event(data: bytes, answer: Answer) -> int:
    try:
        event = _decode_ollama(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadBodyError(str(error)) from error
    if event.error:
        answer.error = True
        answer.error_code, answer.error_text = error_of(event.error)
        return NOTHING
    if event.model is not None:
        answer.model = event.model
    if event.done:
        answer.done = True
        answer.finish = event.done_reason
        answer.n_in = _count(event.prompt_eval_count, answer.n_in)
        answer.n_out = _count(event.eval_count, answer.n_out)
        answer.load_ns = _count(event.load_duration, answer.load_ns)
    message = event.message
    if event.response or (message is not None and message.content):
        return ANSWER
    if event.thinking or (message is not None and (message.thinking or _calls_a_tool(message.tool_calls))):
        return TOKEN
    return NOTHING


def _ollama_body_answer(data: bytes, answer: Answer) -> int:
    carried = _ollama_event(data, answer)
    if not answer.error and not answer.done:
        raise BadBodyError("no done:true")
    return carried


def _openai_names(listing: Any) -> list[str]:
    return [row["id"] for row in listing["data"]]


def _ollama_names(listing: Any) -> list[str]:
    return [row["name"] for row in listing["models"]]


_CHAT = "/v1/chat/completions"
_SSE, _NDJSON = "text/event-stream", "application/x-ndjson"
# fmt: off
DIALECTS = (
    Dialect("openai-chat", _CHAT, _SSE, SseReader, _chat_body, _chat_event, _chat_body_answer,
            needs_done=False, models="/v1/models", names=_openai_names),
    Dialect("ollama-chat", "/api/chat", _NDJSON, NdjsonReader, _ollama_chat_body, _ollama_event, _ollama_body_answer,
            needs_done=True, models="/api/tags", names=_ollama_names),
    Dialect("ollama-generate", "/api/generate", _NDJSON, NdjsonReader, _ollama_generate_body, _ollama_event,
            _ollama_body_answer, needs_done=True, models="/api/tags", names=_ollama_names),
)
# fmt: on
BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
