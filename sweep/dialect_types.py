"""What a dialect is, what one request asks, and what its answer told: the types every dialect module shares. Pure.

`read_event` takes the data of one event, writes what it tells into an `Answer` and returns what it carried: NOTHING, a
TOKEN of reasoning or tool call, or ANSWER text. `read_body` does the same with a whole body. Bytes that are not of the
API raise BadBodyError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from sweep.error_bodies import error_of
from sweep.stream import EventReader, SseReader

NOTHING, TOKEN, ANSWER = 0, 1, 2
# Finish reasons with which a server says that it failed.
FAILED_FINISH = ("error", "abort", "aborted", "cancelled")
SSE, NDJSON = "text/event-stream", "application/x-ndjson"
# Past this a server's count is nonsense, and would not fit a table.
_MAX_COUNT = 2**53
Decoded = TypeVar("Decoded")


class BadBodyError(ValueError):
    """Bytes that are not valid for the API."""


class Answer:
    """What an answer has told so far; None: not told.

    sequence: the last event's number, of an API that numbers them. skipped: a number was left out before it.
    """

    __slots__ = (
        "done", "error", "error_code", "error_text", "eval_ns", "finish", "load_ns", "model", "n_in", "n_out",
        "prompt_eval_ns", "sequence", "server_id", "skipped", "total_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.done = self.error = self.skipped = False
        self.error_code: str | None = None
        self.error_text: str | None = None
        self.finish: str | None = None
        self.model: str | None = None
        self.n_in: int | None = None
        self.n_out: int | None = None
        self.server_id: str | None = None
        self.sequence: int | None = None
        self.load_ns: int | None = None
        self.prompt_eval_ns: int | None = None
        self.eval_ns: int | None = None
        self.total_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One request before it is bytes. messages: a whole conversation instead of the prompt, for APIs that take one."""

    model: str
    prompt: str
    max_tokens: int
    stream: bool
    extra_body: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]] | None = None


class Told(msgspec.Struct):
    """What a JSON object of any API may hold: who answered, or an error of whatever shape instead of an answer."""

    model: str | None = None
    id: Any = None
    object: Any = None
    error: Any = None
    code: Any = None
    message: Any = None
    detail: Any = None


def _no_event(data: bytes, answer: Answer) -> int:
    raise BadBodyError("the API has no streaming")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one API is spoken. `models` is the path that lists models, `names` reads their names from its answer.

    read_body's third argument is the body that was sent: some answers are valid only for what was asked.
    needs_done: a stream is complete when its terminal event came; else a finish reason will do.
    streams: False when the API has no streaming; such a row says nothing of events.
    has_tokens: False when it generates none (embeddings, decisions): no token counts, TTFT or TPOT can exist.
    headers: sent unless the user gives others of the same name. replaceable: keys of the body that a task may say
    otherwise, beside its prompt and limit. harm: what requests do to the target besides
    answering, told before the load. as_found: (answer of /api/ps, model, now) -> the part of the body that keeps the
    model in memory as it was found; null models: not known. None: requests leave that alone, or cannot say it.
    """

    name: str
    path: str
    body: Callable[[Ask], dict[str, Any]]
    read_body: Callable[[bytes, Answer, Mapping[str, Any]], int]
    models: str
    names: Callable[[Any], list[str]]
    read_event: Callable[[bytes, Answer], int] = _no_event
    reader: Callable[[], EventReader] = SseReader
    stream_type: str = SSE
    needs_done: bool = False
    streams: bool = True
    has_tokens: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    replaceable: tuple[str, ...] = ()
    harm: str | None = None
    as_found: Callable[[Any, str, datetime], dict[str, Any]] | None = None

    @property
    def has_lines(self) -> bool:
        """Its stream is NDJSON, a line of which differs from a whole answer only by what it says."""
        return self.stream_type == NDJSON

    def is_complete(self, answer: Answer) -> bool:
        """The terminal rule at a clean end of the body."""
        return answer.done or (not self.needs_done and answer.finish is not None)


def decoded(decode: Callable[[bytes], Decoded], data: bytes) -> Decoded:
    """What `decode` makes of the data. Raises BadBodyError."""
    try:
        return decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadBodyError(str(error)) from error


def says_error(answer: Answer, shape: object) -> int:
    """Takes an error of any shape into the answer; it carries nothing."""
    answer.error = True
    answer.error_code, answer.error_text = error_of(shape)
    return NOTHING


def is_error(told: Told, answer: Answer, is_answer: bool) -> bool:
    """Whether it is an error, which is taken then. is_answer: it holds what an answer of the API holds."""
    if not (told.error or told.object == "error" or (not is_answer and (told.detail or told.message or told.code))):
        return False
    beside = {"code": told.code, "message": told.message}
    shape = told.error or told.detail or beside
    says_error(answer, shape if isinstance(shape, Mapping) else beside | {"message": shape})
    return True


def take_names(told: Told, answer: Answer) -> None:
    answer.model = told.model or answer.model
    if isinstance(told.id, str):
        answer.server_id = told.id


def messages_of(ask: Ask) -> list[Mapping[str, Any]]:
    return [{"role": "user", "content": ask.prompt}] if ask.messages is None else list(ask.messages)


def prompt_of(ask: Ask, api: str) -> str:
    """The prompt, for an API that takes no conversation. Raises ValueError when one was given."""
    if ask.messages is not None:
        raise ValueError(f"{api} takes no messages; give a prompt")
    return ask.prompt


def count(told: object, before: int | None = None) -> int | None:
    """The later of two counts a server tells; a word, a negative or an absurd number tells nothing."""
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 <= told < _MAX_COUNT else before


def openai_names(listing: Any) -> list[str]:
    return [row["id"] for row in listing["data"]]


def ollama_names(listing: Any) -> list[str]:
    return [row["name"] for row in listing["models"]]
