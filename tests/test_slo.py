"""The SLO language: what it reads, what it refuses and how, and how many requests a promise needs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom

from sweep.errors import PlanError
from sweep.slo import METRICS, STATS, Slo, n_needed, parse_slo, sentence
from sweep.units import Level


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("stream.ttft_ms.p95<=500@8", ("stream", "ttft_ms", "p95", "<=", 500.0, Level(8))),
        ("ttft_ms.p95<=500", (None, "ttft_ms", "p95", "<=", 500.0, None)),
        ("e2e_ms.p99 <= 2s", (None, "e2e_ms", "p99", "<=", 2000.0, None)),
        ("nonstream.e2e_ms.p50<=1.5 s @ 4", ("nonstream", "e2e_ms", "p50", "<=", 1500.0, Level(4))),
        ("gap_ms.p90<=300us", (None, "gap_ms", "p90", "<=", 0.3, None)),
        ("tpot_ms.p95<=20ms@5/s", (None, "tpot_ms", "p95", "<=", 20.0, Level(5, "rate"))),
        ("stream.ttfa_ms.p95<=.5s", ("stream", "ttfa_ms", "p95", "<=", 500.0, None)),
        ("error_ratio<=1%", (None, "error_ratio", None, "<=", 0.01, None)),
        ("nonstream.shed_ratio<=0.1%@8", ("nonstream", "shed_ratio", None, "<=", 0.001, Level(8))),
        ("goodput>=0.99@8", (None, "goodput", None, ">=", 0.99, Level(8))),
        ("request_rate_per_s>=5 per s", (None, "request_rate_per_s", None, ">=", 5.0, None)),
        ("stream.token_rate_per_s>=1200/s@8", ("stream", "token_rate_per_s", None, ">=", 1200.0, Level(8))),
    ],
)
def test_slo_is_read_in_the_units_of_its_metric(text, fields):
    """Limits are stored in ms, as ratios, or per second, whatever they were written in."""
    assert Slo(text, *fields) == parse_slo(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty SLO; write one like stream.ttft_ms.p95<=500@8"),
        ("ttft_ms.p95", "neither <= nor >= in it"),
        ("ttft_ms.p95<500", "neither <= nor >= in it"),
        ("ttft_ms.p95==500", "neither <= nor >= in it"),
        ("ttft.p95<=500", "unknown metric 'ttft' (did you mean ttft_ms?); known: ttft_ms, "),
        ("streem.ttft_ms.p95<=500", "unknown mode 'streem'; it is stream or nonstream"),
        ("stream<=5", "unknown metric ''"),
        ("stream.nonstream.e2e_ms.p95<=5", "unknown metric 'nonstream'"),
        ("zzz<=5", "unknown metric 'zzz'; known: ttft_ms, "),
        ("ttft_ms<=500", "a latency needs a percentile; write ttft_ms.p95<=… (p50, p90, p95, p99)"),
        ("ttft_ms.p75<=500", "unknown percentile 'p75'; write ttft_ms.p95<=…"),
        ("ttft_ms.p95.p99<=500", "unknown percentile 'p95.p99'"),
        ("error_ratio.p95<=1%", "error_ratio has no 'p95'; write error_ratio<=…"),
        ("nonstream.ttft_ms.p95<=5", "ttft_ms exists only in stream; drop 'nonstream'"),
        ("nonstream.gap_ms.p95<=5", "gap_ms exists only in stream"),
        ("ttft_ms.p95>=500", "ttft_ms is promised with <=, not >="),
        ("goodput<=99%", "goodput is promised with >=, not <="),
        ("ttft_ms.p95<=", "'' is no limit; write a number after <="),
        ("ttft_ms.p95<=fast", "'fast' is no limit"),
        ("ttft_ms.p95<=-5", "'-5' is no limit"),
        ("ttft_ms.p95<=nan", "'nan' is no limit"),
        ("ttft_ms.p95<=1e3", "'1e3' is no limit"),
        ("ttft_ms.p95<=5%", "'%' is no unit of ttft_ms; use ms, s or us"),
        ("ttft_ms.p95<=5m", "'m' is no unit of ttft_ms"),
        ("error_ratio<=1ms", "'ms' is no unit of error_ratio; use % or none (0..1)"),
        ("request_rate_per_s>=5ms", "'ms' is no unit of request_rate_per_s; use per s"),
        ("ttft_ms.p95<=0", "a limit of 0 says nothing"),
        ("error_ratio<=0", "no number of requests can show exactly 0; write error_ratio<=0.1%"),
        ("goodput>=100%", "no number of requests can show exactly 1; write goodput>=99.9%"),
        ("error_ratio<=1", "a ratio lies between 0 and 1; write error_ratio<=1% or <=0.01"),
        ("goodput>=99", "a ratio lies between 0 and 1; write goodput>=99% or >=0.99"),
        ("ttft_ms.p95<=500@", "after @, level '': give a whole number"),
        ("ttft_ms.p95<=500@high", "after @, level 'high': give a whole number"),
        ("ttft_ms.p95<=500@8@9", "after @, level '8@9'"),
    ],
)
def test_slo_that_is_none_is_refused_with_what_to_write(text, says):
    """Each refusal is one line: what, where, and what instead."""
    with pytest.raises(PlanError) as refused:
        parse_slo(text)

    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.text(alphabet="stream.ttft_ms.p95<=>@8/%e r", max_size=30))
def test_any_text_is_read_or_refused_and_never_breaks(text):
    """Text near the grammar gives an SLO or a PlanError, nothing else; what is read, reads back the same."""
    try:
        slo = parse_slo(text)
    except PlanError:
        return
    assert slo == parse_slo(slo.text)


@st.composite
def written_slos(draw):
    """Text of an SLO and the fields it was written from."""
    metric = draw(st.sampled_from(list(METRICS.values())))
    mode = draw(st.sampled_from([None, *metric.modes]))
    stat = draw(st.sampled_from(list(STATS))) if metric.kind == "latency" else None
    limit = draw(st.integers(1, 99)) / 100 if metric.kind == "ratio" else float(draw(st.integers(1, 10**6)))
    at = draw(st.sampled_from([None, Level(8), Level(1), Level(5, "rate"), Level(2.5, "rate")]))
    space = draw(st.sampled_from(["", " "]))
    left = ".".join(part for part in (mode, metric.name, stat) if part is not None)
    level = "" if at is None else f"{space}@{space}{at}"
    return f"{left}{space}{metric.op}{space}{limit}{level}", (mode, metric.name, stat, metric.op, limit, at)


@given(written_slos())
def test_every_slo_the_grammar_can_write_is_read_back(written):
    """Mode, metric, stat, limit and level come back as they were written, and the sentence has them all filled in."""
    text, fields = written
    slo = parse_slo(text)

    assert fields == (slo.mode, slo.metric, slo.stat, slo.op, slo.limit, slo.at)
    assert not set("{}") & set(sentence(slo))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "stream.ttft_ms.p95<=500@8",
            "95 % of streaming requests at level 8 and below get their first token within 500 ms",
        ),
        (
            "e2e_ms.p50<=2s",
            "50 % of requests of each mode at the sustained level are answered completely within 2000 ms",
        ),
        (
            "gap_ms.p99<=300us@4",
            "99 % of the gaps between tokens of streaming requests at level 4 and below are at most 0.3 ms",
        ),
        ("nonstream.error_ratio<=1%", "at most 1 % of non-streaming requests at the sustained level fail"),
        (
            "stream.request_rate_per_s>=5@8",
            "streaming requests at level 8 and below are completed at 5 a second or more",
        ),
    ],
)
def test_sentence_says_the_promise_in_words(text, says):
    """Somebody who never read the grammar understands the line of --dry-run."""
    assert says == sentence(parse_slo(text))


@pytest.mark.parametrize(
    ("text", "level", "mode", "holds"),
    [
        ("ttft_ms.p95<=5", 4, "stream", True),
        ("ttft_ms.p95<=5", 2, "stream", False),  # without @: the sustained level only
        ("ttft_ms.p95<=5", 8, "stream", False),
        ("ttft_ms.p95<=5", 4, "nonstream", False),
        ("ttft_ms.p95<=5@4", 2, "stream", True),
        ("ttft_ms.p95<=5@4", 8, "stream", False),
        ("ttft_ms.p95<=5@8", 8, "stream", True),  # above the sustained level: shown, and explores
        ("ttft_ms.p95<=5@8/s", 4, "stream", False),
        ("e2e_ms.p95<=5", 4, "nonstream", True),
        ("stream.e2e_ms.p95<=5", 4, "nonstream", False),
    ],
)
def test_slo_applies_where_the_grammar_says(text, level, mode, holds):
    """@ means this level and below; without it the sustained level, here 4."""
    assert holds is parse_slo(text).applies(Level(level), mode, sustained=Level(4))


@pytest.mark.parametrize(("q", "n"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299), (0.999, 2995)])
def test_n_needed_is_the_published_one(q, n):
    """The figures every report prints."""
    assert n == n_needed(q)


@given(st.integers(1, 999))
def test_n_needed_is_the_smallest_n_whose_rank_bound_exists(thousandths):
    """The largest of n values bounds the quantile with 95 % confidence from this n on, by scipy's binomial."""
    q = thousandths / 1000
    n = n_needed(q)

    assert binom.cdf(n - 1, n, q) >= 0.95 - 1e-12
    assert n == 1 or binom.cdf(n - 2, n - 1, q) < 0.95 + 1e-12


@pytest.mark.parametrize(
    "text", ["error_ratio<=1%", "error_ratio<=0.1%", "shed_ratio<=5%", "goodput>=0.9", "goodput>=99%"]
)
def test_ratio_needs_as_many_requests_as_its_own_bound(text):
    """Without one bad request the one-sided Clopper-Pearson bound is at the limit from this n on, not before."""
    slo = parse_slo(text)
    bad = slo.limit if slo.op == "<=" else 1 - slo.limit

    assert beta.ppf(0.95, 1, slo.n_wanted) <= bad + 1e-12
    assert beta.ppf(0.95, 1, slo.n_wanted - 1) > bad


@pytest.mark.parametrize(("text", "n"), [("ttft_ms.p99<=5", 299), ("e2e_ms.p50<=5", 5), ("token_rate_per_s>=5", 1)])
def test_latency_needs_its_rank_and_a_rate_nothing(text, n):
    """A percentile needs its rank bound to exist; a rate has no such number."""
    assert n == parse_slo(text).n_wanted


def test_every_metric_is_measured_in_a_mode_and_has_a_finite_need():
    """A new row of the metric table cannot forget its modes or its sentence."""
    for metric in METRICS.values():
        assert metric.modes
        assert "{who}" in metric.says and "{limit}" in metric.says
        assert ("{share}" in metric.says) == (metric.kind == "latency")
    assert all(math.isfinite(n_needed(q)) for q in STATS.values())
