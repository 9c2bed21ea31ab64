"""Arrays -> percentiles, shares and rates with their one-sided 95 % bounds (`bounds`). Pure; numpy and math only.

Every bound is exact (binomial, or Poisson for few events); no distribution of the latencies is assumed. `lo` and `hi`
are one-sided: the true value lies above `lo` in 95 % of repetitions, and below `hi` in 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sweep.bounds import clopper_pearson as clopper_pearson
from sweep.bounds import n_for_share as n_for_share
from sweep.bounds import poisson_bounds as poisson_bounds
from sweep.bounds import rank as rank
from sweep.bounds import rank_bounds as rank_bounds

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Value:
    """A judged value: v (inf allowed; at_least: the true one is v or more), n, bounds, or None and why."""

    v: float | None
    n: int
    lo: float | None = None
    hi: float | None = None
    why: str | None = None
    at_least: bool = False

    def as_json(self) -> dict[str, Any]:
        """{"v","n","lo","hi","why"}; infinity is "inf", a censored v {"ge": x}, NaN never."""
        v: Any = _json(self.v)
        return {
            "v": {"ge": v} if self.at_least and v != "inf" else v,
            "n": self.n, "lo": _json(self.lo), "hi": _json(self.hi), "why": self.why,
        }  # fmt: skip


def unknown(why: str, n: int = 0) -> Value:
    return Value(None, n, why=why)


def percentile(values: Floats, censored: Bools, q: float) -> Value:
    """Nearest-rank quantile of values, of which the censored ones are only known to be that large or larger.

    values: no NaN, +inf allowed. The true array lies between the one with each censored value as it is and the one with
    each at infinity: v and lo come from the first, hi from the second, and v is `at_least` where the two disagree.
    """
    n = len(values)
    if n == 0:
        return unknown("no request")
    least, most = _sorted(values, censored)
    at = rank(n, q) - 1
    lower, upper = rank_bounds(n, q)
    return Value(
        v=float(least[at]),
        n=n,
        lo=None if lower is None else float(least[lower - 1]),
        hi=None if upper is None else float(most[upper - 1]),
        at_least=bool(most[at] != least[at]),
    )


def clustered_percentile(values: Floats, censored: Bools, n_clusters: int, q: float) -> Value:
    """Quantile of values that come in clusters (the gaps of one request): bounds by ranks of n_clusters, not of values.

    Values of one request are alike, so counting each as an observation would make the interval too narrow.
    """
    n = len(values)
    if n == 0 or n_clusters == 0:
        return unknown("no value")
    least, most = _sorted(values, censored)
    at = rank(n, q) - 1
    lower, upper = rank_bounds(n_clusters, q)
    return Value(
        v=float(least[at]),
        n=n_clusters,
        lo=None if lower is None else float(least[max(0, math.floor((lower - 1) / n_clusters * n))]),
        hi=None if upper is None else float(most[rank(n, upper / n_clusters) - 1]),
        at_least=bool(most[at] != least[at]),
    )


def share(k: int, n: int) -> Value:
    """k of n with Clopper-Pearson bounds; unknown when n is 0."""
    if n == 0:
        return unknown("nothing offered")
    lo, hi = clopper_pearson(k, n)
    return Value(k / n, n, lo, hi)


def rate(k: int, duration_s: float) -> Value:
    """k events in a time, per second, with one-sided 95 % Poisson bounds. A closed loop varies less than that."""
    if not duration_s > 0:
        return unknown("no time measured")
    lo, hi = poisson_bounds(k)
    return Value(k / duration_s, k, lo / duration_s, hi / duration_s)


def median(values: Floats) -> float | None:
    """Middle of the values that are no NaN; None when there is none."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


def largest(values: Iterable[float | None]) -> float | None:
    """Largest of the values that are known; None when there is none."""
    known = [float(value) for value in values if value is not None]
    return max(known, default=None)


def smallest(values: Iterable[float | None]) -> float | None:
    """Smallest of the values that are known; None when there is none."""
    known = [float(value) for value in values if value is not None]
    return min(known, default=None)


def _sorted(values: Floats, censored: Bools) -> tuple[Floats, Floats]:
    least = np.sort(values)
    return least, np.sort(np.where(censored, np.inf, values)) if censored.any() else least


def _json(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        raise ValueError("a judged value is NaN; a missing one is None with its why")
    return "inf"
