"""The embedded gateway's APIs without streaming and tokens: OpenAI's embeddings, and decisions. Pure.

The same body has the same answer. A decision's numbers come from a hash of what is asked, in parts of 10,000, so that
probabilities sum to 1 exactly and choice, confidence and score follow from them.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from sweep.demo_asks import Ask, Dialect, Refused, Spans, Wanted, openai_error
from sweep.demo_memory import DEFAULT_KEEP_S, keep_s

_DIMENSIONS = 8
_PARTS = 10_000


class _EmbeddingsBody(msgspec.Struct):
    model: str
    input: str | list[str]
    encoding_format: Literal["float", "base64"] = "float"


class _Question(msgspec.Struct):
    type: Literal["noul", "choice", "score"]
    criteria: dict[str, Any] | list[str] | None = None


class _DecisionBody(msgspec.Struct):
    model: str
    state: str | list[Any] | dict[str, Any]
    questions: dict[str, _Question]
    stream: bool | None = None
    keep_alive: str | float | None = None


_EMBEDDINGS_DECODER = msgspec.json.Decoder(_EmbeddingsBody)
_DECISION_DECODER = msgspec.json.Decoder(_DecisionBody)


def _read_embeddings(body: bytes) -> Wanted:
    asked = _EMBEDDINGS_DECODER.decode(body)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    if not texts:
        raise Refused(400, "invalid_input", "input: nothing to embed")
    return Wanted(asked.model, False, True, sum(max(1, len(text.split())) for text in texts), None, asked)


def _embeddings(ask: Ask, _: Spans) -> bytes:
    body: _EmbeddingsBody = ask.wanted.body
    texts = [body.input] if isinstance(body.input, str) else body.input
    rows = [
        {"object": "embedding", "index": i, "embedding": _vector(text, body.encoding_format)}
        for i, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": ask.wanted.n_prompt, "total_tokens": ask.wanted.n_prompt}
    return msgspec.json.encode({"object": "list", "data": rows, "model": ask.wanted.model, "usage": usage})


def _vector(text: str, form: str) -> list[float] | str:
    numbers = [_hashed(text, str(i)) % _PARTS / _PARTS for i in range(_DIMENSIONS)]
    return numbers if form == "float" else base64.b64encode(struct.pack(f"<{_DIMENSIONS}f", *numbers)).decode()


def _read_decision(body: bytes) -> Wanted:
    try:
        asked = _DECISION_DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    if not 1 <= len(asked.questions) <= 256:
        raise _invalid(f"questions: 1 to 256, not {len(asked.questions)}")
    for name, question in asked.questions.items():
        most = {"choice": 255, "score": 10}.get(question.type)
        if most is not None and not 2 <= len(question.criteria or ()) <= most:
            raise _invalid(f"questions.{name}.criteria: 2 to {most} of them")
        if question.type == "score" and not isinstance(question.criteria, list):
            raise _invalid(f"questions.{name}.criteria: a list of levels")
    n_prompt = len(_state(asked).split()) + len(asked.questions)
    return Wanted(asked.model, False, True, n_prompt, None, asked, DEFAULT_KEEP_S)


def _read_decide(body: bytes) -> Wanted:
    wanted = _read_decision(body)
    if wanted.body.stream:
        raise _invalid("stream: /api/decide has no streaming")
    try:
        return replace(wanted, keep_s=keep_s(wanted.body.keep_alive))
    except ValueError as error:
        raise _invalid(str(error)) from error


def _invalid(message: str) -> Refused:
    return Refused(422, "invalid_request", message)


def _state(asked: _DecisionBody) -> str:
    return asked.state if isinstance(asked.state, str) else msgspec.json.encode(asked.state).decode()


def _hashed(*texts: str) -> int:
    return zlib.crc32("\0".join(texts).encode())


def _answer(state: str, name: str, question: _Question) -> Mapping[str, object]:
    if question.type == "noul":
        return {"type": "noul", "noul": _hashed(state, name) % (_PARTS + 1) / _PARTS}
    criteria = list(question.criteria or ())
    parts = _shares([1 + _hashed(state, name, label) % 1000 for label in criteria])
    n, most = len(parts), max(parts)
    confidence = round((n * most / _PARTS - 1) / (n - 1), 4)
    if question.type == "choice":
        chances = {label: part / _PARTS for label, part in zip(criteria, parts, strict=True)}
        choice = criteria[parts.index(most)]
        return {"type": "choice", "choice": choice, "confidence": confidence, "probabilities": chances}
    score = sum(i * part for i, part in enumerate(parts)) / _PARTS
    return {
        "type": "score", "score": round(score, 4), "confidence": confidence,
        "legend": {str(i): text for i, text in enumerate(criteria)},
        "probabilities": {str(i): part / _PARTS for i, part in enumerate(parts)},
    }  # fmt: skip


def _shares(weights: Sequence[int]) -> list[int]:
    """As many parts of 10,000 as the weights say; what rounding down left over goes to the first ones."""
    parts = [_PARTS * weight // sum(weights) for weight in weights]
    left = _PARTS - sum(parts)
    return [part + (i < left) for i, part in enumerate(parts)]


def _decision(ask: Ask) -> dict[str, Any]:
    body: _DecisionBody = ask.wanted.body
    answers = {name: _answer(_state(body), name, question) for name, question in body.questions.items()}
    usage = {"input_tokens": ask.wanted.n_prompt, "output_tokens": 0}
    return {"model": ask.wanted.model, "answers": answers, "usage": usage}


def _decide(ask: Ask, spans: Spans) -> bytes:
    more = {
        "routing": None, "state_truncated": False, "done_reason": "decide",
        "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        "total_duration": spans.total_ns, "load_duration": 0, "eval_duration": spans.prompt_ns + spans.answer_ns,
    }  # fmt: skip
    return msgspec.json.encode(_decision(ask) | more)


def _error(refused: Refused) -> bytes:
    codes = {400: "INVALID_JSON", 401: "UNAUTHORIZED", 413: "REQUEST_TOO_LARGE", 500: "INFERENCE_FAILED"}
    return msgspec.json.encode({"error": refused.message, "code": codes.get(refused.status, refused.code.upper())})


EMBEDDINGS = Dialect(read=_read_embeddings, whole=_embeddings, error=openai_error, has_tokens=False)
DECIDE = Dialect(read=_read_decide, whole=_decide, error=_error, has_tokens=False)
SYSTEMONE = Dialect(
    read=_read_decision, whole=lambda ask, _: msgspec.json.encode(_decision(ask)), error=_error, has_tokens=False
)
