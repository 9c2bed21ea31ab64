"""What the embedded gateway says: request bytes in, answer bytes out, one row an API. Pure.

It shares no code with the generator's dialects on purpose: a mistake there must not find its twin here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

DEFAULT_TOKENS = 128  # length of an answer whose request sets no limit
WORDS = ("the", "gate", "opens", "only", "when", "every", "number", "on", "its", "board", "is", "true")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request body asks for; limit is its max_tokens, None if it sets none."""

    model: str
    stream: bool
    usage: bool
    n_prompt: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to answer; n_tokens and finish ("length" or "stop") are settled before the first token."""

    wanted: Wanted
    answer_id: str
    n_tokens: int
    finish: str


@dataclass(frozen=True, slots=True)
class Spans:
    """Measured durations of one answer, in ns: all since it was read, up to the first token, from first to last."""

    total_ns: int
    prompt_ns: int
    answer_ns: int


class Refused(Exception):
    """The request gets an error. status: HTTP; code: the machine-readable name."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API; `head` and `tail` are the events of a stream before its first and after its last token."""

    stream_type: str
    read: Callable[[bytes], Wanted]
    head: Callable[[Ask], bytes]
    token: Callable[[Ask, int], bytes]
    tail: Callable[[Ask, Spans], bytes]
    whole: Callable[[Ask, Spans], bytes]
    error: Callable[[Refused], bytes]
    error_event: Callable[[Refused], bytes]


def read_ask(dialect: Dialect, body: bytes, answer_id: str, model: str, max_output: int, stop_after: int | None) -> Ask:
    """The ask of one request body, with exactly as many tokens as it names.

    stop_after: tokens after which the model stops by itself; None: never, or DEFAULT_TOKENS without a limit.
    Raises Refused: 400 for a body that is no valid request, 404 for a model other than `model`.
    """
    try:
        wanted = dialect.read(body)
    except msgspec.MsgspecError as error:
        raise Refused(400, "invalid_request", f"request body: {error}") from error
    if wanted.model.removesuffix(":latest") != model:
        raise Refused(404, "model_not_found", f"model '{wanted.model}' does not exist; this gateway has '{model}'")
    limit = wanted.limit
    if limit is not None and not 1 <= limit <= max_output:
        raise Refused(400, "invalid_max_tokens", f"max_tokens {limit}: this model gives 1 to {max_output} tokens")
    if limit is not None and (stop_after is None or limit <= stop_after):
        return Ask(wanted, answer_id, limit, "length")
    return Ask(wanted, answer_id, min(stop_after or DEFAULT_TOKENS, max_output), "stop")


class _Part(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _OpenAiBody(msgspec.Struct):
    model: str
    messages: list[_Message]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


class _OllamaOptions(msgspec.Struct):
    num_predict: int | None = None


class _OllamaBody(msgspec.Struct):
    model: str
    messages: list[_Message] = []
    prompt: str = ""
    stream: bool | None = None
    options: _OllamaOptions | None = None


_OPENAI_DECODER = msgspec.json.Decoder(_OpenAiBody)
_OLLAMA_DECODER = msgspec.json.Decoder(_OllamaBody)


def _n_words(messages: Sequence[_Message]) -> int:
    contents = (message.content or "" for message in messages)
    texts = (text if isinstance(text, str) else " ".join(part.text for part in text) for text in contents)
    return sum(len(text.split()) + 1 for text in texts)  # one more for the role


def _text(ask: Ask) -> str:
    return "".join(f" {WORDS[i % len(WORDS)]}" for i in range(ask.n_tokens))


def _read_openai(body: bytes) -> Wanted:
    asked = _OPENAI_DECODER.decode(body)
    limit = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
    usage = asked.stream_options is not None and asked.stream_options.include_usage
    return Wanted(asked.model, asked.stream is True, usage, _n_words(asked.messages), limit)


def _openai_usage(ask: Ask) -> Mapping[str, int]:
    n_in, n_out = ask.wanted.n_prompt, ask.n_tokens
    return {"prompt_tokens": n_in, "completion_tokens": n_out, "total_tokens": n_in + n_out}


def _openai_answer(ask: Ask, kind: str, choices: Sequence[object], **more: object) -> bytes:
    created = int(datetime.now(UTC).timestamp())
    return msgspec.json.encode(
        {"id": f"chatcmpl-{ask.answer_id}", "object": kind, "created": created, "model": ask.wanted.model}
        | {"choices": choices}
        | more
    )


def _openai_chunk(ask: Ask, choices: Sequence[object], **more: object) -> bytes:
    return b"data: " + _openai_answer(ask, "chat.completion.chunk", choices, **more) + b"\n\n"


def _choice(delta: Mapping[str, str], finish: str | None = None) -> Sequence[object]:
    return [{"index": 0, "delta": delta, "finish_reason": finish}]


def _openai_tail(ask: Ask, _: Spans) -> bytes:
    usage = _openai_chunk(ask, [], usage=_openai_usage(ask)) if ask.wanted.usage else b""
    return _openai_chunk(ask, _choice({}, ask.finish)) + usage + b"data: [DONE]\n\n"


def _openai_whole(ask: Ask, _: Spans) -> bytes:
    message = {"role": "assistant", "content": _text(ask)}
    choices = [{"index": 0, "message": message, "finish_reason": ask.finish}]
    return _openai_answer(ask, "chat.completion", choices, usage=_openai_usage(ask))


def _openai_error(refused: Refused) -> bytes:
    kinds = {401: "authentication_error", 429: "overloaded_error"}  # no "rate": the caller is within its rights
    kind = kinds.get(refused.status, "server_error" if refused.status >= 500 else "invalid_request_error")
    return msgspec.json.encode(
        {"error": {"message": refused.message, "type": kind, "param": None, "code": refused.code}}
    )


def _read_ollama(body: bytes) -> Wanted:
    asked = _OLLAMA_DECODER.decode(body)
    limit = None if asked.options is None else asked.options.num_predict
    if limit is not None and limit < 0:  # Ollama: -1 without end, -2 until the context is full
        limit = None
    n_prompt = _n_words(asked.messages) + len(asked.prompt.split())
    return Wanted(asked.model, asked.stream is not False, True, max(1, n_prompt), limit)


def _ollama_line(ask: Ask, content: Mapping[str, object], done: bool, more: Mapping[str, object]) -> bytes:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line: dict[str, Any] = {"model": ask.wanted.model, "created_at": now, **content, "done": done, **more}
    return msgspec.json.encode(line) + b"\n"


def _ollama_end(ask: Ask, spans: Spans) -> Mapping[str, object]:
    return {
        "done_reason": ask.finish,
        "total_duration": spans.total_ns,
        "load_duration": 0,
        "prompt_eval_count": ask.wanted.n_prompt,
        "prompt_eval_duration": spans.prompt_ns,
        "eval_count": ask.n_tokens,
        "eval_duration": spans.answer_ns,
    }


def _ollama_error(refused: Refused) -> bytes:
    return msgspec.json.encode({"error": refused.message}) + b"\n"


def _ollama(content: Callable[[str], Mapping[str, object]]) -> Dialect:
    return Dialect(
        stream_type="application/x-ndjson",
        read=_read_ollama,
        head=lambda _: b"",
        token=lambda ask, i: _ollama_line(ask, content(f" {WORDS[i % len(WORDS)]}"), False, {}),
        tail=lambda ask, spans: _ollama_line(ask, content(""), True, _ollama_end(ask, spans)),
        whole=lambda ask, spans: _ollama_line(ask, content(_text(ask)), True, _ollama_end(ask, spans)),
        error=_ollama_error,
        error_event=_ollama_error,
    )


DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": Dialect(
        stream_type="text/event-stream",
        read=_read_openai,
        head=lambda ask: _openai_chunk(ask, _choice({"role": "assistant", "content": ""})),
        token=lambda ask, i: _openai_chunk(ask, _choice({"content": f" {WORDS[i % len(WORDS)]}"})),
        tail=_openai_tail,
        whole=_openai_whole,
        error=_openai_error,
        error_event=lambda refused: b"data: " + _openai_error(refused) + b"\n\ndata: [DONE]\n\n",
    ),
    "/api/chat": _ollama(lambda text: {"message": {"role": "assistant", "content": text}}),
    "/api/generate": _ollama(lambda text: {"response": text}),
}
