"""A plain client for tests that talk to a server on loopback: sockets and http.client, nothing of ours."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time

DEADLINE_S = 15.0
CHAT = "/v1/chat/completions"


def connect(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)


def call(port: int, method: str, path: str, body: object = None, headers: dict | None = None):
    """The response and its body, over a connection of its own; body: a JSON value, or bytes as they are."""
    with contextlib.closing(connect(port)) as connection:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        return response, response.read()


def begin(port: int, path: str, body: dict, request_id: str = "r") -> socket.socket:
    """Sends one request and leaves the answer to the caller."""
    data = json.dumps(body).encode()
    top = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Request-Id: {request_id}\r\nContent-Length: {len(data)}\r\n\r\n"
    client = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
    client.sendall(top.encode() + data)
    return client


def reads(client: socket.socket) -> list[tuple[int, bytes]]:
    """Each read with its instant in ns, headers included, until the last chunk or the end of the connection."""
    found = []
    while data := client.recv(1 << 16):
        found.append((time.monotonic_ns(), data))
        if b"".join(part for _, part in found[-5:]).endswith(b"0\r\n\r\n"):
            break
    return found


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.005)
