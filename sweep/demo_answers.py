"""What the embedded gateway says: request bytes in, answer bytes out, one row an API. Pure.

Chat, completions and Ollama's here; typed events in `demo_typed`, APIs without streaming in `demo_whole`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from sweep.demo_asks import Ask, Dialect, Message, Refused, Spans, Wanted, n_words, openai_error, text_of, word
from sweep.demo_memory import keep_s
from sweep.demo_typed import MESSAGES, RESPONSES
from sweep.demo_whole import DECIDE, EMBEDDINGS, SYSTEMONE


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _OpenAiBody(msgspec.Struct):
    model: str
    messages: list[Message]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


class _PromptBody(msgspec.Struct):
    model: str
    prompt: str | list[str]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None


class _OllamaOptions(msgspec.Struct):
    num_predict: int | None = None


class _OllamaBody(msgspec.Struct):
    model: str
    messages: list[Message] = []
    prompt: str = ""
    stream: bool | None = None
    options: _OllamaOptions | None = None
    keep_alive: str | float | None = None


_OPENAI_DECODER = msgspec.json.Decoder(_OpenAiBody)
_PROMPT_DECODER = msgspec.json.Decoder(_PromptBody)
_OLLAMA_DECODER = msgspec.json.Decoder(_OllamaBody)


def _read_openai(body: bytes) -> Wanted:
    asked = _OPENAI_DECODER.decode(body)
    limit = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
    usage = asked.stream_options is not None and asked.stream_options.include_usage
    return Wanted(asked.model, asked.stream is True, usage, n_words(asked.messages), limit)


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
    message = {"role": "assistant", "content": text_of(ask)}
    choices = [{"index": 0, "message": message, "finish_reason": ask.finish}]
    return _openai_answer(ask, "chat.completion", choices, usage=_openai_usage(ask))


def _read_prompt(body: bytes) -> Wanted:
    asked = _PROMPT_DECODER.decode(body)
    prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
    if len(prompts) != 1:
        raise Refused(400, "invalid_prompt", f"one prompt a request, not {len(prompts)}")
    usage = asked.stream_options is not None and asked.stream_options.include_usage
    return Wanted(asked.model, asked.stream is True, usage, max(1, len(prompts[0].split())), asked.max_tokens)


def _completion(ask: Ask, choices: Sequence[object], **more: object) -> bytes:
    created = int(datetime.now(UTC).timestamp())
    told = {"id": f"cmpl-{ask.answer_id}", "object": "text_completion", "created": created, "model": ask.wanted.model}
    return msgspec.json.encode(told | {"choices": choices} | more)


def _completion_event(ask: Ask, choices: Sequence[object], **more: object) -> bytes:
    return b"data: " + _completion(ask, choices, **more) + b"\n\n"


def _piece(text: str, finish: str | None = None) -> Sequence[object]:
    return [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]


def _completion_tail(ask: Ask, _: Spans) -> bytes:
    usage = _completion_event(ask, [], usage=_openai_usage(ask)) if ask.wanted.usage else b""
    return _completion_event(ask, _piece("", ask.finish)) + usage + b"data: [DONE]\n\n"


def _openai_error_event(refused: Refused) -> bytes:
    return b"data: " + openai_error(refused) + b"\n\ndata: [DONE]\n\n"


def _read_ollama(body: bytes) -> Wanted:
    asked = _OLLAMA_DECODER.decode(body)
    limit = None if asked.options is None else asked.options.num_predict
    if limit is not None and limit < 0:  # Ollama: -1 without end, -2 until the context is full
        limit = None
    n_prompt = n_words(asked.messages) + len(asked.prompt.split())
    keep = None if asked.keep_alive is None else _kept(asked.keep_alive)
    return Wanted(asked.model, asked.stream is not False, True, max(1, n_prompt), limit, keep_s=keep)


def _kept(said: str | float) -> float:
    try:
        return keep_s(said)
    except ValueError as error:
        raise Refused(400, "invalid_keep_alive", str(error)) from error


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
        token=lambda ask, i: _ollama_line(ask, content(word(i)), False, {}),
        tail=lambda ask, spans: _ollama_line(ask, content(""), True, _ollama_end(ask, spans)),
        whole=lambda ask, spans: _ollama_line(ask, content(text_of(ask)), True, _ollama_end(ask, spans)),
        error=_ollama_error,
        error_event=_ollama_error,
    )


DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": Dialect(
        read=_read_openai,
        head=lambda ask: _openai_chunk(ask, _choice({"role": "assistant", "content": ""})),
        token=lambda ask, i: _openai_chunk(ask, _choice({"content": word(i)})),
        tail=_openai_tail,
        whole=_openai_whole,
        error=openai_error,
        error_event=_openai_error_event,
    ),
    "/v1/completions": Dialect(
        read=_read_prompt,
        head=lambda _: b"",
        token=lambda ask, i: _completion_event(ask, _piece(word(i))),
        tail=_completion_tail,
        whole=lambda ask, _: _completion(ask, _piece(text_of(ask), ask.finish), usage=_openai_usage(ask)),
        error=openai_error,
        error_event=_openai_error_event,
    ),
    "/v1/responses": RESPONSES,
    "/v1/embeddings": EMBEDDINGS,
    "/v1/messages": MESSAGES,
    "/api/decide": DECIDE,
    "/v1/systemone": SYSTEMONE,
    "/api/chat": _ollama(lambda text: {"message": {"role": "assistant", "content": text}}),
    "/api/generate": _ollama(lambda text: {"response": text}),
}
