"""Clients that leave before the answer ends, as real ones do: they close their connection. Outcome `left`.

Before the first token, after a drawn part of the usual time to it; in mid-stream, after a drawn part of the usual
number of token events; of a whole answer, after a drawn part of its usual time. Usual: the median of this process's
last good answers, at first what the preflight showed. An answer that is over before its client wanted to leave stays
what it is.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import gevent

from sweep.dialects import Dialect
from sweep.draws import Draw
from sweep.exchange import Ending, Exchange
from sweep.records import Record
from sweep.senders import LEAVING, seed_of
from sweep.step_files import StepOrder
from sweep.units import MODES, PHASES

_LAST = 51  # good answers whose median is what is usual
_PARTS = (0.1, 0.9)  # of what is usual, between which a client leaves


class Leaving:
    """Draws who leaves, and when. With a ratio of 0 every exchange is a plain one."""

    def __init__(self, order: StepOrder) -> None:
        self._at = {mode: [at for at in PHASES[mode] if not order.cancel_at or at in order.cancel_at] for mode in MODES}
        ratio, seed = order.cancel_ratio, seed_of(order, LEAVING)
        # Each mode has draws of its own: one that cannot leave must not use up those of the other.
        self._draws = {
            mode: Draw([ratio / len(ats)] * len(ats) + [1 - ratio], seed + i)
            for i, (mode, ats) in enumerate(self._at.items()) if ratio and ats
        }  # fmt: skip
        self._random = random.Random(seed)
        self._usual = {name: deque([first] if first else [], _LAST) for name, first in order.usual.items()}

    def exchange(self, dialect: Dialect, stream: bool, request_id: str, asked: Mapping[str, Any]) -> Exchange:
        """One whose client leaves, if it is drawn and what is usual is known. asked: the body that is sent."""
        if not self._draws:
            return Exchange(dialect, stream, request_id, asked)
        mode = MODES[0] if stream else MODES[1]
        draw = self._draws.get(mode)
        kind = len(self._at[mode]) if draw is None else draw.next()
        if kind < len(self._at[mode]):
            at = self._at[mode][kind]
            seen = self._usual.get(at)
            part = self._random.uniform(*_PARTS)
            if seen:
                return LeavingExchange(dialect, stream, request_id, asked, at, part * statistics.median(seen))
        return Exchange(dialect, stream, request_id, asked)

    def saw(self, record: Record) -> None:
        """Learns from a good answer what is usual."""
        if not self._draws or record.outcome != "ok":
            return
        took = {"before_first": record.t_first_ns, "nonstream": None if record.stream else record.t_end_ns}
        for at, t_ns in took.items():
            if t_ns is not None:
                self._usual.setdefault(at, deque(maxlen=_LAST)).append((t_ns - record.t_start_ns) / 1e9)
        if record.stream and record.n_events:
            self._usual.setdefault("mid_stream", deque(maxlen=_LAST)).append(float(record.n_events))


def phase_of(exchange: Exchange) -> str | None:
    """When its client means to leave; None for one that stays."""
    return exchange.at if isinstance(exchange, LeavingExchange) else None


class LeavingExchange(Exchange):
    """An exchange whose client leaves `after` so many seconds since its start, or token events in mid-stream."""

    __slots__ = ("_end", "_n_events", "_timer", "after", "at")

    def __init__(
        self, dialect: Dialect, stream: bool, request_id: str, asked: Mapping[str, Any], at: str, after: float
    ) -> None:
        self.at = at
        self.after = after
        self._n_events = max(1, round(after)) if at == "mid_stream" else None
        self._timer: Any = None  # of gevent, which tells no types
        self._end: Callable[[Ending], None] | None = None
        super().__init__(dialect, stream, request_id, asked)

    @property
    def end(self) -> Callable[[Ending], None] | None:
        """Set by the connection while it reads: only then can a client leave."""
        return self._end

    @end.setter
    def end(self, end: Callable[[Ending], None] | None) -> None:
        self._end = end
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None
        if end is not None and self._n_events is None:
            left_s = self.after - (time.monotonic_ns() - self.t_start_ns) / 1e9
            self._timer = gevent.get_hub().loop.timer(max(left_s, 0.0))
            self._timer.start(self._leave)

    def feed(self, data: bytes, t_ns: int) -> bool:
        is_over = super().feed(data, t_ns)
        if not is_over and self._n_events is not None and self.n_events >= self._n_events and not self.is_terminal():
            self._leave()
        return is_over

    def _leave(self) -> None:
        came = self.at == "before_first" and self.t_first_ns is not None
        if self._end is not None and not came:
            self._end("left")
