"""Anthropic's messages: blocks, split usage, and what is a token of them."""

from __future__ import annotations

import json

import pytest
from reading import read_body, read_event, read_events
from recorded import recorded

from sweep.dialects import ANSWER, BY_NAME, NOTHING, TOKEN, Answer, Ask, BadBodyError

MESSAGES = BY_NAME["anthropic-messages"]


def typed(kind: str, **more: object) -> bytes:
    return json.dumps({"type": kind, **more}).encode()


def delta(kind: str, **more: object) -> bytes:
    return typed("content_block_delta", index=0, delta={"type": kind, **more})


def block(kind: str, **more: object) -> bytes:
    return typed("content_block_start", index=0, content_block={"type": kind, **more})


def start(**usage: object) -> bytes:
    return typed("message_start", message={"id": "msg", "model": "m", "content": [], "usage": usage})


def stop(reason: str | None = "end_turn", **usage: object) -> bytes:
    return typed("message_delta", delta={"stop_reason": reason}, usage=usage)


STARTED = {"model": "m", "server_id": "msg"}


@pytest.mark.parametrize(
    ("event", "carried", "facts"),
    [
        (start(), NOTHING, STARTED),
        (start(input_tokens=5, output_tokens=1), NOTHING, STARTED | {"n_in": 5}),
        (start(input_tokens=5, cache_read_input_tokens=21, cache_creation_input_tokens=2), NOTHING,
         STARTED | {"n_in": 28}),
        (start(input_tokens="5", cache_read_input_tokens=None), NOTHING, STARTED),
        (block("text", text=""), NOTHING, {}),
        (block("text", text="A"), ANSWER, {}),
        (block("thinking", thinking=""), NOTHING, {}),
        (block("tool_use", id="t", name="f", input={}), TOKEN, {}),
        (delta("text_delta", text="A"), ANSWER, {}),
        (delta("text_delta", text=""), NOTHING, {}),
        (delta("thinking_delta", thinking="t"), TOKEN, {}),
        (delta("input_json_delta", partial_json='{"a'), TOKEN, {}),
        (delta("input_json_delta", partial_json=""), NOTHING, {}),
        (delta("signature_delta", signature="s"), NOTHING, {}),
        (delta("citations_delta", citation={"cited_text": "A"}), NOTHING, {}),
        (typed("content_block_stop", index=0), NOTHING, {}),
        (typed("ping"), NOTHING, {}),
        (stop("max_tokens", output_tokens=6), NOTHING, {"finish": "max_tokens", "n_out": 6}),
        (stop(None, output_tokens=6), NOTHING, {"n_out": 6}),
        (typed("message_delta", delta={"stop_reason": "tool_use"}), NOTHING, {"finish": "tool_use"}),
        (typed("message_stop"), NOTHING, {"done": True}),
        (typed("of_next_year", text="A"), NOTHING, {}),
        (typed("error", error={"type": "overloaded_error", "message": "busy"}), NOTHING,
         {"error": True, "error_code": "overloaded_error", "error_text": "busy"}),
        (typed("error"), NOTHING, {"error": True, "error_code": "error",
                                           "error_text": '{"type":"error","message":null}'}),
        (b'{"error":{"message":"m","code":502}}', NOTHING, {"error": True, "error_code": "502", "error_text": "m"}),
        (b'{"message":"upstream gone"}', NOTHING, {"error": True, "error_text": "upstream gone"}),
        (b'{"choices":[{"delta":{"content":"A"}}]}', NOTHING, {}),
        (b"[DONE]", NOTHING, {}),
        (b"", NOTHING, {}),
    ],
)  # fmt: skip
def test_event(event, carried, facts):
    """Text answers; thinking, a tool's name and its input are tokens; pings and what is new are nothing."""
    assert (carried, facts) == read_event(MESSAGES, event)


@pytest.mark.parametrize(
    ("events", "counts"),
    [
        ((start(input_tokens=5, output_tokens=1), stop(output_tokens=6)), (5, 6)),
        ((start(input_tokens=5, cache_read_input_tokens=21), stop(input_tokens=5, output_tokens=6)), (26, 6)),
        ((start(input_tokens=0, output_tokens=0), stop(input_tokens=5, output_tokens=6)), (5, 6)),
        ((start(input_tokens=5), stop(input_tokens=0, output_tokens=6)), (5, 6)),
        ((start(input_tokens=5), stop(None, output_tokens=2), stop(output_tokens=6)), (5, 6)),
        ((start(input_tokens=5, output_tokens=1), typed("message_delta", delta={})), (5, None)),
        ((typed("message_start", message={"usage": None}), stop(output_tokens=6)), (None, 6)),
    ],
)  # fmt: skip
def test_usage_wherever_it_comes(events, counts):
    """Split, repeated, cumulative or missing; message_start's place holder is no count of the output."""
    facts = read_events(MESSAGES, *events)[1]

    assert counts == (facts.get("n_in"), facts.get("n_out"))


def whole(*content: dict, **more: object) -> bytes:
    shape = {"id": "msg", "type": "message", "model": "m", "content": content, "stop_reason": "end_turn",
             "usage": {"input_tokens": 3, "output_tokens": 2}}  # fmt: skip
    return json.dumps(shape | more).encode()


@pytest.mark.parametrize(
    ("body", "carried"),
    [
        (whole({"type": "thinking", "thinking": "t"}, {"type": "text", "text": "A"}), ANSWER),
        (whole({"type": "tool_use", "id": "t", "name": "f", "input": {}}), TOKEN),
        (whole({"type": "thinking", "thinking": "t"}), TOKEN),
        (whole({"type": "text", "text": ""}), NOTHING),
        (whole(), NOTHING),
    ],
)
def test_whole_message(body, carried):
    """The best of its blocks, and both counts."""
    facts = STARTED | {"done": True, "finish": "end_turn", "n_in": 3, "n_out": 2}

    assert (carried, facts) == read_body(MESSAGES, body)


@pytest.mark.parametrize("body", [b"{}", whole(stop_reason=None), whole(content=None), b'{"choices":[]}'])
def test_body_that_is_no_message(body):
    """JSON, but not the answer."""
    with pytest.raises(BadBodyError, match="no message with content and a stop_reason"):
        read_body(MESSAGES, body)


def test_error_instead_of_a_message():
    """With status 200 it is an error all the same."""
    assert (NOTHING, {"error": True, "error_code": "api_error", "error_text": "m"}) == read_body(
        MESSAGES, b'{"type":"error","error":{"type":"api_error","message":"m"}}'
    )


def test_only_message_stop_ends_it():
    """A stop reason is not the end: an error may follow it."""
    answer = Answer()
    for event in (start(), delta("text_delta", text="A"), stop(output_tokens=1)):
        MESSAGES.read_event(event, answer)
    assert not MESSAGES.is_complete(answer)

    MESSAGES.read_event(typed("message_stop"), answer)
    assert MESSAGES.is_complete(answer)


def test_request():
    """The version goes with it; the key goes as --key-style says."""
    body = MESSAGES.body(Ask("m", "say", 9, True, {"system": "s"}))

    assert {"model": "m", "messages": [{"role": "user", "content": "say"}], "max_tokens": 9, "stream": True,
            "system": "s"} == body  # fmt: skip
    assert {"anthropic-version": "2023-06-01"} == MESSAGES.headers


@pytest.mark.parametrize(
    ("name", "n_answer", "facts"),
    [
        ("llama-server/messages_stream", 6, ("max_tokens", 26, 6, "gemma-270m")),
        ("ferrogw/messages_stream", 6, ("max_tokens", 26, 6, "gemma-270m")),
        ("llmock/messages_stream", 9, ("end_turn", 1, 14, "claude-3-5-haiku")),
        ("aimock/messages_stream", 10, ("end_turn", 0, 0, "claude")),
    ],
)
def test_recorded_stream_of_a_real_server(name, n_answer, facts):
    """llama.cpp's prompt of 26 tokens is 26 here too, 21 of them cached."""
    answer, reader = Answer(), MESSAGES.reader()
    carried = [MESSAGES.read_event(data, answer) for _, data in reader.feed(recorded(name).body)]

    assert ([], n_answer, 0) == (reader.close(), carried.count(ANSWER), carried.count(TOKEN))
    assert (*facts, True, False) == (
        answer.finish, answer.n_in, answer.n_out, answer.model, answer.done, answer.error,
    )  # fmt: skip
