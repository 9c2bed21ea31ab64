"""Decisions: Ollaya's /api/decide and the /v1/systemone that others serve too. No streaming, no tokens. Pure.

What is asked: a state (the prompt) and three questions, one of each type. An answer is valid only for what was asked
and when its own numbers agree; a check that fails is named. Ids and labels are those that were sent, in their order;
p in [0, 1] and summing to 1; choice = the likeliest; confidence = (K * pmax - 1) / (K - 1); score = sum of i * p_i.
Tolerances are those of numbers rounded to four decimals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from sweep.dialect_types import (
    ANSWER,
    Answer,
    Ask,
    BadBodyError,
    Dialect,
    Told,
    count,
    decoded,
    is_error,
    ollama_names,
    openai_names,
    prompt_of,
    take_names,
)

# Each has instructions: Ollama asks for them, Ollaya reads the id without.
QUESTIONS: Mapping[str, Any] = {
    "page_oncall": {"type": "noul", "instructions": "Must somebody on call be woken for this?"},
    "outcome": {
        "type": "choice",
        "instructions": "How did the job end?",
        "criteria": {"ok": "finished cleanly", "partial": "finished with errors", "failed": "did not finish"},
    },
    "urgency": {
        "type": "score",
        "instructions": "How soon must someone look?",
        "criteria": ["never", "this week", "today"],
    },
}
PINNED = -1  # any negative keep_alive: until unloaded
SHORTEST_KEEP_S = 300  # what the server gives by itself
_FOR_EVER_S = 10 * 365 * 86400
_SUM, _TIE, _CONFIDENCE, _SCORE, _FLOAT = 5e-5, 1e-4, 2e-4, 2.5e-3, 1e-9


class _One(msgspec.Struct):
    """The answer to one question."""

    type: str
    noul: float | None = None
    choice: str | None = None
    score: float | None = None
    confidence: float | None = None
    probabilities: dict[str, float] | None = None
    legend: dict[str, str] | None = None


class _Usage(msgspec.Struct):
    input_tokens: Any = None
    output_tokens: Any = None


class _Decision(Told):
    answers: dict[str, _One] | None = None
    usage: _Usage | None = None
    state_truncated: bool | None = None
    done_reason: str | None = None
    total_duration: Any = None
    load_duration: Any = None
    eval_duration: Any = None


_decode = msgspec.json.Decoder(_Decision).decode


def as_found(loaded: Any, model: str, now: datetime) -> dict[str, Any]:
    """What keeps the model in memory as it was found, for the body. loaded: the answer of /api/ps.

    Null models: not known. Pinned (no expiry, or one in another century) stays pinned; else it stays at least as long
    as it had left, or as the server keeps a model by itself. A name that is not listed may be another name of a model
    that is, or a router's: it is kept as the longest of them. Where nothing is loaded nothing is pinned; where that is
    not known, nothing is unpinned. Raises KeyError, TypeError or ValueError when it is no such list.
    """
    if loaded["models"] is None:
        return {"keep_alive": PINNED}
    named = [row for row in loaded["models"] if model in (row.get("name"), row.get("model"))]
    left = [_left_s(row.get("expires_at"), now) for row in named or loaded["models"]]
    longest_s = max(left, default=0.0)
    return {"keep_alive": PINNED if longest_s > _FOR_EVER_S else max(SHORTEST_KEEP_S, math.ceil(longest_s))}


def _left_s(expires_at: str | None, now: datetime) -> float:
    if expires_at is None:
        return math.inf
    at = datetime.fromisoformat(expires_at)
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds()


def _decide_body(ask: Ask) -> dict[str, Any]:
    """keep_alive is always said: without it each request sets the server's default, and so unpins a pinned model."""
    asked = {"model": ask.model, "state": prompt_of(ask, "ollaya-decide"), "questions": QUESTIONS}
    return asked | {"keep_alive": PINNED} | dict(ask.extra_body)


def _systemone_body(ask: Ask) -> dict[str, Any]:
    return {"model": ask.model, "state": prompt_of(ask, "systemone"), "questions": QUESTIONS} | dict(ask.extra_body)


def _read_decide(data: bytes, answer: Answer, asked: Mapping[str, Any]) -> int:
    told = _read(data, answer, asked)
    if told is not None:
        if told.usage is None or told.usage.output_tokens != 0:
            raise BadBodyError("usage: output_tokens is not 0")
        if told.state_truncated:
            raise BadBodyError("state_truncated: the model read only a part of the state; give fewer --prompt-tokens")
        if told.done_reason != "decide":
            raise BadBodyError("done_reason is not decide")
        answer.finish = told.done_reason
        answer.total_ns = count(told.total_duration)
        answer.load_ns = count(told.load_duration)
        answer.eval_ns = count(told.eval_duration)
    return ANSWER


def _read_systemone(data: bytes, answer: Answer, asked: Mapping[str, Any]) -> int:
    _read(data, answer, asked)
    return ANSWER


def _read(data: bytes, answer: Answer, asked: Mapping[str, Any]) -> _Decision | None:
    """The decision, checked; None when it is an error. Raises BadBodyError naming the check that fails."""
    told = decoded(_decode, data)
    if is_error(told, answer, is_answer=told.answers is not None):
        return None
    if told.model is None or told.answers is None or told.usage is None:
        raise BadBodyError("no model, answers and usage")
    answer.done = True
    take_names(told, answer)
    answer.n_in = count(told.usage.input_tokens)
    if not answer.n_in:
        raise BadBodyError("usage: input_tokens is not above 0")
    if count(told.usage.output_tokens) is None:
        raise BadBodyError("usage: output_tokens is no count")
    questions = asked.get("questions")
    if isinstance(questions, Mapping) and list(questions) != list(told.answers):
        raise BadBodyError("answers: not the ids that were asked, in their order")
    for name, one in told.answers.items():
        question = questions.get(name) if isinstance(questions, Mapping) else None
        wrong = _fault(one, question if isinstance(question, Mapping) else {"type": one.type})
        if wrong is not None:
            raise BadBodyError(f"answer {name}: {wrong}")
    return told


def _fault(told: _One, question: Mapping[str, Any]) -> str | None:
    """The check that an answer fails, or None. question: as it was sent; without criteria its labels are not known."""
    if told.type != question.get("type"):
        return "type is not the one asked"
    if told.type == "noul":
        return None if told.noul is not None and 0 <= told.noul <= 1 else "noul is not in [0, 1]"
    if told.type not in ("choice", "score"):
        return "type is none of noul, choice and score"
    chances, criteria = told.probabilities, question.get("criteria")
    if not chances or len(chances) < 2:
        return "fewer than two probabilities"
    if criteria is not None:
        known = list(criteria) if isinstance(criteria, (Mapping, list, tuple)) else []
        if list(chances) != ([str(i) for i in range(len(known))] if told.type == "score" else known):
            return "labels are not the criteria that were asked, in their order"
        if told.type == "score" and told.legend is not None and list(told.legend.values()) != known:
            return "legend is not the criteria that were asked, in their order"
    return _arithmetic(told, list(chances.values()), list(chances))


def _arithmetic(told: _One, chances: Sequence[float], labels: Sequence[str]) -> str | None:
    n, highest = len(chances), max(chances)
    if not all(0 <= p <= 1 for p in chances):
        return "a probability is not in [0, 1]"
    if abs(math.fsum(chances) - 1) > n * _SUM + _FLOAT:
        return "probabilities do not sum to 1"
    if told.type == "choice":
        if told.choice not in labels or chances[labels.index(told.choice)] < highest - _TIE - _FLOAT:
            return "choice is not the likeliest label"
    elif told.score is None or abs(told.score - sum(i * p for i, p in enumerate(chances))) > _SCORE + _FLOAT:
        return "score is not the sum of level times probability"
    confidence = min(1.0, max(0.0, (n * highest - 1) / (n - 1)))
    if told.confidence is None or abs(told.confidence - confidence) > _CONFIDENCE + _FLOAT:
        return "confidence does not follow from the probabilities"
    return None


def _systemone_names(listing: Any) -> list[str]:
    """Ollaya lists `models` by name; gateways list as OpenAI does."""
    return openai_names(listing) if "data" in listing else ollama_names(listing)


# fmt: off
DECIDE = Dialect(
    "ollaya-decide", "/api/decide", _decide_body, _read_decide, "/api/tags", ollama_names,
    streams=False, has_tokens=False, replaceable=("questions", "keep_alive"),
    as_found=as_found,
)
SYSTEMONE = Dialect(
    "systemone", "/v1/systemone", _systemone_body, _read_systemone, "/v1/models", _systemone_names,
    streams=False, has_tokens=False, replaceable=("questions",),
    harm="on Ollaya each /v1/systemone request sets the model's keep-alive to the server's default: a model that was "
         "pinned is not pinned after it (--api ollaya-decide keeps it as found)",
)
# fmt: on
