"""Whether the load generator was what it should be during a window: late, saturated, out of ports. Pure; no numpy.

Shared by the judge and by the search of `--levels auto`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

CPU_SHARE_LIMIT = 0.7  # of one core, by one Locust process; above it gevent answers late
LAG_LIMIT_MS = 20.0  # p99 lateness of a 10 ms timer
# Below this share of the ephemeral ports towards the target, connect(2) searches long and soon fails (EADDRNOTAVAIL).
PORTS_LIMIT = 0.1
# A single late second (a garbage collection, a neighbour) does not spoil a window; this many in a row do, and more than
# this share of it. Windows under 6 s: half of them.
LATE_S = 3.0
LATE_SHARE = 0.1
_ROUNDING_S = 0.5  # generator lines are about a second apart, and the window opens between two of them


class Second(NamedTuple):
    """What one generator line says; None: not known. ports_share: of the ephemeral ports towards the target, free."""

    t_ns: int
    cpu_share: float | None
    lag_p99_ms: float | None
    ports_share: float | None = None


def late_why(lines: Sequence[Second], t_window_ns: int, t_close_ns: int) -> str | None:
    """How one load process was not what it should be in the window, or None. lines: its own, by time."""
    window_s = (t_close_ns - t_window_ns) / 1e9
    seconds = seconds_inside([line.t_ns for line in lines], t_window_ns, t_close_ns)
    if not any(t_window_ns < line.t_ns < t_close_ns + 1_000_000_000 for line in lines):
        return "no generator/ line of the window, so whether it was saturated is unknown"
    limit_s = min(LATE_S, window_s / 2)
    silent_s = window_s - sum(seconds)
    if silent_s > limit_s:
        return f"no generator/ line for {silent_s:.0f} s of {window_s:.0f} s"
    inf = math.inf
    shares = [inf if line.cpu_share is None else line.cpu_share for line in lines]
    lags = [inf if line.lag_p99_ms is None else line.lag_p99_ms for line in lines]
    for name, values, limit, text in (
        ("cpu_share", shares, CPU_SHARE_LIMIT, "generator saturated: CPU share {:.2f} of a core, limit {:.1f}"),
        ("lag_p99_ms", lags, LAG_LIMIT_MS, "generator late: timer p99 {:.1f} ms, limit {:.0f} ms"),
    ):
        bad = [value > limit for value in values]
        if _is_too_long(bad, seconds, limit_s, window_s):
            worst = max(value for value, over, s in zip(values, bad, seconds, strict=True) if over and s > 0)
            told = text.format(worst, limit) if math.isfinite(worst) else f"{name} unknown"
            total_s = sum(s for s, over in zip(seconds, bad, strict=True) if over)
            return f"{told}; {total_s:.0f} s of {window_s:.0f} s"
    return _ports_why(lines, seconds)


def seconds_inside(t_ns: Sequence[int], t_window_ns: int, t_close_ns: int) -> list[float]:
    """Time of the window each line speaks for: from the line before (1 s for the first) to its own instant.

    A process that stood still wrote nothing meanwhile; the line after it speaks for all that time.
    """
    before = [t_ns[0] - 1_000_000_000, *t_ns[:-1]] if t_ns else []
    return [
        max(0, min(t, t_close_ns) - max(since, t_window_ns)) / 1e9 for t, since in zip(t_ns, before, strict=True)
    ]


def _is_too_long(bad: Sequence[bool], seconds: Sequence[float], limit_s: float, window_s: float) -> bool:
    total_s = longest_s = run_s = 0.0
    for is_bad, s in zip(bad, seconds, strict=True):
        run_s = run_s + s if is_bad else 0.0
        total_s += s if is_bad else 0.0
        longest_s = max(longest_s, run_s)
    rounding_s = min(_ROUNDING_S, limit_s / 2)  # a window of a second is not spoilt by any part of one
    return total_s > 0 and (longest_s > limit_s - rounding_s or total_s > max(limit_s, LATE_SHARE * window_s))


def _ports_why(lines: Sequence[Second], seconds: Sequence[float]) -> str | None:
    """One second without a free port is enough: requests that could not connect then failed by our own doing."""
    inside = [line.ports_share for line, s in zip(lines, seconds, strict=True) if s > 0]
    least = min((share for share in inside if share is not None), default=None)
    if least is None or least >= PORTS_LIMIT:
        return None
    return (
        f"generator short of ephemeral ports: {least:.1%} left towards the target, limit {PORTS_LIMIT:.0%}; "
        "widen net.ipv4.ip_local_port_range or keep connections alive"
    )
