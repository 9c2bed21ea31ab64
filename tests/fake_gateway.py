"""A loopback LLM server with an exact schedule and its own log: the truth that fidelity tests compare with.

Runs as its own process, `python tests/fake_gateway.py --config JSON`, or in a test: `with FakeGateway({...}) as fake:`.
One thread, epoll and a heap of due writes; standard library only. What it answers: `fake_answers.py`.

Its log is JSON Lines, instants CLOCK_MONOTONIC ns, one line when a request is in (kind "received") and one when its
answer is over (kind "answer"): sends [[t_before, t_after, n_bytes]], token_sends [[t_before, t_after]] one a write with
tokens, n_tokens null for a script, ended keep, close, cut, rst as planned, client_gone, or stopped with the server.
GETs of the usual look-ups (`/healthz`, `/v1/models`, ...) are answered beside all this, unless a route takes them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import heapq
import itertools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from fake_answers import Write, answer, look_up, read_request

READ_BYTES = 1 << 18
DEADLINE_S = 10.0


class Connection:
    def __init__(self, sock: socket.socket, t_conn_ns: int) -> None:
        self.sock, self.t_conn_ns = sock, t_conn_ns
        self.received = b""
        self.n_answered = 0
        self.writes = None  # of the answer under way
        self.write, self.rest = Write(0.0, b""), b""  # the next one, and what the kernel did not take of it
        self.t_received_ns = self.t_token_ns = 0
        self.entry: dict | None = None  # None: a look-up, not logged


class Server:
    def __init__(self, config: Mapping) -> None:
        self.config = config
        self.counters = {prefix: itertools.count() for prefix in ("", *config["routes"])}
        self.index = itertools.count()
        self.connections: dict[int, Connection] = {}
        self.due: list[tuple[int, int, Connection]] = []
        self.order = itertools.count()  # of pushes: equal instants leave in order
        self.log_lines: deque[dict] = deque()
        self.log_fd = os.open(config["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((config["host"], config["port"]))
        self.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        self.listener.setblocking(False)
        self.epoll = select.epoll()
        if not config["refuse"]:  # bound, so that the port stays ours, but closed
            self.listener.listen(4096)
            self.epoll.register(self.listener, select.EPOLLIN)

    def run(self) -> None:
        """Serves until standard input ends."""
        with contextlib.suppress(PermissionError):  # /dev/null cannot be waited for; then a signal ends it
            self.epoll.register(sys.stdin, select.EPOLLIN)
        while True:
            now_ns = time.monotonic_ns()
            while self.due and self.due[0][0] <= now_ns:
                connection = heapq.heappop(self.due)[2]
                if connection.sock.fileno() >= 0:
                    self.send(connection, connection.write.data)
            wait_s = max(0.0, (self.due[0][0] - time.monotonic_ns()) / 1e9) if self.due else 3600.0
            if self.log_lines and (wait_s > 0.0005 or len(self.log_lines) > 1000):
                self.write_log()  # off the schedule: a line of 64 tokens costs tens of microseconds
                continue
            select.select([self.epoll], [], [], wait_s)  # microseconds, where epoll_wait has milliseconds
            for fd, events in self.epoll.poll(0):
                if fd == sys.stdin.fileno():
                    return
                if fd == self.listener.fileno():
                    self.accept()
                elif fd in self.connections:
                    self.serve(self.connections[fd], events)

    def accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self.listener.accept()
                sock.setblocking(False)
                self.connections[sock.fileno()] = Connection(sock, time.monotonic_ns())
                self.epoll.register(sock, select.EPOLLIN)

    def serve(self, connection: Connection, events: int) -> None:
        if events & select.EPOLLOUT and connection.rest:
            self.send(connection, connection.rest)
        if not events & ~select.EPOLLOUT or connection.sock.fileno() < 0:
            return
        try:
            data = connection.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close(connection, "client_gone")
            return
        connection.received += data
        self.take_request(connection, time.monotonic_ns())

    def take_request(self, connection: Connection, now_ns: int) -> None:
        """Begins the next answer if none is under way and a whole request is in."""
        if connection.writes is not None:
            return
        request, connection.received = read_request(connection.received)
        if request is None:
            return
        connection.t_received_ns = now_ns
        prefix = max((p for p in self.config["routes"] if request.path.startswith(p)), key=len, default="")
        if request.method != "POST" and not prefix:
            connection.entry, connection.writes = None, look_up(request.path)
        else:
            behaviour = self.choose(prefix)
            connection.writes = answer(behaviour, request.path, request.asked)
            kept = {"authorization": request.authorization, "asked": request.asked} if self.config["keep_asked"] else {}
            self.log_lines.append(
                {"kind": "received", "request_id": request.request_id, "t_received_ns": now_ns, **kept}
            )
            connection.entry = {
                "kind": "answer", "index": next(self.index), "request_id": request.request_id, "path": request.path,
                "stream": request.asked.get("stream", request.path.startswith("/api/")),
                "t_conn_ns": connection.t_conn_ns, "t_received_ns": now_ns, "sends": [], "token_sends": [],
                "n_tokens": None if "script" in behaviour else 0,
            }  # fmt: skip
        self.schedule(connection)

    def choose(self, prefix: str) -> Mapping:
        behaviours, n = self.config["routes"].get(prefix, self.config["behaviours"]), next(self.counters[prefix])
        return behaviours[min(n, len(behaviours) - 1) if self.config["last_stays"] else n % len(behaviours)]

    def schedule(self, connection: Connection) -> None:
        try:
            connection.write = next(connection.writes)
        except StopIteration as stop:
            self.finish(connection, stop.value)
            return
        t_due_ns = connection.t_received_ns + round(connection.write.due_s * 1e9)
        heapq.heappush(self.due, (t_due_ns, next(self.order), connection))

    def send(self, connection: Connection, data: bytes) -> None:
        t_before_ns = time.monotonic_ns()
        try:
            n_sent = connection.sock.send(data)
        except BlockingIOError:
            n_sent = 0
        except OSError:
            self.close(connection, "client_gone")
            return
        t_after_ns = time.monotonic_ns()
        entry, n_tokens = connection.entry, connection.write.n_tokens
        if data is connection.write.data:  # nothing of it has left yet
            connection.t_token_ns = t_before_ns
        if entry is not None and n_sent:
            entry["sends"].append([t_before_ns, t_after_ns, n_sent])
        was_blocked, connection.rest = connection.rest != b"", data[n_sent:]
        if was_blocked or connection.rest:
            self.epoll.modify(connection.sock, select.EPOLLIN | (select.EPOLLOUT if connection.rest else 0))
        if connection.rest:
            return
        if entry is not None and n_tokens:
            entry["token_sends"].append([connection.t_token_ns, t_after_ns])
            entry["n_tokens"] += n_tokens
        self.schedule(connection)

    def finish(self, connection: Connection, end: str) -> None:
        if end == "hang":
            return  # the client will leave
        connection.n_answered += 1
        if end == "keep" and connection.n_answered != self.config["close_after"]:
            self.log(connection, end)
            connection.writes = None
            self.take_request(connection, time.monotonic_ns())
            return
        if end == "rst":
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close(connection, "close" if end == "keep" else end)

    def close(self, connection: Connection, ended: str) -> None:
        del self.connections[connection.sock.fileno()]
        connection.sock.close()
        if connection.writes is not None:
            self.log(connection, ended)

    def log(self, connection: Connection, ended: str) -> None:
        if connection.entry is not None:
            self.log_lines.append(connection.entry | {"ended": ended, "t_end_ns": time.monotonic_ns()})

    def write_log(self) -> None:
        os.write(self.log_fd, json.dumps(self.log_lines.popleft()).encode() + b"\n")

    def stop(self) -> None:
        for connection in list(self.connections.values()):
            self.close(connection, "stopped")
        while self.log_lines:
            self.write_log()


class FakeGateway:
    """Starts the server as a process of its own and stops it. `url`, `port` and `pid` hold from `__enter__` on."""

    def __init__(
        self,
        behaviours: dict | str | Sequence[dict | str] = (),
        *,
        routes: Mapping[str, dict | str | Sequence[dict | str]] | None = None,
        last_stays: bool = False,
        close_after: int | None = None,
        refuse: bool = False,
        port: int = 0,
        host: str = "127.0.0.1",
        keep_asked: bool = False,
    ) -> None:
        """behaviours: one or a list, each a dict or a script's text; taken in turn, one a request, then from the start
        again (last_stays: the last one for ever). routes: path prefix -> behaviours of its own, with their own turn.
        close_after: each connection is closed, unannounced, after so many answers. refuse: nothing listens.
        host: where it listens; `url` names loopback all the same.
        keep_asked: lines of kind "received" hold the JSON body and the Authorization header too.
        """
        self._log = Path(tempfile.mkstemp(prefix="fake-gateway-", suffix=".jsonl")[1])
        self._config = {
            "behaviours": _as_list(behaviours) or [{}], "routes": {k: _as_list(v) for k, v in (routes or {}).items()},
            "last_stays": last_stays, "close_after": close_after, "refuse": refuse, "port": port, "log": str(self._log),
            "host": host,
            "keep_asked": keep_asked,
        }  # fmt: skip

    def __enter__(self) -> FakeGateway:
        command = [sys.executable, __file__, "--config", json.dumps(self._config)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        self.port = json.loads(self._process.stdout.readline())["port"]  # no line: its own error is above
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log_at_end = self._lines()
        self._log.unlink()

    def log(self, n: int | None = None, kind: str = "answer") -> list[dict]:
        """The answers that are over, in the order they ended; or with kind "received" the requests that were read.

        n: waits until there are so many. Raises TimeoutError.
        """
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = [line for line in self._lines() if line["kind"] == kind]
            if n is None or len(found) >= n:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(found)} of {n} lines of kind {kind} after {DEADLINE_S} s")
            time.sleep(0.01)

    @property
    def requests_received(self) -> int:
        return len(self.log(kind="received"))

    def _lines(self) -> list[dict]:
        if not self._log.exists():
            return self._log_at_end
        return [json.loads(line) for line in self._log.read_bytes().split(b"\n")[:-1]]


def _as_list(behaviours: dict | str | Sequence[dict | str]) -> list[dict]:
    several = [behaviours] if isinstance(behaviours, dict | str) else behaviours
    return [{"script": one} if isinstance(one, str) else one for one in several]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=json.loads, required=True, help="JSON object, see FakeGateway")
    defaults = {"behaviours": [{}], "routes": {}, "last_stays": False, "close_after": None, "refuse": False, "port": 0,
                "keep_asked": False}  # fmt: skip
    server = Server(defaults | {"log": os.devnull, "host": "127.0.0.1"} | parser.parse_args().config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    gc.freeze()
    gc.disable()  # a collection would hold back every stream for milliseconds
    print(json.dumps({"port": server.listener.getsockname()[1], "pid": os.getpid()}), flush=True)
    try:
        server.run()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
