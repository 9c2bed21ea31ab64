"""A step in time: staggered start, warm-up, window, early close, caps, waits after refusals, generator lines."""

from __future__ import annotations

from itertools import pairwise

import pytest
from fake_gateway import FakeGateway
from locust_step import run_step

pytestmark = pytest.mark.slow

FAST = {"ttft_s": 0.02, "gap_s": 0.002, "n_tokens": 4}
FULL = 'HTTP 503 application/json\n---\n{"error":"server busy, please try again.  maximum pending requests exceeded"}'


def first_starts_ns(records) -> list[int]:
    """Of each user, in the order of their numbers."""
    first = {}
    for record in sorted(records, key=lambda record: record.t_start_ns):
        first.setdefault(record.user, record.t_start_ns)
    return [first[user] for user in sorted(first)]


def test_users_start_evenly_over_the_first_half_of_the_warm_up(tmp_path):
    """Users that start in one instant would move in lockstep."""
    with FakeGateway(FAST) as fake:
        done = run_step(tmp_path, fake.url, users=4, warmup_s=2.0, duration_s=0.5)

    starts = [(start - done.report.t_open_ns) / 1e9 for start in first_starts_ns(done.records)]
    assert all(0.25 * i <= start for i, start in enumerate(starts))
    assert starts[-1] < 1.0 + 0.25


def test_the_window_waits_until_every_user_finished_two_requests(tmp_path):
    """A warm-up shorter than two answers lasts longer, but at most three times as long as asked."""
    with FakeGateway({"ttft_s": 0.3, "gap_s": 0.001, "n_tokens": 2}) as fake:
        done = run_step(tmp_path / "two", fake.url, users=2, warmup_s=0.4, duration_s=0.5)
        capped = run_step(tmp_path / "capped", fake.url, users=2, warmup_s=0.1, duration_s=0.5)

    warm = [r for r in done.records if r.t_over_ns <= done.report.t_window_ns]
    assert {0: 2, 1: 2} == {user: sum(r.user == user for r in warm) for user in (0, 1)}
    assert 0.3 <= (capped.report.t_window_ns - capped.report.t_open_ns) / 1e9 < 0.6


def test_each_record_has_the_phase_it_started_in(tmp_path):
    """The instants of the step and the phases of its records say the same."""
    with FakeGateway(FAST) as fake:
        done = run_step(tmp_path, fake.url, users=2)

    report = done.report
    for record in done.records:
        expected = "warmup" if record.t_start_ns < report.t_window_ns else "window"
        assert expected == record.phase
    assert all(record.t_start_ns <= report.t_close_ns for record in done.records)
    assert all(record.t_over_ns <= report.t_end_ns for record in done.records)


def test_a_step_goes_on_until_it_has_what_its_gates_need(tmp_path):
    """n_wanted started requests, though the duration was over long before; never past max_step."""
    with FakeGateway({"ttft_s": 0.1, "gap_s": 0.001, "n_tokens": 2}) as fake:
        done = run_step(tmp_path / "wanted", fake.url, duration_s=0.2, n_wanted=12)
        short = run_step(tmp_path / "short", fake.url, duration_s=0.2, n_wanted=10**6, max_step_s=0.8)

    assert "duration" == done.report.closed_by
    assert 12 == sum(record.phase == "window" for record in done.records)
    assert "max_step" == short.report.closed_by
    assert 0.8 <= (short.report.t_close_ns - short.report.t_window_ns) / 1e9 < 1.2


def test_a_step_closes_early_when_it_has_ten_times_that(tmp_path):
    """n_early requests, not before min_early."""
    with FakeGateway(FAST) as fake:
        done = run_step(tmp_path, fake.url, duration_s=20.0, n_early=8, min_early_s=0.1)

    assert "n_early" == done.report.closed_by
    assert 8 <= sum(record.phase == "window" for record in done.records) <= 10


def test_the_caps_are_never_exceeded(tmp_path):
    """max_requests and max_output_tokens end the window; not one request more is started."""
    with FakeGateway(FAST) as fake:
        requests = run_step(tmp_path / "requests", fake.url, users=4, max_requests=23, duration_s=20.0)
        tokens = run_step(tmp_path / "tokens", fake.url, users=4, max_output_tokens=160, duration_s=20.0)

    assert ("cap", 23) == (requests.report.closed_by, len(requests.records))
    assert ("cap", 10) == (tokens.report.closed_by, len(tokens.records))


def test_a_full_gateway_is_not_hammered(tmp_path):
    """After a refusal a user waits 0.25 s, doubling to 2 s: in 4 s five requests at most, not thousands."""
    with FakeGateway(FULL) as fake:
        done = run_step(tmp_path, fake.url, users=2, warmup_s=0.5, duration_s=3.5)

    assert {"shed"} == set(done.report.processes[0].outcomes)
    for user in (0, 1):
        mine = [record for record in done.records if record.user == user]
        waits = [after.t_start_ns - before.t_over_ns for before, after in pairwise(mine)]
        assert 3 <= len(mine) <= 6
        assert all(wait >= due * 1e9 for wait, due in zip(waits, (0.25, 0.5, 1.0, 2.0), strict=False))


def test_retry_after_is_honoured(tmp_path):
    """The server's own word, at most 10 s."""
    with FakeGateway("HTTP 429 application/json; retry-after: 1\n---\n" + '{"error":"queue is full"}') as fake:
        done = run_step(tmp_path, fake.url, warmup_s=0.2, duration_s=3.0)

    waits = [after.t_start_ns - before.t_over_ns for before, after in pairwise(done.records)]
    assert waits and all(1e9 <= wait < 1.5e9 for wait in waits)
    assert {1.0} == {record.retry_after_s for record in done.records}


def test_retry_after_zero_does_not_switch_the_wait_off(tmp_path):
    """A server that says `0` would otherwise draw thousands of requests a second."""
    with FakeGateway("HTTP 503 application/json; retry-after: 0\n---\n" + '{"error":"queue is full"}') as fake:
        done = run_step(tmp_path, fake.url, warmup_s=0.5, duration_s=2.0)

    assert 2 <= len(done.records) <= 5


def test_failures_at_once_are_slowed_down_too(tmp_path):
    """An instant 401 in mid-run is answered by waiting, like a refusal."""
    with FakeGateway('HTTP 401 application/json\n---\n{"error":"token expired"}') as fake:
        done = run_step(tmp_path, fake.url, warmup_s=0.5, duration_s=2.0)

    assert {"http_4xx"} == {record.outcome for record in done.records}
    assert 2 <= len(done.records) <= 5


def test_more_tokens_than_asked_for_make_no_figure(tmp_path):
    """The server's count is checked against the request: above max_tokens it is remarked and left out."""
    events = ['data: {"choices":[{"delta":{"content":"A"}}]}\n\n<<SLEEP 0.02>>'] * 3
    usage = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"completion_tokens":5000}}\n\n'
    script = "HTTP 200 text/event-stream\n---\n" + "".join(events) + usage + "data: [DONE]\n\n"
    with FakeGateway(script) as fake:
        done = run_step(tmp_path, fake.url, max_tokens=64, duration_s=0.3)

    assert {("ok", None, None, ("odd_count",))} == {
        (record.outcome, record.n_out, record.token_source, record.flags) for record in done.records
    }


@pytest.mark.parametrize(("tail", "expected"), [("<<SLEEP 0.3>>", ()), ("", ("buffered",))])
def test_one_lump_at_the_end_is_buffered(tmp_path, tail, expected):
    """A whole answer in one event counts as many tokens in one read; one that came early is not held back."""
    lump = 'data: {"choices":[{"delta":{"content":"all of it"}}]}\n\n' + tail
    end = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"completion_tokens":12}}\n\ndata: [DONE]\n\n'
    with FakeGateway("HTTP 200 text/event-stream\n---\n<<SLEEP 0.1>>" + lump + end) as fake:
        done = run_step(tmp_path, fake.url, max_tokens=64, duration_s=0.3)

    assert {expected} == {record.flags for record in done.records}


def test_the_generator_records_its_own_health(tmp_path):
    """A line a second with CPU, loop lag and what is open."""
    with FakeGateway(FAST) as fake:
        done = run_step(tmp_path, fake.url, users=3, duration_s=3.0)

    seconds = (done.report.t_end_ns - done.report.t_open_ns) / 1e9
    assert seconds - 2 <= len(done.generator) <= seconds + 1
    last = done.generator[-1]
    assert (3, 3) == (last.users, last.connections)
    assert all(0 < line.cpu_share < 1.5 and line.lag_p99_ms >= line.lag_p50_ms >= 0 for line in done.generator)


def test_a_busy_loop_shows_in_the_generators_lines(tmp_path):
    """Positive control: a user that blocks the loop for 60 ms again and again is seen as lag."""
    locustfile = tmp_path / "busy.py"
    locustfile.write_text(
        "import time\nfrom locust import task\nfrom sweep.llm_user import LlmUser\n"
        "class Busy(LlmUser):\n    @task\n    def ask_and_block(self):\n"
        "        self.ask(stream=True)\n"
        "        until = time.monotonic() + 0.06\n        while time.monotonic() < until: pass\n"
    )
    with FakeGateway(FAST) as fake:
        done = run_step(tmp_path / "step", fake.url, locustfile=str(locustfile), duration_s=2.0)

    assert all(line.lag_p99_ms > 20 for line in done.generator)
    assert 1 == len({record.user for record in done.records})
