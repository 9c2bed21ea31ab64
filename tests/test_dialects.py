"""Every shape of event and body that chat.completions and Ollama are known to send; what holds for every row."""

from __future__ import annotations

import json

import pytest
from reading import read_body, read_event, told
from recorded import recorded

from sweep.dialects import ANSWER, BY_NAME, DIALECTS, NOTHING, TOKEN, Answer, Ask, BadBodyError
from sweep.error_bodies import error_of
from sweep.plan import APIS

CHAT, OLLAMA, GENERATE = (BY_NAME[name] for name in ("openai-chat", "ollama-chat", "ollama-generate"))
DEEP = b'{"error":' + b"[" * 100_000


def delta(text: str, rest: str = "") -> bytes:
    return b'{"choices":[{"index":0,"delta":%b%b}]}' % (text.encode(), rest.encode())


@pytest.mark.parametrize(
    ("event", "carried", "facts"),
    [
        (delta('{"role":"assistant"}'), NOTHING, {}),
        (delta('{"role":"assistant","content":""}'), NOTHING, {}),
        (delta('{"role":"assistant","content":null}'), NOTHING, {}),
        (delta("null"), NOTHING, {}),
        (delta("{}", ',"finish_reason":null'), NOTHING, {}),
        (b'{"choices":null}', NOTHING, {}),
        (b'{"choices":[]}', NOTHING, {}),
        (b'{"choices":[{"index":0}]}', NOTHING, {}),
        (b"{}", NOTHING, {}),
        (b"", NOTHING, {}),
        (b"  ", NOTHING, {}),
        (delta('{"content":"A"}'), ANSWER, {}),
        (delta('{"content":" "}'), ANSWER, {}),
        (delta('{"content":"A\u2028B\x85"}'), ANSWER, {}),
        (delta('{"content":[{"type":"text","text":"A"}]}'), ANSWER, {}),
        (delta('{"refusal":"no"}'), ANSWER, {}),
        (delta('{"reasoning":"t"}'), TOKEN, {}),
        (delta('{"reasoning_content":"t","content":null}'), TOKEN, {}),
        (delta('{"reasoning_content":"t","content":""}'), TOKEN, {}),
        (delta('{"reasoning_content":"t","content":"A"}'), ANSWER, {}),
        (delta('{"reasoning":"","reasoning_content":""}'), NOTHING, {}),
        (delta('{"content":null,"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}'), TOKEN, {}),
        (delta('{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}'), TOKEN, {}),
        (delta('{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"arguments":""}}]}'), NOTHING, {}),
        (delta('{"tool_calls":[{"index":0}]}'), NOTHING, {}),
        (delta('{"tool_calls":[]}'), NOTHING, {}),
        (delta('{"content":"","tool_calls":null}'), NOTHING, {}),
        (b'{"choices":[{"delta":{}},{"delta":{"content":"A"}},{"delta":{"reasoning":"t"}}]}', ANSWER, {}),
        (delta("{}", ',"finish_reason":"stop"'), NOTHING, {"finish": "stop"}),
        (delta('{"content":"A"}', ',"finish_reason":"length"'), ANSWER, {"finish": "length"}),
        (delta("null", ',"finish_reason":"tool_calls"'), NOTHING, {"finish": "tool_calls"}),
        (b'{"id":"c1","model":"m","choices":[]}', NOTHING, {"model": "m", "server_id": "c1"}),
        (b'{"id":7,"model":"m","choices":[]}', NOTHING, {"model": "m"}),
        (b"[DONE]", NOTHING, {"done": True}),
        (b" [DONE] ", NOTHING, {"done": True}),
        (b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}', NOTHING, {"n_in": 3, "n_out": 2}),
        (b'{"choices":[{"delta":{}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}', NOTHING,
         {"n_in": 3, "n_out": 2}),
        (b'{"choices":null,"usage":{"completion_tokens":2}}', NOTHING, {"n_out": 2}),
        (b'{"choices":[],"usage":null}', NOTHING, {}),
        (b'{"choices":[],"usage":{}}', NOTHING, {}),
        (b'{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}', NOTHING, {"n_in": 0, "n_out": 0}),
        (b'{"choices":[],"usage":{"prompt_tokens":"many","completion_tokens":-1}}', NOTHING, {}),
        (b'{"choices":[],"usage":{"prompt_tokens":true,"completion_tokens":2.5}}', NOTHING, {}),
        (b'{"choices":[],"usage":{"completion_tokens":99999999999999999999999}}', NOTHING, {}),
    ],
)  # fmt: skip
def test_chat_event(event, carried, facts):
    """What it carried and what it told, nulls and absent keys alike."""
    assert (carried, facts) == read_event(CHAT, event)


@pytest.mark.parametrize(
    ("event", "code", "text"),
    [
        (b'{"error":{"message":"queue full","code":503}}', "503", "queue full"),
        (b'{"error":{"message":"m","type":"server_error","code":null}}', "server_error", "m"),
        (b'{"error":{"message":"m","type":"t","param":null,"code":"c"},"choices":[]}', "c", "m"),
        (b'{"error":"engine died"}', None, "engine died"),
        (b'{"error":{"message":["a"]}}', None, '["a"]'),
        (b'{"error":{"reason":"x"}}', None, '{"reason":"x"}'),
        (b'{"error":true}', None, "true"),
        (b'{"object":"error","message":"too long","type":"BadRequestError","code":400}', "400", "too long"),
        (b'{"type":"error","error":{"type":"overloaded_error","message":"m"}}', "overloaded_error", "m"),
    ],
)  # fmt: skip
def test_error_inside_a_stream(event, code, text):
    """Every shape of error is an error, whatever else the event holds."""
    assert (NOTHING, {"error": True, "error_code": code, "error_text": text}) == (
        CHAT.read_event(event, answer := Answer()),
        {"error_code": None, "error_text": None} | told(answer),
    )


@pytest.mark.parametrize("event", [b'{"error":null,"choices":[]}', b'{"choices":[]}'])
def test_null_error_is_none(event):
    """Some servers send the key on every chunk."""
    assert (NOTHING, {}) == read_event(CHAT, event)


@pytest.mark.parametrize("dialect", DIALECTS, ids=BY_NAME)
@pytest.mark.parametrize(
    "data",
    [b"<html>", b'{"choices":[', b"null", b'"text"', b"[]", b"1", b'{"model":"\xff","type":"\xff"}',
     b'{"error":"\\ud800"}', DEEP],
)  # fmt: skip
def test_bytes_that_are_not_of_the_api(dialect, data):
    """Other JSON, half of one, broken UTF-8 and bottomless nesting say so instead of breaking the reader."""
    with pytest.raises(BadBodyError):
        dialect.read_event(data, Answer())
    with pytest.raises(BadBodyError):
        dialect.read_body(data, Answer(), {})


def test_later_usage_and_finish_win_and_nonsense_does_not():
    """Servers that count on every chunk say more with each; a later word or null takes nothing back."""
    answer = Answer()
    for event in (
        b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}',
        b'{"choices":[{"delta":{},"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}',
        b'{"choices":[{"delta":{},"finish_reason":null}],"usage":{"prompt_tokens":null,"completion_tokens":"?"}}',
    ):
        CHAT.read_event(event, answer)

    assert {"n_in": 3, "n_out": 2, "finish": "length"} == told(answer)


@pytest.mark.parametrize(
    ("dialect", "event", "carried", "facts"),
    [
        (OLLAMA, b'{"message":{"role":"assistant","content":""},"done":false}', NOTHING, {}),
        (OLLAMA, b'{"model":"m","message":{"content":"A"},"done":false}', ANSWER, {"model": "m"}),
        (OLLAMA, b'{"message":{"content":"A"}}', ANSWER, {}),
        (OLLAMA, b'{"message":{"content":"","thinking":"t"},"done":false}', TOKEN, {}),
        (OLLAMA, b'{"message":{"content":"A","thinking":"t"}}', ANSWER, {}),
        (OLLAMA, b'{"message":{"content":null,"tool_calls":[{"function":{"name":"f","arguments":{}}}]}}', TOKEN, {}),
        (OLLAMA, b'{"message":null,"done":false}', NOTHING, {}),
        (OLLAMA, b"{}", NOTHING, {}),
        (OLLAMA, b'{"message":{"content":""},"done":true,"done_reason":"stop","prompt_eval_count":3,"eval_count":2,'
                 b'"total_duration":9000000,"load_duration":1000000,"prompt_eval_duration":2000000,"eval_duration":3000000}',
         NOTHING, {"done": True, "finish": "stop", "n_in": 3, "n_out": 2, "total_ns": 9000000, "load_ns": 1000000,
                   "prompt_eval_ns": 2000000, "eval_ns": 3000000}),
        (OLLAMA, b'{"message":{"content":"A"},"done":true}', ANSWER, {"done": True}),
        (OLLAMA, b'{"done":true,"prompt_eval_count":0,"eval_count":-2,"load_duration":"1s"}', NOTHING,
         {"done": True, "n_in": 0}),
        (OLLAMA, b'{"done":false,"eval_count":9}', NOTHING, {}),
        (OLLAMA, b'{"error":"model failed"}', NOTHING, {"error": True, "error_text": "model failed"}),
        (OLLAMA, b'{"error":{"message":"m","code":500},"done":true}', NOTHING,
         {"error": True, "error_code": "500", "error_text": "m"}),
        (GENERATE, b'{"model":"m","response":"A","done":false}', ANSWER, {"model": "m"}),
        (GENERATE, b'{"response":"","done":false}', NOTHING, {}),
        (GENERATE, b'{"response":"","thinking":"t","done":false}', TOKEN, {}),
        (GENERATE, b'{"response":"","done":true,"done_reason":"length","prompt_eval_count":3,"eval_count":2}', NOTHING,
         {"done": True, "finish": "length", "n_in": 3, "n_out": 2}),
        (GENERATE, b'{"error":"busy"}', NOTHING, {"error": True, "error_text": "busy"}),
    ],
)  # fmt: skip
def test_ollama_event(dialect, event, carried, facts):
    """What it carried and what it told; counts come with done:true only."""
    assert (carried, facts) == read_event(dialect, event)


CHAT_BODY = b'{"id":"c","model":"m","choices":[{"message":%b,"finish_reason":%b}],"usage":{"prompt_tokens":3,"completion_tokens":2}}'  # noqa: E501
CHAT_FACTS = {"done": True, "finish": "stop", "model": "m", "server_id": "c", "n_in": 3, "n_out": 2}


@pytest.mark.parametrize(
    ("dialect", "body", "carried", "facts"),
    [
        (CHAT, CHAT_BODY % (b'{"content":"AB"}', b'"stop"'), ANSWER, CHAT_FACTS),
        (CHAT, CHAT_BODY % (b'{"content":null,"refusal":"no"}', b'"stop"'), ANSWER, CHAT_FACTS),
        (CHAT, CHAT_BODY % (b'{"content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}', b'"stop"'),
         TOKEN, CHAT_FACTS),
        (CHAT, CHAT_BODY % (b'{"content":""}', b'"stop"'), NOTHING, CHAT_FACTS),
        (CHAT, b'\r\n {"choices":[{"message":{"content":"A"},"finish_reason":"length"}]} \n', ANSWER,
         {"done": True, "finish": "length"}),
        (CHAT, b'{"error":{"message":"no","code":500}}', NOTHING,
         {"done": True, "error": True, "error_code": "500", "error_text": "no"}),
        (OLLAMA, b'{"message":{"content":"AB"},"done":true,"done_reason":"stop","eval_count":2}', ANSWER,
         {"done": True, "finish": "stop", "n_out": 2}),
        (GENERATE, b'{"response":"AB","done":true,"eval_count":2}', ANSWER, {"done": True, "n_out": 2}),
        (OLLAMA, b'{"error":"no"}', NOTHING, {"error": True, "error_text": "no"}),
    ],
)  # fmt: skip
def test_whole_body(dialect, body, carried, facts):
    """A non-streaming answer is complete by itself, or an error."""
    assert (carried, facts) == read_body(dialect, body)


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (CHAT, b""),
        (CHAT, b"{}"),
        (CHAT, CHAT_BODY % (b'{"content":"A"}', b"null")),
        (CHAT, b'{"choices":[]}'),
        (CHAT, b'data: {"choices":[]}\n\ndata: [DONE]\n\n'),
        (CHAT, CHAT_BODY % (b'{"content":"A"}', b'"stop"') + b"{}"),
        (OLLAMA, b""),
        (OLLAMA, b'{"message":{"content":"A"},"done":false}'),
        (OLLAMA, b'{"message":{"content":"A"},"done":false}\n{"done":true}\n'),
        (GENERATE, b"{}"),
    ],
)
def test_body_that_is_no_whole_answer(dialect, body):
    """Valid JSON is not enough: it must be an answer, and complete."""
    with pytest.raises(BadBodyError):
        read_body(dialect, body)


@pytest.mark.parametrize(
    ("name", "dialect", "n_answer", "facts"),
    [
        ("llama-server/chat_stream", CHAT, 8, ("length", None, None, "gemma-270m")),
        ("llama-server/chat_stream_usage", CHAT, 8, ("length", 26, 8, "gemma-270m")),
        ("llama-server/chat_stream_http10", CHAT, 3, ("length", None, None, "gemma-270m")),
        ("ferrogw/stream_usage", CHAT, 8, ("length", 26, 8, "gemma-270m")),
        ("rlcd-gateway/chat_stream", CHAT, 8, ("length", None, None, "gemma-270m")),
        ("llmock/stream", CHAT, 9, ("stop", None, None, "gpt-4o-mini")),
        ("llmock/stream_usage", CHAT, 9, ("stop", 1, 16, "gpt-4o-mini")),
        ("aimock/stream", CHAT, 10, ("stop", 2, 19, "gpt-4o")),
        ("nginx/A_default_buffered_stream", CHAT, 10, ("length", None, None, "sim")),
        ("haproxy/stream", CHAT, 10, ("length", None, None, "sim")),
        ("aimock/ollama_chat_stream", OLLAMA, 10, ("stop", 0, 0, "llama3")),
        ("aimock/ollama_generate_stream", GENERATE, 10, ("stop", 0, 0, "llama3")),
    ],
)
def test_recorded_stream_of_a_real_server(name, dialect, n_answer, facts):
    """Tokens, finish reason, counts and model as the recording shows them to the eye."""
    answer, reader = Answer(), dialect.reader()
    carried = [dialect.read_event(data, answer) for _, data in reader.feed(recorded(name).body)]

    assert ([], n_answer, 0) == (reader.close(), carried.count(ANSWER), carried.count(TOKEN))
    assert (*facts, True, False) == (
        answer.finish, answer.n_in, answer.n_out, answer.model, answer.done, answer.error,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dialect", "facts"),
    [
        ("llama-server/chat_nonstream", CHAT, ("length", 26, 8, "gemma-270m")),
        ("ferrogw/nonstream", CHAT, ("length", 26, 8, "gemma-270m")),
        ("rlcd-gateway/chat_nonstream", CHAT, ("length", 26, 8, "gemma-270m")),
        ("llmock/nonstream", CHAT, ("stop", 1, 16, "gpt-4o-mini")),
        ("aimock/nonstream", CHAT, ("stop", 2, 19, "gpt-4o")),
        ("haproxy/nonstream", CHAT, ("length", 2, 10, "sim")),
        ("aimock/ollama_chat_nonstream", OLLAMA, ("stop", 0, 0, "llama3")),
    ],
)
def test_recorded_body_of_a_real_server(name, dialect, facts):
    """A whole answer, complete, with the counts it names."""
    answer = Answer()

    assert ANSWER == dialect.read_body(recorded(name).body, answer, {})
    assert (*facts, True) == (answer.finish, answer.n_in, answer.n_out, answer.model, answer.done)


def test_recorded_malformed_stream():
    """An event cut in the middle of its JSON is no event of the API."""
    events = CHAT.reader().feed(recorded("llmock/stream_malformed").body)
    with pytest.raises(BadBodyError):
        [CHAT.read_event(data, Answer()) for _, data in events]


def test_recorded_truncated_stream_is_not_complete():
    """Two tokens and a clean end."""
    answer = Answer()
    for _, data in CHAT.reader().feed(recorded("llmock/stream_truncate").body):
        CHAT.read_event(data, answer)

    assert not CHAT.is_complete(answer)


@pytest.mark.parametrize(
    ("dialect", "done", "finish", "complete"),
    [
        (CHAT, True, None, True),
        (CHAT, False, "stop", True),
        (CHAT, False, None, False),
        (OLLAMA, True, None, True),
        (OLLAMA, False, "stop", False),
    ],
)
def test_terminal_rule(dialect, done, finish, complete):
    """chat.completions ends with [DONE] or a finish reason, Ollama with done:true only."""
    answer = Answer()
    answer.done, answer.finish = done, finish

    assert complete == dialect.is_complete(answer)


@pytest.mark.parametrize(
    ("shape", "code", "text"),
    [
        ({"error": {"code": 500, "message": "m", "type": "t"}}, "500", "m"),
        ({"error": "m"}, None, "m"),
        ({"detail": "Not Found"}, None, "Not Found"),
        ({"error": "busy", "code": "QUEUE_FULL", "detail": []}, "QUEUE_FULL", "busy"),
        ({"error": "busy", "code": None}, None, "busy"),
        ({"error": {"message": "m"}, "code": 7}, "7", "m"),
        ({"type": "error", "error": {"type": "t", "message": "m"}}, "t", "m"),
        ({"type": "error", "error": "m"}, None, "m"),
        ({"detail": {"error": {"message": "m", "status": "s"}}}, "s", "m"),
        ({"detail": [{"msg": "Field required"}]}, None, '[{"msg":"Field required"}]'),
        ({"status": 404, "message": "m"}, "404", "m"),
        ({"msg": "m"}, None, "m"),
        ("plain", None, "plain"),
        ([1], None, "[1]"),
        (None, None, "null"),
        ({}, None, "{}"),
        ({"code": {"a": 1}, "message": ""}, '{"a":1}', '{"code":{"a":1},"message":""}'),
    ],
)
def test_error_of_any_shape(shape, code, text):
    """Always a text; a code where one is named."""
    assert (code, text) == error_of(shape)


def test_error_of_a_bottomless_shape():
    """No depth of nesting breaks it."""
    bare, wrapped = [], {}
    for _ in range(5000):
        bare, wrapped = [bare], {"error": wrapped or "deep"}

    assert (None, "nested too deep to read") == error_of({"error": {"message": bare}})
    assert (None, "deep") == error_of(wrapped)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("dialect", "limit"),
    [(CHAT, ("max_tokens",)), (OLLAMA, ("options", "num_predict")), (GENERATE, ("options", "num_predict"))],
)
def test_request_body(dialect, limit, stream):
    """Model, prompt, limit and mode are where the API wants them; usage is asked for in streams."""
    body = dialect.body(Ask("m", "say", 9, stream, {"temperature": 0, "options": {"seed": 1}}))
    value = body
    for key in limit:
        value = value[key]

    assert ("m", 9, stream, 0, 1) == (
        body["model"], value, body["stream"], body["temperature"], body["options"]["seed"],
    )  # fmt: skip
    assert "say" in json.dumps(body.get("messages", body.get("prompt")))
    assert (stream and dialect is CHAT) == ("stream_options" in body)


def test_extra_body_wins():
    """What the user gives replaces ours: a server may know another name for the limit."""
    assert {"include_usage": False} == CHAT.body(Ask("m", "p", 9, True, {"stream_options": {"include_usage": False}}))[
        "stream_options"
    ]


@pytest.mark.parametrize("dialect", DIALECTS, ids=BY_NAME)
def test_row_says_what_it_lacks(dialect):
    """What does not stream says nothing of events, and is not complete by one; lines end with done:true only."""
    speaks = {"openai-embeddings", "ollaya-decide", "systemone"}

    assert (dialect.name in speaks) == (not dialect.streams) == (not dialect.has_tokens)
    assert dialect.streams == ("stream" in dialect.body(Ask("m", "p", 9, True, {})))
    assert not dialect.has_lines or dialect.needs_done
    if not dialect.streams:
        with pytest.raises(BadBodyError, match="the API has no streaming"):
            dialect.read_event(b"{}", Answer())


def test_models_are_read_from_a_listing():
    """OpenAI's `data`, Ollama's `models`."""
    assert ["a"] == CHAT.names({"object": "list", "data": [{"id": "a", "object": "model"}]})
    assert ["b"] == OLLAMA.names({"models": [{"name": "b", "size": 1}]})


def test_help_names_the_apis_that_are_spoken():
    """`run --help` lists them without loading their rows: two tables that must not drift apart."""
    assert APIS == tuple(BY_NAME)


@pytest.mark.parametrize("dialect", DIALECTS, ids=BY_NAME)
def test_what_a_task_may_replace_is_in_the_body(dialect):
    """A name that is misspelt in a row would be free for nobody."""
    assert set(dialect.replaceable) <= set(dialect.body(Ask("m", "p", 9, True, {})))
