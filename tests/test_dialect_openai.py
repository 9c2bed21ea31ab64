"""OpenAI's other APIs: completions, responses and embeddings; every shape they are known to send."""

from __future__ import annotations

import json

import pytest
from reading import read_body, read_event, read_events, told
from recorded import recorded

from sweep.dialects import ANSWER, BY_NAME, NOTHING, TOKEN, Answer, Ask, BadBodyError

COMPLETIONS, RESPONSES, EMBEDDINGS = (
    BY_NAME[f"openai-{name}"] for name in ("completions", "responses", "embeddings")
)  # fmt: skip


def typed(kind: str, **more: object) -> bytes:
    return json.dumps({"type": f"response.{kind}", **more}).encode()


@pytest.mark.parametrize(
    ("event", "carried", "facts"),
    [
        (b'{"choices":[{"text":" a","index":0,"logprobs":null,"finish_reason":null}],"model":"m","id":"c"}', ANSWER,
         {"model": "m", "server_id": "c"}),
        (b'{"choices":[{"text":"","finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":6}}',
         NOTHING, {"finish": "length", "n_in": 3, "n_out": 6}),
        (b'{"choices":[{"text":null}]}', NOTHING, {}),
        (b'{"choices":[{"text":"","reasoning_content":"t"}]}', TOKEN, {}),
        (b'{"choices":[{"text":"","reasoning":"t"},{"text":"A"}]}', ANSWER, {}),
        (b'{"choices":[],"usage":null}', NOTHING, {}),
        (b'{"choices":null,"usage":{"completion_tokens":6}}', NOTHING, {"n_out": 6}),
        (b"[DONE]", NOTHING, {"done": True}),
        (b" ", NOTHING, {}),
        (b'{"error":{"message":"m","code":500}}', NOTHING, {"error": True, "error_code": "500", "error_text": "m"}),
        (b'{"detail":"no"}', NOTHING, {"error": True, "error_text": "no"}),
        # a chat server behind the path: no token of this API
        (b'{"choices":[{"delta":{"content":"A"}}]}', NOTHING, {}),
    ],
)  # fmt: skip
def test_completions_event(event, carried, facts):
    """Text is the answer; usage, finish reason and errors as in chat."""
    assert (carried, facts) == read_event(COMPLETIONS, event)


def test_completions_usage_that_is_zero_until_the_end():
    """Ollama counts zero on each piece, and the truth with the last."""
    piece = b'{"choices":[{"text":"A","finish_reason":%b}],"usage":{"prompt_tokens":%b,"completion_tokens":%b}}'

    assert ([ANSWER, ANSWER], {"finish": "stop", "n_in": 3, "n_out": 2}) == read_events(
        COMPLETIONS, piece % (b"null", b"0", b"0"), piece % (b'"stop"', b"3", b"2")
    )


@pytest.mark.parametrize(
    ("event", "carried", "facts"),
    [
        (typed("created", sequence_number=0, response={"id": "r", "model": "m", "status": "in_progress", "usage": None,
               "error": None}), NOTHING, {"sequence": 0, "server_id": "r", "model": "m"}),
        (typed("in_progress", response={"id": "r"}), NOTHING, {"server_id": "r"}),
        (typed("output_item.added", item={"type": "message", "content": []}), NOTHING, {}),
        (typed("output_item.added", item={"type": "function_call", "name": "f", "arguments": ""}), TOKEN, {}),
        (typed("output_item.added", item={"type": "custom_tool_call", "name": "f"}), TOKEN, {}),
        (typed("output_item.added", item={"type": "reasoning", "summary": []}), NOTHING, {}),
        (typed("output_item.added", item={"type": "odd", "content": "text"}), NOTHING, {}),
        (typed("output_item.done", item={"type": "function_call", "name": "f"}), NOTHING, {}),
        (typed("content_part.added", part={"type": "output_text", "text": ""}), NOTHING, {}),
        (typed("output_text.delta", delta="A", sequence_number=4), ANSWER, {"sequence": 4}),
        (typed("output_text.delta", delta=""), NOTHING, {}),
        (typed("refusal.delta", delta="no"), ANSWER, {}),
        (typed("reasoning_text.delta", delta="t"), TOKEN, {}),
        (typed("reasoning_summary_text.delta", delta="t"), TOKEN, {}),
        (typed("reasoning.delta", delta={"text": "t"}), TOKEN, {}),
        (typed("function_call_arguments.delta", delta="{"), TOKEN, {}),
        (typed("output_text.done", text="AB"), NOTHING, {}),
        (typed("queued", response={"id": "r"}), NOTHING, {"server_id": "r"}),
        (typed("of_next_year", delta_of_it=1), NOTHING, {}),
        (typed("completed", response={"status": "completed", "usage": {"input_tokens": 3, "output_tokens": 2}}),
         NOTHING, {"done": True, "finish": "completed", "n_in": 3, "n_out": 2}),
        (typed("completed"), NOTHING, {"done": True, "finish": "completed"}),
        (typed("completed", response={"status": "completed", "usage": None}), NOTHING,
         {"done": True, "finish": "completed"}),
        (typed("incomplete", response={"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"},
               "usage": {"output_tokens": 9}}), NOTHING, {"done": True, "finish": "max_output_tokens", "n_out": 9}),
        (typed("failed", response={"status": "failed", "error": {"code": "server_error", "message": "m"}}), NOTHING,
         {"error": True, "error_code": "server_error", "error_text": "m", "finish": "failed"}),
        (typed("failed", response={"status": "failed"}), NOTHING,
         {"done": True, "finish": "failed", "error": True, "error_code": "failed",
          "error_text": "the response failed, the server does not say why"}),
        (typed("cancelled", response={"status": "cancelled"}), NOTHING, {"done": True, "finish": "cancelled"}),
        (b'{"type":"error","code":"rate","message":"m","param":null,"sequence_number":3}', NOTHING,
         {"error": True, "error_code": "rate", "error_text": "m"}),
        (b'{"type":"error","error":{"code":"rate","message":"m"}}', NOTHING,
         {"error": True, "error_code": "rate", "error_text": "m"}),
        (b'{"error":{"message":"m","code":502}}', NOTHING, {"error": True, "error_code": "502", "error_text": "m"}),
        (b'{"detail":"no"}', NOTHING, {"error": True, "error_text": "no"}),
        (b"[DONE]", NOTHING, {}),
        (b"", NOTHING, {}),
    ],
)  # fmt: skip
def test_responses_event(event, carried, facts):
    """By the type in the JSON: text and refusals answer, every other delta is a token; three events end it."""
    assert (carried, facts) == read_event(RESPONSES, event)


def numbered(*numbers: int | None) -> list[bytes]:
    return [
        typed("output_text.delta", delta="A", **({} if n is None else {"sequence_number": n})) for n in numbers
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "skipped"),
    [((0, 1, 2), False), ((7, 8), False), ((None, None), False), ((0, None, 1), False), ((0, 2), True),
     ((0, 5, 6), True)],
)  # fmt: skip
def test_number_that_is_left_out_is_remarked(numbers, skipped):
    """A server without numbers, or one that starts elsewhere, is right; a hole may be a lost token."""
    carried, facts = read_events(RESPONSES, *numbered(*numbers))

    assert ([ANSWER] * len(numbers), skipped) == (carried, facts.get("skipped", False))


@pytest.mark.parametrize(("numbers", "words"), [((0, 1, 1), "1 after 1"), ((0, 3, 2), "2 after 3")])
def test_number_that_does_not_rise_is_not_of_the_api(numbers, words):
    """An event twice, or two swapped: the text is not what was generated."""
    with pytest.raises(BadBodyError, match=f"sequence number {words}"):
        read_events(RESPONSES, *numbered(*numbers))


def whole(status: str = "completed", output: list | None = None, **more: object) -> bytes:
    shape = {"id": "r", "object": "response", "model": "m", "status": status, "output": output or [], **more}
    return json.dumps(shape | {"error": more.get("error")}).encode()


TEXT = {"type": "message", "content": [{"type": "output_text", "text": "A"}]}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]}
FACTS = {"done": True, "finish": "completed", "model": "m", "server_id": "r"}


@pytest.mark.parametrize(
    ("body", "carried", "facts"),
    [
        (whole(output=[THOUGHT, TEXT], usage={"input_tokens": 3, "output_tokens": 2}), ANSWER,
         FACTS | {"n_in": 3, "n_out": 2}),
        (whole(output=[{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}]), ANSWER, FACTS),
        (whole(output=[THOUGHT]), TOKEN, FACTS),
        (whole(output=[{"type": "reasoning", "content": [{"text": "t"}]}]), TOKEN, FACTS),
        (whole(output=[{"type": "function_call", "name": "f"}]), TOKEN, FACTS),
        (whole(output=[]), NOTHING, FACTS),
        (whole("incomplete", [TEXT], incomplete_details={"reason": "max_output_tokens"}), ANSWER,
         FACTS | {"finish": "max_output_tokens"}),
        (whole("failed", error={"code": "c", "message": "m"}), NOTHING,
         {"error": True, "error_code": "c", "error_text": "m", "finish": "failed", "model": "m", "server_id": "r"}),
        (b'{"error":{"code":"c","message":"m"}}', NOTHING, {"error": True, "error_code": "c", "error_text": "m"}),
        (b'{"detail":"no"}', NOTHING, {"error": True, "error_text": "no"}),
    ],
)  # fmt: skip
def test_whole_response(body, carried, facts):
    """Its status is its finish; what it carries is the best of its items."""
    assert (carried, facts) == read_body(RESPONSES, body)


@pytest.mark.parametrize("body", [b"{}", whole("in_progress"), whole("queued"), b'{"output":[]}',
                                  b'{"choices":[{"message":{"content":"A"},"finish_reason":"stop"}]}'])  # fmt: skip
def test_response_that_is_not_over_is_no_answer(body):
    """A background response, or the answer of another API."""
    with pytest.raises(BadBodyError, match="no whole response"):
        read_body(RESPONSES, body)


def test_stream_of_a_response_is_complete_with_its_terminal_event_only():
    """The text's own end is none."""
    answer = Answer()
    for event in (*numbered(0), typed("output_text.done", text="A"), typed("output_item.done")):
        RESPONSES.read_event(event, answer)
    assert not RESPONSES.is_complete(answer)

    RESPONSES.read_event(typed("completed"), answer)
    assert RESPONSES.is_complete(answer)


def vectors(*rows: object, **more: object) -> bytes:
    return json.dumps({"object": "list", "model": "m", "data": [{"embedding": row} for row in rows], **more}).encode()


@pytest.mark.parametrize(
    ("body", "asked", "facts"),
    [
        (vectors([0.5, -1, 2e-3], usage={"prompt_tokens": 4, "total_tokens": 4}), {"input": "a"}, {"n_in": 4}),
        (vectors([1]), {"input": "a"}, {}),
        (vectors([1], usage={"prompt_tokens": None}), {"input": [12, 7]}, {}),
        (vectors([1], [2]), {"input": ["a", "b"]}, {}),
        (vectors("AACAPw=="), {"input": "a", "encoding_format": "base64"}, {}),
    ],
)
def test_embeddings(body, asked, facts):
    """A vector an input is the answer; output tokens do not exist: unknown, not 0."""
    assert (ANSWER, {"done": True, "model": "m"} | facts) == read_body(EMBEDDINGS, body, asked)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (vectors(), "0 embeddings for 1 inputs"),
        (vectors([1], [1]), "2 embeddings for 1 inputs"),
        (b"{}", "0 embeddings"),
        (vectors([]), r"data\[0\].embedding is empty"),
        (vectors("AACAPw=="), "no list of numbers"),
        (vectors([1, None]), "null"),
        (vectors([1, "2"]), "str"),
        (b'{"data":[{"index":0}]}', "embedding"),
        (b'{"choices":[{"message":{"content":"A"},"finish_reason":"stop"}]}', "0 embeddings"),
    ],
)
def test_embeddings_that_are_none(body, words):
    """Each is named."""
    with pytest.raises(BadBodyError, match=words):
        read_body(EMBEDDINGS, body, {"input": "a"})


@pytest.mark.parametrize(
    ("dialect", "keys"),
    [(COMPLETIONS, {"model", "prompt", "max_tokens", "stream"}), (EMBEDDINGS, {"model", "input"}),
     (RESPONSES, {"model", "input", "max_output_tokens", "stream", "store"})],
)  # fmt: skip
def test_request_body(dialect, keys):
    """What the API takes, no more: an unknown key is refused by some servers."""
    body = dialect.body(Ask("m", "say", 9, False, {}))

    assert keys == set(body)
    assert "say" == body.get("prompt", body.get("input"))
    assert [9] * ("max" in str(keys)) == [body[key] for key in keys if key.startswith("max")]
    assert {"x": 1, "model": "o"}.items() <= dialect.body(Ask("m", "p", 9, False, {"x": 1, "model": "o"})).items()


def test_responses_are_not_stored_and_take_a_conversation():
    """The server keeps nothing of the load unless the user says so."""
    said = [{"role": "user", "content": "a"}]
    body = RESPONSES.body(Ask("m", "", 9, True, {}, said))

    assert (False, said) == (body["store"], body["input"])
    assert RESPONSES.body(Ask("m", "", 9, True, {"store": True}))["store"]
    assert {"include_usage": True} == COMPLETIONS.body(Ask("m", "p", 9, True, {}))["stream_options"]


@pytest.mark.parametrize("dialect", [COMPLETIONS, EMBEDDINGS])
def test_api_without_conversations_refuses_one(dialect):
    """Before anything is sent."""
    with pytest.raises(ValueError, match=f"{dialect.name} takes no messages; give a prompt"):
        dialect.body(Ask("m", "", 9, False, {}, [{"role": "user", "content": "a"}]))


@pytest.mark.parametrize(
    ("name", "dialect", "n_answer", "facts"),
    [
        ("llama-server/completions_stream", COMPLETIONS, 6, ("length", 3, 6, "gemma-270m")),
        ("llama-server/responses_stream", RESPONSES, 6, ("completed", 26, 6, "gemma-270m")),
        ("llmock/responses_stream", RESPONSES, 9, ("completed", 1, 16, "gpt-4o-mini")),
    ],
)
def test_recorded_stream_of_a_real_server(name, dialect, n_answer, facts):
    """Tokens, finish reason, counts and model as the recording shows them to the eye."""
    answer, reader = Answer(), dialect.reader()
    carried = [dialect.read_event(data, answer) for _, data in reader.feed(recorded(name).body)]

    assert ([], n_answer, 0) == (reader.close(), carried.count(ANSWER), carried.count(TOKEN))
    assert (*facts, True, False, False) == (
        answer.finish, answer.n_in, answer.n_out, answer.model, answer.done, answer.error, answer.skipped,
    )  # fmt: skip
    assert answer.server_id in recorded(name).body.decode()


def test_event_lines_are_not_needed():
    """The same answer when a gateway leaves them out."""
    body = recorded("llmock/responses_stream").body
    without = b"".join(line for line in body.splitlines(keepends=True) if not line.startswith(b"event:"))
    answers = []
    for each in (body, without):
        answers.append(Answer())
        for _, data in RESPONSES.reader().feed(each):
            RESPONSES.read_event(data, answers[-1])

    assert len(without) < len(body)
    assert told(answers[0]) == told(answers[1])
