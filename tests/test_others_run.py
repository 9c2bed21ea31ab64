"""A real second client before and during the load, a silent connection, a tunnel: what the run makes of them."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from command import DEADLINE_S, QUICK, ha_sweep, marks_of, result_of, start_ha_sweep
from demo_process import ask, demo
from fake_gateway import FakeGateway
from forwarder import forwarder
from loopback import CHAT
from second_client import second_client

from sweep import outdir

pytestmark = pytest.mark.slow

STEPS = ("s01-c1-stream-k1", "s02-c1-nonstream-k1")
AGREED = ("--acknowledge-load", "ops: a test of ours")


def target(port: int) -> tuple[str, str]:
    return "--target", f"http://127.0.0.1:{port}"


def until_begun(run: subprocess.Popen, out_dir: Path, step: str) -> None:
    """Waits for the step's begin mark."""
    end = time.monotonic() + DEADLINE_S
    marks = out_dir / outdir.MARKS
    while not marks.exists() or ("begin", step) not in [(mark["mark"], mark["step"]) for mark in marks_of(out_dir)]:
        assert run.poll() is None, "".join(run.communicate())
        assert time.monotonic() < end, f"{step} has not begun within {DEADLINE_S:.0f} s"
        time.sleep(0.02)


def test_somebody_who_sends_requests_before_the_run_stops_it(tmp_path):
    """Exit 2 in one line that says how much, by which process, and the option; no OUT_DIR, no request of ours."""
    with demo() as gateway, second_client(gateway.port, "load") as client:
        done = ha_sweep(
            "run", *target(gateway.port), "--levels", "1", "--quiet-check", "2s", "--out-dir", "run", cwd=tmp_path
        )

    assert 2 == done.returncode, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert "requests/s by its own counter demo_gateway_requests_total" in line
    assert f"pid {client.pid}" in line and "--acknowledge-load" in line
    assert not (tmp_path / "run").exists()


def test_processor_time_of_a_silent_gateway_is_somebody_too(tmp_path):
    """A gateway without a metrics page that works while nobody of us asks: its processes' ticks tell."""
    with FakeGateway({"ttft_s": 0.0, "gap_s": 0.0}) as fake, second_client(fake.port, "load"):
        done = ha_sweep(
            "run", *target(fake.port), "--gateway-pid", str(fake.pid), "--levels", "1", "--quiet-check", "2s",
            cwd=tmp_path,
        )  # fmt: skip

    assert 2 == done.returncode, done.stdout + done.stderr
    assert "of a core for 2s in which we asked nothing of it" in done.stderr


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """A run with a silent connection all the time, and a second client during its second step only."""
    folder = tmp_path_factory.mktemp("joined")
    with demo() as gateway, second_client(gateway.port, "idle") as idle:
        gateway.call("POST", CHAT, ask(2, stream=False))  # its counters appear with the first request
        run = start_ha_sweep(
            "run", *target(gateway.port), "--gateway-pid", str(gateway.pid), "--levels", "1", "--duration", "3s",
            "--max-step", "3s", "--warmup", "0.5s", "--cooldown", "0.5s", "--max-tokens", "8", "--prompt-tokens", "64",
            "--quiet-check", "1s", "--out-dir", "run", cwd=folder,
        )  # fmt: skip
        until_begun(run, folder / "run", STEPS[1])
        with second_client(gateway.port, "load") as loading:
            out, err = run.communicate(timeout=DEADLINE_S)
    return {"code": run.returncode, "out": out, "err": err, "idle": idle.pid, "loading": loading.pid,
            "out_dir": folder / "run", "result": result_of(folder / "run")}  # fmt: skip


def test_a_step_that_others_load_is_invalid_and_no_other(joined):
    """By the gateway's own counter; the verdict cannot be PASS."""
    result = joined["result"]
    first, second = result["others"]["during"]

    assert (0.0, "counters") == (first["share"], first["source"]), first
    assert second["share"] > 0.2 and "counters" == second["source"], second
    whys = [step["invalid_why"] or "" for step in result["steps"]]
    assert ["others' traffic" in why for why in whys] == [False, True]
    assert "by the target's own counter demo_gateway_requests_total" in whys[1]
    assert 3 == joined["code"], joined["out"] + joined["err"]
    findings = [row for row in result["findings"] if row["gate"] == "others' traffic"]
    assert [STEPS[0], STEPS[1]] == [row["step"] for row in findings]
    assert "unknown" == findings[1]["status"]


def test_a_silent_connection_is_told_and_disturbs_nothing(joined):
    """Seen before the load with its process, printed, recorded each second, and of no weight."""
    check = joined["result"]["others"]["quiet_check"]

    assert any(f"pid {joined['idle']}" in text for text in check["connections"]), check
    assert [] == check["busy"] and 0 == check["requests_per_s"]
    assert f"pid {joined['idle']}" in joined["out"]
    lines = [json.loads(line) for line in outdir.read_lines(joined["out_dir"] / outdir.CONNECTIONS)[0]]
    assert {True} == {line["n_others"] >= 1 for line in lines[1:]}
    assert {0} == {line["others_in_bytes"] for line in lines[:3]}


def test_the_report_lists_who_was_there(joined):
    """Both clients by their processes, in both renderings; the manifest and seals cover the evidence."""
    for name in (outdir.REPORT_HTML, outdir.SUMMARY_MD):
        text = (joined["out_dir"] / name).read_text()
        assert "Who else was there" in text
        assert f"pid {joined['idle']}" in text and f"pid {joined['loading']}" in text, name
    verified = ha_sweep("verify", str(joined["out_dir"]), cwd=joined["out_dir"].parent)
    assert 0 == verified.returncode, verified.stdout + verified.stderr
    sealed = {seal["file"] for mark in marks_of(joined["out_dir"]) for seal in mark["seals"]}
    assert outdir.CONNECTIONS in sealed


def test_without_counters_the_connections_tell(tmp_path):
    """A gateway that has no metrics page: the bytes of others' connections make the step invalid."""
    with FakeGateway({}) as fake:
        run = start_ha_sweep(
            "run", *target(fake.port), "--model", "m", "--levels", "1", "--mode", "nonstream", "--duration", "4s",
            "--max-step", "4s", "--warmup", "0.5s", "--cooldown", "0.5s", "--max-tokens", "8", "--out-dir", "run",
            cwd=tmp_path,
        )  # fmt: skip
        until_begun(run, tmp_path / "run", "s01-c1-nonstream-k1")
        with second_client(fake.port, "load"):
            out, err = run.communicate(timeout=DEADLINE_S)

    assert 3 == run.returncode, out + err
    result = result_of(tmp_path / "run")
    (during,) = result["others"]["during"]
    assert "connections" == during["source"] and during["share"] > 0.1, during
    assert "others' traffic" in result["steps"][0]["invalid_why"]


def test_a_tunnel_at_the_port_is_no_loopback(tmp_path):
    """Refused without consent, by name; with it the run goes on, and says that times include the tunnel."""
    with demo() as gateway, forwarder(gateway.port) as (port, pid):
        refused = ha_sweep("run", *target(port), "--levels", "1", *QUICK, cwd=tmp_path)
        done = ha_sweep(
            "run", *target(port), "--levels", "1", "--mode", "stream", *QUICK, "--allow-host", "127.0.0.1", *AGREED,
            "--max-step", "2s", "--out-dir", "run", cwd=tmp_path,
        )  # fmt: skip

    assert 2 == refused.returncode
    assert f"socat (pid {pid}) listens there, a tunnel" in refused.stderr
    assert "--allow-host 127.0.0.1" in refused.stderr and "--acknowledge-load" in refused.stderr
    assert done.returncode in (0, 3), done.stdout + done.stderr
    (path,) = [row for row in result_of(tmp_path / "run")["findings"] if row["gate"] == "path"]
    assert "warn" == path["status"] and f"socat (pid {pid})" in path["reason"]
    assert {"pid": pid, "comm": "socat", "is_tunnel": True} == result_of(tmp_path / "run")["others"]["listener"]
