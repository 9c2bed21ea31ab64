"""Whatever JSON comes, a dialect tells what it is or says that it is not of the API: nothing else is ever raised."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweep.dialects import ANSWER, BY_NAME, DIALECTS, NOTHING, TOKEN, Answer, Ask, BadBodyError

# The words of all the APIs, so that what is drawn looks like an answer now and then.
KEYS = (
    "type", "choices", "delta", "message", "content", "text", "finish_reason", "usage", "prompt_tokens",
    "output_tokens", "input_tokens", "completion_tokens", "error", "code", "detail", "object", "id", "model",
    "response", "status", "item", "output", "sequence_number", "content_block", "partial_json", "stop_reason",
    "done", "done_reason", "eval_count", "load_duration", "data", "embedding", "answers", "outcome",
    "probabilities", "choice", "score", "confidence", "noul", "state_truncated", "tool_calls", "function",
    "name", "arguments", "thinking", "summary", "incomplete_details",
)  # fmt: skip
WORDS = (
    "", "A", "error", "stop", "completed", "response.completed", "response.output_text.delta", "response.failed",
    "content_block_delta", "content_block_start", "message_start", "message_delta", "message_stop", "noul", "choice",
    "score", "function_call", "text", "decide", "0",
)  # fmt: skip
LEAVES = (
    st.none() | st.booleans() | st.integers(-2, 3) | st.just(10**30) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS)
)  # fmt: skip
SHAPES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS, ids=BY_NAME)
@settings(deadline=None, max_examples=40)
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), SHAPES, max_size=6), min_size=1, max_size=3), SHAPES)
def test_any_json_is_read_or_refused(dialect, shapes, questions):
    """Events after events, whole bodies, and questions of a user that nobody checked."""
    asked = [dialect.body(Ask("m", "p", 9, False, {})), {"questions": questions, "input": questions}]
    for read in (dialect.read_event, *(lambda data, answer, body=body: dialect.read_body(data, answer, body)
                                       for body in asked)):  # fmt: skip
        answer = Answer()
        for shape in shapes:
            try:
                assert read(json.dumps(shape).encode(), answer) in (NOTHING, TOKEN, ANSWER)
            except BadBodyError as error:
                assert str(error)
        for name in ("n_in", "n_out", "load_ns", "total_ns", "eval_ns", "prompt_eval_ns"):
            count = getattr(answer, name)
            assert count is None or (type(count) is int and count >= 0), name
        assert {type(answer.done), type(answer.error)} == {bool}
        texts = ("finish", "model", "server_id", "error_code", "error_text")
        assert {type(getattr(answer, name)) for name in texts} <= {str, type(None)}


def good(question: dict) -> tuple[dict, dict]:
    one = {"type": "choice", "choice": "a", "confidence": 0.8, "probabilities": {"a": 0.9, "b": 0.1}}
    body = {"model": "m", "answers": {"q": one}, "usage": {"input_tokens": 1, "output_tokens": 0}}
    return body, {"questions": {"q": {"type": "choice"} | question}}


@pytest.mark.parametrize("criteria", [5, "ab", True, [["a"], {}]])
def test_criteria_that_are_none_match_no_answer(criteria):
    """A server that accepts nonsense is not believed, nor is it a fault of ours."""
    body, asked = good({"criteria": criteria})

    with pytest.raises(BadBodyError, match="labels are not the criteria"):
        BY_NAME["systemone"].read_body(json.dumps(body).encode(), Answer(), asked)
    asked = good({"criteria": ["a", "b"]})[1]
    assert ANSWER == BY_NAME["systemone"].read_body(json.dumps(body).encode(), Answer(), asked)
