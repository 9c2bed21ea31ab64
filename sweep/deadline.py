"""A transport of httpx whose exchanges end at an instant: its own time-outs are of one read each, and start anew.

A header that drips, a handshake that does, interim answers without end: none of them holds the caller longer.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx


class Deadline(threading.local):
    """The instant (monotonic, s) by which this thread's exchange must be over."""

    until_s: float = float("inf")

    def left_s(self, most_s: float | None, late: type[Exception]) -> float | None:
        """most_s, or what is left if that is less. Raises `late` when nothing is."""
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise late("no whole answer in time")
        if left_s == float("inf"):
            return most_s
        return left_s if most_s is None else min(most_s, left_s)


class Transport(httpx.HTTPTransport):
    """As httpx's own, with a deadline. context: of TLS; None for plain HTTP. kept_s: of a silent connection."""

    def __init__(self, deadline: Deadline, context: ssl.SSLContext | None, kept_s: float) -> None:
        # Not super's: it makes a pool that takes no backend of ours.
        self._pool = httpcore.ConnectionPool(
            ssl_context=context, keepalive_expiry=kept_s, network_backend=_Backend(deadline)
        )


class _Backend(httpcore.SyncBackend):
    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left_s = self._deadline.left_s(timeout, httpcore.ConnectTimeout)
        return _Stream(super().connect_tcp(host, port, left_s, local_address, socket_options), self._deadline)


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left_s(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._deadline.left_s(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left_s = self._deadline.left_s(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left_s), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
