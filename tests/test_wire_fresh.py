"""Connections: a new one for each request, as many as the level, and one that cannot be made in time."""

from __future__ import annotations

import contextlib
import socket

import pytest
from asker import ask, ask_one
from command import ha_sweep
from fake_gateway import FakeGateway
from locust_step import run_step
from raw_server import OK, read_request, server


def test_without_keep_alive_each_request_has_its_own_connection():
    """It says so to the server, which is not the one to close: ours is. Nothing in the records tells otherwise."""
    heads, closed = [], []

    def serve(connection) -> None:
        heads.append(read_request(connection).partition(b"\r\n\r\n")[0].lower())
        connection.sendall(OK)
        closed.append(connection.recv(1))

    with server(serve, serve, serve) as port:
        (records,) = ask(
            [{"url": f"http://127.0.0.1:{port}", "modes": ["stream", "stream", "stream"], "keepalive": False}]
        )

    assert [("ok", [])] * 3 == [(record["outcome"], record["flags"]) for record in records]
    assert [True] * 3 == [b"\r\nconnection: close" in head for head in heads]
    assert [b""] * 3 == closed


def test_with_keep_alive_it_says_nothing_of_the_kind():
    """The control of the test above."""
    heads = []

    def serve(connection) -> None:
        for _ in range(2):
            heads.append(read_request(connection).lower())
            connection.sendall(OK)

    with server(serve) as port:
        (records,) = ask([{"url": f"http://127.0.0.1:{port}", "modes": ["stream", "stream"]}])

    assert ["ok", "ok"] == [record["outcome"] for record in records]
    assert [False, False] == [b"connection:" in head for head in heads]


def test_identity_is_asked_for_in_both_modes():
    """A compressed stream would be held back until the compressor has enough."""
    heads = []

    def serve(connection) -> None:
        heads.append(read_request(connection))
        connection.sendall(OK)

    with server(serve, serve) as port:
        for stream in (True, False):
            ask_one(f"http://127.0.0.1:{port}", stream)

    assert [1, 1] == [head.count(b"\r\nAccept-Encoding: identity\r\n") for head in heads]


def test_connecting_has_a_time_out_of_its_own():
    """A listener whose queue is full drops the SYN: nothing is refused, nothing was sent."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        port = listener.getsockname()[1]
        record = ask_one(f"http://127.0.0.1:{port}", connect_timeout_s=0.5, first_timeout_s=20, timeout_s=20)

    assert ("connect", None) == (record["outcome"], record["t_sent_ns"])
    assert 0.5 <= (record["t_over_ns"] - record["t_start_ns"]) / 1e9 < 3.0


@pytest.mark.slow
def test_a_redirected_request_is_refused_before_the_load(tmp_path):
    """Following it would carry key and prompt to another server: one line; the preflight sent one of each mode."""
    script = "HTTP 307 text/plain; location: http://127.0.0.1:9/v1/chat/completions\n---\n"
    with FakeGateway(script) as fake:
        given = ("--target", fake.url, "--levels", "1", "--model", "fake-1", "--api", "openai-chat")
        done = ha_sweep("run", *given, "--out-dir", "out", cwd=tmp_path)
        n_posts = fake.requests_received

    assert (2, 2, []) == (done.returncode, n_posts, list(tmp_path.iterdir()))
    assert "with 307: redirected to http://127.0.0.1:9; give --target the address it redirects to" in done.stderr
    assert "a POST is not followed" in done.stderr


@pytest.mark.slow
def test_no_cap_on_connections_lies_below_the_level(tmp_path):
    """150 users of one process have 150 requests at the server at once, each on a connection of its own."""
    n = 150
    with FakeGateway({"ttft_s": 1.2, "gap_s": 0.001, "n_tokens": 2}) as fake:
        done = run_step(tmp_path, fake.url, users=n, warmup_s=0.5, duration_s=1.5)
        answers = fake.log(len(done.records))
    ends = [(entry["t_received_ns"], 1) for entry in answers] + [(entry["t_end_ns"], -1) for entry in answers]
    open_now = most = 0
    for _, change in sorted(ends):
        open_now += change
        most = max(most, open_now)

    assert n == most == done.report.users_min
    assert n == len({entry["t_conn_ns"] for entry in answers})
    assert n == max(line.connections for line in done.generator)
    assert {None} == {line.ports_why for line in done.generator if line.ports_left is not None}
    assert any(line.ports - line.ports_left >= n for line in done.generator if line.ports_left is not None)
