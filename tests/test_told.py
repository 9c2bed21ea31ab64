"""What answer headers tell, from the table and from a real server into the record."""

from __future__ import annotations

import pytest
from asker import ask, ask_one
from fake_gateway import FakeGateway

from sweep import told
from sweep.masking import Masked

ANSWER = """HTTP 200 application/json
{headers}
---
{{"id":"a","model":"{model}","choices":[{{"message":{{"content":"x"}},"finish_reason":"stop"}}]}}"""
NOTHING = Masked([])


def script(headers: str, model: str = "m") -> str:
    return ANSWER.format(headers=headers, model=model)


@pytest.mark.parametrize(
    ("headers", "attempts", "is_fallback"),
    [
        ({"x-gateway-attempts": "2"}, 2, False),
        ({"x-rlcd-attempts": "3"}, 3, False),
        ({"x-envoy-attempt-count": "1"}, 1, False),
        ({"x-litellm-attempted-retries": "0", "x-litellm-attempted-fallbacks": "0"}, 1, False),
        ({"x-litellm-attempted-retries": "2", "x-litellm-attempted-fallbacks": "1"}, 3, True),
        ({"x-gateway-attempts": "two"}, None, False),
        ({"x-gateway-attempts": "²"}, None, False),
        ({"x-gateway-attempts": "-1"}, None, False),
        ({"x-gateway-attempts": "12345"}, None, False),
        ({"x-gateway-attempts": "", "x-rlcd-attempts": "4"}, 4, False),
        ({"x-unknown-attempts": "4"}, None, False),
    ],
)
def test_attempts_count_the_first_try(headers, attempts, is_fallback):
    """A header of retries is one less; a value that is no small number tells nothing."""
    assert (attempts, is_fallback) == (told.attempts(headers), told.is_fallback(headers))


@pytest.mark.parametrize(
    ("headers", "backend"),
    [
        ({}, None),
        ({"x-upstream": "127.0.0.1:8000"}, "127.0.0.1:8000"),
        ({"x-backend-server": "a", "x-gateway-target": "b"}, "b"),
        ({"x-litellm-model-api-base": "https://me:pw@host:1/v1?key=abc#x"}, "https://host:1/v1"),
        ({"x-litellm-model-api-base": "http://[bad"}, "an address that cannot be read"),
        ({"x-upstream": "http://a:pw1@h1/x, http://bob:pw2@h2/?key=abc"}, "http://h1/x, http://h2/"),
        ({"x-upstream": "http://h1/x http://bob:p@w2@h2;http://u:pw3@h3"}, "http://h1/x http://h2;http://h3"),
        ({"x-upstream": "bob:pw3@h3:80"}, "h3:80"),
        ({"x-upstream": "a=bob:pw3@h3:80, //u:pw@h4/v1?x=y#z"}, "a=h3:80, //h4/v1"),
        ({"x-upstream": "https://h/#token=abc"}, "https://h/"),
        ({"x-upstream": "/v1/chat?token=abc"}, "/v1/chat"),
        ({"x-upstream": "<http://u:p%2F@[::1]:80/a>; rel=x"}, "<http://[::1]:80/a>; rel=x"),
        ({"x-upstream": "http://u:a/b@h/c"}, "http://h/c"),
        ({"x-upstream": "http://u:pw1,x@h/c"}, "http://h/c"),
        ({"x-upstream": "gpt-4o@2024-08-06 HIT#3"}, "gpt-4o@2024-08-06 HIT#3"),
        ({"x-upstream": "https://h:80/models/claude@2024"}, "https://h:80/models/claude@2024"),
        ({"x-upstream": "bob:p/w@h, http://h1/x,bob:pw@h2"}, "h, http://h1/x,h2"),
        ({"x-upstream": "h?token=abc"}, "h"),
        ({"x-upstream": "//a:x" * 10_000 + "@"}, "an address too long to keep"),
        ({"x-upstream": "see seCret-1?x=y/z"}, "see ***"),
        ({"x-upstream": "a\tb\x07c"}, "a b?c"),
        ({"x-upstream": "y" * 300}, "y" * 200),
        ({"x-upstream": "see secret-1 there"}, "see *** there"),
    ],
)
def test_a_backend_is_one_line_without_credentials(headers, backend):
    """Of an address neither user nor query; known secrets masked; at most 200 characters."""
    assert backend == told.backend(headers, Masked(["secret-1"]))


def test_only_what_was_named_is_kept():
    """In any case, by its name in lower case; an absent one is left out; nothing named is None, not {}."""
    headers = {"x-served-by": "cache-1", "set-cookie": "a=b", "via": "1.1 x"}

    assert {"x-served-by": "cache-1"} == told.kept(headers, ["X-Served-By", "x-missing"], NOTHING)
    assert {} == told.kept(headers, ["x-missing"], NOTHING)
    assert None is told.kept(headers, [], NOTHING)


def test_every_row_of_the_table_gives_something():
    """A header in the table that nothing reads would be kept for nothing."""
    for row in told.HEADERS:
        headers = {row.name: "1"}
        given = {
            "attempts": told.attempts(headers), "backend": told.backend(headers, NOTHING),
            "fallbacks": told.is_fallback(headers) or None,
        }  # fmt: skip
        assert [row.gives] == [name for name, value in given.items() if value is not None]


def test_the_record_of_a_real_answer_holds_them():
    """Through the socket: attempts, backend, the headers asked for, the model named, and the flags of both."""
    retried = script("X-Rlcd-Attempts: 3\nX-Rlcd-Route: economy\nX-Served-By: b\nSet-Cookie: a=secret", "other")
    fallback = script("x-litellm-attempted-retries: 0\nx-litellm-attempted-fallbacks: 1", "m:latest")
    failed = "HTTP 502 application/json\nX-Gateway-Attempts: 3\nx-served-by: c\n---\n{}"
    with FakeGateway([retried, fallback, failed]) as fake:
        job = {"url": fake.url, "modes": ["nonstream"] * 3, "keep_headers": ["x-served-by"]}
        first, second, third = ask([job])[0]
        without = ask_one(fake.url, stream=False)

    assert (3, "economy", {"x-served-by": "b"}) == (first["attempts"], first["backend"], first["headers"])
    assert (["other_model"], "other") == (list(first["flags"]), first["model_served"])
    assert (1, None, {}) == (second["attempts"], second["backend"], second["headers"])
    assert ["fallback"] == list(second["flags"])
    assert ("http_5xx", 3, {"x-served-by": "c"}) == (third["outcome"], third["attempts"], third["headers"])
    assert None is without["headers"]
