"""Target URLs taken apart, API paths put under them."""

from __future__ import annotations

import pytest

from sweep.endpoint import Endpoint, parse_endpoint
from sweep.errors import PlanError

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("url", "endpoint", "authority"),
    [
        ("http://127.0.0.1:8080", Endpoint("127.0.0.1", 8080, False, ""), "127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", Endpoint("127.0.0.1", 8080, False, ""), "127.0.0.1:8080"),
        ("http://gateway", Endpoint("gateway", 80, False, ""), "gateway:80"),
        ("https://Gateway.Example/api/v1/", Endpoint("gateway.example", 443, True, "/api/v1"), "gateway.example:443"),
        ("HTTP://h:1/a//", Endpoint("h", 1, False, "/a"), "h:1"),
        ("http://[::1]:9/v1", Endpoint("::1", 9, False, "/v1"), "[::1]:9"),
        ("http://[2001:db8::2]", Endpoint("2001:db8::2", 80, False, ""), "[2001:db8::2]:80"),
        ("http://h:0", Endpoint("h", 0, False, ""), "h:0"),
    ],
)
def test_url_taken_apart(url, endpoint, authority):
    """Host, port, TLS, base path; brackets only where a Host header wants them."""
    assert endpoint == parse_endpoint(url)
    assert authority == parse_endpoint(url).authority


@pytest.mark.parametrize(
    ("base", "path", "whole"),
    [
        ("", CHAT, "/v1/chat/completions"),
        ("/", CHAT, "/v1/chat/completions"),
        ("/v1", CHAT, "/v1/chat/completions"),
        ("/v1/", CHAT, "/v1/chat/completions"),
        ("/openai", CHAT, "/openai/v1/chat/completions"),
        ("/openai/v1", CHAT, "/openai/v1/chat/completions"),
        ("/v10", CHAT, "/v10/v1/chat/completions"),
        ("/v1", "/api/chat", "/v1/api/chat"),
        ("/ollama", "/api/chat", "/ollama/api/chat"),
        ("/v1", "/v1x", "/v1/v1x"),
    ],
)
def test_path_below_the_base(base, path, whole):
    """A target given with /v1 does not get it twice."""
    assert whole == parse_endpoint(f"http://h{base}").path(path)


@pytest.mark.parametrize(
    ("base", "whole"),
    [("", "/healthz"), ("/v1", "/healthz"), ("/team/v1", "/team/healthz"), ("/team", "/team/healthz")],
)
def test_health_path_is_beside_the_api(base, whole):
    """/v1 belongs to the API, not to the server."""
    assert whole == parse_endpoint(f"http://h{base}").root_path("/healthz")


@pytest.mark.parametrize("url", ["http://h:81/a", "https://h:8443", "http://[::1]:80"])
def test_url_again(url):
    """What was taken apart can be shown."""
    assert url == parse_endpoint(url).url


@pytest.mark.parametrize(
    "url",
    ["", "h", "h:8080", "127.0.0.1:8080", "ftp://h", "http://", "http:///v1", "http://h:port", "http://h:99999",
     "http://[::1", "http://h/a b", "http://h/é", "http://h/a\nb", "http://bücher.example"],
)  # fmt: skip
def test_what_is_no_target(url):
    """Refused before any load, and it says how to write one."""
    with pytest.raises(PlanError, match=r"write it like http://127\.0\.0\.1:8080"):
        parse_endpoint(url)


@pytest.mark.parametrize("url", ["ftp://user:secret@h", "http://user:secret@", "http://user:secret@h/a b"])
def test_message_never_repeats_a_password(url):
    """A URL may hold one."""
    with pytest.raises(PlanError) as raised:
        parse_endpoint(url)

    assert "secret" not in str(raised.value)
