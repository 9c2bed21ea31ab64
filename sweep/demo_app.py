"""The embedded gateway's WSGI application: slots and a line before them, answers on an absolute schedule.

In: settings and defects. Out: WSGI answers. Imported only by `demo_gateway`; every wait is gevent's own.
"""

from __future__ import annotations

import hmac
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sweep import __version__
from sweep.demo_answers import DIALECTS
from sweep.demo_asks import Ask, Dialect, Refused, Spans, read_ask
from sweep.demo_defects import Defects
from sweep.demo_memory import Memory
from sweep.demo_waits import Slots, sleep_until, watching

BODY_LIMIT_BYTES = 8 << 20
REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    413: "Content Too Large", 422: "Unprocessable Content", 429: "Too Many Requests", 503: "Service Unavailable",
}  # fmt: skip
ENGINE_ERROR = Refused(500, "engine_error", "an error was encountered while running the model")

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the command line decides; times in seconds."""

    model: str
    slots: int
    queue: int
    full_status: int
    ttft_s: float
    per_token_s: float
    max_output: int
    stop_after: int | None
    api_key: str | None
    drain_s: float


class Gateway:
    """The WSGI application."""

    def __init__(self, settings: Settings, defects: Defects) -> None:
        self.settings, self.defects = settings, defects
        self.slots = Slots(settings.slots, settings.queue)
        self.memory = Memory()
        self.is_draining = False
        self.n_open = 0  # answers that have not left completely
        self._n_asked = 0
        self._n_tokens = 0
        self._outcomes: Counter[tuple[str, int, str]] = Counter()
        self._t_start_s = time.monotonic()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Any:
        path = environ["PATH_INFO"]
        dialect = DIALECTS.get(path)
        try:
            if dialect is not None:
                return self._infer(path, dialect, environ, start_response)
            status, kind, body = self._look_up(path, environ)
        except Refused as refused:
            status, kind = refused.status, "application/json"
            body = (dialect or DIALECTS["/v1/chat/completions"]).error(refused)
            self._outcomes[path if dialect else "other", status, refused.code] += 1
        self._start(environ, start_response, status, kind, len(body))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _start(self, environ: Environ, start: StartResponse, status: int, kind: str, n_bytes: int | None) -> None:
        headers = [("Content-Type", kind)]
        if n_bytes is not None:
            headers.append(("Content-Length", str(n_bytes)))
        else:
            headers += [("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no")]
        if "HTTP_X_REQUEST_ID" in environ:
            headers.append(("X-Request-Id", environ["HTTP_X_REQUEST_ID"]))
        if status in (429, 503):
            headers.append(("Retry-After", "1"))
        if self.is_draining:
            headers.append(("Connection", "close"))
        start(f"{status} {REASONS[status]}", headers)

    def _infer(self, path: str, dialect: Dialect, environ: Environ, start: StartResponse) -> Any:
        t_received_ns = time.monotonic_ns()
        ask = self._let_in(dialect, environ)
        ttft_s = self.settings.ttft_s * self.defects.begin_request()
        if not ask.wanted.stream:
            answer = self._whole(dialect, ask, t_received_ns, ttft_s)
            body = b"".join(self._counted(path, ask, answer, environ["demo.socket"]))
            self._start(environ, start, 200, "application/json", len(body))
            return [body]
        self._start(environ, start, 200, dialect.stream_type, None)
        events = self._events(dialect, ask, t_received_ns, ttft_s)
        if self.defects.has("buffer-streams"):
            events = _in_one(events)
        return self._counted(path, ask, events, environ["demo.socket"])

    def _let_in(self, dialect: Dialect, environ: Environ) -> Ask:
        if environ["REQUEST_METHOD"] != "POST":
            raise Refused(405, "method_not_allowed", "use POST")
        self._check_key(environ)
        if self.is_draining:
            raise Refused(503, "stopping", "the gateway is stopping and takes no new requests")
        if int(environ.get("CONTENT_LENGTH") or 0) > BODY_LIMIT_BYTES:
            raise Refused(413, "body_too_large", f"the body is larger than {BODY_LIMIT_BYTES} bytes")
        body = environ["wsgi.input"].read(BODY_LIMIT_BYTES)
        self._n_asked += 1
        limits = self.settings
        ask = read_ask(dialect, body, f"demo{self._n_asked}", limits.model, limits.max_output, limits.stop_after)
        if self.slots.is_full():
            text = f"the queue is full: {limits.slots} requests in service and {limits.queue} waiting; try again later"
            raise Refused(limits.full_status, "queue_full", text)
        return ask

    def _check_key(self, environ: Environ) -> None:
        key = self.settings.api_key
        scheme, _, bearer = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        given = bearer if scheme.lower() == "bearer" else environ.get("HTTP_X_API_KEY", "")
        if key is not None and not hmac.compare_digest(given.encode(), key.encode()):
            raise Refused(401, "invalid_api_key", "missing or wrong API key")

    def _counted(self, path: str, ask: Ask, answer: Iterator[bytes], client: Any) -> Iterator[bytes]:
        """The same bytes; ends with ClientGone when the client closes, and counts how it ended."""
        outcome = "client_gone"
        self.memory.begin()
        try:
            with watching(client):
                yield from answer
            outcome = "ok"
        finally:
            self.memory.end(ask.wanted.keep_s)
            self._outcomes[path, 200, outcome] += 1

    def _events(self, dialect: Dialect, ask: Ask, t_received_ns: int, ttft_s: float) -> Iterator[bytes]:
        is_broken = self.defects.has("truncate-streams") or self.defects.has("error-in-200")
        with self.slots.taken():
            t_begin_ns = t_first_ns = time.monotonic_ns()
            yield dialect.head(ask)
            for i in range(ask.n_tokens // 2 if is_broken else ask.n_tokens):
                sleep_until(t_begin_ns + round((ttft_s + i * self.settings.per_token_s) * 1e9))
                if i == 0:
                    t_first_ns = time.monotonic_ns()
                self._n_tokens += 1
                yield dialect.token(ask, i)
            if self.defects.has("error-in-200"):
                yield dialect.error_event(ENGINE_ERROR)
            elif not is_broken:
                yield dialect.tail(ask, _spans(t_received_ns, t_begin_ns, t_first_ns))

    def _whole(self, dialect: Dialect, ask: Ask, t_received_ns: int, ttft_s: float) -> Iterator[bytes]:
        with self.slots.taken():
            t_begin_ns = time.monotonic_ns()
            sleep_until(t_begin_ns + round(ttft_s * 1e9))
            t_first_ns = time.monotonic_ns()
            sleep_until(t_begin_ns + round((ttft_s + max(0, ask.n_tokens - 1) * self.settings.per_token_s) * 1e9))
            self._n_tokens += ask.n_tokens
            spans = _spans(t_received_ns, t_begin_ns, t_first_ns)
            yield dialect.error(ENGINE_ERROR) if self.defects.has("error-in-200") else dialect.whole(ask, spans)

    def _look_up(self, path: str, environ: Environ) -> tuple[int, str, bytes]:
        """Status, content type and body of a GET. Raises Refused."""
        if path not in LOOK_UPS:
            raise Refused(404, "not_found", f"no such path: {path}")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            raise Refused(405, "method_not_allowed", "use GET")
        if path.startswith(("/v1/", "/api/")):
            self._check_key(environ)
        status, answer = LOOK_UPS[path](self)
        if isinstance(answer, str):
            return status, "text/plain; charset=utf-8", answer.encode()
        return status, "application/json", msgspec.json.encode(answer)

    def ready(self) -> tuple[int, object]:
        if self.is_draining:
            return 503, {"status": "stopping"}
        if self.defects.is_unready(time.monotonic() - self._t_start_s):
            return 503, {"status": "not ready"}
        return 200, {"status": "ready"}

    def metrics(self) -> str:
        """Prometheus text format 0.0.4."""
        prefix = "demo_gateway_"
        lines = [f"# TYPE {prefix}requests_total counter"]
        for (path, status, outcome), n in sorted(self._outcomes.items()):
            lines.append(f'{prefix}requests_total{{path="{path}",status="{status}",outcome="{outcome}"}} {n}')
        n_pages = int(Path("/proc/self/statm").read_text().split()[1])
        for name, kind, value in (
            ("tokens_total", "counter", self._n_tokens),
            ("in_flight", "gauge", self.slots.n_busy),
            ("queued", "gauge", self.slots.n_waiting),
            ("process_open_fds", "gauge", sum(1 for _ in Path("/proc/self/fd").iterdir())),
            ("process_resident_memory_bytes", "gauge", n_pages * os.sysconf("SC_PAGE_SIZE")),
            ("process_cpu_seconds_total", "counter", time.process_time()),
        ):
            lines += [f"# TYPE {prefix}{name} {kind}", f"{prefix}{name} {value}"]
        return "\n".join(lines) + "\n"


def _spans(t_received_ns: int, t_begin_ns: int, t_first_ns: int) -> Spans:
    now_ns = time.monotonic_ns()
    return Spans(now_ns - t_received_ns, t_first_ns - t_begin_ns, now_ns - t_first_ns)


def _in_one(events: Iterator[bytes]) -> Iterator[bytes]:
    yield b"".join(events)


def _model_entry(gateway: Gateway) -> dict[str, object]:
    return {"name": gateway.settings.model, "model": gateway.settings.model, "size": 0, "digest": "", "details": {}}


def _loaded(gateway: Gateway) -> list[dict[str, object]]:
    try:
        return [_model_entry(gateway) | {"size_vram": 0, "expires_at": gateway.memory.expires_at()}]
    except LookupError:
        return []


LOOK_UPS: Mapping[str, Callable[[Gateway], tuple[int, object]]] = {
    "/": lambda _: (200, "Demo gateway is running"),
    "/healthz": lambda _: (200, {"status": "ok"}),
    "/readyz": Gateway.ready,
    "/metrics": lambda gateway: (200, gateway.metrics()),
    "/v1/models": lambda gateway: (
        200,
        {"object": "list", "data": [{"id": gateway.settings.model, "object": "model", "owned_by": "demo"}]},
    ),
    "/api/tags": lambda gateway: (200, {"models": [_model_entry(gateway)]}),
    "/api/ps": lambda gateway: (200, {"models": _loaded(gateway)}),
    "/api/version": lambda _: (200, {"version": __version__}),
}
