"""A gateway with a sharp capacity, on IPv6 and below a base path: quick up to so many requests at once, slow beyond.

`with sharp(3) as gateway:` runs it as a process of its own. Health is asked for by a redirect on the same host.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

QUICK_S, SLOW_S = 0.01, 0.15
BASE = "/gw/v1"


class Gateway(NamedTuple):
    url: str
    pid: int


class _Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6
    daemon_threads = True
    request_queue_size = 256


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    capacity = 1
    n_open = 0
    lock = threading.Lock()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/gw/healthz":
            self._answer(302, b"", Location="/gw/alive")
        elif self.path == "/gw/alive":
            self._answer(200, b"ok")
        elif self.path == f"{BASE}/models":
            self._answer(200, json.dumps({"object": "list", "data": [{"id": "m"}]}).encode())
        else:
            self._answer(404, b"")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != f"{BASE}/chat/completions" or not self.headers["Host"].startswith("[::1]:"):
            self._answer(404, b"")
            return
        with self.lock:
            type(self).n_open += 1
            full = self.n_open > self.capacity
        try:
            time.sleep(SLOW_S if full else QUICK_S)
        finally:
            with self.lock:
                type(self).n_open -= 1
        message = {"role": "assistant", "content": "A"}
        usage = {"prompt_tokens": 9, "completion_tokens": 1}
        if not asked.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._answer(200, json.dumps({"model": "m", "choices": [choice], "usage": usage}).encode())
            return
        events = (
            {"model": "m", "choices": [{"index": 0, "delta": message}]},
            {"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage},
        )
        body = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events) + b"data: [DONE]\n\n"
        self._answer(200, body, **{"Content-Type": "text/event-stream"})

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def sharp(capacity: int) -> Iterator[Gateway]:
    command = [sys.executable, __file__, str(capacity)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Gateway(f"http://[::1]:{int(process.stdout.readline())}{BASE}", process.pid)
        finally:
            process.stdin.close()  # its end
            process.wait(10)


def main() -> None:
    _Handler.capacity = int(sys.argv[1])
    server = _Server(("::1", 0), _Handler)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
