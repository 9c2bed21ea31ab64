"""A whole run of a gateway beside its upstream and a target that dies: whose turn it was, and what came out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from command import DEADLINE_S, ha_sweep, marks_of, result_of, start_ha_sweep
from fake_gateway import FakeGateway
from slow_proxy import slow_proxy

from sweep import outdir
from sweep.records import Record, from_lines

pytestmark = pytest.mark.slow

DELAY_S = 0.04
UPSTREAM = {"ttft_s": 0.02, "gap_s": 0.003, "n_tokens": 4}
LOAD = ("--levels", "1", "--mode", "stream", "--duration", "3s", "--max-step", "3s", "--warmup", "0.7s", "--cooldown",
        "50ms", "--max-tokens", "4", "--prompt-tokens", "16", "--model", "fake-1")  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Target: a proxy that adds 40 ms to each request. Beside it `direct`, its upstream, and `dead`, which is killed
    in its first block."""
    folder = tmp_path_factory.mktemp("beside")
    with (
        FakeGateway(UPSTREAM) as upstream,
        FakeGateway(UPSTREAM) as dead,
        slow_proxy(upstream.port, DELAY_S) as (port, _),
    ):
        run = start_ha_sweep(
            "run", "--target", f"http://127.0.0.1:{port}", "--beside", f"direct={upstream.url}", "--beside",
            f"dead={dead.url}", "--gateway-pid", f"dead={dead.pid}", *LOAD, "--out-dir", "run", cwd=folder,
        )  # fmt: skip
        until_asked(run, folder / "run", "s01-c1-stream-k1-dead.b1")
        os.kill(dead.pid, signal.SIGKILL)
        out, err = run.communicate(timeout=DEADLINE_S)
        log = upstream.log()
    return {"code": run.returncode, "out": out, "err": err, "out_dir": folder / "run", "log": log,
            "result": result_of(folder / "run"), "dead": dead.pid}  # fmt: skip


def until_asked(run: subprocess.Popen, out_dir: Path, step: str) -> None:
    """Waits for the step's first records."""
    file = out_dir / outdir.requests_file(step, "w01")
    end = time.monotonic() + DEADLINE_S
    while not file.exists() or not file.stat().st_size:
        assert run.poll() is None, "".join(run.communicate())
        assert time.monotonic() < end, f"{step} has not begun within {DEADLINE_S:.0f} s"
        time.sleep(0.02)


def records(out_dir: Path) -> dict[str, list[Record]]:
    """By step."""
    found = defaultdict(list)
    for path in sorted((out_dir / outdir.REQUESTS).iterdir()):
        found[path.name.removesuffix(".w01.jsonl")] = from_lines(Record, outdir.read_lines(path)[0], path.name)
    return found


def entry(ran, name):
    return next(each for each in ran["result"]["beside"] if each["name"] == name)


def test_the_overhead_is_what_the_servers_own_log_says(ran):
    """The interval lies around how much later the upstream got the proxied requests, and far from 0."""
    received = {line["request_id"]: line["t_received_ns"] for line in ran["log"]}
    late_ms = defaultdict(list)
    for step, found in records(ran["out_dir"]).items():
        if not step.startswith("preflight"):
            late_ms["direct" in step] += [
                (received[r.request_id] - r.t_start_ns) / 1e6 for r in found if r.request_id in received
            ]
    true_ms = sorted(late_ms[False])[len(late_ms[False]) // 2] - sorted(late_ms[True])[len(late_ms[True]) // 2]
    (pairs,) = entry(ran, "direct")["pairs"]
    rows = {row["measure"]: row for row in pairs["measures"]}
    ttft = rows["ttft_ms"]["difference"]

    assert true_ms > DELAY_S * 1000
    if pairs["n_pairs"] < 3:  # on a busy machine blocks are invalid; then nothing is claimed
        assert all("generator" in each["why"] for each in pairs["dropped"]), pairs
        assert ttft["v"] is None and "not compared" in entry(ran, "direct")["text"]
        return
    assert ttft["lo"] - 1.5 <= true_ms <= ttft["hi"] + 1.5, ttft
    assert ttft["lo"] > 0 and "higher" == rows["ttft_ms"]["shown"], ttft
    assert "lower" == rows["request_rate_per_s"]["shown"]
    assert "gateway overhead TTFT +" in " ".join(ran["out"].split())


def test_no_two_targets_are_ever_driven_at_once(ran):
    """By the upstream's own log, which both paths end at: with one user each there are never two requests in it."""
    spans = sorted((line["t_received_ns"], line["t_end_ns"]) for line in ran["log"])

    assert len(spans) > 60
    assert [] == [(a, b) for a, b in pairwise(spans) if b[0] < a[1]]


def test_blocks_ran_in_turns(ran):
    """In the order of the plan, each begun after the one before was over; the dead one's later turns were left out."""
    marks = marks_of(ran["out_dir"])
    begun = [mark["step"] for mark in marks if mark["mark"] == "begin"]
    planned = json.loads((ran["out_dir"] / outdir.RUN).read_bytes())["steps"]

    assert [each["step"] for each in planned if each["step"] in begun] == begun
    turns = [{None: "A", "direct": "B"}[each["target"]] for each in planned if each["target"] != "dead"]
    assert "BAABABBA" == "".join(turns)
    assert 9 == len(begun) and ["s01-c1-stream-k1-dead.b1"] == [step for step in begun if "dead" in step]
    states = [mark["mark"] for mark in marks if mark["mark"] in ("begin", "idle")]
    assert ["begin", "idle"] * 9 == states


def test_a_killed_target_beside_is_data(ran):
    """Its rows, its process and what was not run say so; the first one is judged as if it had not been there."""
    result, dead = ran["result"], entry(ran, "dead")

    assert ran["code"] in (0, 3), ran["out"] + ran["err"]
    assert "COMPLETE" == result["run_status"]
    assert {"ok"} == set(result["levels"][0]["outcomes"])
    assert not dead["survival"]["same_process"] and f"(pid {ran['dead']}) was gone" in dead["survival"]["text"]
    assert set(dead["levels"][0]["outcomes"]) & {"connect", "reset"}
    assert [f"s01-c1-stream-k1-dead.b{i}" for i in (2, 3, 4)] == dead["not_run"]
    assert all(row["ratio"]["v"] is None for row in dead["pairs"][0]["measures"])
    assert dead["text"].startswith("dead: the gateway process")
    assert result["target"]["gateway"] is None  # the one process that was watched is not the first target's


def test_its_samples_are_sealed_in_a_file_of_their_own_and_all_of_it_verifies(ran):
    """Marks cut them like the others'; the verdict and the comparison are found again from the files alone."""
    marks, name = marks_of(ran["out_dir"]), outdir.samples_file("dead")
    lines = [json.loads(line) for line in outdir.read_lines(ran["out_dir"] / name)[0]]

    assert ("start", "end", "target_gone") == (lines[0]["kind"], lines[-1]["kind"], lines[-1]["reason"])
    assert {"dead"} == {line["subject"] for line in lines}
    assert name in {seal["file"] for seal in marks[-1]["seals"]} and "finish" == marks[-1]["mark"]
    verified = ha_sweep("verify", str(ran["out_dir"]), cwd=ran["out_dir"].parent)
    assert 0 == verified.returncode, verified.stdout + verified.stderr
    (ran["out_dir"] / name).write_bytes(b"")
    assert 5 == ha_sweep("verify", str(ran["out_dir"]), cwd=ran["out_dir"].parent).returncode


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--beside", "direct=http://127.0.0.1:1"), "beside direct: target http://127.0.0.1:1: Connection refused"),
        (("--beside", "direct={url}", "--gateway-pid", "direct=99999999"), "--gateway-pid direct=99999999: no such"),
        (("--beside", "direct={url}", "--beside-key-env", "direct=NOT_SET"), "--beside-key-env direct=ENV: envir"),
    ],
)
def test_a_target_beside_that_cannot_be_driven_stops_the_run_before_it_begins(more, says, tmp_path):
    """Exit 2 in one line that names its own options; no OUT_DIR, no request."""
    with FakeGateway(UPSTREAM) as fake:
        arguments = [each.format(url=fake.url) for each in more]
        done = ha_sweep("run", "--target", fake.url, *arguments, *LOAD, "--out-dir", "run", cwd=tmp_path)

        assert 2 == done.returncode, done.stdout + done.stderr
        (line,) = done.stderr.splitlines()
        assert says in line
        assert not (tmp_path / "run").exists() and 0 == fake.requests_received
