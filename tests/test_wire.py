"""The connection over real sockets: kept alive, retried once when stale, ended in time."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import threading
import time

import pytest
from asker import ask, ask_one
from fake_gateway import FakeGateway
from raw_server import DEADLINE_S, OK, answer_ok, read_request, server

pytestmark = pytest.mark.slow  # each starts a client process


def outcomes(records) -> list[tuple]:
    return [(record["outcome"], *record["flags"]) for record in records]


# -- keep-alive --


@pytest.mark.parametrize("api", ["openai-chat", "ollama-chat", "ollama-generate"])
def test_requests_share_one_connection(api):
    """Streaming or not, a clean end leaves the connection to the next request."""
    with FakeGateway({"n_tokens": 2, "ttft_s": 0}) as fake:
        modes = ["stream", "nonstream", "stream", "nonstream"]
        (records,) = ask([{"url": fake.url, "api": api, "modes": modes}])
        log = fake.log(4)

    assert [("ok",)] * 4 == [(record["outcome"],) for record in records]
    assert 1 == len({entry["t_conn_ns"] for entry in log})


@pytest.mark.parametrize(
    ("first", "outcome"),
    [
        ({"n_tokens": 1, "close": True}, "ok"),
        ({"n_tokens": 1, "close": "silent"}, "ok"),
        ("HTTP 500 text/plain\n---\nno<<CUT>>", "http_5xx"),
        ("HTTP 200 text/event-stream\n---\ndata: [DONE]\n\n<<SLEEP 0.05>>data: more\n\n<<CUT>>", "ok"),
        ("HTTP 200 text/html\n---\n<html>", "bad_body"),
    ],
)
def test_next_request_gets_a_connection_it_can_use(first, outcome):
    """Closed, cut or in an unknown state: the next request goes out on a fresh one and is served once."""
    with FakeGateway([first, {"n_tokens": 1}]) as fake:
        (records,) = ask([{"url": fake.url, "modes": ["stream", "stream"], "pause_s": 0.2}])

        assert ([outcome, "ok"], 2) == ([record["outcome"] for record in records], fake.requests_received)
        assert [] == records[1]["flags"]


def test_error_answer_keeps_the_connection():
    """A refused request costs no connection."""
    with FakeGateway(["HTTP 429 application/json\n---\n{}", {"n_tokens": 1}]) as fake:
        (records,) = ask([{"url": fake.url, "modes": ["stream", "stream"]}])
        log = fake.log(2)

    assert [("rejected_unclear",), ("ok",)] == outcomes(records)
    assert log[0]["t_conn_ns"] == log[1]["t_conn_ns"]


def test_idle_connection_that_was_closed_is_seen_before_sending():
    """The server's keep-alive time-out came first: a fresh connection, no retry, nothing counted twice."""
    with FakeGateway({"n_tokens": 1, "ttft_s": 0}, close_after=1) as fake:
        (records,) = ask([{"url": fake.url, "modes": ["stream"] * 4, "pause_s": 0.1}])

        assert ([("ok",)] * 4, 4) == (outcomes(records), fake.requests_received)


def close_unread(connection) -> None:
    """Answers once, then closes with the next request in the kernel, unread: what a keep-alive time-out meets."""
    answer_ok(connection)
    assert select.select([connection], [], [], DEADLINE_S)[0]


def close_after_reading(connection) -> None:
    answer_ok(connection)
    assert read_request(connection)


@pytest.mark.parametrize("first", [close_unread, close_after_reading])
def test_stale_connection_is_retried_once(first):
    """No byte of an answer on a used connection: sent again on a fresh one, and said so."""
    with server(first, answer_ok) as port:
        (records,) = ask([{"url": f"http://127.0.0.1:{port}", "modes": ["stream", "stream"]}])

    assert [("ok",), ("ok", "retried_stale")] == outcomes(records)
    assert records[1]["t_start_ns"] < records[1]["t_sent_ns"] < records[1]["t_first_ns"]


def close_after_working(connection) -> None:
    answer_ok(connection)
    assert read_request(connection)
    time.sleep(0.2)


def test_connection_closed_after_work_is_not_retried():
    """A server that gave up 200 ms after it had the request is no keep-alive time-out: its crash is counted."""
    with server(close_after_working) as port:
        (records,) = ask([{"url": f"http://127.0.0.1:{port}", "modes": ["stream", "stream"]}])

    assert [("ok",), ("reset",)] == outcomes(records)


def test_stale_connection_is_not_retried_twice():
    """The fresh connection's failure is the target's."""
    with server(close_unread, lambda connection: select.select([connection], [], [], DEADLINE_S)) as port:
        (records,) = ask([{"url": f"http://127.0.0.1:{port}", "modes": ["stream", "stream"]}])

    assert [("ok",), ("reset", "retried_stale")] == outcomes(records)


def test_answer_begun_on_a_used_connection_is_not_retried():
    """One byte of an answer, and the request was received: sending it again would hide a failure."""

    def begin_and_close(connection) -> None:
        answer_ok(connection)
        assert read_request(connection)
        connection.sendall(b"H")

    with server(begin_and_close) as port:
        (records,) = ask([{"url": f"http://127.0.0.1:{port}", "modes": ["stream", "stream"]}])

    assert [("ok",), ("reset",)] == outcomes(records)


# -- no answer --


def test_fresh_connection_closed_without_an_answer_is_not_retried():
    """Reset before the response: one request, one failure."""
    with FakeGateway(["<<RST>>", "<<CUT>>"]) as fake:
        records = ask([{"url": fake.url, "modes": ["stream"]}] * 2, at_once=1)

        assert ([[("reset",)]] * 2, 2) == ([outcomes(found) for found in records], fake.requests_received)
        assert [[None, None]] * 2 == [[found[0]["status"], found[0]["t_first_ns"]] for found in records]


def test_refused_connection():
    """Nothing was sent, so the record says so."""
    with FakeGateway(refuse=True) as fake:
        record = ask_one(fake.url)

    assert ("connect", None, None, 0) == (record["outcome"], record["t_sent_ns"], record["status"], record["bytes_in"])
    assert "refused" in record["error_text"]


def test_unknown_host():
    """A name that cannot be resolved is no exception."""
    assert "connect" == ask_one("http://no-such-host.invalid:1")["outcome"]


def test_server_that_never_reads():
    """A request that cannot be sent in time is a time-out."""
    over = threading.Event()
    with server(lambda _: over.wait(DEADLINE_S)) as port:
        record = ask_one(f"http://127.0.0.1:{port}", extra_body={"user": "x" * 2**24}, first_timeout_s=0.3)
        over.set()

    assert ("timeout", None) == (record["outcome"], record["t_sent_ns"])


def test_ipv6_target():
    """The address goes without brackets to the socket and with them into the Host header."""
    if not socket.has_ipv6:
        pytest.skip("needs IPv6 on loopback")
    seen = []
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("needs IPv6 on loopback")

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            seen.append(read_request(client))
            client.sendall(OK)

    with listener:
        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        record = ask_one(f"http://[::1]:{port}/v1")
        thread.join(DEADLINE_S)

    assert "ok" == record["outcome"]
    assert seen[0].startswith(f"POST /v1/chat/completions HTTP/1.1\r\nHost: [::1]:{port}\r\n".encode())


# -- the end of a step --


@pytest.mark.parametrize(
    "script",
    [
        "HTTP 200 text/event-stream\n<<SLEEP 30>>\n---\n",
        "HTTP 200 text/event-stream\n---\n<<SLEEP forever>>",
        'HTTP 200 text/event-stream\n---\ndata: {"choices":[{"delta":{"content":"A"}}]}\n\n<<SLEEP forever>>',
    ],
)
@pytest.mark.parametrize("mode", ["stream", "nonstream"])
def test_end_of_the_step_cuts_a_request(script, mode):
    """Before the headers, before a token, within the answer: one record, and the server sees the client go."""
    with FakeGateway(script) as fake:
        ((left,),) = ask([{"url": fake.url, "modes": [mode], "kill_after_s": 0.2}])

        assert {"outcomes": {"cut": 1}, "sent": 1, "in_flight": 0, "is_open": False} == left
        assert "client_gone" == fake.log(1)[0]["ended"]


def test_a_wait_that_the_locustfile_ends_is_no_cut(tmp_path):
    """`with gevent.Timeout(1, …): self.ask(…)`: the answer that did not come is a failed one, and no fault of ours."""
    code = """
import gevent.monkey; gevent.monkey.patch_all()
import gevent, json, sys
from sweep import outdir
from sweep.load import Load
from sweep.step_files import StepOrder
import pathlib
outdir.create(pathlib.Path(sys.argv[2]))
load = Load(StepOrder(step="s01", worker="w01", out_dir=sys.argv[2], url=sys.argv[1], api="openai-chat", model="m",
            users=1, max_tokens=8, prompt_words=8, seed=1, locustfile_folder="/x"), True)
class GivenUp(Exception): pass
connection = load.connection()
for thrown in (False, GivenUp):
    try:
        with gevent.Timeout(0.1, thrown): load.ask(connection, 0, True)
    except GivenUp: pass
user = gevent.spawn(load.ask, connection, 0, True)
gevent.sleep(0.1)
load.is_over = True
user.kill()
print(json.dumps([load.outcomes, load.fault]))
"""
    with FakeGateway("HTTP 200 text/event-stream\n---\n<<SLEEP forever>>") as fake:
        done = subprocess.run([sys.executable, "-c", code, fake.url, str(tmp_path / "out")], capture_output=True)
    assert [{"cancelled": 2, "cut": 1}, None] == json.loads(done.stdout), done.stderr.decode()


def test_locust_hears_of_every_finished_call_and_of_no_other(tmp_path):
    """Also of one whose user is killed while only the body's own end was still to come: else the counts disagree."""
    code = """
import gevent.monkey; gevent.monkey.patch_all()
import gevent, json, sys
from sweep.load import Load
from sweep.step_files import StepOrder
load = Load(StepOrder(step="s01", worker="w01", out_dir="", url=sys.argv[1], api="openai-chat", model="m", users=1,
            max_tokens=8, prompt_words=8, seed=1), False)
heard = []
for path in ("ends", "never"):
    user = gevent.spawn(load.ask, load.connection(), 0, True, finished=lambda record: heard.append(record.outcome))
    gevent.sleep(0.3)
    user.kill()
print(json.dumps([load.outcomes, heard]))
"""
    token = 'data: {"choices":[{"delta":{"content":"A"}}]}\n\n'
    answers = [f"HTTP 200 text/event-stream\n---\n{token}data: [DONE]\n\n<<SLEEP forever>>",
               f"HTTP 200 text/event-stream\n---\n{token}<<SLEEP forever>>"]  # fmt: skip
    with FakeGateway(answers) as fake:
        done = subprocess.run([sys.executable, "-c", code, fake.url], capture_output=True)
    assert [{"ok": 1, "cut": 1}, ["ok"]] == json.loads(done.stdout), done.stderr.decode()


def test_end_of_the_step_after_the_terminal_event_is_success():
    """[DONE] was seen; only the body's own end was still to come."""
    token = 'data: {"choices":[{"delta":{"content":"A"}}]}\n\n'
    with FakeGateway(f"HTTP 200 text/event-stream\n---\n{token}data: [DONE]\n\n<<SLEEP forever>>") as fake:
        ((left,),) = ask([{"url": fake.url, "modes": ["stream"], "kill_after_s": 0.3}])

    assert {"outcomes": {"ok": 1}, "sent": 1, "in_flight": 0, "is_open": False} == left


# -- time-outs --

PINGS = ": ping\n\n<<SLEEP 0.15>>" * 8
TIMES = {
    "silence": ("HTTP 200 text/event-stream\n<<SLEEP 3>>\n---\n", True, {"first_timeout_s": 0.4}, "timeout", 0.4),
    "pings_do_not_move_first": (f"HTTP 200 text/event-stream\n---\n{PINGS}<<SLEEP forever>>", True,
                                {"first_timeout_s": 0.6, "idle_timeout_s": 0.3}, "timeout", 0.6),
    "stall_after_token": ('HTTP 200 text/event-stream\n---\ndata: {"choices":[{"delta":{"content":"A"}}]}\n\n'
                          "<<SLEEP forever>>", True, {"idle_timeout_s": 0.4}, "stalled", 0.4),
    "pings_move_idle": ('HTTP 200 text/event-stream\n---\ndata: {"choices":[{"delta":{"content":"A"}}]}\n\n'
                        f"{PINGS}data: [DONE]\n\n", True, {"idle_timeout_s": 0.4}, "ok", 1.2),
    "total": ('HTTP 200 text/event-stream\n---\ndata: {"choices":[{"delta":{"content":"A"}}]}\n\n'
              f"{PINGS * 4}", True, {"idle_timeout_s": 0.4, "timeout_s": 0.7}, "timeout", 0.7),
    "total_without_streaming": ("HTTP 200 application/json\n<<SLEEP 3>>\n---\n{}", False, {"timeout_s": 0.4}, "timeout",
                                0.4),
    "first_is_not_for_whole_answers": (
        'HTTP 200 application/json\n<<SLEEP 0.6>>\n---\n{"choices":[{"message":{},"finish_reason":"stop"}]}', False,
        {"first_timeout_s": 0.2}, "ok", 0.6),
    "stall_without_streaming": ("HTTP 200 application/json\n---\n{<<SLEEP forever>>", False, {"idle_timeout_s": 0.4},
                                "stalled", 0.4),
    "body_that_never_ends": ('HTTP 200 text/event-stream\n---\ndata: {"choices":[{"delta":{"content":"A"}}]}\n\n'
                             "data: [DONE]\n\n<<SLEEP forever>>", True, {"idle_timeout_s": 0.4}, "ok", 2.0),
}  # fmt: skip


@pytest.fixture(scope="module")
def timed():
    routes = {f"/{name}/": {"script": script} for name, (script, *_) in TIMES.items()}
    with FakeGateway(routes=routes) as fake:
        jobs = [
            {"url": f"{fake.url}/{name}", "modes": ["stream" if stream else "nonstream"], **limits}
            for name, (_, stream, limits, *_) in TIMES.items()
        ]
        records = dict(zip(TIMES, (found[0] for found in ask(jobs, at_once=len(jobs))), strict=True))
        yield records, {entry["path"].split("/")[1]: entry for entry in fake.log(len(jobs))}


@pytest.mark.parametrize("name", TIMES)
def test_time_out(timed, name):
    """No request ends before its limit, none long after, and the connection is closed: the server sees us go."""
    record, entry = timed[0][name], timed[1][name]
    *_, outcome, at_least_s = TIMES[name]
    took_s = (record["t_over_ns"] - record["t_start_ns"]) / 1e9

    assert outcome == record["outcome"]
    assert at_least_s <= took_s < at_least_s + 1.5
    assert ("keep" if outcome == "ok" and name != "body_that_never_ends" else "client_gone") == entry["ended"]
