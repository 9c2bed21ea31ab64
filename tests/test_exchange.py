"""One exchange, read by read: instants, tokens, HTTP as servers really speak it, and when its time is over."""

from __future__ import annotations

import gc
import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from play import CHAT_HEAD, DONE, FINISH, LAST_CHUNK, MS, NDJSON_HEAD, USAGE, chunk, content, event, play, response
from recorded import recorded

from sweep.dialects import BY_NAME, Answer
from sweep.exchange import MAX_ERROR_BODY_BYTES, MAX_HEADER_BYTES, Exchange
from sweep.outcomes import conclude, ends_by_eof
from sweep.timeouts import LINGER_NS, Timeouts, overdue

STREAMED = chunk(content("A")) + chunk(content("B")) + chunk(FINISH) + chunk(USAGE) + chunk(DONE) + LAST_CHUNK
WHOLE = b'{"choices":[{"message":{"content":"AB"},"finish_reason":"stop"}]}'
INSTANTS = ("t_headers_ns", "t_event_ns", "t_first_ns", "t_answer_ns", "t_last_ns", "t_end_ns")


def instants_ms(exchange: Exchange) -> list[float | None]:
    values = (getattr(exchange, name) for name in INSTANTS)
    return [None if value is None else value / MS for value in values]


def seen(exchange: Exchange) -> tuple:
    """What must not depend on the split."""
    answer = exchange.answer
    facts = tuple(getattr(answer, name) for name in Answer.__slots__)
    return exchange.ended, exchange.status, exchange.headers, exchange.n_events, b"".join(exchange.body), facts


# -- instants --


def test_each_instant_is_the_read_that_brought_it():
    """Headers, role, reasoning, answer, last token, usage and [DONE] in a read each."""
    role, thought = event('{"role":"assistant","content":""}'), event('{"reasoning":"t"}')
    parts = [role, thought, content("A"), content("B"), FINISH, USAGE, DONE]
    exchange = play([CHAT_HEAD, *map(chunk, parts), LAST_CHUNK])

    assert [1, 2, 3, 4, 5, 8] == instants_ms(exchange)
    assert ([1000, 1000], [1, 1, 1], 3) == (exchange.gaps_us, exchange.read_tokens, exchange.n_events)
    assert (True, True) == (exchange.ended, exchange.is_reusable())


def test_ping_is_an_event_and_no_token():
    """Keep-alive comments set the first event and nothing else."""
    exchange = play(
        [CHAT_HEAD, chunk(b": ping\n\n"), chunk(b"data:\n\n"), chunk(content("A")), chunk(DONE) + LAST_CHUNK]
    )

    assert [1, 2, 4, 4, 4, 5] == instants_ms(exchange)


def test_tokens_of_one_read_share_its_time():
    """Two events in one read are two tokens and no gap."""
    exchange = play(
        [CHAT_HEAD + chunk(content("A") + content("B")), chunk(content("C")), chunk(FINISH + DONE), LAST_CHUNK]
    )

    assert [1, 1, 1, 1, 2, 3] == instants_ms(exchange)
    assert ([1000], [2, 1], 3) == (exchange.gaps_us, exchange.read_tokens, exchange.n_events)


def test_event_belongs_to_the_read_that_completes_it():
    """Half an event is no token yet."""
    half = content("A")
    exchange = play([CHAT_HEAD, chunk(half[:9]), chunk(half[9:-1]), chunk(half[-1:]), chunk(DONE) + LAST_CHUNK])

    assert [1, 4, 4, 4, 4, 5] == instants_ms(exchange)


@settings(deadline=None)
@given(st.lists(st.integers(1, 10_000_000), min_size=2, max_size=50))
def test_gaps_add_up_to_the_stream(steps_ns):
    """Rounding to microseconds loses less than one over a whole stream, not one a gap."""
    exchange = Exchange(BY_NAME["openai-chat"], True, "s.w-000001")
    exchange.feed(CHAT_HEAD, 1)
    for t_ns in itertools.accumulate(steps_ns, initial=7):
        exchange.feed(chunk(content("A")), t_ns)

    assert (len(steps_ns), (exchange.t_last_ns - exchange.t_first_ns) // 1000) == (
        len(exchange.gaps_us), sum(exchange.gaps_us),
    )  # fmt: skip


def test_nothing_counts_after_the_terminal_event():
    """Text after [DONE] is neither token nor error."""
    exchange = play([CHAT_HEAD, chunk(content("A")), chunk(DONE), chunk(content("B") + b"data: {\n\n"), LAST_CHUNK])

    assert (1, [1, 2, 2, 2, 2, 3], None) == (exchange.n_events, instants_ms(exchange), exchange.bad)


def test_not_streaming_ends_with_the_last_byte():
    """No token times; the end is the read that completes the body."""
    wire = response(WHOLE)
    exchange = play([wire[:50], wire[50:-1], wire[-1:]], stream=False)

    assert [2, None, None, None, None, 3] == instants_ms(exchange)
    assert (WHOLE, True) == (b"".join(exchange.body), exchange.is_reusable())


def test_last_event_without_its_empty_line():
    """The end of the body completes an event; one that is not whole adds nothing."""
    whole, half = (play([CHAT_HEAD, chunk(content("A")), chunk(rest), LAST_CHUNK]) for rest in
                   (content("B")[:-2], content("B")[:-9]))  # fmt: skip
    for exchange in (whole, half):
        exchange.finish_body()

    assert (2, 1) == (whole.n_events, half.n_events)


def test_reset_forgets_all_but_the_start():
    """A retried request starts anew, its start stays."""
    exchange = play([CHAT_HEAD, chunk(content("A"))])
    exchange.reset()
    fresh = Exchange(exchange.dialect, True, "s.w-000001")

    assert 0 == exchange.t_start_ns
    assert seen(fresh) == seen(exchange)
    assert [None] * 6 == instants_ms(exchange)


# -- splits --


@settings(deadline=None)
@given(st.data())
@pytest.mark.parametrize(
    ("name", "api"),
    [("llama-server/chat_stream_usage", "openai-chat"), ("ferrogw/stream_usage", "openai-chat"),
     ("haproxy/stream", "openai-chat"), ("aimock/ollama_chat_stream", "ollama-chat"),
     ("aimock/nonstream", "openai-chat"), ("ferrogw/err_429_concurrency_shed", "openai-chat"),
     ("nginx/err_502_all_down", "ollama-generate")],
)  # fmt: skip
def test_any_split_of_a_recorded_answer_reads_the_same(name, api, data):
    """Status, headers, tokens and facts of real answers, whatever bytes came together."""
    wire = recorded(name).wire()
    places = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=20)))
    split = play([wire[a:b] for a, b in itertools.pairwise([0, *places, len(wire)])], api)

    assert seen(play([wire], api)) == seen(split)
    assert (True, recorded(name).status) == (split.ended, split.status)


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", "text/html", "application/json"])
@pytest.mark.parametrize("start", [b"", b"\r\n", b": hello\n\n", b"event: message\n", b"id: 1\n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("step", [1, 3, 10_000])
def test_stream_whose_content_type_does_not_say_so(kind, start, step):
    """Events show themselves by their first bytes, however few of them a read brought."""
    body = start + content("A") + content("B") + FINISH + DONE
    head = CHAT_HEAD.replace(b"text/event-stream", kind.encode())
    exchange = play([head, *(chunk(body[at : at + step]) for at in range(0, len(body), step)), LAST_CHUNK])

    assert (True, 2, True, []) == (exchange.is_streamed, exchange.n_events, exchange.answer.done, exchange.body)


@pytest.mark.parametrize(
    "kind", ["application/json", "application/x-ndjson; charset=utf-8", "text/plain", "Application/X-NDJSON"]
)
@pytest.mark.parametrize("step", [1, 10_000])
def test_ndjson_under_any_name(kind, step):
    """Proxies rename it; lines are lines."""
    body = b'{"message":{"content":"A"}}\n{"message":{"content":"B"}}\n{"done":true}\n'
    reads = [chunk(body[at : at + step]) for at in range(0, len(body), step)]
    exchange = play([NDJSON_HEAD.replace(b"application/x-ndjson", kind.encode()), *reads, LAST_CHUNK], "ollama-chat")

    assert (True, 2, True) == (exchange.is_streamed, exchange.n_events, exchange.answer.done)


@pytest.mark.parametrize("body", [WHOLE, b"<html>no</html>", b"", b"d", b"\n" * 100])
def test_what_is_no_stream_stays_a_body(body):
    """JSON and HTML are kept whole to be read at the end."""
    exchange = play([response(body, "text/html")])

    assert (False, body, True) == (exchange.is_streamed, b"".join(exchange.body), exchange.ended)


# -- reads that wait --


def test_answer_that_is_whole_when_the_step_ends_is_no_cut():
    """Its last byte came before the end; only its user had not woken yet."""
    whole, half = (play([response(WHOLE)[:n]], stream=False) for n in (None, -1))

    assert ("ok", "cut") == tuple(conclude(each, "cut").outcome for each in (whole, half))


@settings(deadline=None)
@given(st.data())
@pytest.mark.parametrize("sep", [b"\n", b"\r\n"])
@pytest.mark.parametrize("end", [LAST_CHUNK, b"0\r\nX-Trailer: 1\r\n\r\n"])
def test_reads_that_wait_tell_the_same_at_their_own_times(sep, end, data):
    """Taken or fed, whole chunks or any split of them: the same facts and instants, and the same read ends it."""
    tokens = [chunk(content("A").replace(b"\n", sep)) for _ in range(40)]
    reads = [CHAT_HEAD, *tokens, chunk(FINISH), chunk(USAGE), chunk(DONE), end]
    places = sorted(data.draw(st.lists(st.integers(0, len(b"".join(reads))), max_size=12)))
    at, split = 0, []
    for read in reads:
        cuts = [place - at for place in places if at < place < at + len(read)]
        split += [read[a:b] for a, b in itertools.pairwise([0, *cuts, len(read)])]
        at += len(read)
    fed, taken = (Exchange(BY_NAME["openai-chat"], True, "s.w-000001") for _ in range(2))
    ends = [[call(read, n * MS) for n, read in enumerate(split, 1)] for call in (fed.feed, taken.take)]

    assert ends == [[False] * (len(split) - 1) + [True]] * 2
    assert (seen(fed), instants_ms(fed), fed.gaps_us) == (seen(taken), instants_ms(taken), taken.gaps_us)


@pytest.mark.parametrize("last", [b"\n\r\n", b"\r\n", b"\n", b"\r\n\r\n"])
def test_end_that_two_reads_share_is_seen_at_once(last):
    """However short the last read is, the answer does not wait for another."""
    whole = chunk(content("A")) + LAST_CHUNK
    exchange = Exchange(BY_NAME["openai-chat"], True, "s.w-000001")
    exchange.feed(CHAT_HEAD + chunk(content("A")), MS)

    assert [False, True] == [exchange.take(whole[: -len(last)], 2 * MS), exchange.take(last, 3 * MS)]


def test_reads_wait_until_somebody_asks():
    """A token waits; what asks, a byte that says more and the connection's end find it, with the time of its read."""
    for ask in (Exchange.catch_up, Exchange.let_go, lambda x: x.feed_eof(9 * MS), lambda x: x.take(b"5", 9 * MS)):
        exchange = Exchange(BY_NAME["openai-chat"], True, "s.w-000001")
        exchange.feed(CHAT_HEAD + chunk(content("A")), MS)
        assert not exchange.take(chunk(content("B")), 3 * MS)
        before = exchange.n_events
        ask(exchange)

        assert (1, 2, 3 * MS) == (before, exchange.n_events, exchange.t_last_ns)


def test_class_with_a_feed_of_its_own_sees_every_read():
    """A client that leaves after so many tokens counts them as they come."""

    class Counting(Exchange):
        __slots__ = ("fed",)

        def feed(self, data: bytes, t_ns: int) -> bool:
            self.fed.append(t_ns // MS)
            return super().feed(data, t_ns)

    exchange = Counting(BY_NAME["openai-chat"], True, "s.w-000001")
    exchange.fed = []
    for n, read in enumerate([CHAT_HEAD, *[chunk(content("A"))] * 5], 1):
        exchange.take(read, n * MS)

    assert [1, 2, 3, 4, 5, 6] == exchange.fed


def test_finished_exchange_is_freed_at_once():
    """Else a thousand streams wait for the garbage collector, which stops the process to find them."""
    alive = lambda: sum(type(each) is Exchange for each in gc.get_objects())  # noqa: E731
    gc.collect()
    gc.disable()
    try:
        before = alive()
        exchange = play([CHAT_HEAD + STREAMED])
        exchange.let_go()
        del exchange
        assert before == alive()
    finally:
        gc.enable()


# -- HTTP --


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        (b"\x16\x03\x01\x02\x00garbage", "not HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "not HTTP"),
        (CHAT_HEAD + b"zz\r\n", "not HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", "switches protocols"),
        (CHAT_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"), "gzip although identity"),
        (CHAT_HEAD + chunk(b"data: {\n\n"), "truncated"),
    ],
)
def test_bytes_that_are_not_valid(wire, why):
    """Said in words, and the exchange wants nothing more."""
    exchange = play([wire])

    assert why in (exchange.bad or "")
    assert not exchange.is_reusable()


def test_compressed_body_is_refused_without_streaming_too():
    """Otherwise the reason would be a JSON error over binary bytes."""
    exchange = play([response(b"\x1f\x8b\x08", more="Content-Encoding: gzip\r\n")], stream=False)

    assert "the answer is gzip although identity was asked for" == exchange.bad


@pytest.mark.parametrize("encoding", ["identity", "Identity"])
def test_identity_is_no_compression(encoding):
    """Some servers name it."""
    assert play([response(WHOLE, more=f"Content-Encoding: {encoding}\r\n")]).bad is None


@pytest.mark.parametrize(
    "interim",
    [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nRetry-After: 9\r\n\r\n"],
)
@pytest.mark.parametrize("n", [1, 2])
def test_interim_answer_is_not_the_answer(interim, n):
    """Neither its status nor its headers stay, whether it comes alone or with the rest."""
    for reads in ([interim * n + CHAT_HEAD + STREAMED], [interim * n, CHAT_HEAD, STREAMED]):
        exchange = play(reads)

        assert (200, None, 2, True) == (
            exchange.status, exchange.headers.get("retry-after"), exchange.n_events, exchange.is_reusable(),
        )  # fmt: skip
    assert 2 * MS == exchange.t_headers_ns


@pytest.mark.parametrize(
    ("head", "by_eof", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", False, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", False, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", False, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\n{}", False, True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", False, True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Trailer: 1\r\n\r\n", False, True),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", True, False),
        (b"HTTP/1.0 200 OK\r\n\r\n{}", True, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n", False, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", False, False),
    ],
)
def test_how_a_body_ends_and_whether_the_connection_serves_again(head, by_eof, reusable):
    """By length, chunks or the connection's end; only a clean end leaves a connection to use."""
    exchange = play([head], stream=False)

    assert (by_eof, reusable, b"{}") == (ends_by_eof(exchange), exchange.is_reusable(), b"".join(exchange.body))


def test_second_answer_nobody_asked_for_changes_nothing():
    """It costs the connection, not the status, the headers or the body of the first."""
    extra = response(b"late", "text/plain", 500, "Retry-After: 9\r\n")
    alone, followed = (play([response(WHOLE) + more], stream=False) for more in (b"", extra))

    assert seen(alone) == seen(followed)
    assert (True, False) == (alone.is_reusable(), followed.is_reusable())


def test_long_error_body_is_cut_off():
    """An error is not worth megabytes."""
    exchange = play([response(b"x" * 10**6, "text/plain", 500)[: MAX_ERROR_BODY_BYTES + 1000]])

    assert (f"the body is longer than {MAX_ERROR_BODY_BYTES} bytes", 500) == (exchange.bad, exchange.status)


def test_fault_of_ours_is_not_the_target_s():
    """An exception in a reader comes out as it is instead of reading `not HTTP`."""

    def read_event(data: bytes, answer: Answer) -> int:
        raise KeyError("ours")

    exchange = Exchange(replace(BY_NAME["openai-chat"], read_event=read_event), True, "s.w-000001")

    with pytest.raises(KeyError, match="ours"):
        exchange.feed(CHAT_HEAD + STREAMED, MS)
    assert exchange.bad is None


# -- time-outs --

LIMITS = Timeouts(connect_s=1, first_s=10, idle_s=4, total_s=60)
PING = chunk(b": ping\n\n")
OK_JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"


@pytest.mark.parametrize(
    ("stream", "reads", "at_s", "ending"),
    [
        (True, [], 9.9, None),
        (True, [], 10.1, "timeout"),
        (True, [(1, CHAT_HEAD)], 9.9, None),
        (True, [(1, CHAT_HEAD)], 10.1, "timeout"),
        (True, [(1, CHAT_HEAD), (8, PING), (9, PING)], 10.1, "timeout"),
        (True, [(1, CHAT_HEAD), (9, chunk(content("A")))], 12.9, None),
        (True, [(1, CHAT_HEAD), (9, chunk(content("A")))], 13.1, "stalled"),
        (True, [(1, CHAT_HEAD), (9, chunk(content("A"))), (12, PING)], 15.9, None),
        (True, [(1, CHAT_HEAD), (9, chunk(content("A"))), (12, PING)], 16.1, "stalled"),
        (True, [(1, CHAT_HEAD), (9, chunk(event('{"reasoning":"t"}')))], 12.9, None),
        (True, [(1, CHAT_HEAD), (9, chunk(content("A"))), (59, PING)], 60.1, "timeout"),
        (True, [(1, CHAT_HEAD), (9, chunk(content("A") + DONE))], 9 + LINGER_NS / 1e9 - 0.1, None),
        (True, [(1, CHAT_HEAD), (9, chunk(content("A") + DONE))], 9 + LINGER_NS / 1e9 + 0.1, "complete"),
        (True, [(1, b"HTTP/1.1 500 X\r\nContent-Length: 9\r\n\r\n")], 5.1, "stalled"),
        (True, [(1, b"HTTP/1.1 100 Continue\r\n\r\n")], 9.9, None),
        (False, [], 59.9, None),
        (False, [], 60.1, "timeout"),
        (False, [(50, OK_JSON_HEAD)], 53.9, None),
        (False, [(50, OK_JSON_HEAD)], 54.1, "stalled"),
    ],
)
def test_when_time_is_over(stream, reads, at_s, ending):
    """To the first token, between bytes after it, and over all; pings count for the second only."""
    exchange = Exchange(BY_NAME["openai-chat"], stream, "s.w-000001")
    exchange.t_start_ns = exchange.t_sent_ns = 0
    for t_s, data in reads:
        exchange.feed(data, round(t_s * 1e9))

    assert ending == overdue(exchange, round(at_s * 1e9), LIMITS)


def test_slow_load_of_a_model_is_not_a_stall():
    """Headers at once and the first token 31 s later: within the default time-outs."""
    exchange = play([CHAT_HEAD])

    assert overdue(exchange, 31_000 * MS, Timeouts()) is None


# -- what a hostile server hides behind a success --


@pytest.mark.parametrize(
    ("reads", "outcome", "code"),
    [
        ([content("A"), b'event: error\ndata: {"message":"died","code":500}\n\n', FINISH + DONE], "error_event", "500"),
        ([content("A"), b"event: error\ndata: engine died\n\n", FINISH + DONE], "error_event", None),
        ([content("A"), b'data: {"detail":"engine died"}\n\n', FINISH + DONE], "error_event", None),
        ([content("A"), FINISH, DONE, b'data: {"error":{"message":"late","code":1}}\n\n'], "error_event", "1"),
        ([content("A"), FINISH, DONE + b'event: error\ndata: {"code":"x"}\n\n'], "error_event", "x"),
        ([content("A"), FINISH, DONE, b"data: garbage\n\n"], "ok", None),
    ],
)
def test_an_error_is_found_wherever_it_stands(reads, outcome, code):
    """By its event type, as a bare detail, and after the terminal event; garbage there is not of the answer."""
    exchange = play([CHAT_HEAD, *map(chunk, reads), LAST_CHUNK])

    assert (outcome, code) == conclude(exchange, "complete")[:2]


def test_tokens_after_the_terminal_event_are_remarked():
    """They do not move its end."""
    exchange = play([CHAT_HEAD, chunk(content("A")), chunk(FINISH + DONE), chunk(content("B")), LAST_CHUNK])

    assert (True, 1, 3 * MS) == (exchange.late, exchange.n_events, exchange.t_end_ns)


@pytest.mark.parametrize(
    ("echoed", "outcome"),
    [("s.w-000001", "ok"), ("s.w-000002", "bad_body"), ("of-the-server", "ok"), ("s.w-000001, x", "bad_body")],
)
def test_the_answer_to_another_request_is_cross_talk(echoed, outcome):
    """An echoed X-Request-Id of ours must be this request's; ids the server makes itself say nothing."""
    exchange = play([response(WHOLE, more=f"X-Request-Id: {echoed}\r\n")], stream=False)

    assert outcome == conclude(exchange, "complete").outcome


def test_endless_headers_are_bounded():
    """A server cannot fill the generator's memory before its status line is believed."""
    line = b"X-%d: " % 1 + b"y" * 4000 + b"\r\n"
    exchange = play([b"HTTP/1.1 200 OK\r\n", *[line] * 1000])

    assert "headers are longer" in exchange.bad
    assert exchange.bytes_in < 2 * MAX_HEADER_BYTES
