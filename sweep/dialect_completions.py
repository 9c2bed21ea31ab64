"""OpenAI's completions: text of a prompt, an event a piece; ends as chat.completions does. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sweep.dialect_chat import Usage, ended, limited
from sweep.dialect_types import (
    ANSWER,
    NOTHING,
    TOKEN,
    Answer,
    Ask,
    Dialect,
    Told,
    count,
    decoded,
    is_error,
    openai_names,
    prompt_of,
    take_names,
)


class _Choice(msgspec.Struct):
    text: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    finish_reason: str | None = None


class _Completion(Told):
    choices: list[_Choice] | None = None
    usage: Usage | None = None


_decode = msgspec.json.Decoder(_Completion).decode


def _body(ask: Ask) -> dict[str, Any]:
    return limited(ask, {"model": ask.model, "prompt": prompt_of(ask, "openai-completions")})


def _read_event(data: bytes, answer: Answer) -> int:
    text = data.strip()
    if not text or text == b"[DONE]":
        answer.done = answer.done or bool(text)
        return NOTHING
    return _read(text, answer)


def _read_body(data: bytes, answer: Answer, asked: Mapping[str, Any]) -> int:
    return ended(_read(data, answer), answer)


def _read(data: bytes, answer: Answer) -> int:
    told = decoded(_decode, data)
    if is_error(told, answer, is_answer=told.choices is not None or told.usage is not None):
        return NOTHING
    take_names(told, answer)
    if told.usage is not None:
        answer.n_in = count(told.usage.prompt_tokens, answer.n_in)
        answer.n_out = count(told.usage.completion_tokens, answer.n_out)
    carried = NOTHING
    for choice in told.choices or ():
        if choice.finish_reason is not None:
            answer.finish = choice.finish_reason
        if choice.text:
            carried = ANSWER
        elif choice.reasoning or choice.reasoning_content:
            carried = max(carried, TOKEN)
    return carried


COMPLETIONS = Dialect(
    "openai-completions", "/v1/completions", _body, _read_body, "/v1/models", openai_names, read_event=_read_event
)
