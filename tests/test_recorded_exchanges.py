"""Whole answers of real servers, cut at random from the status line on: the exchange ends alike, whatever the reads."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import recorded

from sweep.dialects import BY_NAME, Answer
from sweep.exchange import Exchange
from sweep.outcomes import conclude

MS = 1_000_000
QUESTIONS = {
    "wants_refund": {"type": "noul"},
    "intent": {"type": "choice", "criteria": {"refund": "", "rebooking": "", "information": ""}},
    "frustration": {"type": "score", "criteria": ["Calm.", "Concerned but civil.", "Very angry."]},
}
# recording -> outcome, token events, tokens counted, finish
STREAMS = {
    "openai-chat": {
        "llama-server/chat_stream": ("ok", 8, None, "length"),
        "llama-server/chat_stream_usage": ("ok", 8, 8, "length"),
        "llama-server/chat_stream_http10": ("ok", 3, None, "length"),
        "llama-server/err_ctx_exceeded": ("http_4xx", 0, None, None),
        "llama-server/err_503_loading": ("http_5xx", 0, None, None),
        "ferrogw/stream_usage": ("ok", 8, 8, "length"),
        "ferrogw/err_429_concurrency_shed": ("shed", 0, None, None),
        "rlcd-gateway/chat_stream": ("ok", 8, None, "length"),
        "llmock/stream_usage": ("ok", 9, 16, "stop"),
        "llmock/stream_malformed": ("bad_body", 2, None, None),
        "llmock/stream_truncate": ("truncated", 2, None, None),
        "aimock/stream": ("ok", 10, 19, "stop"),
        "nginx/A_default_buffered_stream": ("ok", 10, None, "length"),
        "nginx/err_502_all_down": ("http_5xx", 0, None, None),
        "haproxy/stream": ("ok", 10, None, "length"),
    },
    "openai-completions": {
        "llama-server/completions_stream": ("ok", 6, 6, "length"),
        "ferrogw/completions_stream": ("http_4xx", 0, None, None),
    },
    "openai-responses": {
        "llama-server/responses_stream": ("ok", 6, 6, "completed"),
        "llmock/responses_stream": ("ok", 9, 16, "completed"),
    },
    "anthropic-messages": {
        "llama-server/messages_stream": ("ok", 6, 6, "max_tokens"),
        "ferrogw/messages_stream": ("ok", 6, 6, "max_tokens"),
        "llmock/messages_stream": ("ok", 9, 14, "end_turn"),
        "aimock/messages_stream": ("ok", 10, 0, "end_turn"),
    },
    "ollama-chat": {"aimock/ollama_chat_stream": ("ok", 10, 0, "stop")},
    "ollama-generate": {"aimock/ollama_generate_stream": ("ok", 10, 0, "stop")},
}
BODIES = {
    "openai-chat": {
        "llama-server/chat_nonstream": ("ok", 0, 8, "length"),
        "ferrogw/nonstream": ("ok", 0, 8, "length"),
        "aimock/chaos_malformed": ("bad_body", 0, None, None),
    },
    # it counts nothing and says 0
    "ollama-chat": {"aimock/ollama_chat_nonstream": ("ok", 0, None, "stop")},
    "systemone": {
        "dev-double/systemone_llama": ("ok", 0, None, None),
        "dev-double/err_noquestions": ("http_4xx", 0, None, None),
        "jevcompat-mock/systemone": ("bad_body", 0, None, None),
        "jevcompat-mock/err_422": ("http_4xx", 0, None, None),
    },
}
CASES = [
    (api, name, stream, expected)
    for stream, table in ((True, STREAMS), (False, BODIES))
    for api, rows in table.items()
    for name, expected in rows.items()
]


def exchanged(api: str, stream: bool, reads: list[bytes]) -> tuple[Exchange, tuple]:
    """Fed a read a millisecond until nothing more is wanted; what must not depend on the reads."""
    exchange = Exchange(BY_NAME[api], stream, "s.w-000001", {"questions": QUESTIONS})
    exchange.t_start_ns = exchange.t_sent_ns = 0
    over = any(exchange.feed(data, n * MS) for n, data in enumerate(reads, 1))
    conclusion = conclude(exchange, "complete" if over else "eof")
    told = {name: getattr(exchange.answer, name) for name in Answer.__slots__}
    return exchange, (conclusion, told, exchange.n_events, exchange.status, exchange.late)


def cut(wire: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted({place % len(wire) for place in places} - {0}), len(wire)]
    return [wire[a:b] for a, b in itertools.pairwise(ends)]


@pytest.mark.parametrize(("api", "name", "stream", "expected"), CASES, ids=lambda value: str(value).replace("/", "-"))
def test_recorded_answer(api, name, stream, expected):
    """What the recording shows to the eye, read whole."""
    exchange, (conclusion, told, n_events, *_) = exchanged(api, stream, [recorded(name).wire()])

    assert expected == (conclusion.outcome, n_events, told["n_out"], told["finish"])
    assert (n_events > 0) == (exchange.t_first_ns is not None)


@settings(deadline=None, max_examples=25)
@given(st.data())
@pytest.mark.parametrize(("api", "name", "stream", "expected"), CASES, ids=lambda value: str(value).replace("/", "-"))
def test_any_split_of_a_recorded_answer_ends_alike(api, name, stream, expected, data):
    """Outcome, tokens, counts, finish and all that was told; cuts in the head, in chunk sizes, in a character."""
    wire = recorded(name).wire()
    reads = cut(wire, data.draw(st.lists(st.integers(0, len(wire)), max_size=40)))
    exchange, result = exchanged(api, stream, reads)

    assert exchanged(api, stream, [wire])[1] == result
    assert exchange.n_events == sum(exchange.read_tokens)
    assert len(exchange.gaps_us) == max(0, len(exchange.read_tokens) - 1)


@pytest.mark.parametrize(("api", "name", "stream", "expected"), CASES, ids=lambda value: str(value).replace("/", "-"))
def test_a_byte_a_read_ends_alike(api, name, stream, expected):
    """The hardest split of all."""
    wire = recorded(name).wire()

    assert exchanged(api, stream, [wire])[1] == exchanged(api, stream, [bytes([byte]) for byte in wire])[1]


def test_every_api_that_streams_has_a_recording():
    """A new row brings one."""
    assert {name for name, dialect in BY_NAME.items() if dialect.streams} == set(STREAMS)
    assert json.loads(recorded("dev-double/systemone_llama").body)["answers"].keys() == QUESTIONS.keys()
