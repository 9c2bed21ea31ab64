"""The connection over TLS: kept alive, ended in time, and a cut never taken for a clean end."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import time

import pytest
from asker import ask, ask_one
from pem import Authority
from play import CHAT_HEAD, DONE, FINISH, LAST_CHUNK, chunk, content
from raw_server import OK, answer_ok, read_request, server, wait_for_close

pytestmark = pytest.mark.slow  # each starts a client process


def outcomes(records) -> list[tuple]:
    return [(record["outcome"], *record["flags"]) for record in records]


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """A server's context, and the environment that makes a client trust it."""
    authority = Authority(tmp_path_factory.mktemp("pem"))
    return authority.server(), {"SSL_CERT_FILE": authority.pems.ca}


def ask_tls(port: int, env: dict, modes=("stream",), **order) -> list[dict]:
    return ask([{"url": f"https://127.0.0.1:{port}", "modes": list(modes), **order}], env=env)[0]


def test_tls_keeps_the_connection_and_stamps_reads(tls):
    """Two requests on one connection; a token is stamped when it came."""
    sent_ns = []

    def serve(connection) -> None:
        answer_ok(connection)
        assert read_request(connection)
        connection.sendall(CHAT_HEAD)
        time.sleep(0.2)
        sent_ns.append(time.monotonic_ns())
        connection.sendall(OK.removeprefix(CHAT_HEAD))
        wait_for_close(connection)

    with server(serve, context=tls[0]) as port:
        records = ask_tls(port, tls[1], ["stream", "stream"])

    assert ["ok", "ok"] == [record["outcome"] for record in records]
    assert records[1]["t_headers_ns"] < sent_ns[0] < records[1]["t_first_ns"] < sent_ns[0] + 1_000_000_000


def test_tls_answer_slower_than_the_first_token_time_out(tls):
    """That limit ends at the first token, and does not hold for a whole answer."""
    body = b'{"choices":[{"message":{"content":"A"},"finish_reason":"stop"}]}'

    def slow_stream(connection) -> None:
        assert read_request(connection)
        connection.sendall(CHAT_HEAD + chunk(content("A")))
        time.sleep(0.5)
        connection.sendall(chunk(FINISH + DONE) + LAST_CHUNK)
        assert read_request(connection)
        time.sleep(0.5)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        wait_for_close(connection)

    with server(slow_stream, context=tls[0]) as port:
        records = ask_tls(port, tls[1], ["stream", "nonstream"], first_timeout_s=0.25)

    assert [("ok",), ("ok",)] == outcomes(records)


@pytest.mark.parametrize(
    ("before", "limits", "outcome"),
    [
        (b"", {"first_timeout_s": 0.3}, "timeout"),
        (CHAT_HEAD + chunk(content("A")), {"idle_timeout_s": 0.3}, "stalled"),
    ],
)
def test_tls_time_outs(tls, before, limits, outcome):
    """The same limits as without TLS, and the server sees us go."""

    def hang(connection) -> None:
        assert read_request(connection)
        connection.sendall(before)
        with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
            assert b"" == connection.recv(1)

    with server(hang, context=tls[0]) as port:
        (record,) = ask_tls(port, tls[1], **limits)

    assert outcome == record["outcome"]
    assert 0.3 <= (record["t_over_ns"] - record["t_start_ns"]) / 1e9 < 2


def test_tls_abrupt_end_is_no_clean_one(tls):
    """A body that ends with its connection, cut without a close_notify, is not complete."""

    def cut(connection) -> None:
        assert read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + content("A") + FINISH)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        os.close(connection.detach())

    with server(cut, context=tls[0]) as port:
        (record,) = ask_tls(port, tls[1])

    assert ("reset", 1) == (record["outcome"], record["n_events"])


def test_tls_stale_connection_is_retried_once(tls):
    """Over TLS the server's close cannot be peeked at; the retry covers it."""
    with server(answer_ok, answer_ok, context=tls[0]) as port:
        records = ask_tls(port, tls[1], ["stream", "stream"], pause_s=0.2)

    assert [("ok",), ("ok", "retried_stale")] == outcomes(records)


def test_a_client_that_leaves_over_tls(tls):
    """In mid-stream after one token, then before the first: the server sees each connection end."""
    seen_s = []

    def talk(connection) -> None:
        assert read_request(connection)
        began_s = time.monotonic()
        connection.sendall(CHAT_HEAD + chunk(content("A")))
        wait_for_close(connection)
        seen_s.append(time.monotonic() - began_s)

    def silent(connection) -> None:
        assert read_request(connection)
        began_s = time.monotonic()
        connection.sendall(CHAT_HEAD)
        wait_for_close(connection)
        seen_s.append(time.monotonic() - began_s)

    leaves = {"cancel_ratio": 0.999}
    with server(talk, silent, context=tls[0]) as port:
        (mid,) = ask_tls(port, tls[1], **leaves, cancel_at=["mid_stream"], usual={"mid_stream": 1.0})
        (before,) = ask_tls(port, tls[1], **leaves, cancel_at=["before_first"], usual={"before_first": 1.0})

    assert ("left", "mid_stream", 1) == (mid["outcome"], mid["left_at"], mid["n_events"])
    assert ("left", "before_first", 0) == (before["outcome"], before["left_at"], before["n_events"])
    assert seen_s[0] < 4 and 0.05 < seen_s[1] < 4


def test_end_of_the_step_during_the_handshake(tls):
    """The kill arrives before anything was sent: nothing is left open."""

    def never(client) -> None:
        while client.recv(1 << 16):
            pass

    with server(never) as port:
        ((left,),) = ask([{"url": f"https://127.0.0.1:{port}", "modes": ["stream"], "kill_after_s": 0.2}], env=tls[1])

    assert {"outcomes": {"cut": 1}, "sent": 0, "in_flight": 0, "is_open": False} == left


def test_certificate_that_is_not_trusted(tls):
    """No request is sent to a server that does not prove its name."""

    def handshake(client) -> None:
        with contextlib.suppress(OSError):
            tls[0].wrap_socket(client, server_side=True).close()

    with server(handshake) as port:
        record = ask_one(f"https://127.0.0.1:{port}")

    assert ("connect", None) == (record["outcome"], record["t_sent_ns"])
    assert "certificate" in record["error_text"].lower()
