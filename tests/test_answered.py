"""What a real server says of its build when it is asked, before and after."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from fake_gateway import FakeGateway

from sweep.answered import VERSION_PATHS, ask_again, ask_build
from sweep.endpoint import parse_endpoint
from sweep.masking import Masked
from sweep.probe import Probe


@contextlib.contextmanager
def probe_of(fake: FakeGateway, **more) -> Iterator[Probe]:
    probe = Probe(parse_endpoint(fake.url), None, None, Masked(["s3cret"]), **more)
    yield probe
    probe.close()


def answering(body: str, headers: str = "", status: int = 200) -> str:
    return f"HTTP {status} application/json{headers}\n---\n{body}"


def told(routes: dict, **more) -> list[tuple[str, str, str | None, str]]:
    with FakeGateway(routes=routes) as fake, probe_of(fake, **more) as probe:
        asked = ask_build(probe)
    assert asked.why is None
    return [(row.what, row.value, row.product, row.source) for row in asked.rows]


ROOT = ("product", "Fake gateway", None, "GET /")


@pytest.mark.parametrize(
    ("path", "body", "row"),
    [
        ("/api/version", '{"version":"0.7.3"}', ("version", "0.7.3", "Fake gateway", "GET /api/version")),
        ("/version", '{"version":"0.6.1.dev3+g12"}', ("version", "0.6.1.dev3+g12", None, "GET /version")),
        ("/health/readiness", '{"litellm_version":"1.52.3"}',
         ("version", "1.52.3", "LiteLLM", "GET /health/readiness")),
        ("/props", '{"build_info":"b1-571d0d5"}', ("version", "b1-571d0d5", "llama.cpp", "GET /props")),
        ("/info", '{"version":"2.4.0"}', ("version", "2.4.0", None, "GET /info")),
    ],
)  # fmt: skip
def test_each_path_tells_its_version(path, body, row):
    """/api/version is of the product that / names; the others are of their own."""
    assert [ROOT, row] == told({path: answering(body)})


@pytest.mark.parametrize(
    "body", ["", "[]", '"0.7"', '{"version":null}', '{"version":7}', '{"version":" "}', "<html>", "[" * 100_000]
)
def test_an_answer_of_another_shape_tells_nothing(body):
    """No version is made up, and none of them is a fault."""
    assert [ROOT] == told({"/version": answering(body)})


def test_headers_tell_too_also_of_a_refusal():
    """x-litellm-version names its product; each Server header is said once; secrets are masked, values one line."""
    refused = answering("{}", "\nx-litellm-version: 1.52.3\nServer: uvicorn", 404)
    rows = told({"/version": refused, "/props": refused, "/info": answering('{"version":"v s3cret\\n1"}')})

    assert [
        ROOT, ("Server header", "uvicorn", None, "GET /version"),
        ("version", "1.52.3", "LiteLLM", "header x-litellm-version"), ("version", "v *** 1", None, "GET /info"),
    ] == rows  # fmt: skip


def test_a_target_that_does_not_answer_is_asked_once():
    """The reason is kept, and no further path is waited for."""
    with FakeGateway(routes={"/api/version": "<<SLEEP forever>>"}) as fake, probe_of(fake, timeout_s=0.5) as probe:
        began = time.monotonic()
        asked = ask_build(probe)

    assert "GET /api/version: ReadTimeout" == asked.why
    assert time.monotonic() - began < 5
    assert ["product"] == [row.what for row in asked.rows]


def test_only_what_told_a_version_is_asked_again():
    """A version that changed meanwhile is seen; a path that told none is left alone."""
    versions = [answering('{"version":"0.7.3"}'), answering('{"version":"0.7.4"}')]
    other = "HTTP 404 text/plain\n---\nno"
    routes = {"/version": versions, "/info": [other, answering('{"version":"9"}')]}
    with FakeGateway(routes=routes) as fake, probe_of(fake) as probe:
        again = ask_again(probe, ask_build(probe))

    assert [("GET /version", "0.7.4")] == [(row.source, row.value) for row in again.rows if row.what == "version"]


def test_nothing_told_is_nothing_asked_again():
    """Not even /."""
    with FakeGateway() as fake, probe_of(fake) as probe:
        asked = ask_build(probe)
    assert ((), None) == ask_again(probe, asked)  # the server is gone, the probe closed: a GET would say so


def test_the_paths_are_few():
    """They are asked before every run."""
    assert len(VERSION_PATHS) <= 6
