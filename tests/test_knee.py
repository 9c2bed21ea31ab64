"""Where throughput stopped growing, by the bounds of the rates, and the SLO that a run proposes of itself."""

import dataclasses

import pytest
from build import make_facts, make_row

from sweep import stats
from sweep.knee import knee, proposed_slos
from sweep.token_rate import TokenRate


def row(level, per_s, *, ms=100.0, tokens=None, window_s=60.0, mode="stream", **changed):
    """A level that completed so many requests a second; tokens: tokens a second, None when nobody counted them."""
    n = round(per_s * window_s)
    made = make_row(str(level), mode, ms=[ms] * 400)
    told = stats.unknown("no tokens") if tokens is None else stats.Value(tokens, n, tokens * 0.97, tokens * 1.03)
    return dataclasses.replace(made, request_rate=stats.rate(n, window_s), window_s=window_s,
                               tokens=TokenRate(told, None if tokens is None else "usage"), **changed)  # fmt: skip


def said(*rows, **given):
    found = knee(make_facts(*rows, **given))
    return None if found is None else found["text"]


def test_it_is_the_first_level_that_gives_little_more():
    """Later ones only cost more."""
    rows = [row(2, 20), row(4, 40), row(8, 41, ms=190.0), row(16, 41, ms=380.0)]

    assert "level 8 gives 2 % more requests/s than 4 for 1.9 × the TTFT (p95)" == said(*rows)


def test_tokens_are_compared_where_every_level_has_them():
    """Never tokens of one level with requests of another."""
    both = [row(4, 40, tokens=400.0), row(8, 41, tokens=412.0)]
    one = [row(4, 40, tokens=400.0), row(8, 41)]

    assert "3 % more tokens/s" in said(*both)
    assert "2 % more requests/s" in said(*one)


def test_throughput_that_falls_is_called_fewer():
    """A queue can make it worse than before."""
    assert "level 8 gives 20 % fewer requests/s than 4 for 1.0 × the TTFT (p95)" == said(row(4, 40), row(8, 32))


def test_growth_beyond_the_bounds_is_still_growth():
    """Said of the highest level tried."""
    text = said(row(4, 40), row(8, 76))

    assert text.startswith("throughput still grew at the highest level tried: level 8 gives 90 % more")


def test_few_requests_decide_neither():
    """Two per cent more, give or take sixty."""
    text = said(row(4, 4, window_s=5.0), row(8, 4.2, window_s=5.0))

    assert text.startswith("where throughput stops growing is not clear: level 8 gives 5 % more")


@pytest.mark.parametrize("rows", [[row(4, 40)], [row(4, 40), row(8, 0)], [row(4, 0), row(8, 40)]])
def test_one_level_says_nothing(rows):
    """There is nothing to compare it with."""
    assert None is said(*rows)


def test_a_small_step_up_is_measured_by_what_it_could_give():
    """From 8 to 9 is an eighth more; half of that is growth, though only 6 %."""
    rate = stats.Value(100.0, 10**6, 99.9, 100.1), stats.Value(106.0, 10**6, 105.9, 106.1)
    rows = [dataclasses.replace(row(level, 10), request_rate=each) for level, each in zip((8, 9), rate, strict=True)]

    assert "still grew" in said(*rows)


def test_levels_that_cannot_be_judged_end_the_comparison():
    """What an invalid level's neighbours say is not about the target."""
    bad = row(8, 41, valid=False, invalid_why="late")

    assert "level 4 gives 100 % more" in said(row(2, 20), row(4, 40), bad, row(16, 41))


def test_a_latency_that_is_not_known_is_left_out():
    """No ratio of what never came."""
    text = said(row(4, 40), dataclasses.replace(row(8, 41), latencies=make_row("8", http_5xx=400).latencies))

    assert text == "level 8 gives 2 % more requests/s than 4"


def test_an_slo_is_proposed_only_where_none_was_given():
    """From the sustained level's own p95: its upper bound and a quarter."""
    rows = (row(2, 20), row(4, 40, ms=200.0))

    assert ["stream.ttft_ms.p95<=250@4"] == proposed_slos(make_facts(*rows, slos=()))
    assert {"text": said(*rows), "proposed_slo": None} == knee(make_facts(*rows))
    assert [] == proposed_slos(make_facts(make_row("2", http_5xx=400), slos=()))
