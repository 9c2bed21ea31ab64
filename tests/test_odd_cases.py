"""Every odd answer we know of, played by a real server to the real client, however its bytes are cut into writes.

What the client must make of each is a literal table, from the `right_outcome` texts of data/odd_cases.json.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from asker import ORDER, ROOT, ask
from fake_answers import script_answer
from fake_gateway import FakeGateway

from sweep.plan import APIS

pytestmark = pytest.mark.slow  # 150 conversations with sleeps, some seconds in all

CASES = {case["id"]: case for case in json.loads((Path(__file__).parent / "data" / "odd_cases.json").read_text())}
NOT_FOR_THE_READER = {"client-cancel-propagates": "what the client does: test_clients_that_leave_are_no_errors"}

# -- what is played --


def script(case: str) -> str:
    return CASES[case]["bytes_or_behaviour"]


def sse(*data: str) -> str:
    return "HTTP 200 text/event-stream\n---\n" + "".join(f"data: {line}\n\n" for line in data)


A, B = '{"choices":[{"delta":{"content":"A"}}]}', '{"choices":[{"delta":{"content":"B"}}]}'
STOP = '{"choices":[{"delta":{},"finish_reason":"stop"}]}'
OLD = "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
RETRY = script("http-429-retry-after")
DATE = (
    "HTTP 429 application/json; retry-after: Mon, 30 Nov 2026 15:00:09 GMT; date: Mon, 30 Nov 2026 15:00:00 GMT\n---\n"
)
COLD = (
    'HTTP 200 application/x-ndjson\n---\n<<SLEEP 0.3>>{"message":{"content":"A"},"done":false}\n'
    '{"message":{"content":""},"done":true,"done_reason":"stop","eval_count":1,"load_duration":29000000000}\n'
)
WHOLE_OLLAMA = '{"message":{"content":"A B C"},"done":true,"done_reason":"stop"}\n'
SPELLED_REASONING = script("reasoning-before-content").replace("reasoning_content", "reasoning")
NO_EMPTY_LINE = script("finish-reason-without-done").replace("\n\n<<FIN>>", "<<FIN>>")
DRAINING = 'HTTP 503 application/json; retry-after: 1\n---\n{"error":{"message":"the server is draining"}}'
# Shorter where only its being long matters.
PLAYED = {
    **{case: script(case) for case in CASES if case not in NOT_FOR_THE_READER and case != "sigterm-drain"},
    "proxy-buffers-whole-stream": script("proxy-buffers-whole-stream").replace("<<SLEEP 2>>", "<<SLEEP 0.4>>"),
    "cold-model-load": COLD,
    # repeats that the cases ask for in words
    "reasoning-before-content/reasoning": SPELLED_REASONING,
    "http-429-retry-after/date": RETRY.replace("HTTP 429 application/json; retry-after: 2\n---\n", DATE),
    "http-429-retry-after/absent": RETRY.replace("; retry-after: 2", ""),
    "finish-reason-without-done/no-empty-line": NO_EMPTY_LINE,
    "sse-event-and-id-fields/json-only": re.sub("event: .*\nid: .*\n", "", script("sse-event-and-id-fields")),
    "sigterm-drain/new-request": DRAINING,  # the open ones finish; what a refused connection is: test_wire
    "cold-model-load/warm": COLD.replace("<<SLEEP 0.3>>", "").replace("29000000000", "30000000"),
    # as likely as the cases, and in none of them
    "eof-in-a-chunk": sse(A, B, STOP) + "<<CUT>>",
    "finish-error": sse(A, '{"choices":[{"delta":{},"finish_reason":"error"}]}', "[DONE]"),
    "malformed-event": sse(A, '{"choices":[{"del', "[DONE]"),
    "html-200": "HTTP 200 text/html\n---\n<html>Welcome</html>",
    "gzip-answered": "HTTP 200 text/event-stream; content-encoding: gzip\n---\n\x1f\x08",
    "continue-first": "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
                      f"data: {A}\n\ndata: {STOP}\n\ndata: [DONE]\n\n",
    "http-1.0": OLD + f"data: {A}\n\ndata: {STOP}\n\ndata: [DONE]\n\n",
    "http-1.0-truncated": OLD + f"data: {A}\n\n",
    "length-and-chunked": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "garbage": "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
    "reset-before-response": "<<RST>>",
    "http-503": "HTTP 503 text/plain\n---\nno healthy upstream",
    "http-503-retry-after": "HTTP 503 text/plain; retry-after: 7\n---\n",
    "shed-named-rate-limit": 'HTTP 429 application/json; retry-after: 1\n---\n{"error":{"code":"provider_saturated",'
                             '"message":"the gateway is at capacity","type":"rate_limit_error"}}',
    "whole-line-to-a-stream": f"HTTP 200 application/json\n---\n{WHOLE_OLLAMA}",
    "stream-called-plain": sse(A, B, STOP, "[DONE]").replace("text/event-stream", "text/plain"),
}  # fmt: skip
API = {
    **dict.fromkeys([name for name in PLAYED if "ollama" in name or "cold" in name or "line" in name], "ollama-chat"),
    "http-503-queue-full": "ollama-chat",
    "sse-event-and-id-fields": "openai-responses",
    "sse-event-and-id-fields/json-only": "openai-responses",
    "finish-reason-without-done/no-empty-line": "openai-chat",
}
SPLITS = ("whole", "frame", "byte")
LIMITS = {"first_timeout_s": 5.0, "idle_timeout_s": 1.0, "timeout_s": 20.0}

# -- what must come of it: outcome; flags; tokens and who counted them; token events; the rest as in the record --

OK, USAGE, EVENTS = "ok", (2, "usage"), (2, "events")
NONE = (None, None)
EXPECTED = {
    "sse-crlf": (OK, [], USAGE, 2, {"n_in": 3, "finish": "stop"}),
    "sse-no-space": (OK, [], USAGE, 2, {"n_in": 3, "finish": "stop"}),
    "sse-ping-before-first-token": (OK, [], USAGE, 2, {"n_in": 3}),
    "sse-empty-data": (OK, [], USAGE, 2, {"n_in": 3}),
    "sse-event-and-id-fields": (OK, [], (1, "usage"), 1, {"n_in": 3, "finish": "completed"}),
    "sse-event-and-id-fields/json-only": (OK, [], (1, "usage"), 1, {"n_in": 3, "finish": "completed"}),
    "sse-u2028-in-json": (OK, [], USAGE, 1, {"n_in": 3}),
    "frames-coalesced-in-one-read": (OK, [], USAGE, 2, {}),
    "role-only-first-chunk": (OK, [], USAGE, 2, {}),
    "reasoning-before-content": (OK, [], USAGE, 2, {}),
    "reasoning-before-content/reasoning": (OK, [], USAGE, 2, {}),
    "reasoning-only-length": (OK, ["no_answer"], USAGE, 1, {"finish": "length", "t_answer_ns": None}),
    "delta-or-choices-null": (OK, [], USAGE, 2, {"n_in": 3, "finish": "stop"}),
    "multi-token-chunk": (OK, [], (6, "usage"), 2, {}),
    "usage-only-final-chunk": (OK, [], USAGE, 2, {"n_in": 3}),
    "usage-missing": (OK, [], EVENTS, 2, {"n_in": None}),
    "error-in-200-before-token": ("error_event", [], NONE, 0, {"status": 200, "error_code": "503", "t_first_ns": None}),
    "error-in-200-after-token": ("error_event", [], NONE, 1, {"error_code": "500", "error_text": "engine died"}),
    "eof-no-done-no-finish": ("truncated", [], NONE, 2, {"status": 200, "t_end_ns": None}),
    "done-without-finish-reason": (OK, ["no_finish"], EVENTS, 2, {"finish": None}),
    "finish-reason-without-done": (OK, ["no_done"], EVENTS, 2, {"finish": "stop"}),
    "finish-reason-without-done/no-empty-line": (OK, ["no_done"], EVENTS, 2, {"finish": "stop"}),
    "reset-mid-stream": ("reset", [], NONE, 2, {"status": 200, "t_end_ns": None}),
    "stall-mid-stream": ("stalled", [], NONE, 1, {"status": 200, "t_end_ns": None}),
    "json-reply-to-stream-request": (OK, ["not_streamed"], USAGE, 0, {"n_in": 3, "t_first_ns": None}),
    "proxy-buffers-whole-stream": (OK, [], USAGE, 2, {}),
    "http-429-retry-after": ("limited", [], NONE, 0, {
        "status": 429, "retry_after_s": 2.0, "error_text": "rate limited"}),
    "http-429-retry-after/date": ("limited", [], NONE, 0, {"status": 429, "retry_after_s": 9.0}),
    "http-429-retry-after/absent": ("limited", [], NONE, 0, {"status": 429, "retry_after_s": None}),
    "http-503-queue-full": ("shed", [], NONE, 0, {
        "status": 503, "error_text": "server busy, please try again. maximum pending requests exceeded"}),
    "stream-options-rejected": ("http_4xx", [], NONE, 0, {
        "status": 400, "error_text": "Unsupported parameter: max_tokens is not supported with this model. "
                                     "Use max_completion_tokens instead."}),
    "sigterm-drain/new-request": ("http_5xx", [], NONE, 0, {"status": 503, "error_text": "the server is draining"}),
    "ollama-ndjson-normal": (OK, [], USAGE, 2, {
        "n_in": 3, "finish": "stop", "load_ns": 1_000_000, "eval_ns": 2_000_000, "prompt_eval_ns": None,
        "total_ns": None}),
    "ollama-error-line-mid-stream": ("error_event", [], NONE, 1, {
        "status": 200, "error_text": "an error was encountered while running the model"}),
    "ollama-eof-without-done-true": ("truncated", [], NONE, 1, {"status": 200}),
    "cold-model-load": (OK, ["cold"], (1, "usage"), 1, {"load_ns": 29_000_000_000}),
    "cold-model-load/warm": (OK, [], (1, "usage"), 1, {"load_ns": 30_000_000}),
    "eof-in-a-chunk": ("truncated", [], NONE, 2, {"status": 200}),
    "finish-error": ("error_event", [], NONE, 1, {"error_code": "error"}),
    "malformed-event": ("bad_body", [], NONE, 1, {"status": 200}),
    "html-200": ("bad_body", [], NONE, 0, {"status": 200, "error_text": "<html>Welcome</html>"}),
    "gzip-answered": ("bad_body", [], NONE, 0, {"error_text": "the answer is gzip although identity was asked for"}),
    "continue-first": (OK, [], (1, "events"), 1, {"status": 200}),
    "http-1.0": (OK, [], (1, "events"), 1, {"status": 200}),
    "http-1.0-truncated": ("truncated", [], NONE, 1, {"status": 200}),
    "length-and-chunked": ("bad_body", [], NONE, 0, {}),
    "garbage": ("bad_body", [], NONE, 0, {"status": None}),
    "reset-before-response": ("reset", [], NONE, 0, {"status": None, "bytes_in": 0}),
    "http-503": ("http_5xx", [], NONE, 0, {"status": 503, "error_text": "no healthy upstream"}),
    "http-503-retry-after": ("shed", [], NONE, 0, {"status": 503, "retry_after_s": 7.0}),
    "shed-named-rate-limit": ("shed", [], NONE, 0, {"error_code": "provider_saturated", "retry_after_s": 1.0}),
    "whole-line-to-a-stream": (OK, ["not_streamed"], NONE, 1, {"t_first_ns": None, "finish": "stop"}),
    "stream-called-plain": (OK, [], EVENTS, 2, {}),
}  # fmt: skip
# All their tokens come in one write, and the end with it.
BUFFERED_WHEN_WHOLE = {
    "sse-crlf", "sse-no-space", "sse-ping-before-first-token", "sse-empty-data", "frames-coalesced-in-one-read",
    "role-only-first-chunk", "delta-or-choices-null", "usage-missing", "done-without-finish-reason",
    "proxy-buffers-whole-stream", "ollama-ndjson-normal", "stream-called-plain",
}  # fmt: skip
# Their end is the body's, a write of its own: on a busy machine so much later that nothing looks held back.
ENDS_APART = {"finish-reason-without-done", "finish-reason-without-done/no-empty-line"}


@pytest.fixture(scope="module")
def played() -> dict[tuple[str, str], tuple[dict, dict, dict]]:
    """(case, split) -> behaviour, the server's log entry, the client's record: all in one server and one client."""
    runs = {
        # The client must have read what came before a reset: the kernel may drop the rest.
        (name, split): {"script": text.replace("<<RST>>", "<<SLEEP 0.3>><<RST>>"), "split": split}
        | ({"split_delay_s": 0.02} if split == "frame" else {})
        for (name, text), split in itertools.product(PLAYED.items(), SPLITS)
    }
    paths = {key: "/" + "/".join(key).replace("/", "-") for key in runs}
    with FakeGateway(routes={paths[key] + "/": behaviour for key, behaviour in runs.items()}) as fake:
        jobs = [
            {"url": fake.url + paths[key], "api": API.get(key[0], "openai-chat"), "modes": ["stream"], **LIMITS}
            for key in runs
        ]
        records = [found[0] for found in ask(jobs, at_once=6)]
        log = fake.log(len(jobs))
    entries = {entry["path"].removeprefix("/").split("/")[0]: entry for entry in log}
    assert len(log) == len(entries) == len(jobs)  # each was received once: nothing was sent again
    return {
        key: (runs[key], entries[paths[key][1:]], record) for key, record in zip(runs, records, strict=True)
    }  # fmt: skip


def test_every_case_is_played_or_left_out_for_a_reason():
    """A case that is added to the list must be answered here."""
    names = {name.split("/")[0] for name in PLAYED}

    assert set(CASES) == (names & set(CASES)) | set(NOT_FOR_THE_READER)
    assert set(PLAYED) == set(EXPECTED)
    assert {"openai-chat", "openai-responses", "ollama-chat", "any", "any-stream"} == {
        CASES[name]["dialect"] for name in CASES if name not in NOT_FOR_THE_READER
    }


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", EXPECTED)
def test_record_of_an_odd_answer(played, name, split):
    """Outcome, flags, tokens and their source, and what the case says besides."""
    record = played[name, split][2]
    outcome, flags, tokens, n_events, rest = EXPECTED[name]
    wanted = [*flags, *(["buffered"] if split == "whole" and name in BUFFERED_WHEN_WHOLE else [])]
    # Where the server pauses between its bytes too briefly to be sure, a read may still hold all of them.
    is_sure = split != "byte" and name not in ENDS_APART
    given = [flag for flag in record["flags"] if is_sure or flag != "buffered"]

    assert (outcome, sorted(wanted), tokens, n_events) == (
        record["outcome"], sorted(given), (record["n_out"], record["token_source"]), record["n_events"],
    )  # fmt: skip
    assert rest == {key: record[key] for key in rest}
    assert outcome != "ok" or (record["error_text"], record["error_code"]) == NONE


@pytest.mark.parametrize("name", EXPECTED)
def test_split_changes_nothing_but_times(played, name):
    """The same record, whichever bytes came together."""
    timed = re.compile(r"t_.*_ns|gaps_us|read_tokens|bytes_in|flags|request_id")
    whole, frame, byte = (
        {key: value for key, value in played[name, split][2].items() if not timed.fullmatch(key)} for split in SPLITS
    )

    assert whole == frame == byte


# -- times, by the server's own log --

TOKEN = rb'"(?:content|delta)":\s?"[^"]|"reasoning(?:_content)?":\s?"[^"]'
ANSWER = rb'"(?:content|delta)":\s?"[^"]'
END_OF = {"openai-chat": rb"\r\n\r|\n\n", "openai-responses": rb"\n\n", "ollama-chat": rb"\n"}
TIMED = [name for name, (outcome, flags, _, n, _) in EXPECTED.items()
         if n and "not_streamed" not in flags and name != "finish-reason-without-done/no-empty-line"]  # fmt: skip


def sent_at(behaviour: dict, entry: dict, api: str, what: bytes, last: bool = False) -> tuple[int, float] | None:
    """When the write left that completed the first (or last) event with `what`: ns before it, before the next."""
    writes = [write.data for write in script_answer(behaviour)]
    wire = b"".join(writes)
    found = list(re.finditer(what, wire))
    if not found:
        return None
    end = re.compile(END_OF[api]).search(wire, found[-1 if last else 0].end()).end()
    ends = list(itertools.accumulate(map(len, writes)))
    index = next(i for i, n in enumerate(ends) if n >= end)
    assert [len(data) for data in writes[: len(entry["sends"])]] == [n for _, _, n in entry["sends"]]
    after = [send[0] for send in entry["sends"][index + 1 :]]
    pause = next((b for a, b in itertools.pairwise([entry["sends"][index][0], *after]) if b - a > 100_000_000), None)
    return entry["sends"][index][0], pause or entry["t_end_ns"] + 5e9


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", TIMED)
def test_instants_follow_the_server_s_log(played, name, split):
    """Never before the write that completed the token; before the server's next one, where it paused."""
    behaviour, entry, record = played[name, split]
    api = API.get(name, "openai-chat")
    for what, last, instant in (
        (TOKEN, False, "t_first_ns"),
        (TOKEN, True, "t_last_ns"),
        (ANSWER, False, "t_answer_ns"),
    ):
        sent = sent_at(behaviour, entry, api, what, last)
        if sent is None:
            assert record[instant] is None
        else:
            assert sent[0] <= record[instant] < sent[1], instant
    assert record["t_start_ns"] <= record["t_sent_ns"] <= record["t_headers_ns"] <= record["t_event_ns"]
    assert record["t_event_ns"] <= record["t_first_ns"] <= record["t_last_ns"] <= record["t_over_ns"]


def seconds(record: dict, start: str, end: str) -> float:
    return (record[f"t_{end}_ns"] - record[f"t_{start}_ns"]) / 1e9


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(
    ("name", "start", "end", "at_least_s"),
    [
        ("sse-ping-before-first-token", "event", "first", 0.6),
        ("role-only-first-chunk", "event", "first", 0.5),
        ("reasoning-before-content", "first", "answer", 0.5),
        ("reasoning-before-content/reasoning", "first", "answer", 0.5),
        ("multi-token-chunk", "first", "last", 0.2),
        ("usage-only-final-chunk", "last", "end", 0.2),
        ("proxy-buffers-whole-stream", "headers", "first", 0.4),
        ("cold-model-load", "headers", "first", 0.3),
        ("stall-mid-stream", "last", "over", LIMITS["idle_timeout_s"]),
    ],
)
def test_pause_of_the_server_is_where_it_belongs(played, name, start, end, at_least_s, split):
    """Between the two instants that the case names; half of it, for a first read that came late."""
    assert at_least_s / 2 < seconds(played[name, split][2], start, end) < at_least_s + 1


def test_tokens_of_one_read_have_no_gap(played):
    """Coalesced: one time, two tokens, nothing that could pass for a speed."""
    whole, frame = (played["frames-coalesced-in-one-read", split][2] for split in ("whole", "frame"))

    assert ([], [2], 0) == (whole["gaps_us"], whole["read_tokens"], seconds(whole, "first", "last"))
    assert (1, None) == (len(frame["gaps_us"]), frame["read_tokens"])


@pytest.mark.parametrize("split", SPLITS)
def test_stalled_connection_is_closed(played, split):
    """The server sees the client go: nothing is left half open."""
    assert "client_gone" == played["stall-mid-stream", split][1]["ended"]


@pytest.mark.parametrize("name", [name for name, row in EXPECTED.items() if row[3] == 0])
def test_without_a_token_there_is_no_token_time(played, name):
    """A refusal, however fast, is in no latency; nor is an answer that did not stream."""
    for split in SPLITS:
        record = played[name, split][2]

        assert [None] * 3 == [record[key] for key in ("t_first_ns", "t_answer_ns", "t_last_ns")]
        assert ([], None) == (record["gaps_us"], record["read_tokens"])


def test_refusals_are_read_alike_by_every_api_and_mode():
    """`any` means any: every API, streaming or not."""
    with FakeGateway({"script": RETRY}) as fake:
        found = ask([{"url": fake.url, "api": api, "modes": ["stream", "nonstream"]} for api in APIS])

    assert [("limited", 429, 2.0)] * 2 * len(APIS) == [
        (record["outcome"], record["status"], record["retry_after_s"]) for records in found for record in records
    ]


def test_clients_that_leave_are_no_errors():
    """Killed after two tokens, all at once: the server sees each go, nothing stays open, none failed."""
    script = sse(A, B) + "<<SLEEP forever>>"
    with FakeGateway({"script": script}) as fake:
        jobs = [{"url": fake.url, "modes": ["stream"], "kill_after_s": 0.5} for _ in range(20)]
        left = [job[0] for job in ask(jobs, at_once=20)]
        log = fake.log(20)

    assert [{"outcomes": {"cut": 1}, "sent": 1, "in_flight": 0, "is_open": False}] * 20 == left
    assert ["client_gone"] * 20 == [entry["ended"] for entry in log]


def test_ask_writes_the_record_of_a_step(tmp_path):
    """The command that the preflight runs: an order in, one line a request out, the key nowhere."""
    error = 'HTTP 401 application/json\n---\n{"error":{"message":"key sk-very-secret is wrong","code":"bad_key"}}'
    with FakeGateway([sse(A, STOP, "[DONE]"), error, error]) as fake:
        (tmp_path / "requests").mkdir()
        order = ORDER | {"url": fake.url, "out_dir": str(tmp_path), "api_key_env": "A_TEST_KEY"}
        (tmp_path / "order.json").write_text(json.dumps(order))
        command = [
            sys.executable,
            "-P",
            "-m",
            "sweep.ask",
            str(tmp_path / "order.json"),
            "stream",
            "nonstream",
            "stream",
        ]
        environment = {"PYTHONPATH": str(ROOT), "A_TEST_KEY": "sk-very-secret"}
        done = subprocess.run(command, env=environment, capture_output=True, timeout=30, check=False)

        assert (0, b"", 3) == (done.returncode, done.stderr, fake.requests_received)
    (file,) = (tmp_path / "requests").iterdir()
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]

    assert [("ok", True, None), ("http_4xx", False, "key *** is wrong"), ("http_4xx", True, "key *** is wrong")] == [
        (line["outcome"], line["stream"], line["error_text"]) for line in lines
    ]
    assert b"very-secret" not in file.read_bytes()
