"""`ha-sweep run` with levels like 250/s and level 0, as a user starts it; and a load generator that stands still."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from command import DEADLINE_S, clean_environment, ha_sweep, marks_of, quickly, result_of, start_ha_sweep
from fake_gateway import FakeGateway
from loopback import wait_for
from report_reader import Page

from sweep import outdir

pytestmark = pytest.mark.slow
FAST = {"ttft_s": 0.02, "gap_s": 0.002, "n_tokens": 4}
QUICK = ("--mode", "stream", "--warmup", "0.4s", "--cooldown", "0.2s", "--max-tokens", "4", "--prompt-tokens", "16")


def records_of(out_dir, step, worker="w01"):
    return [json.loads(line) for line in outdir.read_lines(out_dir / outdir.requests_file(step, worker))[0]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(finished process, OUT_DIR, requests the server got) of an observed, a closed- and an open-loop level, by two
    load processes."""
    folder = tmp_path_factory.mktemp("run")
    with FakeGateway(FAST) as fake:
        done = ha_sweep(
            "run", "--target", fake.url, "--gateway-pid", str(fake.pid), "--levels", "0,2,250/s", *QUICK,
            "--think-time", "50ms", "--ramp", "1200ms", "--seed", "11", "--duration", "1.2s",
            "--slo", "stream.ttft_ms.p95<=500", "--processes", "2", "--out-dir", "run", cwd=folder,
        )  # fmt: skip
        return done, folder / "run", fake.log(kind="received")


def test_an_open_loop_run_comes_to_a_verdict_with_every_request_accounted_for(ran):
    """READY unless this machine was too busy to keep the schedule, and then it says so."""
    done, out_dir, received = ran
    result = result_of(out_dir)
    rate = result["levels"][2]

    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert ("250/s", "rate") == (rate["level"], rate["kind"])
    assert "level 250/s stream: ~15,000 requests a minute; ~" in done.stdout
    assert "level 0: observes for 1.2 s, asks nothing" in done.stdout
    assert "for 250 arrivals a second (Poisson) of openai-chat" in " ".join(done.stdout.split())
    assert len(received) - 1 == sum(step["sent"] for step in result["steps"])  # one was the preflight's
    parts = [records_of(out_dir, "s03-r250-stream-k1", worker) for worker in ("w01", "w02")]
    assert all(abs(len(part) - sum(map(len, parts)) / 2) < 5 * len(part) ** 0.5 for part in parts)  # each has half
    dues = [{line["t_due_ns"] for line in part} for part in parts]
    assert len(dues[0] & dues[1]) < 3
    seen = rate["open_loop"]
    assert rate["offered"] + rate["cut"] + seen["unstarted"] == seen["due"]
    assert abs(seen["due"] - 250 * rate["window_s"]) < 5 * (250 * rate["window_s"]) ** 0.5  # also if some started late
    if rate["valid"]:
        assert rate["ttft_ms"]["p50"]["v"] >= seen["from_start"]["ttft_ms"]["p50"]["v"] >= 20
    else:
        assert "generator" in rate["invalid_why"]


def test_users_who_think_are_in_flight_less_than_their_level_says(ran):
    """Two users with 50 ms of thought after 26 ms of answer: shown, and no fault of the generator."""
    _, out_dir, _ = ran
    row = result_of(out_dir)["levels"][1]

    assert 2 == row["generator"]["users_min"]
    assert row["in_flight"]["v"] < 1.5 if row["valid"] else "generator" in row["invalid_why"]
    one, other = (
        min(line["t_start_ns"] for line in records_of(out_dir, "s02-c2-stream-k1", name)) for name in ("w01", "w02")
    )
    assert 0.2e9 < other - one < 3e9  # the second user starts in the middle of the ramp; their processes a little apart


def test_level_0_has_its_marks_probes_and_samples_and_sends_nothing(ran):
    """What any step leaves behind, but no request."""
    _, out_dir, _ = ran
    result = result_of(out_dir)

    of_step = [mark["mark"] for mark in marks_of(out_dir) if mark["step"] == "s01-c0-observe-k1"]
    assert ["begin", "open", "window", "close", "end", "idle"] == of_step
    assert {"s01-c0-observe-k1.before.json", "s01-c0-observe-k1.after.json"} <= {
        path.name for path in (out_dir / outdir.SNAPSHOTS).iterdir()
    }
    assert not list((out_dir / outdir.REQUESTS).glob("s01-*"))
    row, step = result["levels"][0], result["steps"][0]
    assert (0, "observe", "duration") == (step["sent"], row["mode"], step["closed_by"])
    assert 1.2 <= step["window_s"] < 4


def test_the_report_shows_times_from_both_instants(ran):
    """One table for arrivals; the figures are those of result.json."""
    _, out_dir, _ = ran
    rows = Page((out_dir / outdir.REPORT_HTML).read_text()).tables["Arrivals"]
    row = result_of(out_dir)["levels"][2]
    seen = row["open_loop"]

    assert rows[1][0][0].startswith("250/s stream")
    assert [str(seen["due"]), str(seen["unstarted"])] == [cell[0].strip() for cell in rows[1][1:3]]
    assert not row["valid"] or seen["from_start"]["ttft_ms"]["p95"]["v"] in [cell[1] for cell in rows[1]]


def test_a_generator_that_was_stopped_makes_its_step_invalid(tmp_path):
    """Two seconds of SIGSTOP: what was due meanwhile starts late, none of it is the target's latency."""
    with FakeGateway(FAST) as fake:
        run = start_ha_sweep(
            "run", "--target", fake.url, "--levels", "120/s", *QUICK, "--duration", "3s",
            "--slo", "stream.ttft_ms.p95<=500", "--out-dir", "run", cwd=tmp_path,
        )  # fmt: skip
        requests = tmp_path / "run" / outdir.REQUESTS / "s01-r120-stream-k1.w01.jsonl"
        wait_for(lambda: requests.exists() and b'"phase":"window"' in requests.read_bytes(), "a request of the window")
        locust = next(child for child in psutil.Process(run.pid).children() if "locust" in child.cmdline())
        os.kill(locust.pid, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(locust.pid, signal.SIGCONT)
        _, said = run.communicate(timeout=DEADLINE_S)
    result = result_of(tmp_path / "run")
    records = records_of(tmp_path / "run", "s01-r120-stream-k1")
    late_s = [(line["t_start_ns"] - line["t_due_ns"]) / 1e9 for line in records]

    assert 1.5 < max(late_s) < 4
    assert sum(0.1 < late < 1.9 for late in late_s) > 100  # nothing of what was due meanwhile is left out
    assert 3 == run.returncode, said
    assert ("INCONCLUSIVE", False) == (result["verdict"], result["levels"][0]["valid"])
    assert "generator" in result["levels"][0]["invalid_why"]
    assert result["levels"][0]["ttft_ms"]["p95"]["v"] is None


def test_a_rate_that_needs_more_descriptors_than_there_are_is_refused_before_any_load(tmp_path):
    """By Little's law: 600/s of answers that take a second are 600 in flight, and 512 files may be open."""
    arguments = quickly(("run", "--target", "URL", "--levels", "600/s", *QUICK, "--out-dir", "run"))
    with FakeGateway(FAST | {"ttft_s": 1.0}) as fake:
        words = [sys.executable, "-P", "-m", "sweep", *(fake.url if word == "URL" else word for word in arguments)]
        done = subprocess.run(
            ["sh", "-c", 'ulimit -n 512 && exec "$@"', "sh", *words], cwd=tmp_path, env=clean_environment(),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S,
        )  # fmt: skip
        n_received = fake.requests_received

    assert (2, 1) == (done.returncode, n_received), done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "level 600/s: answers take 1.0" in last and "one process may open 512 files (ulimit -Hn)" in last
    assert not (tmp_path / "run").exists()
