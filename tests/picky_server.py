"""An OpenAI-like server in threads that refuses parameters by name, as real ones do, and keeps what it was sent."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

CHUNKS = (
    {"choices": [{"index": 0, "delta": {"content": "A"}}]},
    {"choices": [{"index": 0, "delta": {"content": "B"}, "finish_reason": "stop"}]},
)
USAGE = {"prompt_tokens": 9, "completion_tokens": 2}
WHOLE = {
    "choices": [{"index": 0, "message": {"content": "AB"}, "finish_reason": "stop"}], "usage": USAGE, "model": "m",
}  # fmt: skip


class Picky(NamedTuple):
    url: str
    bodies: list[dict]


@contextlib.contextmanager
def picky(refusals: Mapping[str, tuple[int, str]]) -> Iterator[Picky]:
    """refusals: key of the body -> (status, message) of its refusal."""
    bodies: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(200, "application/json", json.dumps({"data": [{"id": "m"}]}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            refused = next((refusals[key] for key in body if key in refusals), None)
            if refused is not None:
                error = {"error": {"message": refused[1], "type": "invalid_request_error"}}
                self.answer(refused[0], "application/json", json.dumps(error).encode())
            elif body.get("stream"):
                with_usage = body.get("stream_options", {}).get("include_usage")
                events = [*CHUNKS, *([{"choices": [], "usage": USAGE}] if with_usage else [])]
                lines = [f"data: {json.dumps(event)}\n\n" for event in events]
                self.answer(200, "text/event-stream", "".join([*lines, "data: [DONE]\n\n"]).encode())
            else:
                self.answer(200, "application/json", json.dumps(WHOLE).encode())

        def answer(self, status: int, kind: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield Picky(f"http://127.0.0.1:{server.server_port}", bodies)
        finally:
            server.shutdown()
