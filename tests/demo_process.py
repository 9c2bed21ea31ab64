"""The embedded gateway as a process for tests: `with demo("--slots", "1") as gateway`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import loopback

ROOT = Path(__file__).resolve().parent.parent


class Demo:
    def __init__(self, process: subprocess.Popen) -> None:
        line = process.stdout.readline().decode()
        found = re.fullmatch(r"demo gateway listening on http://127\.0\.0\.1:(\d+) pid (\d+)\n", line)
        assert found, line + process.stderr.read().decode()
        self.process, self.port, self.pid = process, int(found[1]), int(found[2])

    def call(self, method: str, path: str, body: object = None, headers: dict | None = None):
        return loopback.call(self.port, method, path, body, headers)

    def metric(self, name: str) -> float:
        _, body = self.call("GET", "/metrics")
        return float(re.search(rf"^demo_gateway_{re.escape(name)} (\S+)$", body.decode(), re.MULTILINE)[1])

    def until(self, name: str, value: float) -> None:
        loopback.wait_for(lambda: self.metric(name) == value, f"{name} {value}")

    def begin(self, path: str, body: dict) -> socket.socket:
        return loopback.begin(self.port, path, body)


def ask(n_tokens: int | None = None, stream: bool = True, **more: object) -> dict:
    """A request body for any of the three APIs."""
    body = {"model": "demo-1", "messages": [{"role": "user", "content": "one two three"}], "stream": stream, **more}
    return body if n_tokens is None else body | {"max_tokens": n_tokens, "options": {"num_predict": n_tokens}}


def events(body: bytes) -> list:
    """JSON values of the SSE events, and "[DONE]"."""
    texts = [part.removeprefix(b"data: ").decode() for part in body.split(b"\n\n") if part]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def n_content(sse: list) -> int:
    """Events that carry answer text."""
    choices = [choice for event in sse if isinstance(event, dict) for choice in event.get("choices", [])]
    return sum(bool(choice["delta"].get("content")) for choice in choices)


@contextlib.contextmanager
def demo(*arguments: str, env: dict | None = None, pass_fds: tuple = ()):
    command = [sys.executable, "-P", "-m", "sweep.demo_gateway", "--port", "0", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | (env or {})
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, pass_fds=pass_fds
    )
    try:
        yield Demo(process)
    finally:
        process.kill()
        process.communicate()
