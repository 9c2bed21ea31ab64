"""The fake gateway against its own log and its own promises: schedules, connections, the process."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import subprocess
import sys
import time

import pytest
from fake_gateway import FakeGateway
from loopback import CHAT, DEADLINE_S, begin, call, connect, reads


def post(fake: FakeGateway, path: str = CHAT, body: dict | None = None):
    return call(fake.port, "POST", path, body or {})


def lateness_ms(entry: dict, ttft_s: float, gap_s: float) -> list[float]:
    due_ns = (entry["t_received_ns"] + (ttft_s + i * gap_s) * 1e9 for i in itertools.count())
    return [(send[0] - due) / 1e6 for send, due in zip(entry["token_sends"], due_ns, strict=False)]


@pytest.mark.parametrize(("ttft_s", "gap_s"), [(0.2, 0.01), (0.05, 0.02)])
def test_schedule_holds_with_many_streams(ttft_s, gap_s):
    """Two contrasting profiles, 64 streams: no token leaves early, and most leave well within one gap."""
    with FakeGateway({"ttft_s": ttft_s, "gap_s": gap_s, "n_tokens": 32}) as fake:
        clients = [begin(fake.port, CHAT, {"stream": True}, f"r{i}") for i in range(64)]
        n_bytes = {}
        for i, client in enumerate(clients):
            with client:
                n_bytes[f"r{i}"] = sum(len(data) for _, data in reads(client))
        log = fake.log(64)
    late_ms = sorted(value for entry in log for value in lateness_ms(entry, ttft_s, gap_s))

    assert len(late_ms) == 64 * 32
    assert late_ms[0] >= 0
    assert late_ms[len(late_ms) // 2] < 0.2 * gap_s * 1e3
    assert n_bytes == {entry["request_id"]: sum(send[2] for send in entry["sends"]) for entry in log}


def test_log_agrees_with_what_a_client_sees():
    """No byte arrives before the log says it left; instants of one request are in order."""
    with FakeGateway({"ttft_s": 0.05, "gap_s": 0.01, "n_tokens": 20}) as fake:
        t_before_ns = time.monotonic_ns()
        with begin(fake.port, CHAT, {"stream": True}, "mine") as client:
            got = reads(client)
        (entry,) = fake.log(1)
    arrived = [t for t, data in got for _ in range(data.count(b'" tok"'))]

    assert (entry["request_id"], entry["path"], entry["stream"], entry["n_tokens"]) == ("mine", CHAT, True, 20)
    assert t_before_ns < entry["t_conn_ns"] < entry["t_received_ns"] < entry["sends"][0][0]
    assert entry["token_sends"][-1][1] < entry["t_end_ns"]
    assert len(arrived) == 20
    assert all(seen > sent[0] for seen, sent in zip(arrived, entry["token_sends"], strict=True))


def test_openai_stream_and_whole_answer_have_the_tokens_and_usage():
    """Role, tokens, finish, usage on request and [DONE]; the whole answer comes when the stream would end."""
    with FakeGateway({"ttft_s": 0.03, "gap_s": 0.002, "n_tokens": None, "tail_s": 0.02}) as fake:
        asked = {"max_tokens": 9, "stream": True, "stream_options": {"include_usage": True}, "model": "m"}
        stream = post(fake, CHAT, asked)[1].decode().split("\n\n")
        whole = json.loads(post(fake, CHAT, {"max_tokens": 9})[1])
        first, second = fake.log(2)

    assert (len(stream), stream[-2:]) == (1 + 9 + 2 + 2, ["data: [DONE]", ""])
    assert json.loads(stream[-3][6:])["usage"]["completion_tokens"] == 9
    assert json.loads(stream[0][6:])["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert (whole["usage"]["completion_tokens"], whole["choices"][0]["finish_reason"]) == (9, "length")
    assert second["token_sends"][0][0] - second["t_received_ns"] >= 66e6
    assert first["sends"][-1][0] - first["token_sends"][-1][0] >= 19e6
    assert [entry["n_tokens"] for entry in (first, second)] == [9, 9]


@pytest.mark.parametrize(("path", "key"), [("/api/chat", "message"), ("/api/generate", "response")])
def test_ollama_streams_by_default_and_counts(path, key):
    """NDJSON with done:true and eval_count at the end; one object when stream is false."""
    with FakeGateway({"ttft_s": 0.01, "gap_s": 0.001, "n_tokens": 6}) as fake:
        lines = [json.loads(line) for line in post(fake, path)[1].splitlines()]
        whole = json.loads(post(fake, path, {"stream": False})[1])

    assert [line["done"] for line in lines] == [False] * 6 + [True]
    assert all(key in line for line in [*lines, whole])
    assert (lines[-1]["eval_count"], whole["eval_count"], whole["done"]) == (6, 6, True)


def test_tokens_per_write_puts_several_events_in_one_write():
    """Ten tokens by four are three writes, the last of two, a gap apart."""
    with FakeGateway({"ttft_s": 0.01, "gap_s": 0.02, "n_tokens": 10, "tokens_per_write": 4}) as fake:
        body = post(fake, CHAT, {"stream": True})[1]
        (entry,) = fake.log(1)

    assert (body.count(b'" tok"'), entry["n_tokens"], len(entry["token_sends"])) == (10, 10, 3)
    assert entry["token_sends"][2][0] - entry["t_received_ns"] >= 50e6


def test_behaviours_are_taken_in_turn_and_the_last_may_stay():
    """A list is cycled, or its last entry answers all that follows."""
    scripts = [f"HTTP {status} application/json\n---\n{{}}" for status in (503, 429, 200)]
    found = []
    for last_stays in (False, True):
        with FakeGateway(scripts, last_stays=last_stays) as fake:
            found.append([post(fake)[0].status for _ in range(5)])

    assert found == [[503, 429, 200, 503, 429], [503, 429, 200, 200, 200]]


def test_routes_have_behaviours_of_their_own():
    """The longest prefix wins and takes GETs too; look-ups without a route are answered and not counted."""
    routes = {
        "/api": "HTTP 500 text/plain\n---\nno",
        "/readyz": ["HTTP 503 text/plain\n---\n", "HTTP 200 text/plain\n---\n"],
    }
    with FakeGateway({"n_tokens": 1}, routes=routes) as fake:
        posts = [post(fake, path)[0].status for path in ("/api/chat", CHAT)]
        looks = [
            call(fake.port, "GET", path)[0].status for path in ("/readyz", "/readyz", "/healthz", "/v1/models", "/x")
        ]

        assert (posts, looks, fake.requests_received) == ([500, 200], [503, 200, 200, 200, 404], 4)


@pytest.mark.parametrize(("close", "header"), [(True, "close"), ("silent", None)])
def test_close_after_an_answer_is_announced_or_silent(close, header):
    """The connection ends after a complete answer, with or without a word."""
    with FakeGateway({"n_tokens": 1, "close": close}) as fake, begin(fake.port, CHAT, {"stream": True}) as client:
        answer = b"".join(data for _, data in reads(client))

        assert answer.endswith(b"0\r\n\r\n")
        assert (b"Connection: close" in answer) == (header is not None)
        assert client.recv(1) == b""
        assert fake.log(1)[0]["ended"] == "close"


def test_close_after_counts_answers_of_one_connection():
    """Two answers, then the idle connection is closed: what a stale keep-alive looks like."""
    with FakeGateway({"n_tokens": 1}, close_after=2) as fake, begin(fake.port, CHAT, {}) as client:
        client.recv(1 << 16)
        client.sendall(b"POST /api/chat HTTP/1.1\r\nContent-Length: 16\r\n\r\n" + b'{"stream":false}')

        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert client.recv(1) == b""
        assert [entry["ended"] for entry in fake.log(2)] == ["keep", "close"]


def test_refuse_lets_nobody_connect():
    """The port is held but closed."""
    with FakeGateway(refuse=True) as fake, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", fake.port), timeout=DEADLINE_S)


def test_large_answer_waits_for_a_slow_reader():
    """A write the kernel does not take whole is finished later, and every byte is in the log."""
    profile = {"ttft_s": 0.0, "gap_s": 0.0, "n_tokens": 100000, "tokens_per_write": 100000}
    with FakeGateway(profile) as fake, begin(fake.port, CHAT, {"stream": True}) as client:
        fake.log(1, "received")
        n_bytes = sum(len(data) for _, data in reads(client))
        (entry,) = fake.log(1)

    assert n_bytes == sum(send[2] for send in entry["sends"])
    assert (len(entry["sends"]) > 3, entry["n_tokens"]) == (True, 100000)


def test_stop_ends_the_process_and_keeps_the_log():
    """The log can be read after the end, answers under way included."""
    with FakeGateway({"ttft_s": 100}) as fake:
        client = begin(fake.port, CHAT, {"stream": True})
        fake.log(1, "received")
    client.close()

    assert ([entry["ended"] for entry in fake.log()], fake.requests_received) == (["stopped"], 1)


def test_runs_from_the_command_line_until_its_input_ends():
    """Port and pid on standard output, defaults for all that the configuration leaves out."""
    command = [sys.executable, __file__.replace("test_fake", "fake"), "--config", '{"behaviours": [{"n_tokens": 2}]}']
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        told = json.loads(process.stdout.readline())
        with contextlib.closing(connect(told["port"])) as connection:
            connection.request("POST", "/api/chat", b"{}")
            n_lines = len(connection.getresponse().read().splitlines())
        process.stdin.close()

        assert (n_lines, told["pid"], process.wait(DEADLINE_S)) == (3, process.pid, 0)
