"""When the requests of an open loop are due, whatever the answers do. Pure.

Constant arrivals are evenly spaced; Poisson arrivals have independent exponential gaps drawn from a seed. During a ramp
the rate grows linearly from 0. The same seed gives the same instants.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Literal

Arrivals = Literal["poisson", "constant"]

# A late start is charged to the target, whose latency counts from t_due: at most 1 in 100 requests may carry more of
# it than this. A timer of a healthy generator is late by 1 ms, its loop by at most 20 ms (LAG_LIMIT_MS), and a first
# token that a person waits for takes some 100 ms.
START_LAG_LIMIT_MS = 50.0
STARTED_LIMIT = 0.95  # of what was due in the window (design §6)
_SIGMAS = 4.0  # of a Poisson count: fewer than that by chance in 1 of 30,000 windows


def due_ns(
    rate_per_s: float, arrivals: Arrivals, seed: int, ramp_s: float = 0.0, first: float = 1.0
) -> Iterator[int]:
    """Nanoseconds after the start of the load at which a request is due: ascending, without end.

    rate_per_s: above 0. first: of constant arrivals, the place of the first in its own gap, 0 < first <= 1; processes
    that share a rate take different ones, so that together they are evenly spaced.
    """
    draw = random.Random(seed)
    n = 0.0  # arrivals to be expected until then
    while True:
        if arrivals == "constant":
            n += first if n == 0.0 else 1.0
        else:
            n -= math.log(1.0 - draw.random())  # not expovariate, whose draws may differ between Pythons
        yield round(_instant_s(n, rate_per_s, ramp_s) * 1e9)


def _instant_s(n: float, rate_per_s: float, ramp_s: float) -> float:
    """When the n-th arrival is to be expected: the inverse of n = rate · t² / (2 ramp) within the ramp."""
    if n < rate_per_s * ramp_s / 2:
        return math.sqrt(2 * n * ramp_s / rate_per_s)
    return n / rate_per_s + ramp_s / 2


def too_few_due(n_due: int, rate_per_s: float, window_s: float, arrivals: Arrivals) -> bool:
    """Whether a window holds fewer due requests than its rate gives, beyond what the draw explains."""
    expected = rate_per_s * window_s
    by_chance = 1.0 + (_SIGMAS * math.sqrt(expected) if arrivals == "poisson" else 0.0)
    return n_due < STARTED_LIMIT * expected - by_chance
