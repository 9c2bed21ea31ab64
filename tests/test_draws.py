"""Shares that are exact in the long run, by the seed alone."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.draws import Draw, shared_out

WEIGHTS = st.lists(st.floats(0, 100), min_size=1, max_size=5).filter(lambda weights: sum(weights) > 0.01)


def drawn(weights, seed, n):
    draw = Draw(weights, seed)
    return list(islice(iter(draw.next, None), n))


@given(WEIGHTS, st.integers(0, 2**63), st.integers(0, 400))
def test_every_count_stays_near_its_share(weights, seed, n):
    """However unlikely a run of a purely random draw would be: never more than two blocks of 20 away."""
    counts = Counter(drawn(weights, seed, n))

    for kind, weight in enumerate(weights):
        assert abs(counts[kind] - n * weight / sum(weights)) <= 40


@pytest.mark.parametrize(("weights", "expected"), [((7, 3), [700, 300]), ((0.01, 0.99), [10, 990]), ((1, 1, 2), None)])
def test_the_share_is_exact_over_a_thousand(weights, expected):
    counts = Counter(drawn(weights, 5, 1000))

    assert (expected or [250, 250, 500]) == [counts[kind] for kind in range(len(weights))]


def test_a_weight_of_nothing_is_never_drawn():
    assert {1} == set(drawn((0, 1), 3, 200))


def test_the_seed_decides_and_no_pattern_repeats():
    """The same seed gives the same draws; they do not come in turns."""
    first, again, other = (drawn((1, 1), seed, 100) for seed in (1, 1, 2))

    assert first == again != other
    assert first[:20] != first[20:40]
    assert {(0, 0), (0, 1), (1, 0), (1, 1)} == set(pairwise(first))


@given(st.integers(0, 500), WEIGHTS)
def test_what_is_shared_out_adds_up(number, weights):
    """Each part is its exact share, rounded down or up."""
    parts = shared_out(number, weights)

    assert number == sum(parts)
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - number * weight / sum(weights)) < 1 + 1e-6


def test_the_largest_remainder_gets_what_is_left():
    assert [5, 2, 1] == shared_out(8, (5, 2, 1))
    assert [3, 3, 2] == shared_out(8, (1, 1, 1))
    assert [6, 2] == shared_out(8, (2.9, 1.1))
