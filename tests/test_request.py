"""Request bytes: valid HTTP, right length, ids and nonces of their own."""

from __future__ import annotations

import itertools
import json

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweep.dialects import BY_NAME, DIALECTS, Ask
from sweep.endpoint import parse_endpoint
from sweep.request import RequestTemplate, authorization, prompt_text


def template(
    url="http://127.0.0.1:8080", api="openai-chat", stream=True, key=None, seed=7, prefix="s01.w01", extra=None
):
    ask = Ask("m", prompt_text(20, seed), 9, stream, extra or {})
    return RequestTemplate(parse_endpoint(url), BY_NAME[api], ask, authorization(key), prefix, seed)


def parse(request: bytes) -> dict:
    """Taken apart by llhttp, which is strict."""
    found = {"headers": [], "body": b"", "ended": 0}

    class Handler:
        def on_url(self, url):
            found["url"] = url

        def on_header(self, name, value):
            found["headers"].append((name.decode().lower(), value.decode()))

        def on_body(self, data):
            found["body"] += data

        def on_message_complete(self):
            found["ended"] += 1

    parser = httptools.HttpRequestParser(Handler())
    parser.feed_data(request)
    return found | {"method": parser.get_method(), "version": parser.get_http_version()}


def prompt_of(request: bytes) -> str:
    body = json.loads(parse(request)["body"])
    if "messages" in body:
        return body["messages"][0]["content"]
    return next(body[key] for key in ("prompt", "input", "state") if key in body)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS, ids=BY_NAME)
@pytest.mark.parametrize(
    ("url", "host", "base"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080", ""),
        ("http://[::1]:9/a", "[::1]:9", "/a"),
        ("https://h/a", "h:443", "/a"),
    ],
)
def test_request_is_valid_http(dialect, stream, url, host, base):
    """One whole POST, each header once, the body as long as said."""
    request_id, data = template(url, dialect.name, stream, key="k").fill(3)
    request = parse(data)
    headers = dict(request["headers"])

    assert (b"POST", "1.1", base + dialect.path, 1) == (
        request["method"], request["version"], request["url"].decode(), request["ended"],
    )  # fmt: skip
    assert len(headers) == len(request["headers"])
    assert (host, str(len(request["body"])), request_id, "Bearer k", "identity", "application/json") == (
        headers["host"], headers["content-length"], headers["x-request-id"], headers["authorization"],
        headers["accept-encoding"], headers["content-type"],
    )  # fmt: skip
    assert (dialect.stream_type if stream and dialect.streams else "application/json") == headers["accept"]
    body = json.loads(request["body"])
    assert ("m", stream if dialect.streams else None) == (body["model"], body.get("stream"))
    assert dialect.headers.items() <= headers.items()
    assert b"@request-id@" not in data


def test_header_of_the_user_replaces_the_dialect_s():
    """Whatever its case: two versions would be none."""
    ask = Ask("m", prompt_text(20, 7), 9, True, {})
    filled = RequestTemplate(
        parse_endpoint("http://h"), BY_NAME["anthropic-messages"], ask, {"Anthropic-Version": "2024-01-01"}, "s", 7
    ).fill(1)[1]

    assert ["2024-01-01"] == [value for name, value in parse(filled)["headers"] if name == "anthropic-version"]


def test_no_key_no_header():
    """An empty Authorization is not sent."""
    assert b"authorization" not in template().fill(1)[1].lower()


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 10**6), min_size=2, max_size=50, unique=True))
def test_no_two_requests_are_the_same(seed, numbers):
    """Ids and nonces differ, lengths do not."""
    filled = [template(seed=seed).fill(n) for n in numbers]
    lengths = {len(data) - len(request_id) for request_id, data in filled}

    assert len(numbers) == len({request_id for request_id, _ in filled})
    assert len(numbers) == len({prompt_of(data)[:8] for _, data in filled})
    assert 1 == len(lengths)


@pytest.mark.parametrize("api", BY_NAME)
def test_prompts_differ_in_their_first_characters(api):
    """A prefix cache works on leading tokens: neighbours must not share the start of the nonce."""
    prompts = [prompt_of(template(api=api).fill(n)[1]) for n in range(1, 201)]
    pairs = list(itertools.pairwise(prompts))

    assert 200 == len({prompt[:8] for prompt in prompts})
    assert 0 == sum(a[:4] == b[:4] for a, b in pairs)
    assert 1 == len({prompt[16:] for prompt in prompts})


def test_steps_of_one_run_share_no_prompt():
    """Another seed gives other nonces from the first request on."""
    one, two = ({prompt_of(template(seed=seed).fill(n)[1])[:16] for n in range(1, 100)} for seed in (1, 2))

    assert set() == one & two


def test_ids_of_two_processes_differ():
    """The prefix tells the step and the process."""
    assert {"s01.w01-000001", "s01.w02-000001"} == {
        template(prefix=f"s01.{worker}").fill(1)[0] for worker in ("w01", "w02")
    }


def test_ids_stay_unique_past_six_digits():
    """A long step has more than a million requests."""
    assert ("s01.w01-999999", "s01.w01-1000000") == (template().fill(999_999)[0], template().fill(1_000_000)[0])


def test_prompt_is_the_same_for_the_same_seed_and_as_long_as_asked():
    """The words follow the nonce and a sentence that asks for a long answer."""
    first, again, other = prompt_text(50, 1), prompt_text(50, 1), prompt_text(50, 2)
    words = len(prompt_text(50, 1).split()) - len(prompt_text(0, 1).split())

    assert (first, 50) == (again, words)
    assert first != other


def test_extra_body_may_hold_anything():
    """Non-ASCII text counts in bytes."""
    request = parse(template(extra={"user": "é\u2028"}).fill(1)[1])

    assert "é\u2028" == json.loads(request["body"])["user"]
    assert str(len(request["body"])) == dict(request["headers"])["content-length"]
