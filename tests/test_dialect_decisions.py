"""Decisions: what is asked, and each check of an answer, passed and failed alone."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from asker import ORDER, ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import read_body
from recorded import recorded

from sweep.dialects import ANSWER, BY_NAME, Ask, BadBodyError

DECIDE, SYSTEMONE = BY_NAME["ollaya-decide"], BY_NAME["systemone"]
ASKED = SYSTEMONE.body(Ask("laya:en", "The nightly backup finished.", 9, False, {}))
GOOD = {
    "model": "laya:en",
    "answers": {
        "page_oncall": {"type": "noul", "noul": 0.031},
        "outcome": {"type": "choice", "choice": "ok", "confidence": 0.85,
                    "probabilities": {"ok": 0.9, "partial": 0.07, "failed": 0.03}},
        "urgency": {"type": "score", "score": 0.5, "confidence": 0.4,
                    "legend": {"0": "never", "1": "this week", "2": "today"},
                    "probabilities": {"0": 0.6, "1": 0.3, "2": 0.1}},
    },
    "usage": {"input_tokens": 80, "output_tokens": 0},
}  # fmt: skip
DECIDED = GOOD | {
    "routing": None, "state_truncated": False, "done_reason": "decide", "created_at": "2026-11-30T15:00:00Z",
    "total_duration": 177_000_000, "load_duration": 0, "eval_duration": 170_000_000,
}  # fmt: skip


def changed(path: str, value: object, good: dict = GOOD) -> bytes:
    """`good` with one value replaced; ... takes it away."""
    body = copy.deepcopy(good)
    *way, last = path.split("/")
    at = body
    for key in way:
        at = at[key]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return json.dumps(body).encode()


def test_good_answers():
    """No token is generated; Ollaya's own durations are kept."""
    facts = {"done": True, "model": "laya:en", "n_in": 80}

    assert (ANSWER, facts) == read_body(SYSTEMONE, json.dumps(GOOD).encode(), ASKED)
    assert (ANSWER, facts | {"finish": "decide", "total_ns": 177_000_000, "load_ns": 0, "eval_ns": 170_000_000}) == (
        read_body(DECIDE, json.dumps(DECIDED).encode(), ASKED)
    )


P = "answers/outcome/probabilities"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("model", ..., "no model, answers and usage"),
        ("answers", ..., "no model, answers and usage"),
        ("usage", ..., "no model, answers and usage"),
        ("usage/input_tokens", 0, "input_tokens is not above 0"),
        ("usage/input_tokens", "80", "input_tokens is not above 0"),
        ("usage/output_tokens", ..., "output_tokens is no count"),
        ("answers/page_oncall", ..., "not the ids that were asked"),
        ("answers/more", {"type": "noul", "noul": 0.5}, "not the ids that were asked"),
        ("answers", dict(reversed(GOOD["answers"].items())), "in their order"),
        ("answers/page_oncall/type", "choice", "answer page_oncall: type is not the one asked"),
        ("answers/page_oncall/noul", 1.0001, "answer page_oncall: noul is not in"),
        ("answers/page_oncall/noul", -0.1, "noul is not in"),
        ("answers/page_oncall/noul", ..., "noul is not in"),
        (P, ..., "answer outcome: fewer than two probabilities"),
        (P, {"partial": 0.07, "ok": 0.9, "failed": 0.03}, "labels are not the criteria"),
        (P, {"ok": 0.9, "partial": 0.1}, "labels are not the criteria"),
        (P, {"ok": 1.1, "partial": -0.07, "failed": -0.03}, "a probability is not in"),
        (P, {"ok": 0.9, "partial": 0.07, "failed": 0.0302}, "do not sum to 1"),
        ("answers/outcome/choice", "partial", "choice is not the likeliest"),
        ("answers/outcome/choice", "other", "choice is not the likeliest"),
        ("answers/outcome/choice", ..., "choice is not the likeliest"),
        ("answers/outcome/confidence", 0.8503, "answer outcome: confidence does not follow"),
        ("answers/outcome/confidence", ..., "confidence does not follow"),
        ("answers/urgency/score", 0.503, "answer urgency: score is not the sum"),
        ("answers/urgency/score", ..., "score is not the sum"),
        ("answers/urgency/confidence", 0.0, "answer urgency: confidence does not follow"),
        ("answers/urgency/legend/0", "always", "legend is not the criteria"),
        ("answers/urgency/probabilities", {"0": 0.6, "2": 0.3, "1": 0.1}, "labels are not the criteria"),
    ],
)
def test_check_that_fails_is_named(path, value, words):
    """Each check alone, on either path: a broken proxy or another model is not taken for an answer."""
    for dialect, good in ((SYSTEMONE, GOOD), (DECIDE, DECIDED)):
        with pytest.raises(BadBodyError, match=words):
            read_body(dialect, changed(path, value, good), ASKED)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{P}/failed", 0.03014),  # sum within 3 * 5e-5
        ("answers/outcome/confidence", 0.8501),
        ("answers/urgency/score", 0.5024),
        ("answers/urgency/legend", ...),
        ("answers/page_oncall/noul", 0),
        ("answers/page_oncall/noul", 1),
        ("usage/output_tokens", 1),  # Ollama's /v1/systemone
        ("meta", {"engine": "mock"}),  # a gateway's own
    ],
)
def test_what_is_within_the_rules_passes(path, value):
    """Rounding, ties and additions are no faults."""
    assert ANSWER == read_body(SYSTEMONE, changed(path, value), ASKED)[0]


def test_tie_may_fall_either_way():
    """Two labels within 1e-4."""
    chances = {"ok": 0.46660, "partial": 0.46665, "failed": 0.06675}
    tie = {"type": "choice", "confidence": 0.1999, "probabilities": chances}

    for choice in ("ok", "partial"):
        assert ANSWER == read_body(SYSTEMONE, changed("answers/outcome", tie | {"choice": choice}), ASKED)[0]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [("usage/output_tokens", 1, "output_tokens is not 0"), ("state_truncated", True, "state_truncated"),
     ("done_reason", "load", "done_reason")],
)  # fmt: skip
def test_check_of_decide_alone(path, value, words):
    """A state cut short is a measurement of something else."""
    with pytest.raises(BadBodyError, match=words):
        read_body(DECIDE, changed(path, value, DECIDED), ASKED)


def test_questions_of_the_user_are_the_ones_checked():
    """--extra-body replaces the questions; without any the model has its own, of which only the numbers are known."""
    own = SYSTEMONE.body(Ask("m", "s", 9, False, {"questions": {"late": {"type": "noul"}}}))
    body = changed("answers", {"late": {"type": "noul", "noul": 0.5}})

    assert ANSWER == read_body(SYSTEMONE, body, own)[0] == read_body(SYSTEMONE, body, {"model": "m"})[0]
    with pytest.raises(BadBodyError, match="ids"):
        read_body(SYSTEMONE, body, ASKED)
    with pytest.raises(BadBodyError, match="noul"):
        read_body(SYSTEMONE, changed("answers", {"late": {"type": "noul", "noul": 5}}), {"model": "m"})


@settings(deadline=None)
@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=255))
def test_numbers_rounded_to_four_decimals_pass(weights):
    """Any distribution, as the server prints it: the tolerances are wide enough."""
    chances = [weight / sum(weights) for weight in weights]
    n, pmax = len(chances), max(chances)
    told = {
        "type": "score", "score": round(sum(i * p for i, p in enumerate(chances)), 4),
        "confidence": round((n * pmax - 1) / (n - 1), 4),
        "probabilities": {str(i): round(p, 4) for i, p in enumerate(chances)},
    }  # fmt: skip
    levels = [f"level {i}" for i in range(n)]
    if n > 10:  # what the API allows for a score; a choice may have 255
        told |= {"type": "choice", "choice": levels[chances.index(pmax)],
                 "probabilities": dict(zip(levels, told["probabilities"].values(), strict=True))}  # fmt: skip
    asked = {"questions": {"q": {"type": told["type"], "criteria": levels}}}

    assert ANSWER == read_body(SYSTEMONE, changed("answers", {"q": told}), asked)[0]


@pytest.mark.parametrize("dialect", [DECIDE, SYSTEMONE])
@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b'{"error":"model \\"m\\" not found","code":"MODEL_NOT_FOUND"}', "MODEL_NOT_FOUND", 'model "m" not found'),
        (b'{"error":{"message":"m","code":"c"}}', "c", "m"),
        (b'{"detail":"no"}', None, "no"),
    ],
)
def test_error_with_status_200(dialect, body, code, text):
    """An error is no answer, whatever the status."""
    facts = read_body(dialect, body)[1]

    assert (True, code, text) == (facts["error"], facts.get("error_code"), facts["error_text"])


@pytest.mark.parametrize("dialect", [DECIDE, SYSTEMONE])
def test_request_asks_one_question_of_each_type(dialect):
    """Each with instructions, which Ollama demands; never `stream`, which Ollaya refuses."""
    body = dialect.body(Ask("m", "the state", 9, True, {}))

    assert ("the state", {"noul", "choice", "score"}) == (
        body["state"], {question["type"] for question in body["questions"].values()},
    )  # fmt: skip
    assert all(question["instructions"] for question in body["questions"].values())
    assert not dialect.streams and not dialect.has_tokens and "stream" not in body
    with pytest.raises(ValueError, match="takes no messages"):
        dialect.body(Ask("m", "", 9, False, {}, [{"role": "user", "content": "a"}]))


def test_task_of_a_locustfile_may_ask_its_own_questions():
    """As it may set Ollama's options; the state is the prompt, which it gives as such."""
    code = """
import json, sys, msgspec
from sweep.load import Load
from sweep.step_files import StepOrder
order = json.loads(sys.argv[1])
load = Load(msgspec.convert(order, StepOrder), write_records=False)
ask = load.ask_of(False, prompt="s", extra_body={"questions": {"late": {"type": "noul"}}})
print(json.dumps(load.dialect.body(ask)))
try:
    load.ask_of(False, extra_body={"state": "s"})
except ValueError as error:
    print(error)
"""
    order = ORDER | {"url": "http://127.0.0.1:9", "api": "systemone"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, json.dumps(order)], capture_output=True, text=True, timeout=30, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    body, refused = done.stdout.splitlines()

    assert {"model": "m", "state": "s", "questions": {"late": {"type": "noul"}}} == json.loads(body)
    assert "ask: extra_body may not hold 'state', which ask itself sets" == refused


def test_decide_always_says_how_long_the_model_stays():
    """Silence would unpin a pinned model; /v1/systemone cannot say it, and its row warns."""
    assert -1 == DECIDE.body(Ask("m", "s", 9, False, {}))["keep_alive"]
    assert 300 == DECIDE.body(Ask("m", "s", 9, False, {"keep_alive": 300}))["keep_alive"]
    assert "keep_alive" not in SYSTEMONE.body(Ask("m", "s", 9, False, {}))
    assert DECIDE.harm is None and "pinned" in SYSTEMONE.harm


@pytest.mark.parametrize(
    ("expires_at", "keep"),
    [
        (None, -1),
        ("2319-01-01T00:00:00Z", -1),
        ("2026-11-30T15:00:40Z", 300),
        ("2026-11-30T14:59:00Z", 300),
        ("2026-11-30T16:00:00.5Z", 3601),
        ("2026-11-30T17:00:00+01:00", 3600),
    ],
)
def test_model_is_kept_as_found(expires_at, keep):
    """Pinned stays pinned; a timer is never shortened below what was left, or what the server gives by itself."""
    loaded = {"models": [{"name": "other", "expires_at": None}, {"name": "laya:en", "expires_at": expires_at}]}

    assert {"keep_alive": keep} == DECIDE.as_found(loaded, "laya:en", datetime(2026, 11, 30, 15, tzinfo=UTC))


@pytest.mark.parametrize(
    ("models", "keep"),
    [([], 300), (None, -1), ([{"name": "laya:en-v2", "expires_at": None}], -1),
     ([{"name": n, "expires_at": f"2026-11-30T15:{n}:00Z"} for n in ("10", "20")], 1200)],
)  # fmt: skip
def test_model_that_is_not_listed_is_neither_pinned_nor_unpinned(models, keep):
    """The server's own time where nothing is loaded; a router's or another name as the longest kept; else pinned."""
    now = datetime(2026, 11, 30, 15, tzinfo=UTC)

    assert {"keep_alive": keep} == DECIDE.as_found({"models": models}, "laya", now)


RECORDED_ASK = {
    "questions": {
        "wants_refund": {"type": "noul"},
        "intent": {"type": "choice", "criteria": {"refund": "", "rebooking": "", "information": ""}},
        "frustration": {"type": "score", "criteria": ["Calm.", "Concerned but civil.", "Very angry."]},
    }
}


def test_recorded_decision_of_a_real_server():
    """A model behind a gateway of another make, whose numbers agree: more keys than the API's harm nothing."""
    assert (ANSWER, {"done": True, "model": "gemma-270m", "n_in": 461}) == read_body(
        SYSTEMONE, recorded("dev-double/systemone_llama").body, RECORDED_ASK
    )


@pytest.mark.parametrize(
    ("name", "question"),
    [("dev-double/systemone_mock", "intent"), ("dev-double/systemone_stream_flag", "intent"),
     ("jevcompat-mock/systemone", "frustration"), ("rlcd-gateway/systemone", "frustration")],
)  # fmt: skip
def test_recorded_decision_whose_confidence_is_another_s(name, question):
    """These doubles compute confidence by a formula of their own: the check that fails is named, with its question."""
    with pytest.raises(BadBodyError, match=f"answer {question}: confidence does not follow from the probabilities"):
        read_body(SYSTEMONE, recorded(name).body, RECORDED_ASK)


def test_models_are_listed_either_way():
    """Ollaya's and the doubles' `models`, a gateway's `data`."""
    assert ["jev-latest", "mock"] == SYSTEMONE.names(json.loads(recorded("jevcompat-mock/models").body))
    assert ["a"] == SYSTEMONE.names({"data": [{"id": "a"}]})
