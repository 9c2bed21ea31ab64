"""An exchange fed by hand: the n-th read comes n ms after the start, no clock, no socket."""

from __future__ import annotations

from collections.abc import Sequence

from sweep.dialects import BY_NAME
from sweep.exchange import Exchange

MS = 1_000_000
CHAT_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
NDJSON_HEAD = CHAT_HEAD.replace(b"text/event-stream", b"application/x-ndjson")
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(delta: str, finish: str = "null") -> bytes:
    return b'data: {"choices":[{"index":0,"delta":%b,"finish_reason":%b}]}\n\n' % (delta.encode(), finish.encode())


def content(text: str) -> bytes:
    return event(f'{{"content":"{text}"}}')


FINISH = event("{}", '"stop"')
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'


def response(body: bytes, kind: str = "application/json", status: int = 200, more: str = "") -> bytes:
    """A whole answer with a Content-Length."""
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


def play(reads: Sequence[bytes], api: str = "openai-chat", stream: bool = True) -> Exchange:
    """Sent at 0 ms; stops, as a connection does, when nothing more is wanted."""
    exchange = Exchange(BY_NAME[api], stream, "s.w-000001")
    exchange.t_start_ns = exchange.t_sent_ns = 0
    for n, data in enumerate(reads, 1):
        if exchange.feed(data, n * MS):
            break
    return exchange
