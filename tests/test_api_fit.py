"""APIs without streaming or tokens: what a plan may ask of them, and what their report leaves out."""

from __future__ import annotations

import pytest

from sweep.api_fit import fitted, remarks
from sweep.dialects import DIALECTS
from sweep.errors import PlanError
from sweep.plan import SweepPlan
from sweep.slo import parse_slo
from sweep.units import parse_levels

SILENT = [dialect.name for dialect in DIALECTS if not dialect.streams]


def make_plan(**given: object) -> SweepPlan:
    given["slos"] = tuple(map(parse_slo, given.pop("slos", ())))
    return SweepPlan(target="http://127.0.0.1:9", levels=parse_levels("1"), **given)


def test_an_api_without_streaming_is_driven_without():
    """`both` becomes nonstream, said once; an API that streams, or is not known yet, is left alone."""
    assert ["openai-embeddings", "ollaya-decide", "systemone"] == SILENT
    for api in SILENT:
        plan = fitted(make_plan(api=api))
        assert ("nonstream", ("nonstream",)) == (plan.mode, plan.modes)
        assert [f"{api} has no streaming: every request asks for a whole answer"] == remarks(plan)[:1]
    assert "both" == fitted(make_plan(api="openai-responses")).mode
    assert "both" == fitted(make_plan(api=None)).mode
    assert [] == remarks(make_plan(api="openai-chat"))


def test_systemone_tells_its_harm():
    """Its requests unpin a model."""
    assert "pinned" in remarks(make_plan(api="systemone"))[1]


@pytest.mark.parametrize(
    ("api", "given", "words"),
    [
        ("systemone", {"mode": "stream"}, "--mode stream: systemone has no streaming"),
        ("openai-embeddings", {"mode": "mixed"}, "--mode mixed: openai-embeddings has no streaming"),
        ("ollaya-decide", {"slos": ["ttft_ms.p95<=5"]}, "is about streams, and ollaya-decide has no streaming"),
        ("ollaya-decide", {"slos": ["stream.e2e_ms.p95<=5"]}, "is about streams"),
        ("openai-embeddings", {"slos": ["token_rate_per_s>=5"]}, "openai-embeddings generates none"),
    ],
)
def test_what_it_cannot_have_is_refused(api, given, words):
    """One line, before any load."""
    with pytest.raises(PlanError, match=words):
        fitted(make_plan(api=api, **given))
