"""What the embedded gateway is asked, and what a row of its APIs is made of. Pure.

It shares no code with the generator's dialects on purpose: a mistake there must not find its twin here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

SSE = "text/event-stream"
DEFAULT_TOKENS = 128  # length of an answer whose request sets no limit
WORDS = ("the", "gate", "opens", "only", "when", "every", "number", "on", "its", "board", "is", "true")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request body asks for; limit is its max_tokens, None if it sets none. body: of an API whose answer depends
    on more than that. keep_s: how long the model stays after it; None: it says nothing of that."""

    model: str
    stream: bool
    usage: bool
    n_prompt: int
    limit: int | None
    body: Any = None
    keep_s: float | None = None


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


def _no_event(*_: object) -> bytes:
    raise NotImplementedError("no request of an API without streaming asks for a stream")


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API; `head` and `tail` are the events of a stream before its first and after its last token.

    has_tokens: False when it generates none: its answers come after the time to the first token.
    """

    read: Callable[[bytes], Wanted]
    whole: Callable[[Ask, Spans], bytes]
    error: Callable[[Refused], bytes]
    error_event: Callable[[Refused], bytes] = _no_event
    stream_type: str = SSE
    head: Callable[[Ask], bytes] = _no_event
    token: Callable[[Ask, int], bytes] = _no_event
    tail: Callable[[Ask, Spans], bytes] = _no_event
    has_tokens: bool = True


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
    if not dialect.has_tokens:
        return Ask(wanted, answer_id, 0, "stop")
    limit = wanted.limit
    if limit is not None and not 1 <= limit <= max_output:
        raise Refused(400, "invalid_max_tokens", f"max_tokens {limit}: this model gives 1 to {max_output} tokens")
    if limit is not None and (stop_after is None or limit <= stop_after):
        return Ask(wanted, answer_id, limit, "length")
    return Ask(wanted, answer_id, min(stop_after or DEFAULT_TOKENS, max_output), "stop")


class Part(msgspec.Struct):
    text: str = ""


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None


def n_words(messages: Sequence[Message]) -> int:
    contents = (message.content or "" for message in messages)
    texts = (text if isinstance(text, str) else " ".join(part.text for part in text) for text in contents)
    return sum(len(text.split()) + 1 for text in texts)  # one more for the role


def word(i: int) -> str:
    """The answer's token of that number."""
    return f" {WORDS[i % len(WORDS)]}"


def text_of(ask: Ask) -> str:
    return "".join(word(i) for i in range(ask.n_tokens))


def openai_error(refused: Refused) -> bytes:
    kinds = {401: "authentication_error", 429: "overloaded_error"}  # no "rate": the caller is within its rights
    kind = kinds.get(refused.status, "server_error" if refused.status >= 500 else "invalid_request_error")
    return msgspec.json.encode(
        {"error": {"message": refused.message, "type": kind, "param": None, "code": refused.code}}
    )
