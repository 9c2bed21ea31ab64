"""The one rule of success, refusals told apart, error texts safe to keep."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from play import CHAT_HEAD, DONE, FINISH, LAST_CHUNK, MS, NDJSON_HEAD, USAGE, chunk, content, event, play, response
from recorded import recorded

from sweep.error_bodies import read_error
from sweep.masking import Masked
from sweep.outcomes import MAX_ERROR_TEXT, conclude, http_error, one_line, refusal, retry_after_s

A, B = chunk(content("A")), chunk(content("B"))
ERROR = chunk(b'data: {"error":{"message":"engine died","code":500}}\n\n')
FINISHED, DONE_CHUNK = chunk(FINISH), chunk(DONE)
OLLAMA_A = b'{"message":{"content":"A"}}\n'
OPEN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
WHOLE = b'{"choices":[{"message":{"content":"AB"},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}'
REDIRECT = b"HTTP/1.1 307 X\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("reads", "ending", "outcome", "code"),
    [
        ([CHAT_HEAD, A, B, FINISHED, chunk(USAGE), DONE_CHUNK, LAST_CHUNK], "complete", "ok", None),
        ([CHAT_HEAD, A, DONE_CHUNK, LAST_CHUNK], "complete", "ok", None),
        ([CHAT_HEAD, A, FINISHED, LAST_CHUNK], "complete", "ok", None),
        ([CHAT_HEAD, A, chunk(FINISH[:-2]), LAST_CHUNK], "complete", "ok", None),
        ([CHAT_HEAD, A, chunk(DONE[:-2]), LAST_CHUNK], "complete", "ok", None),
        ([CHAT_HEAD, A, DONE_CHUNK], "complete", "ok", None),
        ([CHAT_HEAD, A, DONE_CHUNK], "eof", "ok", None),
        ([CHAT_HEAD, A, DONE_CHUNK], "reset", "ok", None),
        ([CHAT_HEAD, A, DONE_CHUNK], "cut", "ok", None),
        ([CHAT_HEAD, A, FINISHED], "eof", "truncated", None),
        ([CHAT_HEAD, A, FINISHED], "reset", "reset", None),
        ([CHAT_HEAD, A, FINISHED], "stalled", "stalled", None),
        ([CHAT_HEAD, A, FINISHED], "cut", "cut", None),
        ([CHAT_HEAD, A, B, LAST_CHUNK], "complete", "truncated", None),
        ([CHAT_HEAD, A, chunk(FINISH[:-9]), LAST_CHUNK], "complete", "truncated", None),
        ([CHAT_HEAD, LAST_CHUNK], "complete", "truncated", None),
        ([OPEN_HEAD, content("A"), FINISH], "eof", "ok", None),
        ([OPEN_HEAD, content("A"), FINISH, DONE], "eof", "ok", None),
        ([OPEN_HEAD, content("A")], "eof", "truncated", None),
        ([OPEN_HEAD, content("A")], "timeout", "timeout", None),
        ([CHAT_HEAD, ERROR, DONE_CHUNK, LAST_CHUNK], "complete", "error_event", "500"),
        ([CHAT_HEAD, A, ERROR, LAST_CHUNK], "complete", "error_event", "500"),
        ([CHAT_HEAD, A, ERROR], "reset", "error_event", "500"),
        ([CHAT_HEAD, A, chunk(event("{}", '"error"')), DONE_CHUNK, LAST_CHUNK], "complete", "error_event", "error"),
        ([CHAT_HEAD, A, chunk(event("{}", '"abort"')), LAST_CHUNK], "complete", "error_event", "abort"),
        ([CHAT_HEAD, A, chunk(event("{}", '"content_filter"')), DONE_CHUNK, LAST_CHUNK], "complete", "ok", None),
        ([CHAT_HEAD, A, chunk(b"data: {oops\n\n")], "bad", "bad_body", None),
        ([CHAT_HEAD, A, b"zz\r\n"], "bad", "bad_body", None),
        ([response(WHOLE)], "complete", "ok", None),
        ([response(WHOLE)[:-1]], "eof", "truncated", None),
        ([response(b"<html>hello</html>", "text/html")], "complete", "bad_body", "JSON is malformed"),
        ([response(b'{"error":{"message":"m","code":"c"}}')], "complete", "error_event", "c"),
        ([response(b"")], "complete", "bad_body", "Input data was truncated"),
        ([REDIRECT], "complete", "bad_body", "redirect"),
        ([response(b'{"error":"m"}', status=500)], "complete", "http_5xx", None),
        ([response(b'{"error":{"message":"m","code":"c"}}', status=404)], "complete", "http_4xx", "c"),
        ([response(b'{"error":"m"}', status=500)[:-3]], "reset", "http_5xx", None),
        ([response(b'{"error":"queue full"}', status=503)[:-3]], "stalled", "shed", None),
        ([], "eof", "reset", None),
        ([], "reset", "reset", None),
        ([], "timeout", "timeout", None),
        ([], "connect", "connect", None),
        ([], "cut", "cut", None),
        ([b"garbage"], "bad", "bad_body", None),
        ([b"HTTP/1.1 200 OK\r\nContent-"], "eof", "reset", None),
    ],
)  # fmt: skip
def test_how_a_streaming_request_ended(reads, ending, outcome, code):
    """2xx, terminal marker, success kind, no error on the way, valid: all of it, or another name."""
    found = conclude(play(reads), ending)

    assert outcome == found.outcome
    assert code is None or code == (found.code or "")[: len(code)]


@pytest.mark.parametrize(
    ("api", "reads", "ending", "outcome"),
    [
        ("ollama-chat", [NDJSON_HEAD, chunk(OLLAMA_A + b'{"done":true}\n'), LAST_CHUNK], "complete", "ok"),
        ("ollama-chat", [NDJSON_HEAD, chunk(OLLAMA_A + b'{"done":true}'), LAST_CHUNK], "complete", "ok"),
        ("ollama-chat", [NDJSON_HEAD, chunk(OLLAMA_A + b'{"don'), LAST_CHUNK], "complete", "truncated"),
        ("ollama-chat", [NDJSON_HEAD, chunk(OLLAMA_A), LAST_CHUNK], "complete", "truncated"),
        ("ollama-chat", [NDJSON_HEAD, chunk(b'{"done_reason":"stop"}\n'), LAST_CHUNK], "complete", "truncated"),
        ("ollama-chat", [NDJSON_HEAD, chunk(OLLAMA_A + b'{"error":"x"}\n'), LAST_CHUNK], "complete", "error_event"),
        ("ollama-generate", [response(b'{"response":"A","done":true}')], "complete", "ok"),
        ("ollama-generate", [response(b'{"error":"x"}')], "complete", "error_event"),
    ],
)  # fmt: skip
def test_how_an_ollama_stream_ended(api, reads, ending, outcome):
    """done:true is the only good end."""
    assert outcome == conclude(play(reads, api), ending).outcome


@pytest.mark.parametrize(
    ("api", "wire", "ending", "outcome"),
    [
        ("openai-chat", response(WHOLE), "complete", "ok"),
        ("openai-chat", b"HTTP/1.0 200 OK\r\n\r\n" + WHOLE, "eof", "ok"),
        ("openai-chat", response(WHOLE.replace(b'"stop"', b"null")), "complete", "bad_body"),
        ("openai-chat", response(WHOLE.replace(b'"stop"', b'"error"')), "complete", "error_event"),
        ("openai-chat", CHAT_HEAD + A + DONE_CHUNK + LAST_CHUNK, "complete", "bad_body"),
        ("openai-chat", recorded("aimock/chaos_malformed").wire(), "complete", "bad_body"),
        ("openai-chat", recorded("ferrogw/nonstream").wire(), "complete", "ok"),
        ("ollama-chat", recorded("aimock/ollama_chat_nonstream").wire(), "complete", "ok"),
        ("ollama-chat", response(b'{"message":{"content":"A"},"done":false}'), "complete", "bad_body"),
    ],
)
def test_how_a_request_without_streaming_ended(api, wire, ending, outcome):
    """A whole, complete, valid answer, or another name."""
    assert outcome == conclude(play([wire], api, stream=False), ending).outcome


def test_end_of_an_answer_that_only_its_body_ends():
    """No [DONE]: the end is the end of the body; no streaming: its last byte."""
    stream, whole = play([CHAT_HEAD, A, FINISHED, LAST_CHUNK]), play([response(WHOLE)])
    for exchange in (stream, whole):
        conclude(exchange, "complete")

    assert (4 * MS, 1 * MS) == (stream.t_end_ns, whole.t_end_ns)


def test_count_of_zero_over_a_text_is_no_count():
    """A server's 0 beside an answer it sent is unknown, not zero; beside an empty one it is true."""
    told = [
        play([response(b'{"message":{"content":"%b"},"done":true,"eval_count":0}' % text)], "ollama-chat", stream=False)
        for text in (b"A", b"")
    ]
    for exchange in told:
        conclude(exchange, "complete")

    assert [None, 0] == [exchange.answer.n_out for exchange in told]


@pytest.mark.parametrize(
    ("name", "outcome", "code", "text"),
    [
        ("ferrogw/err_429_concurrency_shed", "shed", "provider_saturated", "the gateway is at capacity"),
        ("ferrogw/err_429_ratelimit_3", "limited", "rate_limit_exceeded", "rate limit exceeded"),
        ("ferrogw/err_dead_upstream_1", "http_5xx", "routing_error", "the gateway could not complete the request"),
        ("ferrogw/err_dead_upstream_3", "http_5xx", "upstream_unavailable", "the upstream provider is temporarily"),
        ("ferrogw/err_401", "http_4xx", "missing_api_key", "missing or invalid authorization header"),
        ("ferrogw/err_unknown_model", "http_4xx", "model_not_found", "no configured provider serves"),
        ("ferrogw/err_upstream_400", "http_4xx", "invalid_request", "request (1524 tokens) exceeds"),
        ("llama-server/err_503_loading", "http_5xx", "503", "Loading model"),
        ("llama-server/err_ctx_exceeded", "http_4xx", "400", "request (1524 tokens) exceeds"),
        ("llama-server/err_badjson", "http_5xx", "500", "[json.exception.parse_error.101]"),
        ("llama-server/err_401_nokey", "http_4xx", "401", "Invalid API Key"),
        ("llama-server/err_404", "http_4xx", "404", "File Not Found"),
        ("llmock/err_429", "limited", "rate_limit_exceeded", "Rate limit exceeded."),
        ("llmock/err_503", "http_5xx", "service_unavailable", "Service unavailable."),
        ("llmock/err_badjson", "http_4xx", "unprocessable_entity", "body → 9: JSON decode error"),
        ("aimock/chaos_ratelimit", "limited", "chaos_ratelimit", "Chaos: rate limit exceeded"),
        ("aimock/err_nofixture", "http_4xx", "no_fixture_match", "No fixture matched"),
        ("rlcd-gateway/err_429_key_rpm", "limited", "rate_limit_exceeded", "rlcd-gateway: gateway key rate limit"),
        ("rlcd-gateway/err_bad_gateway_key", "http_4xx", "invalid_api_key", "rlcd-gateway: invalid gateway key"),
        ("nginx/err_429_limit_req", "rejected_unclear", None, "<html>\r\n<head><title>429 Too Many Requests"),
        ("nginx/err_502_all_down", "http_5xx", None, "<html>\r\n<head><title>502 Bad Gateway"),
        ("nginx/err_504_read_timeout", "http_5xx", None, "<html>\r\n<head><title>504 Gateway Time-out"),
        ("haproxy/err_503_queue_timeout", "http_5xx", None, "<html><body><h1>503 Service Unavailable"),
        ("jevcompat-mock/err_422", "http_4xx", None, '[{"loc":["body","model"],"msg":"Field required"'),
        ("dev-double/err_badjson", "http_4xx", None, "request body must be valid JSON"),
    ],
)  # fmt: skip
def test_recorded_error_of_a_real_server(name, outcome, code, text):
    """Named, with its code and its own words, through the whole reader."""
    found = conclude(play([recorded(name).wire()]), "complete")

    assert (outcome, code, text) == (found.outcome, found.code, (found.text or "")[: len(text)])


@pytest.mark.parametrize(
    ("status", "headers", "code", "text", "outcome"),
    [
        (429, "", None, None, "rejected_unclear"),
        (429, "", None, "no", "rejected_unclear"),
        (429, "", None, "rate limited", "limited"),
        (429, "", None, "You exceeded your current quota", "limited"),
        (429, "", "insufficient_quota", None, "limited"),
        (429, "", None, "budget of key spent", "limited"),
        (429, "", None, "RPM exceeded", "limited"),
        (429, "x-ratelimit-remaining-requests", None, None, "limited"),
        (429, "x-ratelimit-limit", None, "no", "limited"),
        (429, "retry-after", None, None, "shed"),
        (429, "retry-after", None, "rate limited", "limited"),
        (429, "retry-after x-ratelimit-reset", None, "no", "limited"),
        (429, "", None, "queue full", "shed"),
        (429, "", "rate_limit_error", "the gateway is at capacity; retry shortly", "shed"),
        (429, "x-ratelimit-limit", None, "server overloaded", "shed"),
        (429, "", None, "too many concurrent requests", "shed"),
        (429, "", "engine_overloaded", None, "shed"),
        (429, "", None, "separate accelerate", "rejected_unclear"),
        (503, "", None, "server busy, please try again.  maximum pending requests exceeded", "shed"),
        (503, "", None, "queue full", "shed"),
        (503, "retry-after", None, "try later", "shed"),
        (503, "retry-after", None, None, "shed"),
        (503, "", None, None, None),
        (503, "", None, "Loading model", None),
        (503, "retry-after", None, "Loading model", None),
        (503, "retry-after", None, "shutting down", None),
        (503, "retry-after", None, "circuit open", None),
        (503, "retry-after", None, "upstream unavailable", None),
        (503, "x-ratelimit-limit", None, "oops", None),
        (529, "", "overloaded_error", "Overloaded", "shed"),
        (529, "", None, None, "rejected_unclear"),
        (500, "retry-after", None, "queue full", None),
        (502, "", None, "capacity", None),
        (400, "", None, "rate limited", None),
        (401, "x-ratelimit-limit", None, None, None),
    ],
)
def test_refusal(status, headers, code, text, outcome):
    """The server's fullness before the caller's limit, words before headers, and only where busy is meant."""
    assert outcome == refusal(status, dict.fromkeys(headers.split(), "1"), code, text)


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b'{"error":{"message":"m","type":"t","code":"c"}}', "c", "m"),
        (b'{"error":"m"}', None, "m"),
        (b'{"detail":"m"}', None, "m"),
        (b'{"status":503,"message":"m"}', "503", "m"),
        (b'"m"', None, "m"),
        (b"m\n", None, "m\n"),
        (b"<html>m</html>", None, "<html>m</html>"),
        (b"\xff\xfem", None, "��m"),
        (b"", None, None),
        (b" \r\n", None, None),
        (b"[" * 50_000, None, "[" * 4096),
    ],
)
def test_error_body_of_every_shape(body, code, text):
    """JSON of any shape, a bare string, plain text, HTML, no text at all."""
    assert (code, text) == read_error(body)


def test_redirect_says_what_to_do():
    """Following it would measure another address."""
    outcome, code, text = http_error(301, {"location": "https://u:secret@x/"}, b"")

    assert ("bad_body", "redirect") == (outcome, code)
    assert "redirected to https://x; give --target the address it redirects to" == text


@pytest.mark.parametrize(
    ("location", "where"),
    [("/v2?key=secret", " on the same host"), ("http://[::1]:8/a", " to http://[::1]:8"), ("http://[x", ""), ("", "")],
)
def test_redirect_says_where_to_and_no_secret(location, where):
    """The host is what an operator needs; path and query may hold what is nobody's business."""
    assert f"redirected{where}; give" in http_error(307, {"location": location}, b"")[2]


SENT = "Mon, 30 Nov 2026 15:00:00 GMT"


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        (None, SENT, None),
        ("2", None, 2.0),
        ("0", None, 0.0),
        ("1.5", None, 1.5),
        (" 7 ", None, 7.0),
        ("-1", None, None),
        ("nan", None, None),
        ("inf", None, None),
        ("1e999", None, None),
        ("soon", SENT, None),
        ("", SENT, None),
        ("Mon, 30 Nov 2026 15:00:09 GMT", SENT, 9.0),
        ("Mon, 30 Nov 2026 16:00:09 +0100", SENT, 9.0),
        ("Mon, 30 Nov 2026 14:59:00 GMT", SENT, 0.0),
        ("Mon, 30 Nov 2026 15:00:09 GMT", None, None),
        ("Mon, 30 Nov 2026 15:00:09 GMT", "yesterday", None),
        ("Mon, 30 Nov 99999999999999999999 15:00:09 GMT", SENT, None),
        ("Mon, 99 Nov 2026 15:00:09 GMT", SENT, None),
    ],
)
def test_retry_after(value, date, seconds):
    """A number, or a date by the server's own clock; anything else is unknown."""
    headers = {"retry-after": value, "date": date}

    assert seconds == retry_after_s({name: text for name, text in headers.items() if text is not None})


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["retry-after", "date"]), st.text(st.characters(max_codepoint=255))))
def test_no_retry_after_breaks_the_record(headers):
    """Whatever a server writes there, it is seconds or unknown."""
    found = retry_after_s(headers)

    assert found is None or 0 <= found < float("inf")


@settings(deadline=None)
@given(st.binary(max_size=300), st.sampled_from([200, 302, 400, 429, 500, 503]), st.booleans())
def test_no_body_breaks_the_record(body, status, stream):
    """Whatever bytes a server answers, the request ends with an outcome that is no success."""
    exchange = play([response(body, status=status)], stream=stream)

    assert conclude(exchange, "complete").outcome not in ("ok", "cut")


SECRET = "sk-a/b+c d=é"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (None, None),
        ("", ""),
        ("no secret", "no secret"),
        (f"key {SECRET} is wrong, {SECRET}!", "key *** is wrong, ***!"),
        (f"{'x' * 195}{SECRET}", "x" * 195 + "***"),
        (f"{'x' * 198}{SECRET}", "x" * 198 + "**"),
        ("a\r\n\t  b\n", "a b"),
        ("x" * 999, "x" * MAX_ERROR_TEXT),
    ],
)
def test_one_line(text, kept):
    """On one line, cut after masking, so that not even the start of a secret stays."""
    assert kept == one_line(text, Masked(["other", SECRET]))


@pytest.mark.parametrize("n_shown", [5, 8, 11, 14, 25, 31])
@pytest.mark.parametrize("filler", [b"\n", b"x", "ü".encode(), "😀".encode()])
def test_an_error_body_is_masked_before_it_is_cut(filler, n_shown):
    """Wherever in the body the secret stands, across whatever limit of ours: no start of it stays."""
    secret = "sk-DISTINCTIVE-0123456789abcdef"
    masked = Masked([secret])
    for limit in (200, 1024, 4096):
        for head in (b"<html>", b"<html>" + f"{secret} ".encode() * 20):
            n_bytes = limit * len(filler.decode().encode()) if limit < 4096 else limit
            body = head + filler * ((n_bytes - n_shown - len(head)) // len(filler)) + secret.encode() + b"</html>"
            assert "sk-D" not in one_line(read_error(body)[1], masked)
