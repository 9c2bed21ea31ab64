"""The embedded gateway speaks every API: the real client reads it, and each API's own rules are checked by hand."""

from __future__ import annotations

import base64
import itertools
import json
import re
import struct
import time
from datetime import UTC, datetime

import pytest
from asker import ask
from command import QUICK, ha_sweep, result_of
from demo_process import demo

from sweep import outdir
from sweep.dialects import BY_NAME, DIALECTS

N = 5
TTFT_S, PER_TOKEN_S = 0.05, 0.01
STREAMS = [dialect.name for dialect in DIALECTS if dialect.streams]
# What each says of an answer that its limit ended.
FINISH = {
    "openai-chat": "length", "openai-completions": "length", "openai-responses": "max_output_tokens",
    "ollama-chat": "length", "ollama-generate": "length", "anthropic-messages": "max_tokens",
}  # fmt: skip
SILENT = [dialect.name for dialect in DIALECTS if not dialect.streams]


@pytest.fixture(scope="module")
def plain():
    with demo("--ttft", "50ms", "--per-token", "10ms", "--max-output", "50") as gateway:
        yield gateway


def every(gateway, names: list[str], *modes: str) -> dict[str, list[dict]]:
    """Records of each API, by its name."""
    url = f"http://127.0.0.1:{gateway.port}"
    jobs = [{"url": url, "api": name, "modes": modes, "model": "demo-1", "max_tokens": N} for name in names]
    return dict(zip(names, ask(jobs), strict=True))


def typed(body: bytes) -> list[dict]:
    """Events of a stream whose `event:` line says what their JSON says."""
    found = []
    for block in body.decode().split("\n\n")[:-1]:
        kind, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {found[-1]['type']}"
    return found


def test_every_api_answers_the_client_on_its_schedule(plain):
    """Tokens as asked, counted by usage; TTFT and length as set; what has no tokens takes the first one's time."""
    found = every(plain, STREAMS, "stream", "nonstream")

    assert 6 == len(STREAMS)
    for name, (stream, whole) in found.items():
        for record in (stream, whole):
            assert ("ok", N, "usage") == (record["outcome"], record["n_out"], record["token_source"]), (name, record)
            assert record["n_in"] > 0 and FINISH[name] == record["finish"]
            assert record["t_end_ns"] - record["t_start_ns"] >= (TTFT_S + (N - 1) * PER_TOKEN_S) * 1e9
        assert N == stream["n_events"], name
        assert 1 <= (stream["t_first_ns"] - stream["t_start_ns"]) / (TTFT_S * 1e9) < 20
        assert stream["t_last_ns"] - stream["t_first_ns"] >= 0.5 * (N - 1) * PER_TOKEN_S * 1e9
        assert None is whole["t_first_ns"]
    for name, (record,) in every(plain, SILENT, "nonstream").items():
        assert ("ok", None) == (record["outcome"], record["n_out"]), (name, record)
        took_s = (record["t_end_ns"] - record["t_start_ns"]) / 1e9
        assert TTFT_S <= took_s < TTFT_S + 1 and record["n_in"] > 0, name


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(
    ("defect", "outcomes"),
    [("truncate-streams", {"truncated", "ok"}), ("error-in-200", {"error_event"})],
)
def test_defects_apply_to_every_api(broken, name, defect, outcomes):
    """A stream that ends half-way or with an error object is found in each; whole answers too where they break."""
    stream, whole = broken[defect][name]

    assert ("truncated" if defect == "truncate-streams" else "error_event") == stream["outcome"], stream
    assert whole["outcome"] in outcomes - {"truncated"}


@pytest.fixture(scope="module")
def broken():
    found = {}
    for defect in ("truncate-streams", "error-in-200"):
        with demo("--ttft", "1ms", "--per-token", "1ms", "--defect", defect) as gateway:
            found[defect] = every(gateway, STREAMS, "stream", "nonstream")
            found[defect] |= every(gateway, SILENT, "nonstream")
    return found


def test_an_error_in_a_200_body_is_found_where_nothing_streams(broken):
    """Truncation of streams leaves them alone."""
    for name in SILENT:
        assert "error_event" == broken["error-in-200"][name][0]["outcome"], name
        assert "ok" == broken["truncate-streams"][name][0]["outcome"], name


def test_responses_number_their_events_and_end_incomplete_at_the_limit(plain):
    """No [DONE]; a model that stops by itself completes."""
    body = {"model": "demo-1", "input": "one two", "max_output_tokens": 3, "stream": True}
    events = typed(plain.call("POST", "/v1/responses", body)[1])
    whole = json.loads(plain.call("POST", "/v1/responses", body | {"stream": False})[1])

    assert list(range(len(events))) == [event["sequence_number"] for event in events]
    assert ["response.created", "response.incomplete"] == [events[0]["type"], events[-1]["type"]]
    assert "".join(e["delta"] for e in events if e["type"].endswith(".delta")) == events[-4]["text"]
    assert {"reason": "max_output_tokens"} == whole["incomplete_details"]
    assert (2, 3, 5) == tuple(whole["usage"][key] for key in ("input_tokens", "output_tokens", "total_tokens"))
    with demo("--stop-after", "2", "--ttft", "1ms") as gateway:
        last = typed(gateway.call("POST", "/v1/responses", body)[1])[-1]
    assert ("response.completed", "completed", 2) == (
        last["type"], last["response"]["status"], last["response"]["usage"]["output_tokens"],
    )  # fmt: skip


def test_messages_are_blocks_and_need_a_limit(plain):
    """message_start … message_stop; an error has the API's own shape."""
    body = {"model": "demo-1", "messages": [{"role": "user", "content": "a b"}], "max_tokens": 2, "stream": True}
    events = typed(plain.call("POST", "/v1/messages", body)[1])

    kinds = [kind for kind, _ in itertools.groupby(event["type"] for event in events)]
    assert [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop",
    ] == kinds  # fmt: skip
    assert ("max_tokens", 2) == (events[-2]["delta"]["stop_reason"], events[-2]["usage"]["output_tokens"])
    del body["max_tokens"]
    response, answer = plain.call("POST", "/v1/messages", body)
    assert (400, "invalid_request_error") == (response.status, json.loads(answer)["error"]["type"])


def test_a_completion_s_usage_comes_when_asked_for(plain):
    """An event a token, then the finish, then usage, then [DONE]."""
    body = {"model": "demo-1", "prompt": "a b c", "max_tokens": 2, "stream": True}
    bare = plain.call("POST", "/v1/completions", body)[1]
    told = plain.call("POST", "/v1/completions", body | {"stream_options": {"include_usage": True}})[1]

    assert (4, 5) == (bare.count(b"data: "), told.count(b"data: "))
    assert b"usage" not in bare and b'"total_tokens":5' in told and told.endswith(b"data: [DONE]\n\n")


def test_vectors_have_the_form_asked_for(plain):
    """One for each input; base64 holds the same numbers."""
    body = {"model": "demo-1", "input": ["one two", "three"]}
    told = json.loads(plain.call("POST", "/v1/embeddings", body)[1])
    packed = json.loads(plain.call("POST", "/v1/embeddings", body | {"encoding_format": "base64"})[1])

    assert (2, 3) == (len(told["data"]), told["usage"]["prompt_tokens"])
    for row, other in zip(told["data"], packed["data"], strict=True):
        assert row["embedding"] == pytest.approx(struct.unpack("<8f", base64.b64decode(other["embedding"])))
    assert told["data"][0]["embedding"] != told["data"][1]["embedding"]


@pytest.mark.parametrize("path", ["/api/decide", "/v1/systemone"])
def test_decisions_obey_their_arithmetic_for_any_number_of_options(plain, path):
    """Sums, choice, confidence and score by hand; the same body gets the same numbers."""
    questions = {f"c{n}": {"type": "choice", "criteria": [f"l{i}" for i in range(n)]} for n in (2, 3, 255)}
    questions |= {f"s{n}": {"type": "score", "criteria": [f"l{i}" for i in range(n)]} for n in (2, 10)}
    questions |= {"n": {"type": "noul"}}
    body = {"model": "demo-1", "state": {"disk": "full"}, "questions": questions}
    told = json.loads(plain.call("POST", path, body)[1])

    assert list(questions) == list(told["answers"])
    assert told["answers"] == json.loads(plain.call("POST", path, body)[1])["answers"]
    assert 0 <= told["answers"].pop("n")["noul"] <= 1
    for name, answer in told["answers"].items():
        chances = list(answer["probabilities"].values())
        n, most = len(chances), max(chances)
        assert int(name[1:]) == n and sum(chances) == pytest.approx(1, abs=1e-9)
        assert answer["confidence"] == pytest.approx((n * most - 1) / (n - 1), abs=1e-4)
        if answer["type"] == "choice":
            assert most == answer["probabilities"][answer["choice"]]
        else:
            assert answer["score"] == pytest.approx(sum(i * p for i, p in enumerate(chances)), abs=1e-3)
    assert ({"model", "answers", "usage"} == set(told)) == (path == "/v1/systemone")


@pytest.mark.parametrize(
    "wrong",
    [
        {"questions": {}},
        {"questions": {"q": {"type": "choice", "criteria": ["one"]}}},
        {"questions": {"q": {"type": "rank"}}},
        {"state": 3},
        {"stream": True},
    ],
)
def test_a_decision_that_is_none_is_a_422(plain, wrong):
    """With the code beside the text."""
    body = {"model": "demo-1", "state": "", "questions": {"q": {"type": "noul"}}} | wrong
    response, answer = plain.call("POST", "/api/decide", body)

    assert (422, "INVALID_REQUEST") == (response.status, json.loads(answer)["code"])


def held(gateway) -> float | str | None:
    """Seconds until the model is unloaded, "pinned", or None when it is not loaded."""
    models = json.loads(gateway.call("GET", "/api/ps")[1])["models"]
    if not models:
        return None
    expires = models[0]["expires_at"]
    return "pinned" if expires is None else (datetime.fromisoformat(expires) - datetime.now(UTC)).total_seconds()


def test_requests_set_how_long_the_model_stays():
    """/api/decide's keep_alive is obeyed, its silence and /v1/systemone set the default; OpenAI's say nothing."""
    chat = {"model": "demo-1", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    decision = {"model": "demo-1", "state": "", "questions": {"q": {"type": "noul"}}}
    with demo("--ttft", "1ms") as gateway:
        found = [held(gateway)]
        for path, body in (
            ("/v1/chat/completions", chat), ("/v1/systemone", decision | {"keep_alive": -1}),
            ("/v1/chat/completions", chat), ("/api/decide", decision | {"keep_alive": -1}),
            ("/api/decide", decision), ("/api/decide", decision | {"keep_alive": "1h30m"}),
            ("/api/chat", chat | {"stream": False}), ("/api/decide", decision | {"keep_alive": 0}),
            ("/v1/chat/completions", chat), ("/api/chat", chat | {"stream": False, "keep_alive": "-1m"}),
        ):  # fmt: skip
            assert 200 == gateway.call("POST", path, body)[0].status
            found.append(held(gateway))
        wrong = [
            gateway.call("POST", path, body | {"keep_alive": "soon"})[0].status
            for path, body in (("/api/decide", decision), ("/api/chat", chat))
        ]

    five, long = pytest.approx(300, abs=60), pytest.approx(5400, abs=60)
    assert ["pinned", "pinned", five, five, "pinned", five, long, long, None, five, "pinned"] == found
    assert [422, 400] == wrong


def test_a_key_is_taken_in_anthropic_s_header_too():
    """x-api-key, as its clients send it."""
    body = {"model": "demo-1", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    with demo("--ttft", "1ms", "--api-key-env", "DEMO_KEY", env={"DEMO_KEY": "k1"}) as gateway:
        tried = [gateway.call("POST", "/v1/messages", body, {"x-api-key": key})[0].status for key in ("k1", "k2")]

    assert [200, 401] == tried


def test_each_path_is_the_one_the_client_uses(plain):
    """No API is missing: none answers 404 or 405."""
    for dialect in BY_NAME.values():
        started = time.monotonic()
        assert 400 <= plain.call("POST", dialect.path, {})[0].status <= 422, dialect.name
        assert plain.call("POST", dialect.path, {})[0].status not in (404, 405)
        assert time.monotonic() - started < 5


@pytest.mark.slow
@pytest.mark.parametrize("api", SILENT[1:2])
def test_a_run_without_streaming_or_tokens_reports_only_what_exists(tmp_path, api):
    """One mode, said once; no column, plot or word of tokens in any output, and no cap that counts them."""
    done = ha_sweep("run", "--demo", "--api", api, "--levels", "1,2", *QUICK, "--max-step", "1s",
                    "--max-output-tokens", "20", "--out-dir", "run", cwd=tmp_path)  # fmt: skip

    assert done.returncode in (0, 3), done.stdout + done.stderr
    result = result_of(tmp_path / "run")
    assert {"nonstream"} == {row["mode"] for row in result["levels"]}
    for row in result["levels"]:
        assert row["window_s"] > 0.5
        assert {"ok"} == {name for name, n in row["outcomes"].items() if n and name != "cut"}
    assert 1 == " ".join(done.stdout.split()).count("has no streaming")
    assert "model demo-1 was loaded before and is now (pinned for ever): as found" in result["left_behind"]
    assert "each request carried keep_alive -1, as the model was found" in result["left_behind"]
    folder = tmp_path / "run"
    fields = re.compile(r"<div><dt><code>.*?</dd></div>", re.DOTALL)  # of the files, which have them all
    page = fields.sub("", (folder / outdir.REPORT_HTML).read_text())
    for text in (done.stdout, (folder / "summary.md").read_text(), page):
        for word in ("TTFT", "TTFA", "TPOT", "ttft_ms", "token source", "output tokens"):
            assert word not in text, (word, text[max(0, text.find(word) - 300) : text.find(word) + 100])
