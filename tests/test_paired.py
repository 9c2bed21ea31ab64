"""Paired blocks -> ratio and difference with their interval: by hand, against scipy, and over many simulated runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as oracle

from sweep.paired import MIN_PAIRS, compare, student_t


@pytest.mark.parametrize("df", [1, 2, 3, 7, 20, 21, 30, 60, 500])
def test_the_t_points_are_students(df):
    """Table and expansion alike, to the fourth digit."""
    assert pytest.approx(oracle.t.ppf(0.975, df), abs=2e-4) == student_t(df)


def test_an_interval_by_hand():
    """Four pairs, differences 2, 3, 4, 3: mean 3, s = 0.8165, t(3) = 3.1824, so 3 ± 1.299."""
    compared = compare([(12.0, 10.0), (13.0, 10.0), (14.0, 10.0), (13.0, 10.0)])

    difference, ratio = compared.difference, compared.ratio
    assert (3.0, 4) == (difference.v, difference.n)
    assert pytest.approx((3 - 1.2993, 3 + 1.2993), abs=1e-3) == (difference.lo, difference.hi)
    assert pytest.approx((1.2 * 1.3 * 1.4 * 1.3) ** 0.25) == ratio.v
    interval = oracle.t.interval(0.95, 3, *_mean_and_error(np.log([1.2, 1.3, 1.4, 1.3])))
    assert pytest.approx(np.exp(interval), rel=1e-4) == (ratio.lo, ratio.hi)
    assert "higher" == compared.shown


def test_the_other_way_round_is_the_reciprocal():
    """Which target stands first changes no conclusion."""
    pairs = [(11.0, 10.0), (12.5, 10.5), (11.8, 9.9)]
    there, back = compare(pairs), compare([(b, a) for a, b in pairs])

    assert pytest.approx((1 / there.ratio.v, 1 / there.ratio.hi)) == (back.ratio.v, back.ratio.lo)
    assert pytest.approx(-there.difference.v) == back.difference.v


@pytest.mark.parametrize("n", range(MIN_PAIRS))
def test_too_few_pairs_are_unknown_with_the_number_needed(n):
    """However clear they look."""
    compared = compare([(20.0, 10.0)] * n)

    assert (None, f"{n} of 3 pairs of blocks that an interval needs") == (compared.ratio.v, compared.ratio.why)
    assert compared.difference.v is None and compared.shown is None


def test_a_zero_has_a_difference_and_no_ratio():
    """No block's goodput of 0 becomes an infinite ratio."""
    compared = compare([(0.0, 1.0), (0.0, 1.0), (0.1, 1.0)])

    assert (None, "a block's value is 0") == (compared.ratio.v, compared.ratio.why)
    assert compared.difference.hi < 0


@pytest.mark.parametrize(("true_ratio", "drift"), [(1.0, 0.0), (1.0, 0.02), (1.3, 0.02)])
def test_the_interval_holds_the_truth_in_19_of_20_runs(true_ratio, drift):
    """A target against itself shows a difference in 1 run of 20, and a slower one by its factor; also on a machine
    that grows slower by 2 % a block, in the order that the blocks take (BA AB AB BA)."""
    random = np.random.default_rng(7)
    places = np.array([[1, 0], [2, 3], [4, 5], [7, 6]])  # of the first target's block and the other's, by round
    held = shown = 0
    n_runs = 1000
    for _ in range(n_runs):
        noise = np.exp(random.normal(0, 0.05, (4, 2)) + drift * places)
        compared = compare([(true_ratio * a, b) for a, b in noise])
        held += compared.ratio.lo <= true_ratio <= compared.ratio.hi
        shown += compared.shown != "no difference shown"

    assert held / n_runs > 0.93
    if true_ratio == 1:
        assert shown / n_runs < 0.07
    else:
        assert shown / n_runs > 0.9


def _mean_and_error(values):
    return values.mean(), values.std(ddof=1) / math.sqrt(len(values))
