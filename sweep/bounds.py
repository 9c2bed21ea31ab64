"""Exact one-sided 95 % bounds of quantiles, shares and counts, by ranks and numbers alone. Pure; math only.

Shared by the judge, which has arrays, and by the search of `--levels auto`, which runs without numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from sweep.slo import CONFIDENCE

Z = 1.6448536269514722  # 95 % quantile of the normal distribution
EXACT_EVENTS = 200  # up to here a Poisson bound is summed; above, Wilson-Hilferty is within 1e-5 of it
_SLACK = 1e-12  # of a probability that rounding leaves just short of 0.95 (n = 1, q = 0.95)


def rank(n: int, q: float) -> int:
    """Nearest rank of the quantile q among n > 0 sorted values, 1..n."""
    return max(1, math.ceil(q * n - 1e-9))


@lru_cache(maxsize=4096)
def rank_bounds(n: int, q: float) -> tuple[int | None, int | None]:
    """Ranks, 1..n, of the one-sided 95 % lower and upper bound of quantile q; None where n is too small for one."""
    lower = _last(lambda r: _beta(r, n - r + 1, q) >= CONFIDENCE - _SLACK, n)
    short = _last(lambda r: 1 - _beta(r, n - r + 1, q) < CONFIDENCE - _SLACK, n)
    return (lower or None), (short + 1 if short < n else None)


@lru_cache(maxsize=4096)
def clopper_pearson(k: int, n: int) -> tuple[float, float]:
    """One-sided 95 % lower and upper bound of the probability behind k of n, 0 <= k <= n, n > 0."""
    tail = 1 - CONFIDENCE
    lo = 0.0 if k == 0 else _bisect(lambda p: _beta(k, n - k + 1, p) < tail, 0.0, k / n)
    hi = 1.0 if k == n else _bisect(lambda p: 1 - _beta(k + 1, n - k, p) > tail, k / n, 1.0)
    return lo, hi


def n_for_share(k: int, limit: float) -> int:
    """Smallest n for which k of n has its upper bound at or below the limit, 0 < limit < 1."""
    high = max(1, k)
    while clopper_pearson(k, high)[1] > limit:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if middle >= max(1, k) and clopper_pearson(k, middle)[1] <= limit:
            high = middle
        else:
            low = middle
    return high


@lru_cache(maxsize=4096)
def poisson_bounds(k: int) -> tuple[float, float]:
    """One-sided 95 % lower and upper bound of the mean behind k events."""
    tail = 1 - CONFIDENCE
    if k > EXACT_EVENTS:
        return _wilson_hilferty(k, -Z), _wilson_hilferty(k + 1, Z)
    lo = 0.0 if k == 0 else _bisect(lambda m: 1 - _poisson_cdf(k - 1, m) < tail, 0.0, float(k))
    return lo, _bisect(lambda m: _poisson_cdf(k, m) > tail, float(k), 3 * k + 10.0)


def _last(holds: Callable[[int], bool], n: int) -> int:
    """Largest r in 1..n for which it holds, 0 if none; it holds up to some r and never after."""
    low, high = 0, n + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _bisect(below: Callable[[float], bool], low: float, high: float) -> float:
    """The point of [low, high] where `below` turns false, to the last bit or so."""
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if below(middle) else (low, middle)
    return high


def _poisson_cdf(k: int, mean: float) -> float:
    """P(N <= k) of a Poisson variable."""
    if mean <= 0:
        return 1.0
    log_mean = math.log(mean)
    return math.fsum(math.exp(i * log_mean - mean - math.lgamma(i + 1)) for i in range(k + 1))


def _wilson_hilferty(k: int, z: float) -> float:
    return k * (1 - 1 / (9 * k) + z / (3 * math.sqrt(k))) ** 3


def _beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), which is P(Bin(a + b - 1, x) >= a) for whole a and b.

    Continued fraction by Lentz's method (Numerical Recipes, 6.4); checked against scipy in the tests.
    """
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1) / (a + b + 2):
        return math.exp(log_front) * _beta_fraction(a, b, x) / a
    return 1 - math.exp(log_front) * _beta_fraction(b, a, 1 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 20_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + term * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + term / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return result
