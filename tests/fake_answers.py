"""What the fake gateway sends and when: behaviours in, timed writes out. Pure; standard library only.

A behaviour is a dict, one of two kinds:
- profile `{"ttft_s": 0.2, "gap_s": 0.01, "n_tokens": 64, "tokens_per_write": 1, "tail_s": 0}`: write i of tokens leaves
  at t_received + ttft_s + i * gap_s; the head (status, headers, OpenAI's role chunk) at t_received; finish, usage (if
  asked for) and [DONE] tail_s after the last token. n_tokens None: as many as the request's limit says. A non-streaming
  answer leaves whole where the tail would. Missing keys are PROFILE's.
- script `{"script": TEXT, "split": "whole" | "frame" | "byte", "framing": "chunked" | "length" | "close"}`. TEXT is
  `HTTP 429 application/json; retry-after: 2`, then `name: value` lines, `---`, and the body, with the markers
  `<<SLEEP s>>`, `<<SLEEP forever>>`, `<<FIN>>` (clean end of the answer, as at the text's end), `<<CUT>>` (the
  connection closes in mid-answer), `<<RST>>` (it is reset) and `<<NOTE ...>>`. A SLEEP before `---` delays the head.
  A text without `---` goes out raw, with no head. "split": one write for each stretch between markers, each event or
  line, each byte; "split_delay_s" apart (default 2 ms, 0.2 ms for bytes). "framing": default is chunked for streams
  and length for all else; close has neither and ends by closing.
Either may hold `"close": true`: says `Connection: close` and does so; `"close": "silent"` does so without a word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

PROFILE = {"ttft_s": 0.05, "gap_s": 0.005, "n_tokens": 16, "tokens_per_write": 1, "tail_s": 0.0}
MARKER = re.compile(r"<<(SLEEP|FIN|CUT|RST|NOTE)\b\s*(.*?)>>", re.DOTALL)
EVENT = re.compile(rb".*?(?:\r\n\r\n|\n\n|\r\r)|.+", re.DOTALL)
LINE = re.compile(rb"[^\n]*\n|[^\n]+")
SPLIT_DELAY_S = {"whole": 0.0, "frame": 0.002, "byte": 0.0002}
LOOK_UPS = {
    "/": "Fake gateway is running",
    "/healthz": '{"status":"ok"}',
    "/readyz": '{"status":"ok"}',
    "/v1/models": '{"object":"list","data":[{"id":"fake-1","object":"model"}]}',
    "/api/tags": '{"models":[{"name":"fake-1","model":"fake-1"}]}',
}


class Write(NamedTuple):
    """One write: when it is due (s after the request was read), what, and how many tokens are in it."""

    due_s: float
    data: bytes
    n_tokens: int = 0


class Request(NamedTuple):
    method: str
    path: str
    request_id: str | None
    asked: dict  # the JSON body, {} without one
    authorization: str | None = None


def read_request(received: bytes) -> tuple[Request | None, bytes]:
    """The first request, None while it is not all there, and the bytes after it."""
    top, found, body = received.partition(b"\r\n\r\n")
    request_line, *lines = top.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    n_body = int(headers.get("content-length", 0))
    if not found or len(body) < n_body:
        return None, received
    method, path, _ = request_line.split(" ")
    asked = json.loads(body[:n_body]) if n_body else {}
    request = Request(method, path, headers.get("x-request-id"), asked, headers.get("authorization"))
    return request, body[n_body:]


def answer(behaviour: dict, path: str, asked: dict) -> Iterator[Write]:
    """The writes of one answer; the generator's return value says how it ends: keep, close, cut, rst or hang."""
    return script_answer(behaviour) if "script" in behaviour else profile_answer(behaviour, path, asked)


def look_up(path: str) -> Iterator[Write]:
    body = LOOK_UPS.get(path, '{"error":{"message":"no such path","code":"not_found"}}').encode()
    kind = "application/json" if body.startswith(b"{") else "text/plain"
    yield Write(0.0, head(200 if path in LOOK_UPS else 404, kind, [], "length", len(body), False) + body)
    return "keep"


def head(status: int, kind: str, more: list[str], framing: str, n_bytes: int, close: object) -> bytes:
    lines = [f"HTTP/1.1 {status} Fake", f"Content-Type: {kind}", *more]
    lines += {"chunked": ["Transfer-Encoding: chunked"], "length": [f"Content-Length: {n_bytes}"]}.get(framing, [])
    lines += ["Connection: close"] if close is True or framing == "close" else []
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def profile_answer(behaviour: dict, path: str, asked: dict) -> Iterator[Write]:
    plan = PROFILE | behaviour
    n_tokens = plan["n_tokens"] if plan["n_tokens"] is not None else token_limit(asked)
    bodies = (OpenAi if path.startswith("/v1/") else Ollama)(path, asked, n_tokens)
    n_writes = -(-n_tokens // plan["tokens_per_write"])
    end_s = plan["ttft_s"] + (n_writes - 1) * plan["gap_s"] + plan["tail_s"]
    close = plan.get("close", False)
    if not asked.get("stream", bodies.streams_by_default):
        whole = bodies.whole()
        yield Write(end_s, head(200, "application/json", [], "length", len(whole), close) + whole, n_tokens)
        return "close" if close else "keep"
    yield Write(0.0, head(200, bodies.stream_type, [], "chunked", 0, close) + bodies.first())
    token = bodies.token()
    for i in range(n_writes):
        n = min(plan["tokens_per_write"], n_tokens - i * plan["tokens_per_write"])
        yield Write(plan["ttft_s"] + i * plan["gap_s"], chunk(token * n), n)
    yield Write(end_s, chunk(bodies.tail()) + b"0\r\n\r\n")
    return "close" if close else "keep"


def token_limit(asked: dict) -> int:
    return asked.get("max_tokens") or asked.get("max_completion_tokens") or asked["options"]["num_predict"]


class OpenAi:
    stream_type, streams_by_default = "text/event-stream", False

    def __init__(self, path: str, asked: dict, n_tokens: int) -> None:
        self.n_tokens, self.model = n_tokens, asked.get("model", "fake-1")
        self.usage = {"prompt_tokens": 7, "completion_tokens": n_tokens, "total_tokens": n_tokens + 7}
        self.wants_usage = (asked.get("stream_options") or {}).get("include_usage", False)

    def body(self, kind: str, choices: list, **more: object) -> bytes:
        return json.dumps({"id": "fake", "object": kind, "model": self.model, "choices": choices, **more}).encode()

    def event(self, choices: list, **more: object) -> bytes:
        return b"data: " + self.body("chat.completion.chunk", choices, **more) + b"\n\n"

    def delta(self, delta: dict, finish: str | None = None) -> bytes:
        return self.event([{"index": 0, "delta": delta, "finish_reason": finish}])

    def first(self) -> bytes:
        return chunk(self.delta({"role": "assistant", "content": ""}))

    def token(self) -> bytes:
        return self.delta({"content": " tok"})

    def tail(self) -> bytes:
        usage = self.event([], usage=self.usage) if self.wants_usage else b""
        return self.delta({}, "length") + usage + b"data: [DONE]\n\n"

    def whole(self) -> bytes:
        message = {"role": "assistant", "content": " tok" * self.n_tokens}
        choices = [{"index": 0, "message": message, "finish_reason": "length"}]
        return self.body("chat.completion", choices, usage=self.usage)


class Ollama:
    stream_type, streams_by_default = "application/x-ndjson", True

    def __init__(self, path: str, asked: dict, n_tokens: int) -> None:
        self.is_chat, self.n_tokens, self.model = path == "/api/chat", n_tokens, asked.get("model", "fake-1")

    def line(self, text: str, done: bool = False) -> bytes:
        content = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"response": text}
        end = {"done_reason": "length", "prompt_eval_count": 7, "eval_count": self.n_tokens, "load_duration": 0}
        return json.dumps({"model": self.model, **content, "done": done, **(end if done else {})}).encode() + b"\n"

    def first(self) -> bytes:
        return b""

    def token(self) -> bytes:
        return self.line(" tok")

    def tail(self) -> bytes:
        return self.line("", done=True)

    def whole(self) -> bytes:
        return self.line(" tok" * self.n_tokens, done=True)


def script_answer(behaviour: dict) -> Iterator[Write]:
    before, found, body = behaviour["script"].partition("\n---\n")
    parts, end = read_body(body if found else behaviour["script"])
    split, close = behaviour.get("split", "whole"), behaviour.get("close", False)
    delay_s = behaviour.get("split_delay_s", SPLIT_DELAY_S[split])
    at_s, kind, framing = 0.0, "", "raw"
    if found:
        at_s = sum(float(mark[2]) for mark in MARKER.finditer(before) if mark[1] == "SLEEP")
        status, kind, more = read_head(MARKER.sub("", before))
        is_stream = kind.startswith(("text/event-stream", "application/x-ndjson"))
        framing = behaviour.get("framing") or ("chunked" if is_stream else "length")
        n_bytes = sum(len(part) for part in parts if isinstance(part, bytes)) + (end != "keep")  # cut: one is missing
        yield Write(at_s, head(status, kind, more, framing, n_bytes, close))
    if framing == "chunked" and end == "keep":
        parts.append(None)  # the last chunk
    for part in parts:
        if isinstance(part, float):
            at_s += part
            continue
        for data in pieces(part, split, kind, framing):
            yield Write(at_s, data)
            at_s += delay_s
    if parts and isinstance(parts[-1], float):
        yield Write(at_s, b"")  # the end waits too
    return "close" if end == "keep" and (close or framing in ("close", "raw")) else end


def pieces(part: bytes | None, split: str, kind: str, framing: str) -> Iterator[bytes]:
    frames = [part]
    if split == "frame" and part:
        frames = (EVENT if kind.startswith("text/event-stream") else LINE).findall(part)
    for frame in frames:
        wire = b"0\r\n\r\n" if frame is None else chunk(frame) if framing == "chunked" else frame
        yield from (wire[i : i + 1] for i in range(len(wire))) if split == "byte" else (wire,)


def read_head(text: str) -> tuple[int, str, list[str]]:
    """Status, content type and header lines."""
    first, *lines = text.strip().splitlines()
    start, *more = [piece.strip() for piece in first.split(";")]
    _, status, *kind = start.split(None, 2)
    parameters = [piece for piece in more if ":" not in piece]  # `text/html; charset=utf-8`
    return int(status), "; ".join([*kind, *parameters]), [piece for piece in more if ":" in piece] + lines


def read_body(text: str) -> tuple[list, str]:
    """Stretches of bytes and sleeps (float, s), and how the answer ends."""
    parts, at = [], 0
    for mark in MARKER.finditer(text):
        parts.append(text[at : mark.start()].encode())
        at = mark.end()
        if mark[1] in ("FIN", "CUT", "RST"):
            return [part for part in parts if part != b""], "keep" if mark[1] == "FIN" else mark[1].lower()
        if mark[1] == "SLEEP" and mark[2] == "forever":
            return [part for part in parts if part != b""], "hang"
        if mark[1] == "SLEEP":
            parts.append(float(mark[2]))
    parts.append(text[at:].encode())
    return [part for part in parts if part != b""], "keep"
