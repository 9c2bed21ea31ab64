"""A reverse proxy for tests, in threads: it may speak TLS, lets in whom its rule lets in, and notes what was sent.

Answers are passed on byte by byte as they come, so the times of the server behind it hold.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

DEADLINE_S = 30.0
REFUSAL = b'{"error":{"message":"token refused","code":"invalid_token"}}'
REFUSAL_HEAD = b"HTTP/1.1 401 No\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(REFUSAL)


class Sent(NamedTuple):
    """What came in. headers: names in lower case, each once."""

    method: str
    path: str
    headers: Mapping[str, str]
    admitted: bool


class FrontDoor:
    """`with FrontDoor(port_behind, admits) as door:` then `door.port`; admits: (method, path, headers) -> whether."""

    def __init__(
        self,
        behind: int,
        admits: Callable[[str, str, Mapping[str, str]], bool] = lambda *_: True,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.sent: list[Sent] = []
        self._behind, self._admits, self._context = behind, admits, context

    def __enter__(self) -> FrontDoor:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(DEADLINE_S)

    @property
    def posts(self) -> list[Sent]:
        return [each for each in self.sent if each.method == "POST"]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(client.close)
            if self._context is not None:
                client = stack.enter_context(self._context.wrap_socket(client, server_side=True))
            behind = stack.enter_context(socket.create_connection(("127.0.0.1", self._behind)))
            behind.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while _pass_on(behind, client) and (request := _read(client)) is not None:
                method, path, headers, data = request
                admitted = self._admits(method, path, headers)
                self.sent.append(Sent(method, path, headers, admitted))
                if admitted:
                    behind.sendall(data)
                else:
                    client.sendall(REFUSAL_HEAD + (b"" if method == "HEAD" else REFUSAL))


def _read(client: socket.socket) -> tuple[str, str, dict[str, str], bytes] | None:
    """One request, whole; None at the end of the connection. The client sends one at a time."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = client.recv(1 << 16)
        if not more:
            return None
        data += more
    top, _, body = data.partition(b"\r\n\r\n")
    request_line, *lines = top.decode("latin-1").split("\r\n")
    pairs = [line.partition(": ") for line in lines]
    headers = {name.lower(): value for name, _, value in pairs}
    assert len(headers) == len(lines), f"a header twice: {lines}"
    while len(body) < int(headers.get("content-length", 0)):
        more = client.recv(1 << 16)
        body, data = body + more, data + more
    method, path, _ = request_line.split(" ")
    return method, path, headers, data


def _pass_on(behind: socket.socket, client: socket.socket) -> bool:
    """Passes answers on until the client says something; False when the server behind has closed.

    In the client's own thread: two threads in one TLS connection damage it.
    """
    while not (isinstance(client, ssl.SSLSocket) and client.pending()):
        readable, _, _ = select.select([client, behind], [], [])
        if client in readable:
            break
        data = behind.recv(1 << 16)
        if not data:
            return False
        client.sendall(data)
    return True
