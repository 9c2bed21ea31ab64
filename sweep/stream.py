"""Bytes of a streaming answer -> events, whatever way the bytes were split. Pure.

`feed(bytes)` returns the events completed by these bytes as (type, data); `close()` returns what the end of the
input completes. Server-sent events follow the WHATWG rules, NDJSON ends a line at LF only.
"""

from __future__ import annotations

from typing import Protocol

Event = tuple[bytes, bytes]
# No event of a real server comes near; without a bound one endless line would eat the generator's memory.
MAX_EVENT_BYTES = 16 * 2**20
_BOM = b"\xef\xbb\xbf"


class OversizedEventError(ValueError):
    """An event longer than MAX_EVENT_BYTES."""


class EventReader(Protocol):
    n_comments: int

    def feed(self, chunk: bytes) -> list[Event]: ...
    def close(self) -> list[Event]: ...


class SseReader:
    """Server-sent events: lines end with CRLF, LF or CR; an event ends with an empty line.

    One deviation, on purpose: `close()` still gives an event whose closing empty line never came, because real servers
    end their last event so; the caller decides whether it is whole. n_comments counts `:` lines (pings).
    """

    __slots__ = ("_between", "_cr", "_data", "_size", "_start", "_tail", "_type", "n_comments")

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []
        self._size = 0
        self._type = b""
        self._cr = False
        self._start = True
        self._between = False  # nothing is pending: the next byte begins an event
        self.n_comments = 0

    def feed(self, chunk: bytes) -> list[Event]:
        """Events completed by `chunk`, in order. Raises OversizedEventError."""
        if self._between and chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") and b"\r" not in chunk:
            # The usual read: whole events of one data line each. Anything else takes the careful path below.
            n_ends = chunk.count(b"\n")
            if n_ends == 2:
                return [(b"", chunk[6:-2])]
            parts = chunk[6:-2].split(b"\n\ndata: ")
            if n_ends == 2 * len(parts):
                return [(b"", part) for part in parts]
        if self._start or self._cr:
            chunk = self._join(chunk)
        buffer = self._tail + chunk
        if b"\r" in buffer:
            self._cr = buffer.endswith(b"\r")
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = buffer.split(b"\n")
        self._tail = lines.pop()
        events: list[Event] = []
        for line in lines:
            self._line(line, events)
        self._between = not (self._start or self._cr or self._tail or self._data or self._type)
        if len(self._tail) + self._size > MAX_EVENT_BYTES:
            raise OversizedEventError(f"one event is longer than {MAX_EVENT_BYTES} bytes")
        return events

    def close(self) -> list[Event]:
        """What the end of the input completes: a last line without its end, an event without its empty line."""
        events: list[Event] = []
        if self._tail:
            self._line(self._tail, events)
            self._tail = b""
        self._line(b"", events)
        return events

    def _join(self, chunk: bytes) -> bytes:
        """Drops the LF of a CRLF that two reads split, and a byte order mark at the very start."""
        if self._cr and chunk:
            self._cr = False
            if chunk[:1] == b"\n":
                chunk = chunk[1:]
        if self._start:
            chunk = self._tail + chunk
            self._tail = b""
            if len(chunk) < 3 and _BOM.startswith(chunk):
                self._tail = chunk
                return b""
            self._start = False
            chunk = chunk.removeprefix(_BOM)
        return chunk

    def _line(self, line: bytes, events: list[Event]) -> None:
        if not line:
            if self._data:
                events.append((self._type, b"\n".join(self._data)))
                self._data = []
                self._size = 0
            self._type = b""
            return
        name, _, value = line.partition(b":")
        if not name:
            self.n_comments += 1
            return
        if value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            self._data.append(value)
            self._size += len(value)
        elif name == b"event":
            self._type = value


class NdjsonReader:
    """One JSON document a line; empty lines are skipped. The type of every event is empty."""

    __slots__ = ("_tail", "n_comments")

    def __init__(self) -> None:
        self._tail = b""
        self.n_comments = 0

    def feed(self, chunk: bytes) -> list[Event]:
        """Lines completed by `chunk`. Raises OversizedEventError."""
        lines = (self._tail + chunk).split(b"\n") if self._tail else chunk.split(b"\n")
        self._tail = lines.pop()
        if len(self._tail) > MAX_EVENT_BYTES:
            raise OversizedEventError(f"one line is longer than {MAX_EVENT_BYTES} bytes")
        return [(b"", line) for line in lines if line.strip()]

    def close(self) -> list[Event]:
        """A last line without its LF."""
        tail, self._tail = self._tail, b""
        return [(b"", tail)] if tail.strip() else []
