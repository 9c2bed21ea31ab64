"""How requests of the embedded gateway wait: for a slot, for an instant, and no longer than their client does."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import gevent
from gevent.event import Event


class ClientGone(ConnectionResetError):
    """The client closed its side while its answer was being made."""

    def __init__(self) -> None:
        super().__init__(errno.ECONNRESET, "client closed the connection")


class Slots:
    """Requests served at once, and the line of those that wait, first come first served."""

    def __init__(self, n_slots: int, n_queue: int) -> None:
        self._n_slots, self._n_queue = n_slots, n_queue
        self._waiting: deque[Event] = deque()
        self.n_busy = 0

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def is_full(self) -> bool:
        return self.n_busy >= self._n_slots and len(self._waiting) >= self._n_queue

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Waits for a slot and holds it."""
        if self.n_busy < self._n_slots:
            self.n_busy += 1
        else:
            self._wait()
        try:
            yield
        finally:
            self._give()

    def _wait(self) -> None:
        turn = Event()
        self._waiting.append(turn)
        try:
            turn.wait()
        except BaseException:  # ClientGone, or the greenlet is killed: the slot must not be lost with it
            if turn.is_set():
                self._give()
            else:
                self._waiting.remove(turn)
            raise

    def _give(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self.n_busy -= 1


@contextlib.contextmanager
def watching(client: Any) -> Iterator[None]:
    """Raises ClientGone in this greenlet, wherever it waits, once the client has closed its side."""
    greenlet = gevent.getcurrent()
    watcher = gevent.get_hub().loop.io(client.fileno(), 1)

    def look() -> None:
        watcher.stop()
        try:
            has_more = client.recv(1, socket.MSG_PEEK) != b""  # readable, so it returns at once
        except OSError:
            has_more = False
        if not has_more:  # else it is the next request, sent early
            greenlet.throw(ClientGone())

    watcher.start(look)
    try:
        yield
    finally:
        watcher.stop()
        watcher.close()


def sleep_until(t_due_ns: int) -> None:
    """Never returns early; t_due_ns is on CLOCK_MONOTONIC."""
    left_ns = t_due_ns - time.monotonic_ns()
    if left_ns <= 0:
        gevent.sleep(0)  # late: others still get their turn
    while left_ns > 0:  # a timer may fire early by the age of the loop's own clock
        gevent.sleep(left_ns / 1e9)
        left_ns = t_due_ns - time.monotonic_ns()
