"""Health paths are found, refused and watched; an endpoint that hangs or drips never holds the run."""

from __future__ import annotations

import contextlib
import time

import httpx
import pytest
from demo_process import demo
from fake_gateway import FakeGateway
from raw_server import server

from sweep import outdir
from sweep.endpoint import parse_endpoint
from sweep.errors import PlanError
from sweep.health import HealthWatch, Paths, find_paths
from sweep.masking import Masked
from sweep.probe import Probe, _server
from sweep.records import HealthLine, from_lines

OK = "HTTP 200 application/json\n---\n{}"
GONE = "HTTP 404 text/plain\n---\nno"


def probe_of(url: str, key: str | None = None, timeout_s: float = 5.0):
    """Closed at the end of the block."""
    return contextlib.closing(Probe(parse_endpoint(url), key, None, Masked(filter(None, [key])), timeout_s))


def paths_of(routes: dict, **given: str) -> Paths:
    unless_given = ("/healthz", "/livez", "/readyz", "/health", "/health/", "/metrics")  # routes are prefixes
    usual = dict.fromkeys(unless_given, GONE)
    with FakeGateway(routes={**usual, **routes}) as fake, probe_of(fake.url) as probe:
        return find_paths(probe, given.get("health"), given.get("ready"), given.get("metrics"))


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        ({"/healthz": OK, "/readyz": OK}, ("/healthz", "/readyz")),
        ({"/healthz": OK, "/readyz": "HTTP 503 text/plain\n---\nwarming"}, ("/healthz", "/readyz")),
        ({"/livez": OK, "/readyz": OK}, ("/livez", "/readyz")),
        ({"/healthz": OK}, ("/healthz", None)),
        ({"/health": OK}, ("/health", None)),
        ({}, ("/", None)),
    ],
)
def test_the_first_pair_that_answers_is_found(routes, expected):
    """In the order of design; readiness may say not ready."""
    found = paths_of(routes)

    assert expected == (found.health, found.ready)


def test_each_missing_path_is_looked_for_by_itself():
    """--health-path alone does not switch off the search for readiness."""
    found = paths_of({"/healthz": OK, "/readyz": OK, "/alive": OK}, health="/alive")

    assert ("/alive", "/readyz") == (found.health, found.ready)


def test_a_given_path_that_is_not_there_is_the_operators_mistake():
    """Not the target's failure later."""
    with pytest.raises(PlanError, match="--health-path /nope answers 404"):
        paths_of({"/nope": GONE}, health="/nope")


@pytest.mark.parametrize(
    ("route", "why"),
    [
        ("<<SLEEP 0.4>>" + OK.replace("---\n", "---\n<<SLEEP 0.4>>"), "slower"),
        ('HTTP 200 application/json\n---\n{"healthy_endpoints":[{"model":"m"}]}', "names models"),
    ],
)
def test_a_path_that_may_run_an_inference_is_not_polled(route, why):
    """Slow when idle, or its body names models."""
    found = paths_of({"/healthz": route.removeprefix("<<SLEEP 0.4>>")})

    assert "/healthz" != found.health
    assert [True] == [why in line for line in found.why]


def test_a_dripping_answer_ends_by_the_total_time_out():
    """A byte now and then keeps no probe for ever: the limit is on the whole answer."""
    drip = "HTTP 200 text/plain\n---\n" + "x<<SLEEP 0.2>>" * 50
    with FakeGateway(routes={"/healthz": drip}) as fake, probe_of(fake.url, timeout_s=0.5) as probe:
        began = time.monotonic()
        line = probe.health("live", "/healthz")

    assert (None, "ReadTimeout") == (line.status, line.error)
    assert time.monotonic() - began < 5


def drip_header(connection) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-A: ")
    send_until_closed(connection, b"a")


def hints_without_end(connection) -> None:
    send_until_closed(connection, b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")


def hello_that_drips(connection) -> None:
    """A TLS record whose bytes come one by one."""
    connection.sendall(b"\x16\x03\x03\x10\x00")
    send_until_closed(connection, b"\x02")


def redirect_slowly(connection) -> None:
    """Each answer by itself is in time."""
    with contextlib.suppress(OSError):
        while connection.recv(1 << 16):
            time.sleep(0.3)
            connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n")


def send_until_closed(connection, data: bytes) -> None:
    with contextlib.suppress(OSError):
        for _ in range(50):
            connection.sendall(data)
            time.sleep(0.1)


@pytest.mark.parametrize("serve", [drip_header, hints_without_end, hello_that_drips, redirect_slowly])
def test_no_part_of_an_exchange_outlasts_the_total_time_out(serve):
    """Header, interim answers, handshake and redirects count as its body does; the failure is data."""
    scheme = "https" if serve is hello_that_drips else "http"
    with server(serve) as port, probe_of(f"{scheme}://127.0.0.1:{port}", timeout_s=0.5) as probe:
        began = time.monotonic()
        line = probe.health("live", "/healthz")
        took_s = time.monotonic() - began

    assert line.status is None and line.error in ("ReadTimeout", "ConnectTimeout")
    assert took_s < 3


def test_a_path_that_wants_the_key_is_refused_once_only():
    """The target does not get one 401 a second, and the time told is that of the request that was answered."""
    answers = ["HTTP 401 text/plain\n---\nkey", OK, OK, OK]
    with FakeGateway(routes={"/healthz": answers}) as fake, probe_of(fake.url, key="secret") as probe:
        lines = [probe.health("live", "/healthz") for _ in range(3)]

    assert [200, 200, 200] == [line.status for line in lines]
    assert 4 == fake.requests_received


@pytest.mark.slow
def test_the_watch_writes_a_line_a_second_until_stopped(tmp_path):
    """Each path by itself, so that one that hangs takes nothing from the other."""
    with demo("--defect", "flap-readiness") as gateway, probe_of(f"http://127.0.0.1:{gateway.port}") as probe:
        watches = [HealthWatch(probe, what, path, tmp_path) for what, path in Paths("/healthz", "/readyz", None).asked]
        for watch in watches:
            watch.start()
        time.sleep(6.5)  # their own schedule is what is tested
        for watch in watches:
            watch.stop()
    lines = from_lines(HealthLine, outdir.read_lines(tmp_path / outdir.HEALTH)[0], outdir.HEALTH)

    assert 12 <= len(lines) <= 14
    assert {"live": {200}, "ready": {200, 503}} == {
        what: {line.status for line in lines if line.what == what} for what in ("live", "ready")
    }


def test_metrics_are_samples_or_nothing():
    """An empty page, HTML and JSON are no metrics."""
    text = "HTTP 200 text/plain\n---\n"
    for body, expected in (
        ("", None),
        ("OK", None),
        ("<html></html>", None),
        ('{"a": 1}', None),
        ('up{a="b"} 1\n', {"up{a=b}": 1.0}),
    ):
        with FakeGateway(routes={"/metrics": text + body}) as fake, probe_of(fake.url) as probe:
            found = probe.metrics("/metrics")
        assert expected == (found and found["samples"]), body


def test_a_redirect_to_another_server_is_not_followed_with_the_key():
    """Nor is one to plain HTTP: the key could be overheard there."""
    other = "HTTP 307 text/plain; location: http://127.0.0.1:9/healthz\n---\n"
    with FakeGateway(routes={"/healthz": other}) as fake, probe_of(fake.url, "sk-1") as probe:
        assert 307 == probe.get("/healthz").status
    assert ("https", b"h") == _server(httpx.URL("https://h:443/")) != _server(httpx.URL("http://h/"))
