"""Percentiles, shares and rates, each bound against scipy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as oracle

from sweep import stats
from sweep.slo import n_needed

QUANTILES = (0.5, 0.9, 0.95, 0.99)


def plain(values):
    return np.array(values, dtype=np.float64), np.zeros(len(values), dtype=bool)


@pytest.mark.parametrize("n", [1, 2, 5, 28, 29, 58, 59, 60, 298, 299, 1000, 20_000])
@pytest.mark.parametrize("q", QUANTILES)
def test_rank_bounds_are_those_of_the_binomial_distribution(n, q):
    """Brute force over every rank: the largest sure lower and the smallest sure upper one."""
    ranks = np.arange(1, n + 1)
    lower = ranks[oracle.binom.sf(ranks - 1, n, q) >= 0.95 - 1e-12]
    upper = ranks[oracle.binom.cdf(ranks - 1, n, q) >= 0.95 - 1e-12]

    expected = (lower.max() if len(lower) else None, upper.min() if len(upper) else None)
    assert expected == stats.rank_bounds(n, q)


@pytest.mark.parametrize(("q", "n"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_an_upper_bound_exists_from_the_needed_n_on(q, n):
    """59 requests are the fewest that say anything of a p95 from above."""
    assert n == n_needed(q)
    assert stats.rank_bounds(n - 1, q)[1] is None
    assert stats.rank_bounds(n, q)[1] == n


@pytest.mark.parametrize("n", [1, 3, 59, 299, 1000, 100_000, 1_000_000])
@pytest.mark.parametrize("part", [0.0, 0.001, 0.01, 0.5, 0.999, 1.0])
def test_clopper_pearson_agrees_with_scipy(n, part):
    """Also for a million requests."""
    k = round(part * n)
    lo = 0.0 if k == 0 else oracle.beta.ppf(0.05, k, n - k + 1)
    hi = 1.0 if k == n else oracle.beta.ppf(0.95, k + 1, n - k)

    assert (pytest.approx(lo, abs=1e-10), pytest.approx(hi, abs=1e-10)) == stats.clopper_pearson(k, n)


@pytest.mark.parametrize("k", [0, 1, 2, 17, 199, 200, 201, 5_000, 1_000_000])
def test_poisson_bounds_agree_with_scipy(k):
    """Summed below 200 events, by Wilson and Hilferty above."""
    lo = 0.0 if k == 0 else oracle.chi2.ppf(0.05, 2 * k) / 2
    hi = oracle.chi2.ppf(0.95, 2 * k + 2) / 2

    assert (pytest.approx(lo, rel=1e-5), pytest.approx(hi, rel=1e-5)) == stats.poisson_bounds(k)


@pytest.mark.parametrize(("k", "n"), [(0, 299), (1, 473), (5, 1049)])
def test_n_for_share_is_the_first_that_suffices(k, n):
    """One request fewer does not."""
    assert n == stats.n_for_share(k, 0.01)
    assert stats.clopper_pearson(k, n)[1] <= 0.01 < stats.clopper_pearson(k, n - 1)[1]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.sampled_from(QUANTILES))
def test_nearest_rank_is_numpys_inverted_cdf(values, q):
    """numpy calls it inverted_cdf; rounding of q * n aside."""
    n = len(values)
    if abs(q * n - round(q * n)) < 1e-9:
        expected = sorted(values)[max(1, round(q * n)) - 1]
    else:
        expected = float(np.quantile(values, q, method="inverted_cdf"))

    assert expected == stats.percentile(*plain(values), q).v


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.sampled_from(QUANTILES), st.data())
def test_one_more_infinite_value_never_lowers_a_bound(values, q, data):
    """A failed request can make a level look worse, never better."""
    before = stats.percentile(*plain(values), q)
    after = stats.percentile(*plain([*values, math.inf]), q)

    assert after.v >= before.v
    assert before.lo is None or after.lo >= before.lo
    assert before.hi is None or after.hi >= before.hi
    # where there was no upper bound, the one that appears is infinite
    assert before.hi is not None or after.hi in (None, math.inf)


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans(), st.floats(0, 100)), min_size=1, max_size=120))
def test_a_censored_percentile_encloses_the_true_one(drawn):
    """Whatever a cut request would have taken, the bounds hold what they would have been."""
    values = np.array([value for value, _, _ in drawn])
    censored = np.array([is_cut for _, is_cut, _ in drawn])
    true = values + np.where(censored, [more for _, _, more in drawn], 0)
    seen, full = (stats.percentile(v, c, 0.9) for v, c in ((values, censored), plain(true)))

    assert seen.v == full.v or (seen.at_least and seen.v <= full.v)
    assert seen.lo is None or seen.lo <= full.lo
    assert seen.hi is None or seen.hi >= full.hi


def test_a_rank_on_a_cut_request_is_at_least_its_time():
    """Nine quick answers and one cut after 700 ms: the p95 is 700 ms or more."""
    values, _ = plain([10.0] * 9 + [700.0])
    value = stats.percentile(values, np.array([False] * 9 + [True]), 0.95)

    assert {"ge": 700.0} == value.as_json()["v"]
    assert value.as_json()["hi"] is None


def test_a_cut_request_above_the_rank_leaves_the_percentile_exact():
    """What is cut beyond the p50 does not touch the p50."""
    values, _ = plain([*range(1, 10), 700.0])
    value = stats.percentile(values, np.array([False] * 9 + [True]), 0.5)

    assert (5.0, False) == (value.v, value.at_least)


def test_infinity_is_written_as_a_word():
    """JSON encoders turn it into null, which would hide a failure."""
    value = stats.percentile(*plain([1.0, math.inf, math.inf]), 0.95)

    assert ("inf", "inf") == (value.as_json()["v"], stats.Value(1.0, 1, hi=math.inf).as_json()["hi"])


def test_nan_is_refused():
    """A missing number has to be None."""
    with pytest.raises(ValueError, match="NaN"):
        stats.Value(math.nan, 1).as_json()


@pytest.mark.parametrize(
    "value",
    [
        stats.percentile(*plain([]), 0.5), stats.share(0, 0), stats.rate(5, 0.0),
        stats.clustered_percentile(*plain([]), 0, 0.5),
    ],
)  # fmt: skip
def test_nothing_measured_is_unknown_with_a_reason(value):
    """Never 0."""
    assert value.v is None
    assert value.why


def test_clustered_bounds_are_wider_than_those_of_independent_values():
    """Gaps of one request are alike: a hundred requests of a hundred gaps are not ten thousand observations."""
    values, censored = plain(np.linspace(1, 100, 10_000))
    alone = stats.percentile(values, censored, 0.95)
    clustered = stats.clustered_percentile(values, censored, 100, 0.95)

    assert alone.v == clustered.v
    assert clustered.lo < alone.lo < alone.v < alone.hi < clustered.hi
    assert clustered.n == 100


def test_median_leaves_out_what_is_missing():
    """NaN is no value."""
    assert stats.median(np.array([3.0, np.nan, 1.0, 2.0])) == 2.0
    assert stats.median(np.array([np.nan])) is None
