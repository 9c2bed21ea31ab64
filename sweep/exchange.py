"""One request and what came back: bytes and their read times -> instants, tokens, what was wrong. No I/O.

`feed` takes each read with its time; httptools (llhttp) cuts HTTP, the dialect's reader cuts events. `overdue` says
when its time is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import httptools

from sweep.dialects import ANSWER, NOTHING, Answer, BadBodyError, Dialect
from sweep.error_bodies import read_error
from sweep.stream import Event, EventReader, OversizedEventError

Ending = Literal["complete", "eof", "reset", "timeout", "stalled", "connect", "bad", "cut"]

MAX_BODY_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 256 * 2**10
MAX_ERROR_BODY_BYTES = 64 * 2**10
# After the terminal event the body's own end follows within milliseconds (15-35 ms seen); past this we stop waiting.
LINGER_NS = 2_000_000_000
_EVENT_STARTS = (b"data:", b"event:", b"id:", b"retry:", b":", b"\xef\xbb\xbf")
_LONGEST_START = max(map(len, _EVENT_STARTS))
_MAX_GUESSES = 16  # reads that may pass until an undeclared body has shown its first bytes


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. first: to the first token of a stream; idle: between bytes once the answer began; total: all of it."""

    connect_s: float = 5.0
    first_s: float = 120.0
    idle_s: float = 30.0
    total_s: float = 600.0


class Exchange:
    """The instants of one request, what its answer carried, what went wrong. httptools calls its on_ methods.

    end: set while the request is read, ends it from outside. trouble: the operating system's word for a failed
    connection. bad: why the bytes are not valid. fault: an exception of ours while reading. late: tokens came after
    the terminal event. carried_whole: an answer that was not streamed carried something.
    """

    __slots__ = (
        "_carried", "_extra", "_interim", "_keeps_alive", "_may_be_events", "_parser", "_reader", "answer",
        "bad", "body", "bytes_in", "carried_whole", "dialect", "end", "ended", "fault", "gaps_us", "headers",
        "late", "n_events", "n_units", "now", "read_tokens", "request_id", "retried", "status", "stream",
        "t_answer_ns", "t_end_ns", "t_event_ns", "t_first_ns", "t_headers_ns", "t_last_ns", "t_over_ns",
        "t_read_ns", "t_sent_ns", "t_start_ns", "trouble",
    )  # fmt: skip

    def __init__(self, dialect: Dialect, stream: bool, request_id: str) -> None:
        self.dialect = dialect
        self.stream = stream
        self.request_id = request_id
        self.retried = False
        self.trouble: str | None = None
        self.fault: Exception | None = None
        self.end: Callable[[Ending], None] | None = None
        self.t_start_ns = time.monotonic_ns()
        self.reset()

    def reset(self) -> None:
        """As before the first byte; t_start stays."""
        self.answer = Answer()
        self.bad: str | None = None
        self.body: list[bytes] = []
        self.bytes_in = self.n_events = self.n_units = self.now = 0
        self.late = self.carried_whole = False
        self.ended = self._interim = self._extra = self._keeps_alive = self._may_be_events = False
        self.gaps_us: list[int] = []
        self.read_tokens: list[int] = []
        self.headers: dict[str, str] = {}
        self.status: int | None = None
        self.t_sent_ns: int | None = None
        self.t_headers_ns: int | None = None
        self.t_event_ns: int | None = None
        self.t_first_ns: int | None = None
        self.t_answer_ns: int | None = None
        self.t_last_ns: int | None = None
        self.t_end_ns: int | None = None
        self.t_read_ns: int | None = None
        self.t_over_ns: int | None = None
        self._carried = 0
        self._reader: EventReader | None = None
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes, t_ns: int) -> bool:
        """Takes one read, made at t_ns; True when nothing more is wanted."""
        self.now = self.t_read_ns = t_ns
        self.bytes_in += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None  # ours, not the target's
        except httptools.HttpParserError as error:
            self.bad = f"not HTTP: {error}"
        except httptools.HttpParserUpgrade:
            self.bad = "the answer switches protocols"
        if self.status is None and self.bytes_in > MAX_HEADER_BYTES:
            self.bad = f"the headers are longer than {MAX_HEADER_BYTES} bytes"
        if self._carried:
            self._stamp(t_ns)
        return self.ended or self.bad is not None

    def finish_body(self) -> None:
        """The body is over: takes what its end completes. An event that is not whole adds nothing."""
        if self._reader is None or self.is_terminal():
            return
        try:
            self._take(self._reader.close())
        except BadBodyError:
            return
        if self._carried:
            self._stamp(self.now)

    @property
    def is_streamed(self) -> bool:
        """The body came as events."""
        return self._reader is not None

    def echoes_another(self) -> bool:
        """The answer names another request of this process: the path mixed two up."""
        echoed = self.headers.get("x-request-id", self.request_id)
        return echoed != self.request_id and echoed.startswith(self.request_id.rpartition("-")[0] + "-")

    def ends_by_eof(self) -> bool:
        """The body has neither a length nor chunks: the connection's end is its end."""
        coding = self.headers.get("transfer-encoding", "").lower()
        return "content-length" not in self.headers and "chunked" not in coding

    def is_reusable(self) -> bool:
        return self._keeps_alive and not self._extra and self.bad is None

    def is_terminal(self) -> bool:
        """The answer said that it is over, well or not."""
        return self.answer.done or self.answer.error

    # -- httptools -----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._extra = self.ended

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._extra:
            return
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._extra:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._interim = True
            return
        self.status = status
        self.t_headers_ns = self.now
        if not 200 <= status < 300:
            return
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            self.bad = f"the answer is {self.headers['content-encoding']} although identity was asked for"
            return
        kind = self.headers.get("content-type", "").lower()
        # An NDJSON line and a plain JSON object differ only at the end, so the line reader takes both.
        if self.stream and (kind.startswith(self.dialect.stream_type) or (self.dialect.needs_done and "json" in kind)):
            self._reader = self.dialect.reader()
        self._may_be_events = self.stream and self._reader is None

    def on_body(self, data: bytes) -> None:
        if self._extra or self.bad is not None:
            return
        if self._reader is None:
            self.body.append(data)
            if self._may_be_events:
                self._guess_events()
            if self._reader is None:
                limit = MAX_BODY_BYTES if 200 <= (self.status or 0) < 300 else MAX_ERROR_BODY_BYTES
                if self.bytes_in > limit:
                    self.bad = f"the body is longer than {limit} bytes"
                return
            data = b"".join(self.body)
            self.body.clear()
        comments = self._reader.n_comments
        try:
            events = self._reader.feed(data)
            if self.t_event_ns is None and (events or self._reader.n_comments > comments):
                self.t_event_ns = self.now
            self._take(events)
        except (BadBodyError, OversizedEventError) as error:
            self.bad = str(error)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
            self.headers.clear()
            return
        self.ended = True
        # Asked here: the parser forgets the message when it is over, and then always says no.
        self._keeps_alive = self._parser.should_keep_alive()
        if not self.stream and self.t_end_ns is None:
            self.t_end_ns = self.now

    # -- events --------------------------------------------------------------------------------------------------------

    def _guess_events(self) -> None:
        """A stream whose Content-Type does not say so shows itself by its first bytes, which may come one by one."""
        start = b"".join(self.body).lstrip(b"\r\n")
        if start.startswith((b"{",) if self.dialect.needs_done else _EVENT_STARTS):
            self._reader = self.dialect.reader()
        self._may_be_events = len(start) < _LONGEST_START and len(self.body) < _MAX_GUESSES

    def _take(self, events: list[Event]) -> None:
        answer = self.answer
        read_event = self.dialect.read_event
        self.n_units += len(events)
        for kind, data in events:
            if answer.done or answer.error:
                self._take_late(kind, data)
                continue
            carried = self._take_error(data) if kind == b"error" else read_event(data, answer)
            if carried != NOTHING:
                self._carried += 1
                if carried == ANSWER and self.t_answer_ns is None:
                    self.t_answer_ns = self.now
            if answer.done or answer.error:
                self.t_end_ns = self.now

    def _take_late(self, kind: bytes, data: bytes) -> None:
        """After the terminal event: an error still is one, a token is remarked, garbage is not of the answer."""
        try:
            carried = self._take_error(data) if kind == b"error" else self._read_late(data)
        except BadBodyError:
            return
        self.late = self.late or carried != NOTHING

    def _take_error(self, data: bytes) -> int:
        """An event whose SSE type is `error`, whatever its data look like."""
        self.answer.error = True
        self.answer.error_code, self.answer.error_text = read_error(data)
        return NOTHING

    def _read_late(self, data: bytes) -> int:
        answer, told = self.answer, Answer()
        carried = self.dialect.read_event(data, told)
        if told.error and not answer.error:
            answer.error, answer.error_code, answer.error_text = True, told.error_code, told.error_text
        return carried

    def _stamp(self, t_ns: int) -> None:
        """Every token of one read has the read's time."""
        if self.t_first_ns is None or self.t_last_ns is None:
            self.t_first_ns = t_ns
        else:
            # Differences of rounded offsets, so that the gaps of a long stream add up to it.
            self.gaps_us.append((t_ns - self.t_first_ns) // 1000 - (self.t_last_ns - self.t_first_ns) // 1000)
        self.t_last_ns = t_ns
        self.read_tokens.append(self._carried)
        self.n_events += self._carried
        self._carried = 0


def overdue(exchange: Exchange, now_ns: int, timeouts: Timeouts) -> Ending | None:
    """How an exchange ends at now_ns if its time is over. A ping moves the idle time-out, never the one to a token.

    Until a stream's first token only the latter counts: headers come at once from some servers, before a queue or the
    loading of a model.
    """
    if exchange.t_end_ns is not None:
        return "complete" if now_ns - exchange.t_end_ns > LINGER_NS else None
    if now_ns - exchange.t_start_ns > timeouts.total_s * 1e9:
        return "timeout"
    waits_for_token = exchange.stream and exchange.t_first_ns is None and exchange.status in (None, 200)
    if waits_for_token:
        t_sent_ns = exchange.t_sent_ns
        return "timeout" if t_sent_ns is not None and now_ns - t_sent_ns > timeouts.first_s * 1e9 else None
    if exchange.t_read_ns is not None and now_ns - exchange.t_read_ns > timeouts.idle_s * 1e9:
        return "stalled"
    return None
