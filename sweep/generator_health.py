"""Health of one load process, once a second: CPU, loop lag by a 10 ms timer, what is open, what it delivers."""

from __future__ import annotations

import time

import gevent
from locust.env import Environment

from sweep.load import LineSink, Load
from sweep.ports import Ports, Way, ports_left
from sweep.records import GeneratorLine, to_line

_TIMER_S = 0.01  # period of the timer whose lateness is the loop lag
_LEAST_S = 0.5  # of the last line: the p99 of less is its worst sample
_COST_SHARE = 0.01  # of the time, that counting ports may take of the event loop


def write_lines(environment: Environment, load: Load, lines: LineSink) -> None:
    """One line a second until the greenlet is killed, and then one for what is left of the last."""
    second = _Second(environment, load)
    try:
        while True:
            due_s = time.monotonic() + _TIMER_S
            gevent.sleep(_TIMER_S)
            second.tick((time.monotonic() - due_s) * 1000)
            if second.length_s >= 1.0 and second.lags_ms:
                lines.append(to_line(second.line()))
    finally:
        if second.length_s >= _LEAST_S and second.lags_ms:
            lines.append(to_line(second.line()))


class _Second:
    """The second under way; `line` ends it and begins the next."""

    def __init__(self, environment: Environment, load: Load) -> None:
        self._environment = environment
        self._load = load
        self._ports = _PortWatch(load)
        self._cpu_s, self._began_s = time.process_time(), time.monotonic()
        self.lags_ms: list[float] = []
        self._n_users = environment.runner.user_count

    def tick(self, lag_ms: float) -> None:
        if not self._load.is_over:  # then users are being stopped: no lack of them, and none of the window's lateness
            self.lags_ms.append(lag_ms)
            self._n_users = self._environment.runner.user_count

    @property
    def length_s(self) -> float:
        return time.monotonic() - self._began_s

    def _achieved(self) -> float | None:
        """What it delivers of what was ordered; None in an open loop while nothing is due."""
        load = self._load
        if load.order.rate_per_s is not None:
            return load.started / load.due if load.due else None
        return self._n_users / load.order.users if load.order.users else None

    def line(self) -> GeneratorLine:
        load = self._load
        now_s, used_s = time.monotonic(), time.process_time()
        lags_ms = sorted(self.lags_ms)
        free = self._ports.look(now_s)
        line = GeneratorLine(
            t_mono_ns=time.monotonic_ns(),
            cpu_share=(used_s - self._cpu_s) / (now_s - self._began_s),
            lag_p50_ms=lags_ms[len(lags_ms) // 2],
            lag_p99_ms=lags_ms[int(len(lags_ms) * 0.99)],
            in_flight=load.in_flight,
            started=load.started,
            connections=sum(connection.is_open for connection in load.connections),
            users=self._n_users,
            start_lag_p99_ms=load.start_lag_p99_ms(),
            achieved_ratio=self._achieved(),
            ports=free.total,
            ports_left=free.left,
            ports_why=free.why,
        )
        self._cpu_s, self._began_s, self.lags_ms = used_s, now_s, []
        return line


class _PortWatch:
    """Counts free ports on the way of the connection made last, as often as its own cost allows."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._way: Way | None = None
        self._due_s = 0.0

    def look(self, now_s: float) -> Ports:
        self._way = next(filter(None, (each.way for each in self._load.connections)), self._way)
        if now_s < self._due_s:
            return Ports(None, None, "not counted in this second: counting takes too long to do it in each")
        began_s = time.monotonic()
        seen = ports_left(self._way)
        self._due_s = now_s + (time.monotonic() - began_s) / _COST_SHARE
        return seen
