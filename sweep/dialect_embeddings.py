"""OpenAI's embeddings: a vector for each input, in one body; nothing streams and no token is generated. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sweep.dialect_types import (
    ANSWER,
    NOTHING,
    Answer,
    Ask,
    BadBodyError,
    Dialect,
    Told,
    count,
    decoded,
    is_error,
    openai_names,
    prompt_of,
    take_names,
)


class _Row(msgspec.Struct):
    embedding: list[float] | str


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None


class _Embeddings(Told):
    data: list[_Row] | None = None
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_Embeddings).decode


def _body(ask: Ask) -> dict[str, Any]:
    return {"model": ask.model, "input": prompt_of(ask, "openai-embeddings")} | dict(ask.extra_body)


def _read_body(data: bytes, answer: Answer, asked: Mapping[str, Any]) -> int:
    told = decoded(_decode, data)
    if is_error(told, answer, is_answer=told.data is not None):
        return NOTHING
    rows, n_wanted = told.data or [], _n_inputs(asked.get("input"))
    if len(rows) != n_wanted:
        raise BadBodyError(f"{len(rows)} embeddings for {n_wanted} inputs")
    kind = str if asked.get("encoding_format") == "base64" else list
    for number, row in enumerate(rows):
        if not row.embedding or not isinstance(row.embedding, kind):
            raise BadBodyError(f"data[{number}].embedding is {'empty' if not row.embedding else 'no list of numbers'}")
    answer.done = True
    take_names(told, answer)
    if told.usage is not None:
        answer.n_in = count(told.usage.prompt_tokens)
    return ANSWER


def _n_inputs(given: object) -> int:
    """A text, or a list of token numbers, is one input; a list of those is as many."""
    return len(given) if isinstance(given, list) and not any(isinstance(each, int) for each in given) else 1


EMBEDDINGS = Dialect(
    "openai-embeddings", "/v1/embeddings", _body, _read_body, "/v1/models", openai_names, streams=False,
    has_tokens=False,
)  # fmt: skip
