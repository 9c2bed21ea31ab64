"""How long a request may take, and how it ends when its time is over. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sweep.exchange import Ending, Exchange

# After the terminal event the body's own end follows within milliseconds (15-35 ms seen); past this we stop waiting.
LINGER_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. first: to the first token of a stream; idle: between bytes once the answer began; total: all of it."""

    connect_s: float = 5.0
    first_s: float = 120.0
    idle_s: float = 30.0
    total_s: float = 600.0


def overdue(exchange: Exchange, now_ns: int, timeouts: Timeouts) -> Ending | None:
    """How an exchange ends at now_ns if its time is over. A ping moves the idle time-out, never the one to a token.

    Until a stream's first token only the latter counts: headers come at once from some servers, before a queue or the
    loading of a model.
    """
    if exchange.t_end_ns is not None:
        return "complete" if now_ns - exchange.t_end_ns > LINGER_NS else None
    if now_ns - exchange.t_start_ns > timeouts.total_s * 1e9:
        return "timeout"
    waits_for_token = exchange.stream and exchange.t_first_ns is None and exchange.status in (None, 200)
    if waits_for_token:
        t_sent_ns = exchange.t_sent_ns
        return "timeout" if t_sent_ns is not None and now_ns - t_sent_ns > timeouts.first_s * 1e9 else None
    if exchange.t_read_ns is not None and now_ns - exchange.t_read_ns > timeouts.idle_s * 1e9:
        return "stalled"
    return None
