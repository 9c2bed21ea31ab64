"""Bytes to events: the WHATWG rules, NDJSON, and the same events whatever way the bytes were split."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import recorded

from sweep.stream import MAX_EVENT_BYTES, NdjsonReader, OversizedEventError, SseReader

BOM = b"\xef\xbb\xbf"
SSE_RECORDS = (
    "llama-server/chat_stream", "llama-server/chat_stream_usage", "ferrogw/stream_usage", "llmock/stream_usage",
    "llmock/stream_malformed", "aimock/stream", "nginx/A_default_buffered_stream", "haproxy/stream",
    "llama-server/completions_stream",
)
TYPED_RECORDS = (
    "llama-server/responses_stream", "llmock/responses_stream", "llama-server/messages_stream",
    "llmock/messages_stream", "ferrogw/messages_stream",
)  # fmt: skip
NDJSON_RECORDS = ("aimock/ollama_chat_stream", "aimock/ollama_generate_stream")


def read(reader, *chunks: bytes) -> list:
    events = [event for chunk in chunks for event in reader.feed(chunk)]
    return events + reader.close()


def cut(body: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[a:b] for a, b in itertools.pairwise(ends)]


def by_the_rules(body: bytes) -> tuple[list, int]:
    """Events and comments of a whole body, read slowly."""
    events, n_comments, data, kind = [], 0, [], b""
    for line in [*re.split(rb"\r\n|\r|\n", body.removeprefix(BOM)), b""]:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if line == b"":
            events += [(kind, b"\n".join(data))] if data else []
            data, kind = [], b""
        elif name == b"":
            n_comments += 1
        elif name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value
    return events, n_comments


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\ndata: b\r\r\ndata: c\n\r", [b"a", b"b", b"c"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a \n\n", [b" a "]),
        (b"data: a:b\n\n", [b"a:b"]),
        (b"data:\n\n", [b""]),
        (b"data\n\n", [b""]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\r\ndata: b\r\n\r\n", [b"a\nb"]),
        (b"data: a\rdata: b\r\r", [b"a\nb"]),
        (b"data: a\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\ndata: b\n\ndata: c\n\n", [b"a\nb", b"c"]),
        (b"id: 1\nretry: 5\nunknown\ndata: a\n\n", [b"a"]),
        (b"id: \x00\nid\nretry: soon\nretry\nevent\n:\ndata: a\n\n", [b"a"]),
        (b"datas: a\n\n Data: a\n\ndata : a\n\nDATA: a\n\n", []),
        (b"event: x\n\ndata: a\n\n", [b"a"]),
        (b"data: a\n: c\ndata: b\n\n", [b"a\nb"]),
        (b"data:\ndata:\n\n", [b"\n"]),
        (b"data:\n\r\n", [b""]),
        (BOM[:2] + b"data: a\n\ndata: b\n\n", [b"b"]),
        (BOM + b"\n\ndata: a\r\r\n", [b"a"]),
        (b": ping\n\ndata: a\n\n", [b"a"]),
        (BOM + b"data: a\n\n", [b"a"]),
        (BOM + BOM + b"data: a\n\ndata: b\n\n", [b"b"]),
        (b"data: a\n\n" + BOM + b"data: b\n\n", [b"a"]),
        (b"data: A\xe2\x80\xa8B\xc2\x85C\x0bD\x0cE\n\n", [b"A\xe2\x80\xa8B\xc2\x85C\x0bD\x0cE"]),
        (b"data: a\n\ndata: b\n", [b"a", b"b"]),
        (b"data: a\n\ndata: b", [b"a", b"b"]),
        (b"", []),
        (b"\n\n\r\n", []),
    ],
)
def test_sse_data_whole_and_byte_by_byte(body, events):
    """One event an empty line, whichever line end, and none for what is not data."""
    wanted = [(b"", data) for data in events]

    assert wanted == read(SseReader(), body)
    assert wanted == read(SseReader(), *cut(body, list(range(len(body)))))


def test_event_names_belong_to_one_event():
    """A name holds until the next empty line, with data or without."""
    body = b"event: x\ndata: 1\n\ndata: 2\n\nevent: y\n\ndata: 3\n\nevent: z\nevent:w\ndata: 4\n\n"

    assert [(b"x", b"1"), (b"", b"2"), (b"", b"3"), (b"w", b"4")] == read(SseReader(), body)


def test_event_is_given_by_the_read_that_completes_it():
    """An event is not held back for bytes that its rules do not need, CR included."""
    reader = SseReader()

    assert [] == reader.feed(b"data: a\r\n")
    assert [(b"", b"a")] == reader.feed(b"\r")
    assert [] == reader.feed(b"\ndata: b")
    assert [(b"", b"b")] == reader.feed(b"\n\n")
    assert [] == reader.close()


def test_comments_are_counted_and_are_no_events():
    """A colon alone is a comment too; one inside a value is not."""
    reader = SseReader()

    assert [(b"", b"a: b")] == read(reader, b": ping\n:\n\n", b"data: a: b\n\n", b":x\r\n")
    assert 3 == reader.n_comments


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from([b"data: ", b"data:", b"data", b"event: x", b"id: 1", b"retry: 2", b"data :", b":", b" ", b"a",
                         b'{"b":1}', BOM,
                         BOM[:2], b"\xff", b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n", b"\n\ndata: "]),
        max_size=40,
    ).map(b"".join),
    st.lists(st.integers(0, 400), max_size=12),
)  # fmt: skip
def test_any_split_of_any_sse_body_gives_the_same_events(body, places):
    """Generated streams against the rules applied slowly to the whole body."""
    split, whole = SseReader(), SseReader()

    assert by_the_rules(body) == (read(whole, body), whole.n_comments)
    assert by_the_rules(body) == (read(split, *cut(body, places)), split.n_comments)


@settings(deadline=None)
@given(st.data())
@pytest.mark.parametrize("name", SSE_RECORDS + TYPED_RECORDS)
def test_any_split_of_a_recorded_sse_stream_gives_the_same_events(name, data):
    """Real servers' bodies; each has more than two events."""
    body = recorded(name).body
    events = read(SseReader(), *cut(body, data.draw(st.lists(st.integers(0, len(body)), max_size=30))))

    assert by_the_rules(body)[0] == events
    assert len(events) > 2
    if name in TYPED_RECORDS:
        assert all(b'"type":"%b"' % kind in data for kind, data in events)
    else:
        assert (b"", b"[DONE]") == events[-1]


@settings(deadline=None)
@given(st.data())
@pytest.mark.parametrize("name", NDJSON_RECORDS)
def test_any_split_of_a_recorded_ndjson_stream_gives_the_same_lines(name, data):
    """Real servers' bodies, a line an event."""
    body = recorded(name).body
    events = read(NdjsonReader(), *cut(body, data.draw(st.lists(st.integers(0, len(body)), max_size=30))))

    assert [(b"", line) for line in body.split(b"\n") if line] == events


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"{}", b'{"a":"\xe2\x80\xa8"}', b"\n", b"\r\n", b" ", b"x", b"\r"])).map(b"".join),
    st.lists(st.integers(0, 100), max_size=8),
)
def test_any_split_of_ndjson_gives_the_same_lines(body, places):
    """A line ends at LF only, empty lines are nothing, the last one needs no LF."""
    wanted = [(b"", line) for line in body.split(b"\n") if line.strip()]

    assert wanted == read(NdjsonReader(), body)
    assert wanted == read(NdjsonReader(), *cut(body, places))


def test_ndjson_line_is_given_by_the_read_that_ends_it():
    """Nothing is held back for the next line."""
    reader = NdjsonReader()

    assert [[], [(b"", b"{}")], [(b"", b"[]")], []] == [reader.feed(part) for part in (b"{", b"}\n", b"[]\n\n{", b"")]
    assert [(b"", b"{}")] == reader.feed(b"}\n")


@pytest.mark.parametrize(
    ("reader", "part"),
    [
        (SseReader, b"data: " + b"x" * 2**20),
        (SseReader, b"data: " + b"x" * 2**20 + b"\n"),
        (NdjsonReader, b"x" * 2**20),
    ],
)
def test_endless_event_is_an_error(reader, part):
    """One line without end, or lines without an empty one, stop at the bound instead of filling the memory."""
    endless = reader()

    with pytest.raises(OversizedEventError):
        for _ in range(MAX_EVENT_BYTES // len(part) + 2):
            endless.feed(part)


@pytest.mark.parametrize(("reader", "end"), [(SseReader, b"\n\n"), (NdjsonReader, b"\n")])
def test_long_stream_of_small_events_is_no_error(reader, end):
    """The bound is on one event."""
    endless = reader()
    part = b"data: " + b"x" * 2**20 + end

    assert 20 == sum(len(endless.feed(half)) for _ in range(20) for half in (part[:-1], part[-1:]))
