"""Two targets driven in turns -> how much one differs from the other, with a 95 % interval. Pure; math only.

A pair is one block of each, minutes or less apart, so that what drifts on the machine is in both. Of the pairs: the
geometric mean of the ratios (a t-interval of their logarithms) and the mean of the differences (a t-interval too).
The blocks' medians are nearly normal whatever the latencies are; with fewer than MIN_PAIRS an interval says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sweep.stats import Value, unknown

MIN_PAIRS = 3  # with two, t is 12.7: the interval would hold nearly everything
Shown = Literal["higher", "lower", "no difference shown"]

# Two-sided 95 % points of Student's t by degrees of freedom, from 1; checked against scipy in the tests.
_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448,
    2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip
_Z = 1.959964  # of the normal distribution


@dataclass(frozen=True, slots=True)
class Compared:
    """first / other, and first - other, over the pairs; unknown with the reason, n: pairs that count."""

    ratio: Value
    difference: Value

    @property
    def shown(self) -> Shown | None:
        """What the interval proves of the first target; None when there is none."""
        lo, hi = self.ratio.lo, self.ratio.hi
        if lo is None or hi is None:
            return None
        return "higher" if lo > 1 else "lower" if hi < 1 else "no difference shown"

    @staticmethod
    def unknown(why: str, n: int = 0) -> Compared:
        return Compared(unknown(why, n), unknown(why, n))


def compare(pairs: Sequence[tuple[float, float]]) -> Compared:
    """pairs: (first, other), finite and above 0 for a ratio."""
    n = len(pairs)
    if n < MIN_PAIRS:
        return Compared.unknown(few_pairs(n), n)
    difference = _interval([first - other for first, other in pairs])
    if any(value <= 0 for pair in pairs for value in pair):
        return Compared(unknown("a block's value is 0", n), difference)
    logs = _interval([math.log(first / other) for first, other in pairs])
    assert logs.v is not None and logs.lo is not None and logs.hi is not None
    return Compared(Value(math.exp(logs.v), n, math.exp(logs.lo), math.exp(logs.hi)), difference)


def few_pairs(n: int) -> str:
    return f"{n} of {MIN_PAIRS} pairs of blocks that an interval needs"


def student_t(df: int) -> float:
    """Two-sided 95 % point; above the table by Cornish-Fisher's expansion, within 1e-4 of it."""
    if df <= len(_T):
        return _T[df - 1]
    z = _Z
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return z + math.fsum(term / float(df**power) for power, term in enumerate(terms, 1))


def _interval(values: Sequence[float]) -> Value:
    n = len(values)
    mean = math.fsum(values) / n
    half = student_t(n - 1) * math.sqrt(math.fsum((each - mean) ** 2 for each in values) / (n - 1) / n)
    return Value(mean, n, mean - half, mean + half)
