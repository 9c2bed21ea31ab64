"""Each defect of the embedded gateway is seen from outside, beside a sound gateway where that could deceive."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path

import pytest
from demo_process import ask, demo, events, n_content
from loopback import CHAT, DEADLINE_S, connect, reads, wait_for


def rss_anon_kb(pid: int) -> int:
    return int(re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1])


def n_null_fds(pid: int) -> int:
    folder = f"/proc/{pid}/fd"
    targets = []
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed since
            targets.append(os.readlink(f"{folder}/{name}"))
    return targets.count("/dev/null")


def left_behind(n: int, *arguments: str) -> tuple[int, int]:
    """Descriptors of /dev/null and anonymous KiB that n requests left behind, after a first one."""
    with (
        demo("--ttft", "0ms", "--per-token", "0ms", *arguments) as gateway,
        contextlib.closing(connect(gateway.port)) as line,
    ):

        def call() -> None:
            line.request("POST", CHAT, json.dumps(ask(2, stream=False)))
            assert json.loads(line.getresponse().read())["usage"]["completion_tokens"] == 2

        call()
        fds, kb = n_null_fds(gateway.pid), rss_anon_kb(gateway.pid)
        for _ in range(n):
            call()
        return n_null_fds(gateway.pid) - fds, rss_anon_kb(gateway.pid) - kb


def test_leaks_are_as_large_as_said_and_absent_without_the_defect():
    """One descriptor, or 256 KiB of resident anonymous memory, a request; the sound gateway is the control."""
    sound_fds, sound_kb = left_behind(40)

    assert sound_fds == 0
    assert left_behind(40, "--defect", "leak-fds")[0] == 40
    assert left_behind(40, "--defect", "leak-memory")[1] - sound_kb + 256 >= 40 * 256
    assert sound_kb < 40 * 256 / 4


def test_truncated_streams_end_cleanly_half_way():
    """Half the tokens, no finish, no [DONE], and a proper end of the HTTP body; whole answers are left alone."""
    with demo("--ttft", "1ms", "--per-token", "1ms", "--defect", "truncate-streams") as gateway:
        response, body = gateway.call("POST", CHAT, ask(10))
        ollama = gateway.call("POST", "/api/generate", ask(10))[1].splitlines()
        whole = json.loads(gateway.call("POST", CHAT, ask(10, stream=False))[1])

    assert (200, 5, b"DONE" in body, b'"length"' in body) == (response.status, n_content(events(body)), False, False)
    assert [json.loads(line)["done"] for line in ollama] == [False] * 5
    assert whole["usage"]["completion_tokens"] == 10


def test_error_in_200_comes_half_way_or_as_the_body():
    """The status stays 200; the error object is an event of the stream, or all of a JSON answer."""
    with demo("--ttft", "1ms", "--per-token", "1ms", "--defect", "error-in-200") as gateway:
        stream, whole = (gateway.call("POST", CHAT, ask(10, stream=stream)) for stream in (True, False))
        lines = gateway.call("POST", "/api/chat", ask(10))[1].splitlines()
    sse = events(stream[1])

    assert (stream[0].status, whole[0].status) == (200, 200)
    assert (n_content(sse[:-2]), sse[-2]["error"]["code"], sse[-1]) == (5, "engine_error", "[DONE]")
    assert json.loads(whole[1])["error"]["code"] == "engine_error"
    assert (len(lines), list(json.loads(lines[-1]))) == (6, ["error"])


def share_of_time_streaming(*arguments: str) -> float:
    with demo("--ttft", "10ms", "--per-token", "2ms", *arguments) as gateway:
        t_start_ns = time.monotonic_ns()
        with gateway.begin(CHAT, ask(60)) as client:
            got = reads(client)
    assert b"[DONE]" in b"".join(data for _, data in got)
    t_body_ns = next(t for t, data in got if b"data:" in data)
    return (got[-1][0] - t_body_ns) / (got[-1][0] - t_start_ns)


def test_buffered_streams_arrive_at_once_at_the_end():
    """All events in one write; the sound gateway spreads them over most of the time."""
    assert share_of_time_streaming("--defect", "buffer-streams") < 0.1
    assert share_of_time_streaming() > 0.7


@pytest.mark.slow
def test_flapping_readiness_goes_away_and_comes_back():
    """/readyz alternates while /healthz and inference stay well."""
    with demo("--defect", "flap-readiness") as gateway:
        statuses = [gateway.call("GET", "/readyz")[0].status]
        for wanted in (503, 200):
            wait_for(lambda wanted=wanted: gateway.call("GET", "/readyz")[0].status == wanted, f"/readyz {wanted}")
            statuses += [
                wanted,
                gateway.call("GET", "/healthz")[0].status,
                gateway.call("POST", CHAT, ask(2))[0].status,
            ]

    assert statuses == [200, 503, 200, 200, 200, 200, 200]


@pytest.mark.parametrize("text", ["die-after=3", "die-after 3"])
def test_die_after_ends_the_process_in_the_next_request(text):
    """Three requests are answered; the fourth finds the connection broken and the process gone."""
    with demo("--ttft", "1ms", "--per-token", "1ms", "--defect", text) as gateway:
        statuses = [gateway.call("POST", CHAT, ask(2))[0].status for _ in range(3)]
        with pytest.raises(ConnectionError):
            gateway.call("POST", CHAT, ask(2))

        assert (statuses, gateway.process.wait(DEADLINE_S)) == ([200] * 3, 9)


def test_slow_after_delays_the_first_token_tenfold():
    """By the gateway's own measure of prompt time."""
    with demo("--ttft", "20ms", "--per-token", "1ms", "--defect", "slow-after=2") as gateway:
        bodies = [gateway.call("POST", "/api/chat", ask(2, stream=False))[1] for _ in range(4)]
    prompt_ns = [json.loads(body)["prompt_eval_duration"] for body in bodies]

    assert all(value >= 20e6 for value in prompt_ns[:2])
    assert all(value >= 200e6 for value in prompt_ns[2:])
    assert max(prompt_ns[:2]) < 0.5 * min(prompt_ns[2:])
