"""The embedded gateway as a real process on loopback: what it answers, and its capacity."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from demo_process import ROOT, Demo, ask, demo, events, n_content
from loopback import CHAT, DEADLINE_S, reads


@pytest.fixture(scope="module")
def plain():
    """One gateway without defects for all tests that leave it as they found it."""
    with demo("--ttft", "5ms", "--per-token", "1ms", "--max-output", "500") as gateway:
        yield gateway


def test_openai_stream_has_role_then_exactly_the_tokens_then_finish_usage_done(plain):
    """max_tokens is honoured to the token, and the usage chunk says the same."""
    response, body = plain.call("POST", CHAT, ask(7, stream_options={"include_usage": True}))
    sse = events(body)

    assert (response.status, response.headers["Content-Type"]) == (200, "text/event-stream")
    assert sse[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert n_content(sse) == 7
    assert sse[-3]["choices"][0]["finish_reason"] == "length"
    assert sse[-2]["usage"] == {"prompt_tokens": 4, "completion_tokens": 7, "total_tokens": 11}
    assert sse[-1] == "[DONE]"


def test_openai_stream_without_include_usage_has_no_usage(plain):
    """The usage chunk comes only when asked for; the answer without a limit is 128 tokens and stops by itself."""
    sse = events(plain.call("POST", CHAT, ask())[1])

    assert (n_content(sse), sse[-2]["choices"][0]["finish_reason"], sse[-1]) == (128, "stop", "[DONE]")
    assert not any("usage" in event for event in sse[:-1])


def test_max_completion_tokens_wins_over_max_tokens(plain):
    """The newer name of the limit is the one that counts."""
    sse = events(plain.call("POST", CHAT, ask(9, max_completion_tokens=3))[1])

    assert n_content(sse) == 3


def test_openai_nonstreaming_answer_has_usage_and_length(plain):
    """A whole JSON body with Content-Length."""
    response, body = plain.call("POST", CHAT, ask(5, stream=False))
    answer = json.loads(body)

    assert len(body) == int(response.headers["Content-Length"])
    assert 5 == answer["usage"]["completion_tokens"] == len(answer["choices"][0]["message"]["content"].split())
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "text"), [("/api/chat", lambda x: x["message"]["content"]), ("/api/generate", lambda x: x["response"])]
)
@pytest.mark.parametrize("stream", [None, False])
def test_ollama_counts_are_exact_and_durations_measured(plain, path, text, stream):
    """NDJSON is the default; the last object counts the tokens and its parts sum up to no more than the total."""
    body = {"model": "demo-1:latest", "prompt": "a b", "options": {"num_predict": 11}}
    response, answer = plain.call("POST", path, body if stream is None else body | {"stream": stream})
    lines = [json.loads(line) for line in answer.splitlines()]
    last = lines[-1]

    assert ("application/x-ndjson" if stream is None else "application/json") == response.headers["Content-Type"]
    assert 11 == last["eval_count"] == len("".join(text(line) for line in lines).split())
    assert (12 if stream is None else 1) == len(lines)
    assert (last["done"], last["done_reason"], last["load_duration"]) == (True, "length", 0)
    assert last["prompt_eval_duration"] >= 5e6
    assert last["prompt_eval_duration"] + last["eval_duration"] >= 15e6  # a late first token shortens the second part
    assert last["total_duration"] >= last["prompt_eval_duration"] + last["eval_duration"]


def test_num_predict_minus_one_sets_no_limit(plain):
    """-1 is Ollama's way to say: until the model stops."""
    _, body = plain.call("POST", "/api/generate", {"model": "demo-1", "stream": False, "options": {"num_predict": -1}})

    assert (json.loads(body)["eval_count"], json.loads(body)["done_reason"]) == (128, "stop")


def test_stop_after_gives_fewer_tokens_and_says_stop():
    """Only an explicit option makes an answer shorter than its limit."""
    with demo("--stop-after", "4", "--model", "other") as gateway:
        longer = events(gateway.call("POST", CHAT, ask(9) | {"model": "other"})[1])
        shorter = events(gateway.call("POST", CHAT, ask(4) | {"model": "other"})[1])

    assert (n_content(longer), longer[-2]["choices"][0]["finish_reason"]) == (4, "stop")
    assert (n_content(shorter), shorter[-2]["choices"][0]["finish_reason"]) == (4, "length")


@pytest.mark.parametrize(
    ("status", "code", "path", "body"),
    [
        (400, "invalid_request", CHAT, b'{"model": "demo-1", '),
        (400, "invalid_request", CHAT, {"model": "demo-1"}),
        (400, "invalid_max_tokens", CHAT, ask(501)),
        (400, "invalid_max_tokens", CHAT, ask(0)),
        (404, "model_not_found", CHAT, ask(3) | {"model": "demo-2"}),
        (404, "not_found", "/v1/nothing", {}),
        (405, "method_not_allowed", "/v1/models", {}),
    ],
)
def test_bad_requests_get_an_error_object_of_the_openai_shape(plain, status, code, path, body):
    """A fault of the request is told with its status and a code."""
    response, answer = plain.call("POST", path, body)

    assert (status, code) == (response.status, json.loads(answer)["error"]["code"])


def test_ollama_errors_are_plain_text_in_error(plain):
    """Ollama's own shape: the value of `error` is a text."""
    response, answer = plain.call("POST", "/api/chat", {"model": "demo-2"})

    assert (
        response.status,
        json.loads(answer)["error"],
    ) == (404, "model 'demo-2' does not exist; this gateway has 'demo-1'")


def test_look_ups_answer_and_request_id_comes_back(plain):
    """Every look-up names what it should; X-Request-Id is echoed on answers and errors alike."""
    texts = {path: plain.call("GET", path)[1].decode() for path in ("/", "/healthz", "/readyz", "/api/version")}
    echoed = [
        plain.call("GET", path, headers={"X-Request-Id": "r-1"})[0].headers["X-Request-Id"] for path in ("/", "/no")
    ]

    assert texts["/"] == "Demo gateway is running"
    assert (json.loads(texts["/healthz"]), json.loads(texts["/readyz"])) == ({"status": "ok"}, {"status": "ready"})
    assert "version" in json.loads(texts["/api/version"])
    assert json.loads(plain.call("GET", "/v1/models")[1])["data"][0]["id"] == "demo-1"
    assert [json.loads(plain.call("GET", f"/api/{x}")[1])["models"][0]["name"] for x in ("tags", "ps")] == [
        "demo-1"
    ] * 2
    assert echoed == ["r-1", "r-1"]


def test_metrics_count_requests_and_tokens():
    """Counters move by exactly what was asked."""
    with demo("--ttft", "1ms", "--per-token", "0ms") as gateway:
        gateway.call("POST", CHAT, ask(5))
        gateway.call("POST", CHAT, ask(6, stream=False))
        gateway.call("POST", CHAT, b"nonsense")

        assert gateway.metric("tokens_total") == 11
        assert gateway.metric(f'requests_total{{path="{CHAT}",status="200",outcome="ok"}}') == 2
        assert gateway.metric(f'requests_total{{path="{CHAT}",status="400",outcome="invalid_request"}}') == 1
        assert gateway.metric("process_open_fds") > 3


def test_key_is_asked_for_on_inference_and_lists_but_not_on_health():
    """401 without the key or with a wrong one; health and metrics stay open."""
    with demo("--api-key-env", "DEMO_KEY", env={"DEMO_KEY": "geheim"}) as gateway:
        wrong = gateway.call("POST", CHAT, ask(2), {"Authorization": "Bearer nein"})
        right = gateway.call("POST", CHAT, ask(2), {"Authorization": "bearer geheim"})
        without = [gateway.call("GET", path)[0].status for path in ("/v1/models", "/api/tags", "/healthz", "/metrics")]

    assert (wrong[0].status, json.loads(wrong[1])["error"]["code"]) == (401, "invalid_api_key")
    assert right[0].status == 200
    assert without == [401, 401, 200, 200]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--defect", "nope"),
        ("--defect", "die-after"),
        ("--defect", "leak-fds=3"),
        ("--ttft", "5x"),
        ("--api-key-env", "NO_SUCH"),
    ],
)
def test_bad_command_line_is_refused(arguments):
    """A wrong option ends with status 2 and a sentence before anything listens."""
    command = [sys.executable, "-P", "-m", "sweep.demo_gateway", *arguments]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, timeout=DEADLINE_S, check=False
    )

    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Invalid value" in done.stderr


def test_a_port_in_use_is_said_in_one_line(plain):
    """No traceback, status 2."""
    command = [sys.executable, "-P", "-m", "sweep.demo_gateway", "--port", str(plain.port)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, timeout=DEADLINE_S, check=False
    )

    assert (2, b"") == (done.returncode, done.stdout)
    assert b"Address already in use; give another --port" in done.stderr


def run_together(gateway: Demo, n: int, n_tokens: int) -> list[tuple[float, float]]:
    """Time to first token and to the end, s, of n streams begun at once, by time to first token."""
    barrier, found = threading.Barrier(n), []

    def one() -> None:
        barrier.wait()
        t_start_ns = time.monotonic_ns()
        with gateway.begin(CHAT, ask(n_tokens)) as client:
            got = reads(client)
        t_first_ns = next(t for t, data in got if b'"content":" ' in data)
        found.append(((t_first_ns - t_start_ns) / 1e9, (got[-1][0] - t_start_ns) / 1e9))

    threads = [threading.Thread(target=one) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found)


def test_beyond_its_slots_requests_wait_for_a_whole_answer():
    """The knee: six of twelve get their first token at once, the other six only after an answer has ended."""
    with demo("--ttft", "20ms", "--per-token", "4ms") as gateway:
        found = run_together(gateway, 12, 60)
    fast, slow = found[:6], found[6:]

    assert max(ttft for ttft, _ in fast) < 0.5 * min(e2e for _, e2e in fast)
    assert min(ttft for ttft, _ in slow) >= min(e2e for _, e2e in fast)


@pytest.mark.parametrize(
    ("option", "status"), [((), 429), pytest.param(("--full-status", "503"), 503, marks=pytest.mark.slow)]
)
def test_full_queue_refuses_with_retry_after(option, status):
    """One in service, one waiting: the third is told so at once, and the two are answered."""
    with demo("--slots", "1", "--queue", "1", "--per-token", "5ms", *option) as gateway:
        with gateway.begin(CHAT, ask(60)) as first, gateway.begin(CHAT, ask(2)) as second:
            gateway.until("queued", 1)
            response, body = gateway.call("POST", CHAT, ask(2))
            ends = [reads(client)[-1][1][-5:] for client in (first, second)]
        gateway.until("in_flight", 0)

    assert (status, "1") == (response.status, response.headers["Retry-After"])
    assert "queue is full" in json.loads(body)["error"]["message"]
    assert ends == [b"0\r\n\r\n"] * 2


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_frees_its_slot(stream):
    """A closed connection ends its answer, in service and in the queue, long before its schedule does."""
    with demo("--slots", "1", "--per-token", "50ms") as gateway:
        serving = gateway.begin(CHAT, ask(4000, stream=stream))
        gateway.until("in_flight", 1)
        waiting = gateway.begin(CHAT, ask(4000, stream=stream))
        gateway.until("queued", 1)
        waiting.close()
        gateway.until("queued", 0)
        serving.close()
        gateway.until("in_flight", 0)
        gateway.until(f'requests_total{{path="{CHAT}",status="200",outcome="client_gone"}}', 2)

        assert n_content(events(gateway.call("POST", CHAT, ask(3))[1])) == 3


def test_nonstreaming_takes_as_long_as_streaming(plain):
    """The same schedule whether the answer streams or not, by the gateway's own clock, and never faster than it."""
    bodies = [plain.call("POST", "/api/chat", ask(200, stream=stream))[1] for stream in (True, False)]
    total_ns = [json.loads(body.splitlines()[-1])["total_duration"] for body in bodies]

    assert min(total_ns) >= 204e6
    assert max(total_ns) < 1.5 * min(total_ns)


@pytest.mark.slow
def test_schedule_does_not_drift_with_forty_streams():
    """Tokens are due by an absolute schedule: the last one is not late by the sum of all delays."""
    with demo("--slots", "40", "--ttft", "20ms", "--per-token", "10ms") as gateway:
        found = run_together(gateway, 40, 150)
        cpu_s = gateway.metric("process_cpu_seconds_total")
    schedule_s = 0.02 + 149 * 0.01

    assert all(e2e >= schedule_s for _, e2e in found)
    assert sum(e2e for _, e2e in found) / len(found) < 1.1 * schedule_s
    assert cpu_s < 0.5 * schedule_s
