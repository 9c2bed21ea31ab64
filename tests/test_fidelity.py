"""The numbers are true: what the client records, request by request, against the server's own log of the same run.

Never early: no instant is before the server began to send its bytes. Late by little: the bounds below are far above
what is measured on an idle machine (median 0.2 ms) and far below what reading with a buffer costs (tens of ms).
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from itertools import accumulate
from statistics import median

import loopback
import pytest
from fake_gateway import FakeGateway
from locust_step import run_step
from loopback import wait_for

from sweep import outdir

PROFILES = {
    "slow-prefill": {"ttft_s": 0.2, "gap_s": 0.01, "n_tokens": 40},
    "slow-decode": {"ttft_s": 0.03, "gap_s": 0.06, "n_tokens": 8},
}
MEDIAN_LATE_NS = 3_000_000
P95_LATE_NS = 60_000_000
ROUNDING_NS = 1_000  # gaps are kept in microseconds


@pytest.mark.slow
@pytest.mark.parametrize("users", [1, 16])
@pytest.mark.parametrize("profile", PROFILES)
def test_instants_agree_with_the_servers_log(tmp_path, profile, users):
    """Each first token, each read and each end is stamped when it arrived, never before it was sent."""
    with FakeGateway(PROFILES[profile]) as fake:
        done = run_step(tmp_path, fake.url, users=users, n_wanted=4 * users, max_tokens=40)
        sent = {entry["request_id"]: entry for entry in fake.log(len(done.records))}

    late_ns = []
    for record in done.records:
        entry = sent[record.request_id]
        reads_ns = [record.t_first_ns + 1000 * gap for gap in accumulate(record.gaps_us, initial=0)]
        n_by_read = list(accumulate(record.read_tokens or [1] * len(reads_ns)))
        last_sends = [entry["token_sends"][n - 1] for n in n_by_read]
        assert all(read + ROUNDING_NS >= before for read, (before, _) in zip(reads_ns, last_sends, strict=True))
        assert abs(reads_ns[-1] - record.t_last_ns) <= ROUNDING_NS
        assert entry["t_received_ns"] >= record.t_start_ns
        assert entry["sends"][-1][0] <= record.t_over_ns
        assert entry["n_tokens"] == record.n_out == record.n_events
        late_ns += [read - after for read, (_, after) in zip(reads_ns, last_sends, strict=True)]
    assert len(done.records) >= 4 * users
    assert {"ok"} == {record.outcome for record in done.records}
    assert median(late_ns) < MEDIAN_LATE_NS
    assert sorted(late_ns)[int(0.95 * len(late_ns))] < P95_LATE_NS


@pytest.mark.slow
def test_two_profiles_differ_in_the_client_as_in_the_server(tmp_path):
    """TTFT and TPOT follow the schedule: their ratios between two profiles are the server's own ratios."""
    ttft, tpot = {}, {}
    for name, profile in PROFILES.items():
        with FakeGateway(profile) as fake:
            records = run_step(tmp_path / name, fake.url, users=2, n_wanted=8, max_tokens=40).records
        ttft[name] = median(r.t_first_ns - r.t_start_ns for r in records)
        tpot[name] = median((r.t_last_ns - r.t_first_ns) / (r.n_out - 1) for r in records)

    assert 0.2 / 0.03 == pytest.approx(ttft["slow-prefill"] / ttft["slow-decode"], rel=0.25)
    assert 0.06 / 0.01 == pytest.approx(tpot["slow-decode"] / tpot["slow-prefill"], rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize(("api", "path"), [("ollama-chat", "/api/chat"), ("ollama-generate", "/api/generate")])
def test_ndjson_instants_agree_with_the_servers_log(tmp_path, api, path):
    """The Ollama APIs are stamped as exactly."""
    with FakeGateway({"ttft_s": 0.1, "gap_s": 0.02, "n_tokens": 12}) as fake:
        records = run_step(tmp_path, fake.url, api=api, users=2, n_wanted=6).records
        sent = {entry["request_id"]: entry for entry in fake.log(len(records))}

    assert {path} == {entry["path"] for entry in sent.values()}
    late_ns = [record.t_first_ns - sent[record.request_id]["token_sends"][0][1] for record in records]
    assert {("ok", 12, 12)} == {(r.outcome, r.n_out, r.n_events) for r in records}
    assert all(r.t_first_ns >= sent[r.request_id]["token_sends"][0][0] for r in records)
    assert median(late_ns) < MEDIAN_LATE_NS


@pytest.mark.slow
def test_whole_answers_end_when_their_last_byte_came(tmp_path):
    """Without streaming there is no first token; the end is the last byte of the body."""
    with FakeGateway({"ttft_s": 0.1, "gap_s": 0.01, "n_tokens": 10}) as fake:
        records = run_step(tmp_path, fake.url, locustfile="nonstreaming.py", users=2, n_wanted=6).records
        sent = {entry["request_id"]: entry for entry in fake.log(len(records))}

    assert {("ok", None, 10)} == {(r.outcome, r.t_first_ns, r.n_out) for r in records}
    late_ns = [record.t_end_ns - sent[record.request_id]["sends"][-1][1] for record in records]
    assert all(r.t_end_ns >= sent[r.request_id]["sends"][-1][0] for r in records)
    assert median(late_ns) < MEDIAN_LATE_NS


@pytest.mark.slow
def test_a_step_cut_short_yields_cut_records(tmp_path):
    """What is in flight when the drain is over is recorded as cut, with what had arrived; nothing is forgotten."""
    with FakeGateway({"ttft_s": 0.05, "gap_s": 0.1, "n_tokens": 200}) as fake:
        done = run_step(tmp_path, fake.url, users=4, duration_s=0.3, max_step_s=0.3, drain_s=0.2)
        received = fake.requests_received

    assert {"cut": 4} == done.report.processes[0].outcomes
    assert 4 == received == sum(record.t_sent_ns is not None for record in done.records)
    assert all(record.t_first_ns is not None and record.t_end_ns is None for record in done.records)
    assert done.report.counts_agree


@pytest.mark.slow
def test_sent_records_equal_the_servers_count(tmp_path):
    """Every request with t_sent reached the server, refused and broken ones too, and Locust counted the same."""
    behaviours = [{"ttft_s": 0.01, "gap_s": 0.001, "n_tokens": 4}] * 3 + [
        'HTTP 503 application/json\n---\n{"error":"server busy, please try again.  maximum pending requests exceeded"}',
        'HTTP 200 text/event-stream\n---\ndata: {"choices":[{"delta":{"content":"A"}}]}\n\n<<FIN>>',
        'HTTP 200 text/event-stream\n---\ndata: {"choices":[{"delta":{"content":"A"}}]}\n\n<<RST>>',
    ]
    with FakeGateway(behaviours) as fake:
        done = run_step(tmp_path, fake.url, users=3, n_wanted=30, max_step_s=20.0)
        received = fake.requests_received

    process = done.report.processes[0]
    assert received == sum(record.t_sent_ns is not None for record in done.records) == process.sent
    assert {"ok", "shed", "truncated", "reset"} == set(process.outcomes)
    assert process.started == len(done.records) == process.locust_requests
    assert process.locust_failures == sum(n for outcome, n in process.outcomes.items() if outcome != "ok")
    assert done.report.counts_agree


@pytest.mark.slow
def test_plain_locust_runs_the_locustfile(tmp_path):
    """`locust -f streaming.py` works by itself, with Locust's own stats and --csv and one row an API."""
    with FakeGateway({"ttft_s": 0.05, "gap_s": 0.005, "n_tokens": 8}) as fake:
        command = [
            sys.executable, "-m", "locust", "-f", str(outdir.data_folder("locustfiles") / "streaming.py"), "--host",
            fake.url, "--headless", "-u", "2", "-r", "2", "-t", "3s", "--csv", "stats", "--llm-max-tokens", "8",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        finished = [entry for entry in fake.log() if entry["ended"] == "keep"]

    assert 0 == done.returncode, done.stderr
    header, row, *_ = (tmp_path / "stats_stats.csv").read_text().splitlines()
    values = dict(zip(header.split(","), row.split(","), strict=True))
    assert ("stream", "openai-chat", "0") == (values["Type"], values["Name"], values["Failure Count"])
    assert 0 < int(values["Request Count"]) <= len(finished)


@pytest.mark.slow
def test_plain_locust_without_a_target_is_one_line(tmp_path):
    """A user's mistake is no traceback: which option is missing, exit 2."""
    command = [
        sys.executable, "-m", "locust", "-f", str(outdir.data_folder("locustfiles") / "streaming.py"), "--headless",
        "-u", "1", "-t", "5s",
    ]  # fmt: skip
    for options, word in (([], "--host"), (["--host", "http://127.0.0.1:9"], "--llm-model")):
        done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (2, True, False) == (done.returncode, word in done.stderr, "Traceback" in done.stderr), done.stderr


@pytest.mark.slow
def test_locusts_own_web_ui_drives_the_locustfile(tmp_path):
    """Started from the web UI as anybody would: one sensible row, its counts those of the server, no failure."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with FakeGateway({"ttft_s": 0.05, "gap_s": 0.005, "n_tokens": 8}) as fake:
        command = [
            sys.executable, "-m", "locust", "-f", str(outdir.data_folder("locustfiles") / "streaming.py"), "--host",
            fake.url, "--web-host", "127.0.0.1", "--web-port", str(port), "--llm-max-tokens", "8",
        ]  # fmt: skip
        with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as locust:
            try:
                wait_for(lambda: answers(port, "/"), "web UI")
                page = loopback.call(port, "GET", "/")[1].decode()
                form = {"Content-Type": "application/x-www-form-urlencoded"}
                began = loopback.call(port, "POST", "/swarm", b"user_count=2&spawn_rate=2", form)[1]
                wait_for(lambda: rows(port) and rows(port)[0]["num_requests"] >= 10, "ten requests")
                loopback.call(port, "GET", "/stop")
                (row,) = rows(port)
            finally:
                locust.terminate()
        finished = [entry for entry in fake.log() if entry["ended"] == "keep"]

    assert "llm_model" in page and "llm_think_time" in page  # its options are fields of the form
    assert json.loads(began)["success"]
    assert ("stream", "openai-chat", 0) == (row["method"], row["name"], row["num_failures"])
    assert 10 <= row["num_requests"] <= len(finished)
    assert 80 <= row["median_response_time"] < 1000


def answers(port: int, path: str) -> bool:
    try:
        return 200 == loopback.call(port, "GET", path)[0].status
    except OSError:
        return False


def rows(port: int) -> list[dict]:
    """Locust's table without its Aggregated row."""
    return json.loads(loopback.call(port, "GET", "/stats/requests")[1])["stats"][:-1]
