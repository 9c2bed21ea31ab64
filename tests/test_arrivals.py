"""When requests of an open loop are due: their statistics, the same for the same seed."""

import math
from itertools import islice, pairwise

import pytest

from sweep.arrivals import due_ns, too_few_due

S = 1_000_000_000


def within(seconds: float, *schedule: object, **more: object) -> list[int]:
    return [t for t in islice(due_ns(*schedule, **more), 100_000) if t < seconds * S]


def test_poisson_arrivals_keep_their_rate_and_vary_as_poisson_does():
    """The count of 1,000 s lies within five standard deviations, and so does the spread of the counts a second."""
    times = within(1000, 50.0, "poisson", 7)
    counts = [0] * 1000
    for t in times:
        counts[t // S] += 1

    assert abs(len(times) - 50_000) < 5 * math.sqrt(50_000)
    variance = sum((n - 50) ** 2 for n in counts) / 1000
    assert abs(variance - 50) < 5 * 50 * math.sqrt(2 / 1000)
    gaps = [(b - a) / S for a, b in pairwise(times)]
    longer = sum(gap > 1 / 50 for gap in gaps) / len(gaps)
    assert abs(longer - math.exp(-1)) < 0.012  # exponential: 37 % are above the mean


def test_the_same_seed_gives_the_same_instants_and_another_gives_others():
    """A run can be repeated with the very same arrivals."""
    first, again, other = (list(islice(due_ns(5.0, "poisson", seed), 200)) for seed in (1, 1, 2))

    assert first == again
    assert not set(first) & set(other)
    assert first == sorted(first)


def test_constant_arrivals_are_evenly_spaced():
    """The seed changes nothing."""
    assert [200_000_000, 400_000_000, 600_000_000] == list(islice(due_ns(5.0, "constant", 1), 3))
    assert list(islice(due_ns(5.0, "constant", 1), 50)) == list(islice(due_ns(5.0, "constant", 2), 50))


def test_processes_that_share_a_rate_are_evenly_spaced_together():
    """Three processes of 2/s each make 6/s, not three requests at once."""
    parts = [islice(due_ns(2.0, "constant", 1, first=place / 3), 4) for place in (1, 2, 3)]
    together = sorted(t for part in parts for t in part)

    assert all(abs(b - a - S / 6) <= 1 for a, b in pairwise(together))


@pytest.mark.parametrize("arrivals", ["constant", "poisson"])
def test_a_ramp_lets_the_rate_grow_linearly(arrivals):
    """Of 10 s up to 100/s the first half brings a quarter; after it the rate is whole."""
    times = within(20, 100.0, arrivals, 3, ramp_s=10.0)
    first, ramp, after = (sum(low <= t / S < high for t in times) for low, high in ((0, 5), (0, 10), (10, 20)))

    for expected, n in ((125, first), (500, ramp), (1000, after)):
        assert abs(n - expected) <= (1 if arrivals == "constant" else 5 * math.sqrt(expected))


@pytest.mark.parametrize(
    ("n_due", "arrivals", "expected"),
    [
        (94, "constant", False), (93, "constant", True), (100, "constant", False),
        (55, "poisson", False), (53, "poisson", True), (200, "poisson", False),
    ],
)  # fmt: skip
def test_a_window_with_too_few_due_requests_is_told_from_a_draw(n_due, arrivals, expected):
    """10/s over 10 s: 95 % of 100 less what rounding, or four standard deviations of a draw, explain."""
    assert expected == too_few_due(n_due, 10.0, 10.0, arrivals)
