"""How one request ended, by the one rule of success; refusals told apart, error texts made safe to keep. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import urlsplit

from sweep.dialects import FAILED_FINISH, NOTHING, BadBodyError
from sweep.error_bodies import read_error
from sweep.exchange import Ending, Exchange
from sweep.masking import PIECE, Masked
from sweep.records import Outcome

MAX_ERROR_TEXT = 200
# Said of the server: it is full. Asked first: gateways put "rate_limit_error" as the type of a full queue too.
_FULL = re.compile(r"queue|capacity|overload|saturat|\bbusy\b|\bfull\b|pending requests|concurren|at the moment", re.I)
# Said of the caller: it has used up what it may use.
_LIMIT = re.compile(r"rate.?limit|\brate\b|quota|budget|\b[rt]pm\b|per minute|limit exceeded", re.I)
# A 503 with a Retry-After that says this is not full but out of order.
_DOWN = re.compile(r"unavailable|upstream|loading|shutting down|draining|circuit|stopp", re.I)
# Characters of a text from outside that are looked at: no more than 4096 bytes hold, which is what is kept of a body.
_MAX_READ = 1024


class Conclusion(NamedTuple):
    """outcome, and for anything not ok what the error says (not yet scrubbed)."""

    outcome: Outcome
    code: str | None = None
    text: str | None = None


def conclude(exchange: Exchange, ending: Ending) -> Conclusion:
    """Success: 2xx, terminal marker seen, of a success kind, no error on the way, body valid. All else has a name.

    Completes the exchange: the end of the body may still finish an event or, without streaming, is the answer.
    """
    status = exchange.status
    if ending == "cut" and exchange.ended:
        ending = "complete"  # the step ended between the last byte and the user's waking
    if _echoes_another(exchange):
        return Conclusion("bad_body", "cross_talk", "the answer's X-Request-Id is that of another request of ours")
    if exchange.is_terminal() and status is not None and 200 <= status < 300:
        return _terminal(exchange)
    if ending == "left" and exchange.bad is None and (status is None or 200 <= status < 300):
        return Conclusion("left")  # of a refusal that had begun, the status is known
    if ending in ("cut", "connect"):
        return Conclusion("cut" if ending == "cut" else "connect", None, exchange.trouble)
    if status is None:
        return Conclusion(_WITHOUT_STATUS[ending], None, exchange.bad or exchange.trouble)
    if not 200 <= status < 300:
        return Conclusion(*http_error(status, exchange.headers, b"".join(exchange.body)))
    if exchange.bad is not None:
        return Conclusion("bad_body", None, exchange.bad)
    if ending in ("reset", "timeout", "stalled"):
        return Conclusion(_WITHOUT_STATUS[ending], None, exchange.trouble)
    if ending == "eof" and not ends_by_eof(exchange):
        return Conclusion("truncated", None, "the connection closed inside the body")
    return _whole_body(exchange)


def ends_by_eof(exchange: Exchange) -> bool:
    """The body has neither a length nor chunks: the connection's end is its end."""
    return "content-length" not in exchange.headers and not exchange.is_chunked()


def _echoes_another(exchange: Exchange) -> bool:
    """The answer names another request of this process: the path mixed two up."""
    echoed, ours = exchange.headers.get("x-request-id"), exchange.request_id
    return echoed is not None and echoed != ours and echoed.startswith(ours.rpartition("-")[0] + "-")


_WITHOUT_STATUS: dict[Ending, Outcome] = {
    "complete": "bad_body", "eof": "reset", "reset": "reset", "timeout": "timeout", "stalled": "stalled",
    "bad": "bad_body",
}  # fmt: skip


def _whole_body(exchange: Exchange) -> Conclusion:
    """A 2xx body that ended as HTTP says it should."""
    if exchange.is_streamed:
        exchange.finish_body()
        if not exchange.is_terminal() and not exchange.dialect.is_complete(exchange.answer):
            return Conclusion("truncated", None, "the stream ended before its terminal event")
    else:
        body = b"".join(exchange.body)
        try:
            carried = exchange.dialect.read_body(body, exchange.answer, exchange.asked)
        except BadBodyError as error:
            return Conclusion("bad_body", str(error), body[:4096].decode("utf-8", "replace"))
        exchange.carried_whole = carried != NOTHING
        if exchange.carried_whole and exchange.answer.n_out == 0:
            exchange.answer.n_out = None  # some servers count nothing and say 0
    if exchange.t_end_ns is None:
        exchange.t_end_ns = exchange.now
    return _terminal(exchange)


def _terminal(exchange: Exchange) -> Conclusion:
    answer = exchange.answer
    if answer.error:
        return Conclusion("error_event", answer.error_code, answer.error_text)
    if answer.finish in FAILED_FINISH:
        return Conclusion("error_event", answer.finish, f"finish reason {answer.finish}")
    return Conclusion("ok")


def refusal(status: int, headers: Mapping[str, str], code: str | None, text: str | None) -> Outcome | None:
    """`limited`, `shed` or `rejected_unclear` for 429, and for 503 and 529 that say busy; None: not a refusal.

    headers: names in lower case. What the text says wins over headers, the server's fullness over the caller's limit.
    """
    if status not in (429, 503, 529):
        return None
    words = f"{code or ''} {text or ''}"
    if _FULL.search(words):
        return "shed"
    if status == 503:
        return "shed" if "retry-after" in headers and not _DOWN.search(words) else None
    if _LIMIT.search(words) or any(name.startswith("x-ratelimit") for name in headers):
        return "limited"
    return "shed" if "retry-after" in headers else "rejected_unclear"


def http_error(status: int, headers: Mapping[str, str], body: bytes) -> tuple[Outcome, str | None, str | None]:
    """(outcome, code, text) of an answer whose status is not 2xx."""
    code, text = read_error(body)
    if 300 <= status < 400:
        where = _redirected_to(headers.get("location", ""))
        return "bad_body", "redirect", f"redirected{where}; give --target the address it redirects to"
    refused = refusal(status, headers, code, text)
    if refused is not None:
        return refused, code, text
    return ("http_4xx" if status < 500 else "http_5xx"), code, text


def _redirected_to(location: str) -> str:
    """` to https://host:1`, or ` on the same host`; what else an address holds may be a secret."""
    try:
        url = urlsplit(location)
        port = "" if url.port is None else f":{url.port}"
    except ValueError:
        return ""
    if url.hostname is None:
        return " on the same host" if location else ""
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f" to {url.scheme or 'http'}://{host}{port}"


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header: a number, or a date measured against the answer's own Date header.

    None when absent, not a time, or a date without a Date to measure it by.
    """
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        until, sent = _date(value), _date(headers.get("date", ""))
        return None if until is None or sent is None else max(0.0, (until - sent).total_seconds())
    return seconds if 0 <= seconds < float("inf") else None


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def one_line(text: str | None, masked: Masked) -> str | None:
    """At most 200 characters on one line, every known secret masked.

    Masked is the text's start, five times as long as what is kept of it: it runs for every failed request.
    """
    if text is None:
        return None
    line = masked(" ".join(text[:_MAX_READ].split()))
    if len(text) >= _MAX_READ:
        # A secret across the end is masked if it is long enough to be told; a shorter start goes with the end.
        line = line[: 1 - PIECE]
    return line[:MAX_ERROR_TEXT]
