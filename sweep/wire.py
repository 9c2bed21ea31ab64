"""A user's keep-alive gevent connection: every read stamped, handed to the exchange as it arrives.

Reads are taken in the hub's I/O callback (recv, one timestamp, parse); the user's greenlet wakes once a request. TLS
takes the ordinary socket path. Imported only by processes that are a Locust or a gateway: it needs gevent.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import ssl
import time
from typing import Any

import gevent
from gevent import socket
from gevent import ssl as gevent_ssl

from sweep.errors import RunError
from sweep.exchange import Ending, Exchange
from sweep.ports import Way
from sweep.timeouts import Timeouts, overdue
from sweep.tls import TlsOptions, tls_context

_RECV_BYTES = 16384  # allocated for each read: 64 KB cost half a microsecond more
_PAUSE_NS = 100_000_000
# This machine's own limits: no word of the target's. Descriptors of the process and of all, and ports to connect from.
_OURS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL)
_MEND = "raise ulimit -n, lower the level or use more processes"
_QUIET_NS = 200_000_000
_MEETING_NS = 10_000_000  # and three round trips: how long a close may take to meet a request on its way


def client_context(options: TlsOptions) -> gevent_ssl.SSLContext:
    """One for all users: reading the trusted certificates takes milliseconds. The ssl module's own would block."""
    return tls_context(gevent_ssl.SSLContext, options)


class Connection:
    """A user's keep-alive connection; made when needed, made again when it cannot be used again."""

    def __init__(
        self, host: str, port: int, context: ssl.SSLContext | None, timeouts: Timeouts, watch: Watch,
        *, keepalive: bool = True,
    ) -> None:  # fmt: skip
        """context: of TLS, as `client_context` makes it. keepalive: else each request gets a connection of its own."""
        self._address = (host, port)
        self._context = context
        self._timeouts = timeouts
        self._watch = watch
        self._keepalive = keepalive
        self._sock: socket.socket | None = None
        self._watcher: Any = None  # of gevent's loop: the open socket can be read
        self._meeting_ns = _MEETING_NS

    def run(self, request: bytes, exchange: Exchange) -> Ending:
        """Sends `request` and reads its answer into `exchange`. Never raises for what the target does.

        A reused connection that turns out closed as the request arrives, with no byte of an answer, is retried once on
        a fresh one: the keep-alive time-out of the server met our request (seen after 5 s on uvicorn, after 100
        requests on llama.cpp). Later than a few round trips it is no such meeting but a server that gave up.
        """
        try:
            if self._sock is not None and self._was_closed():
                self.close()
            reused = self._sock is not None
            ending = self._once(request, exchange)
            if reused and ending in ("reset", "eof") and exchange.bytes_in == 0 and self._met_its_close(exchange):
                exchange.reset()
                exchange.retried = True
                ending = self._once(request, exchange)
            return ending
        finally:
            exchange.let_go()

    def _met_its_close(self, exchange: Exchange) -> bool:
        sent_ns = exchange.t_sent_ns
        return sent_ns is None or time.monotonic_ns() - sent_ns < self._meeting_ns

    @property
    def is_open(self) -> bool:
        return self._sock is not None

    @property
    def way(self) -> Way | None:
        """Both ends of the open connection; None without one."""
        if self._sock is None:
            return None
        try:
            return Way(self._sock.getsockname()[0], self._sock.getpeername()[0], self._address[1])
        except OSError:  # the other side has reset it
            return None

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _once(self, request: bytes, exchange: Exchange) -> Ending:
        ending: Ending = "cut"
        try:
            try:
                sock = self._sock or self._connect()
            except (OSError, TimeoutError) as error:
                if error.errno in _OURS:
                    exchange.fault = RunError(f"no connection more can be opened here: {error.strerror}; {_MEND}")
                    raise exchange.fault from error
                exchange.trouble = str(error)
                ending = "connect"
                return ending
            try:
                self._send(sock, request)
            except OSError as error:
                exchange.trouble = str(error)
                ending = "timeout" if isinstance(error, TimeoutError) else "reset"
                return ending
            exchange.t_sent_ns = time.monotonic_ns()
            self._watch.add(exchange)
            ending = self._read_plain(sock, exchange) if self._context is None else self._read_tls(sock, exchange)
            return ending
        finally:
            self._watch.discard(exchange)
            if ending != "complete" or not self._keepalive or not exchange.is_reusable():
                self.close()

    def _send(self, sock: socket.socket, request: bytes) -> None:
        """gevent's own sendall costs 3 us more, and is needed only for what the kernel does not take at once."""
        try:
            sent = _socket.socket.send(sock._sock, request) if self._context is None else 0
        except BlockingIOError:
            sent = 0
        if sent < len(request):
            sock.sendall(request[sent:])

    def _connect(self) -> socket.socket:
        began_ns = time.monotonic_ns()
        sock = socket.create_connection(self._address, timeout=self._timeouts.connect_s)
        self._meeting_ns = _MEETING_NS + 3 * (time.monotonic_ns() - began_ns)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                # Not suppressed: an abrupt end over TLS would look like a clean one.
                sock = self._context.wrap_socket(sock, server_hostname=self._address[0], suppress_ragged_eofs=False)
            sock.settimeout(self._timeouts.first_s)
        except BaseException:
            sock.close()
            raise
        self._sock = sock
        return sock

    def _was_closed(self) -> bool:
        """The server closed the idle connection, or sent what nobody asked for."""
        if self._sock is None or self._context is not None:
            return False
        try:
            _socket.socket.recv(self._sock._sock, 1, _socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def _read_plain(self, sock: socket.socket, exchange: Exchange) -> Ending:
        hub = gevent.get_hub()
        me = gevent.getcurrent()
        watcher = self._watcher = self._watcher or hub.loop.io(sock.fileno(), 1)
        raw = sock._sock
        receive = _socket.socket.recv
        clock = time.monotonic_ns
        endings: list[Ending] = []
        wakings: list[Any] = []

        def end(ending: Ending) -> None:
            if not endings:
                endings.append(ending)
                watcher.stop()
                # By the loop, when every read that is ready has its time: a record and the next request take 50 us, and
                # of streams that end together the last would be stamped late by all those before it.
                wakings.append(hub.loop.run_callback(me.switch))

        def readable() -> None:
            # An exception here would go to the hub and leave the user waiting for ever: everything is handed over.
            try:
                data = receive(raw, _RECV_BYTES)
                t_ns = clock()
                if not data:
                    exchange.feed_eof(t_ns)
                    end("eof")
                elif exchange.take(data, t_ns):
                    end("bad" if exchange.bad is not None else "complete")
            except BlockingIOError:
                return
            except OSError as error:
                exchange.trouble = str(error)
                end("reset")
            except Exception as error:  # noqa: BLE001 - ours; in the hub it would be lost, so the user raises it
                exchange.fault = error
                end("cut")

        exchange.end = end
        try:
            watcher.start(readable)
            hub.switch()
            if exchange.fault is not None:
                raise exchange.fault
            return endings[0]
        finally:
            endings.append("cut")
            exchange.end = None
            watcher.stop()
            for waking in wakings:
                waking.stop()  # killed before it ran: it would wake another wait of this user

    @staticmethod
    def _take(exchange: Exchange, data: bytes, t_ns: int) -> bool:
        try:
            return exchange.take(data, t_ns)
        except Exception as error:
            exchange.fault = error
            raise

    def _read_tls(self, sock: socket.socket, exchange: Exchange) -> Ending:
        endings: list[Ending] = []

        def end(ending: Ending) -> None:
            if not endings:
                endings.append(ending)
                # Below TLS: the reader wakes with an error; the socket's own shutdown would make it a ValueError.
                with contextlib.suppress(OSError):
                    _socket.socket.shutdown(sock._sock, _socket.SHUT_RDWR)

        exchange.end = end
        sock.settimeout(None)  # the watch ends it
        try:
            while not endings:
                data = sock.recv(_RECV_BYTES)
                t_ns = time.monotonic_ns()
                if not data:
                    exchange.feed_eof(t_ns)
                    return endings[0] if endings else "eof"
                if self._take(exchange, data, t_ns):
                    return "bad" if exchange.bad is not None else "complete"
            if exchange.fault is not None:
                raise exchange.fault
            return endings[0]
        except OSError as error:
            if endings:
                return endings[0]
            exchange.trouble = str(error)
            return "reset"
        finally:
            exchange.end = None
            sock.settimeout(self._timeouts.first_s)


class Watch:
    """Ends exchanges whose time is over: one look over all of them a tick, instead of a timer for each."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._open: set[Exchange] = set()
        shortest = min(timeouts.first_s, timeouts.idle_s, timeouts.total_s)
        self._tick_s = max(0.02, min(1.0, shortest / 8))
        self._greenlet: gevent.Greenlet | None = None

    def add(self, exchange: Exchange) -> None:
        self._open.add(exchange)
        if self._greenlet is None or self._greenlet.dead:
            self._greenlet = gevent.spawn(self._run)

    def discard(self, exchange: Exchange) -> None:
        self._open.discard(exchange)

    def _run(self) -> None:
        loop = gevent.get_hub().loop
        while True:
            due_ns = time.monotonic_ns() + int(self._tick_s * 1e9)
            gevent.sleep(self._tick_s)
            if time.monotonic_ns() - due_ns > _PAUSE_NS:
                continue  # this process stood still: what lies in the sockets is read first
            now = time.monotonic_ns()
            for exchange in tuple(self._open):
                ending = self._ending(exchange, now)
                if ending is not None and exchange.end is not None:
                    # Through the loop: a switch from this greenlet would not come back to it.
                    loop.run_callback(exchange.end, ending)

    def _ending(self, exchange: Exchange, now_ns: int) -> Ending | None:
        try:
            # What a stream that keeps still has told last may be its end.
            if exchange.t_read_ns is not None and now_ns - exchange.t_read_ns > _QUIET_NS and exchange.catch_up():
                return "bad"
        except Exception:  # noqa: BLE001 - ours, in exchange.fault; the user raises it
            return "cut"
        return overdue(exchange, now_ns, self._timeouts)
