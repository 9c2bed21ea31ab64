"""One request and what came back: bytes and their read times -> instants, tokens, what was wrong. No I/O.

`feed` takes each read with its time; httptools (llhttp) cuts HTTP, the dialect's reader cuts events. `take` lets reads
wait whose only news are tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import httptools

from sweep.dialects import ANSWER, NOTHING, Answer, BadBodyError, Dialect
from sweep.error_bodies import read_error
from sweep.stream import Event, EventReader, OversizedEventError

Ending = Literal["complete", "eof", "reset", "timeout", "stalled", "connect", "bad", "cut", "left"]

MAX_BODY_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 256 * 2**10
MAX_ERROR_BODY_BYTES = 64 * 2**10
_EVENT_STARTS = (b"data:", b"event:", b"id:", b"retry:", b":", b"\xef\xbb\xbf")
_LONGEST_START = max(map(len, _EVENT_STARTS))
_NO_BODY: Mapping[str, Any] = {}
# Reads that wait are read together, from warm caches; no more, so that they delay no other stream by over some 30 us.
_MAX_WAITING, _MAX_WAITING_BYTES = 16, 2048
_MAX_GUESSES = 16  # reads that may pass until an undeclared body has shown its first bytes


class Exchange:
    """The instants of one request, what its answer carried, what went wrong. httptools calls its on_ methods.

    asked: the body that was sent, for APIs that check answers against it. stream: False too when the API has none.
    end: set while the request is read, ends it from outside. trouble: the operating system's word for a failed
    connection. bad: why the bytes are not valid. fault: an exception of ours while reading. late: tokens came after
    the terminal event. carried_whole: an answer that was not streamed carried something.
    """

    __slots__ = (
        "_carried", "_extra", "_interim", "_keeps_alive", "_may_be_events", "_may_wait", "_parser", "_parts", "_reader",
        "_waiting", "answer", "asked", "bad", "body", "bytes_in", "carried_whole", "dialect", "end", "ended", "fault",
        "gaps_us", "headers", "late", "n_events", "n_units", "now", "read_tokens", "request_id", "retried", "status",
        "stream", "t_answer_ns", "t_end_ns", "t_event_ns", "t_first_ns", "t_headers_ns", "t_last_ns", "t_over_ns",
        "t_read_ns", "t_sent_ns", "t_start_ns", "trouble",
    )  # fmt: skip

    def __init__(self, dialect: Dialect, stream: bool, request_id: str, asked: Mapping[str, Any] = _NO_BODY) -> None:
        self.dialect = dialect
        self.stream = stream and dialect.streams
        self.asked = asked
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
        self._parts: list[bytes] = []
        self._waiting: list[tuple[bytes, int]] = []
        self._may_wait = False
        self._reader: EventReader | None = None
        self._parser: Any = httptools.HttpResponseParser(self)

    def take(self, data: bytes, t_ns: int) -> bool:
        """As `feed`, but a read that can neither end the answer nor bring its first token may wait to be looked at.

        Such a one ends with a line's end and the end of its chunk: a message ends with two CRLFs, or with a read
        shorter than 4 bytes. Whoever asks what the answer has told calls `catch_up` before.
        """
        if self._may_wait and data[-3:] == b"\n\r\n" and data[-4:-3] not in b"\r" and len(data) < _MAX_WAITING_BYTES:
            self.t_read_ns = t_ns
            self._waiting.append((data, t_ns))
            return len(self._waiting) >= _MAX_WAITING and self.catch_up()
        return (bool(self._waiting) and self.catch_up()) or self.feed(data, t_ns)

    def catch_up(self) -> bool:
        """Takes the reads that wait; True when nothing more is wanted. What it raises is also in `fault`."""
        waiting, self._waiting = self._waiting, []
        try:
            return any(self.feed(data, t_ns) for data, t_ns in waiting)
        except Exception as error:
            self.fault = error
            raise

    def feed_eof(self, t_ns: int) -> None:
        """The connection's end, read at t_ns."""
        self.catch_up()
        self.now = t_ns

    def let_go(self) -> None:
        """Nothing more will be read. The parser holds our methods: memory would wait for the garbage collector."""
        try:
            self.catch_up()
        finally:
            self._parser = None

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
        if self._parts:
            self._read_events()
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

    def is_chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

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
        if self.stream and (kind.startswith(self.dialect.stream_type) or (self.dialect.has_lines and "json" in kind)):
            self._reader = self.dialect.reader()
        self._may_be_events = self.stream and self._reader is None

    def on_body(self, data: bytes) -> None:
        if self._reader is not None:
            if not self._extra:
                self._parts.append(data)
            return
        if self._extra or self.bad is not None:
            return
        self.body.append(data)
        if self._may_be_events:
            self._guess_events()
        if self._reader is not None:
            self._parts, self.body = self.body, []
            return
        limit = MAX_BODY_BYTES if 200 <= (self.status or 0) < 300 else MAX_ERROR_BODY_BYTES
        if self.bytes_in > limit:
            self.bad = f"the body is longer than {limit} bytes"

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

    def _read_events(self) -> None:
        """The events of one read, whatever chunks they came in."""
        reader = self._reader
        assert reader is not None
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        comments = reader.n_comments
        try:
            events = reader.feed(data)
            if self.t_event_ns is None and (events or reader.n_comments > comments):
                self.t_event_ns = self.now
            self._take(events)
        except (BadBodyError, OversizedEventError) as error:
            self.bad = str(error)

    def _guess_events(self) -> None:
        """A stream whose Content-Type does not say so shows itself by its first bytes, which may come one by one."""
        start = b"".join(self.body).lstrip(b"\r\n")
        if start.startswith((b"{",) if self.dialect.has_lines else _EVENT_STARTS):
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
            if carried:
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
            # A class that looks at every read in a `feed` of its own gets every read.
            self._may_wait = self.is_chunked() and type(self).feed is Exchange.feed
        else:
            # Differences of rounded offsets, so that the gaps of a long stream add up to it.
            self.gaps_us.append((t_ns - self.t_first_ns) // 1000 - (self.t_last_ns - self.t_first_ns) // 1000)
        self.t_last_ns = t_ns
        self.read_tokens.append(self._carried)
        self.n_events += self._carried
        self._carried = 0
