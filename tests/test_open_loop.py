"""Open-loop steps with the real Locust: requests arrive when they are due, whatever the target does."""

import json
import os
import statistics
import subprocess
import sys
from itertools import islice, pairwise

import pytest
from fake_gateway import FakeGateway
from locust_step import run_step

from sweep import outdir
from sweep.arrivals import due_ns

pytestmark = pytest.mark.slow
FAST = {"ttft_s": 0.01, "gap_s": 0.002, "n_tokens": 4}
SLOW = {"ttft_s": 0.7, "gap_s": 0.002, "n_tokens": 4}
OPEN = {"step": "s01-r50-stream-k1", "locustfile": "arrivals.py"}


def due_of(done) -> list[int]:
    return sorted(record.t_due_ns for record in done.records)


def test_poisson_arrivals_are_those_of_the_seed_and_all_of_them_are_sent(tmp_path):
    """The due instants are the schedule's, the server got each request, and the window holds its share of the rate."""
    with FakeGateway(FAST) as fake:
        done = run_step(tmp_path, fake.url, **OPEN, rate_per_s=100.0, seed=5, ramp_s=0.1, warmup_s=0.2)
        received = {line["request_id"] for line in fake.log(kind="received")}

    due, schedule = due_of(done), list(islice(due_ns(100.0, "poisson", 5, 0.1), len(done.records)))
    assert [b - a for a, b in pairwise(schedule)] == [b - a for a, b in pairwise(due)]
    assert received == {record.request_id for record in done.records}
    process = done.report.processes[0]
    assert (process.started, True, None) == (len(due), done.report.counts_agree, done.report.why)
    assert process.due - process.started <= 1
    in_window = [t for t in due if done.report.t_window_ns <= t < done.report.t_close_ns]
    expected = 100 * (done.report.t_close_ns - done.report.t_window_ns) / 1e9
    assert abs(len(in_window) - expected) < 5 * expected**0.5
    assert all(record.t_start_ns >= record.t_due_ns for record in done.records)
    assert any(line.start_lag_p99_ms is not None and line.start_lag_p99_ms >= 0 for line in done.generator)
    assert {"warmup", "window"} == {record.phase for record in done.records}
    assert all((record.phase == "window") == (record.t_due_ns >= done.report.t_window_ns) for record in done.records
               if abs(record.t_due_ns - done.report.t_window_ns) > 1_000_000)  # fmt: skip


def test_a_slow_target_has_more_and_more_requests_in_flight(tmp_path):
    """Nothing waits for an answer: at 80/s and 0.7 s an answer some 56 are open at once, each on its own connection."""
    with FakeGateway(SLOW) as fake:
        done = run_step(tmp_path, fake.url, **OPEN, rate_per_s=80.0, ramp_s=0.0, warmup_s=0.7)

    assert {"ok"} == {record.outcome for record in done.records}
    most = max(line.in_flight for line in done.generator)
    assert 40 < most < 90
    assert most <= max(line.connections for line in done.generator)
    assert len({record.user for record in done.records}) >= most
    assert all(record.t_end_ns - record.t_due_ns >= record.t_end_ns - record.t_start_ns for record in done.records)
    assert all(record.t_start_ns - record.t_due_ns < 1e9 for record in done.records)  # none waited for an answer


def test_constant_arrivals_stay_evenly_spaced_through_refusals(tmp_path):
    """A closed-loop user would wait a second after this 503; these are due and received evenly."""
    with FakeGateway(["HTTP 503 application/json; retry-after: 1\n---\n" + '{"error":"queue is full"}', SLOW]) as fake:
        done = run_step(
            tmp_path, fake.url, **OPEN, rate_per_s=50.0, arrivals="constant", ramp_s=0.0, stream_share=0.0,
            duration_s=1.2, drain_s=0.1,
        )  # fmt: skip
        received = sorted(line["t_received_ns"] for line in fake.log(kind="received"))

    assert all(abs(b - a - 20_000_000) <= 1 for a, b in pairwise(due_of(done)))
    assert 0.8 * 20e6 < statistics.median(b - a for a, b in pairwise(received)) < 1.2 * 20e6
    assert {False} == {record.stream for record in done.records}
    outcomes = done.report.processes[0].outcomes
    assert outcomes["shed"] > 25 and outcomes["cut"] > 10
    assert done.report.counts_agree, done.report.why


OWN = """
import resource
from sweep.open_loop import OpenLoopUser
from locust import task
{before}
class Arrivals(OpenLoopUser):
    @task
    def chat(self):
        self.ask(stream=True)
"""


def test_a_process_without_descriptors_is_a_fault_of_ours_and_ends_the_step(tmp_path):
    """Not a failure of the target, and no silent thinning: the step ends at once and names the limit."""
    locustfile = tmp_path / "few.py"
    locustfile.write_text(OWN.format(before="resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))"))
    with FakeGateway(SLOW | {"ttft_s": 5.0}) as fake:
        done = run_step(tmp_path / "step", fake.url, **OPEN | {"locustfile": str(locustfile)}, rate_per_s=100.0,
                        ramp_s=0.0, duration_s=8.0)  # fmt: skip

    assert not done.report.counts_agree
    assert "no connection more can be opened here: Too many open files; raise ulimit -n" in done.report.why
    assert done.report.t_end_ns - done.report.t_open_ns < 6e9
    assert "connect" not in done.report.processes[0].outcomes


PLAIN = ("--headless", "--only-summary", "--json", "--llm-model", "m", "--llm-max-tokens", "4", "-t", "2s")


def plain_locust(folder, url, locustfile, *options):
    """Locust as somebody starts it who knows nothing of ha-sweep."""
    command = [sys.executable, "-m", "locust", "-f", str(locustfile), "--host", url, *PLAIN, *options]
    return subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60.0,
        env=dict(os.environ) | {"HOME": str(folder)},
    )  # fmt: skip


def test_plain_locust_runs_the_locustfile_with_one_row_of_its_times(tmp_path):
    """Each of two users brings its own rate; times count from when a request was due, and stopping loses nothing."""
    with FakeGateway(FAST) as fake:
        ours = outdir.data_folder("locustfiles") / "arrivals.py"
        rate = ("--llm-rate", "40", "--llm-ramp", "0.2")
        done = plain_locust(tmp_path, fake.url, ours, "-u", "2", "-r", "2", "-s", "3", *rate)
        n_received = fake.requests_received
    rows = json.loads(done.stdout)

    assert 0 == done.returncode, done.stderr
    assert [("stream", "openai-chat", 0)] == [(row["method"], row["name"], row["num_failures"]) for row in rows]
    assert n_received == rows[0]["num_requests"]
    assert 60 < n_received < 240  # about 2 x 40/s x 2 s
    assert rows[0]["min_response_time"] >= 10


def test_plain_locust_says_in_a_line_what_an_open_loop_cannot_do(tmp_path):
    """No rate of zero; and a TaskSet would never end its arrival."""
    own = tmp_path / "own.py"
    own.write_text(
        "from locust import TaskSet, task\nfrom sweep.open_loop import OpenLoopUser\n"
        "class Talk(TaskSet):\n    @task\n    def t(self):\n        pass\n"
        "class Arrivals(OpenLoopUser):\n    tasks = [Talk]\n"
    )
    with FakeGateway(FAST) as fake:
        ours = outdir.data_folder("locustfiles") / "arrivals.py"
        no_rate = plain_locust(tmp_path, fake.url, ours, "--llm-rate", "0")
        no_function = plain_locust(tmp_path, fake.url, own)
        assert 0 == fake.requests_received

    assert (2, 2) == (no_rate.returncode, no_function.returncode)
    assert "--llm-rate: give a number above 0" in no_rate.stderr
    assert "Arrivals: an arrival runs a function with @task, no TaskSet" in no_function.stderr
