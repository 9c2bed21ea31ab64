"""Scripts of the fake gateway on the wire: every marker, split and framing does what its grammar says."""

from __future__ import annotations

import contextlib
import http.client

import pytest
from fake_gateway import FakeGateway
from loopback import CHAT, begin, call, connect, reads

STREAM = "HTTP 200 text/event-stream\n---\n"
A_DONE = 'data: {"choices":[{"delta":{"content":"A"}}]}\n\ndata: [DONE]\n\n'


def post(fake: FakeGateway, path: str = CHAT, body: dict | None = None):
    return call(fake.port, "POST", path, body or {})


def raw(fake: FakeGateway) -> bytes:
    """Everything one request gets, until the connection ends or the last chunk."""
    with begin(fake.port, CHAT, {}) as client:
        return b"".join(data for _, data in reads(client))


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("split", ["whole", "frame", "byte"])
def test_script_body_is_the_same_in_every_split_and_framing(split, framing):
    """Any cut and any framing carry the same bytes, line ends and odd characters included."""
    body = 'data: "A\u2028\u0085"\r\n\r\n: ping\n\ndata:B\n\ndata: [DONE]\n\n'
    with FakeGateway({"script": STREAM + body, "split": split, "framing": framing}) as fake:
        response, got = post(fake)
        (entry,) = fake.log(1)

    assert (response.status, response.headers["Content-Type"]) == (200, "text/event-stream")
    assert got == body.encode()
    assert entry["ended"] == ("close" if framing == "close" else "keep")


def test_splits_are_as_many_writes_as_they_say():
    """whole: head, body, last chunk; frame: one write an event or line; byte: one a byte of the wire."""
    ndjson = 'HTTP 200 application/x-ndjson\n---\n{"a":1}\n{"a":2}\n{"a":3}\n'
    cases = {
        "whole": {"script": STREAM + A_DONE},
        "frame": {"script": STREAM + A_DONE, "split": "frame"},
        "lines": {"script": ndjson, "split": "frame"},
        "byte": {"script": STREAM + "abc", "split": "byte", "framing": "length"},
    }
    n_writes = {}
    for name, behaviour in cases.items():
        with FakeGateway(behaviour) as fake:
            post(fake)
            n_writes[name] = len(fake.log(1)[0]["sends"])

    assert n_writes == {"whole": 3, "frame": 4, "lines": 5, "byte": 4}


def test_head_gives_status_type_and_headers():
    """Headers on the first line or on their own; notes are left out; a parameter stays with the type."""
    script = (
        "HTTP 503 text/html; charset=utf-8; retry-after: 2<<NOTE busy>>\nX-Why: a; b\n---\n<h1>no</h1><<NOTE x > y>>"
    )
    with FakeGateway(script) as fake:
        response, body = post(fake)

    assert (response.status, response.headers["Content-Type"]) == (503, "text/html; charset=utf-8")
    assert (response.headers["Retry-After"], response.headers["X-Why"], body) == ("2", "a; b", b"<h1>no</h1>")


def test_sleep_delays_what_follows_it():
    """In the body it holds back the rest, before `---` the head itself."""
    with FakeGateway([STREAM + "a<<SLEEP 0.2>>b", "HTTP 200 text/plain<<SLEEP 0.2>>\n---\nab"]) as fake:
        assert [post(fake)[1], post(fake)[1]] == [b"ab", b"ab"]
        body, top = fake.log(2)

    waits_ms = [(send[0] - body["t_received_ns"]) / 1e6 for send in body["sends"]]
    assert max(waits_ms[:2]) < 200 <= waits_ms[2]
    assert top["sends"][0][0] - top["t_received_ns"] >= 200e6


def test_fin_ends_the_answer_cleanly_and_the_connection_lives_on():
    """A truncated stream in valid HTTP: what stands after the marker is never sent."""
    with (
        FakeGateway(STREAM + "data: x\n\n<<FIN>><<NOTE y>>never") as fake,
        contextlib.closing(connect(fake.port)) as connection,
    ):
        bodies = []
        for _ in range(2):
            connection.request("POST", CHAT, b"{}")
            bodies.append(connection.getresponse().read())
        first, second = fake.log(2)

    assert bodies == [b"data: x\n\n"] * 2
    assert first["t_conn_ns"] == second["t_conn_ns"]


@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_cut_closes_in_mid_answer(framing):
    """The connection ends before the framing says that the body does."""
    with FakeGateway({"script": STREAM + "data: x\n\n<<CUT>>", "framing": framing}) as fake:
        with pytest.raises(http.client.IncompleteRead) as found:
            post(fake)
        (entry,) = fake.log(1)

    assert (found.value.partial, entry["ended"]) == (b"data: x\n\n", "cut")


def test_rst_resets_the_connection():
    """After the bytes before it, or before any answer when the script has no head."""
    with FakeGateway([STREAM + "data: x\n\n<<SLEEP 0.05>><<RST>>", "<<RST>>"]) as fake:
        with begin(fake.port, CHAT, {}) as client:
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            with pytest.raises(ConnectionResetError):
                while client.recv(1 << 16):
                    pass
        with begin(fake.port, CHAT, {}) as client, pytest.raises(ConnectionResetError):
            client.recv(1 << 16)

        assert [entry["ended"] for entry in fake.log(2)] == ["rst", "rst"]


def test_sleep_forever_holds_the_connection_until_the_client_leaves():
    """A stall: the bytes before it came, nothing more does, and the log tells who ended it."""
    with FakeGateway(STREAM + "data: x\n\n<<SLEEP forever>><<NOTE socket stays open>>") as fake:
        with begin(fake.port, CHAT, {}) as client:
            got = b""
            while b"data: x" not in got:
                got += client.recv(1 << 16)
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(1)
            assert (fake.requests_received, fake.log()) == (1, [])
        (entry,) = fake.log(1)

    assert entry["ended"] == "client_gone"


def test_script_without_head_goes_out_raw():
    """Bytes that are no HTTP, or no bytes at all, then the end of the connection."""
    with FakeGateway(["SSH-2.0-nothing\r\n", "<<FIN>>"]) as fake:
        assert [raw(fake), raw(fake)] == [b"SSH-2.0-nothing\r\n", b""]
