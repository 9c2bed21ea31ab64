"""Bad input: one clear line, exit 2, no load sent, nothing left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import QUICK, ha_sweep
from demo_process import demo
from fake_gateway import FakeGateway


def refused(*arguments: str, cwd: Path, **environment: str) -> str:
    """The one line; checks everything all refusals have in common."""
    before = sorted(path.name for path in cwd.iterdir())
    done = ha_sweep("run", "--levels", "1", *QUICK, *arguments, cwd=cwd, **environment)
    lines = done.stderr.strip().splitlines()
    assert (2, 1) == (done.returncode, len(lines)), done.stderr
    assert lines[0].startswith("ha-sweep: ")
    assert before == sorted(path.name for path in cwd.iterdir())
    return lines[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--api", "openai-chatt"], ["openai-chatt", "did you mean", "openai-chat"]),
        (["--levels", "1,x"], ["'x'", "whole number"]),
        (["--levels", "0/s"], ["0/s", "level 0"]),
        (["--slo", "ttft<=5"], ["ttft", "ttft_ms"]),
        (["--duration", "fast"], ["'fast'", "1.5m"]),
        (["--extra-body", "{x"], ["--extra-body", "JSON"]),
        (["--extra-body", '{"stream": true}'], ["'stream'", "--mode"]),
        (["--name", "a/b"], ["--name", "file name"]),
        (["--frobnicate"], ["--frobnicate"]),
        (["--target", "http://10.1.2.3:80"], ["--allow-host 10.1.2.3", "--acknowledge-load"]),
        (["--target", "ftp://x"], ["ftp://x", "http"]),
        (["--api-key-env", "NOT_SET_ANYWHERE"], ["NOT_SET_ANYWHERE", "not set"]),
    ],
)
def test_an_option_that_cannot_be_is_one_line(tmp_path, arguments, words):
    """What happened, to what, what to do next."""
    line = refused("--target", "http://127.0.0.1:9", *arguments, cwd=tmp_path)

    assert [] == [word for word in words if word not in line]


def test_no_target_names_the_options(tmp_path):
    """Neither --target nor --demo."""
    line = refused(cwd=tmp_path)

    assert "--target" in line and "--demo" in line


def test_unreachable_target(tmp_path):
    """Nothing listens: said before OUT_DIR is made."""
    line = refused("--target", f"http://127.0.0.1:{free_port()}", "--model", "m", cwd=tmp_path)

    assert "Connection refused" in line


def test_dead_pid(tmp_path):
    """A PID that is no process."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    line = refused("--target", "http://127.0.0.1:9", cwd=tmp_path, GATEWAY_PID=str(ended.pid))

    assert f"--gateway-pid {ended.pid}" in line and "no such process" in line


def test_zombie_pid(tmp_path):
    """A process that has ended and was not waited for is no gateway."""
    zombie = subprocess.Popen(["true"])
    while "Z" != Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(")")[2].split()[0]:
        time.sleep(0.01)
    line = refused("--target", "http://127.0.0.1:9", "--gateway-pid", str(zombie.pid), cwd=tmp_path)
    zombie.wait()

    assert "zombie" in line


def test_a_kernel_thread_is_refused(tmp_path):
    """Pid 2 is kthreadd wherever it can be seen; in a PID namespace of its own there is none."""
    line = refused("--target", "http://127.0.0.1:9", "--gateway-pid", "2", cwd=tmp_path)

    assert "kernel thread" in line or "no such process" in line


@pytest.mark.slow
def test_a_pid_that_does_not_hold_the_port_names_who_does(tmp_path):
    """Ownership contradicted: the owner of the socket is named, and no request was sent."""
    with demo() as gateway, subprocess.Popen(["sleep", "60"]) as other:
        line = refused(
            "--target", f"http://127.0.0.1:{gateway.port}", "--gateway-pid", str(other.pid), "--model", "demo-1",
            cwd=tmp_path,
        )  # fmt: skip
        other.kill()

        assert f"pid {gateway.pid}" in line and "--gateway-listen" in line


@pytest.mark.slow
def test_out_dir_that_holds_files(tmp_path):
    """A non-empty OUT_DIR is refused and stays as it was."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("mine")
    with demo() as gateway:
        url = f"http://127.0.0.1:{gateway.port}"
        line = refused("--target", url, "--out-dir", str(tmp_path / "kept"), cwd=tmp_path)

    assert "not an empty folder" in line
    assert "mine" == (tmp_path / "kept" / "file").read_text()


@pytest.mark.slow
def test_out_dir_that_cannot_be_written(tmp_path):
    """Root ignores modes, so a path below a file stands for an unwritable folder; others get a read-only folder too."""
    (tmp_path / "file").write_text("")
    with demo() as gateway:
        line = refused(
            "--target", f"http://127.0.0.1:{gateway.port}", "--out-dir", str(tmp_path / "file" / "x"), cwd=tmp_path
        )

    assert "--out-dir" in line


@pytest.mark.slow
def test_wrong_and_missing_key(tmp_path):
    """A 401 names the option, never the key."""
    with demo("--api-key-env", "DEMO_KEY", env=dict(os.environ) | {"DEMO_KEY": "right-key"}) as gateway:
        target = ("--target", f"http://127.0.0.1:{gateway.port}", "--model", "demo-1")
        missing = refused(*target, cwd=tmp_path)
        wrong = refused(*target, "--api-key-env", "MY_KEY", cwd=tmp_path, MY_KEY="wr0ng-s3cret")

    assert "--api-key-env" in missing
    assert "MY_KEY" in wrong and "refused" in wrong
    assert "wr0ng-s3cret" not in wrong


@pytest.mark.slow
def test_unknown_model_lists_what_there_is(tmp_path):
    """The near name is offered."""
    with demo() as gateway:
        line = refused("--target", f"http://127.0.0.1:{gateway.port}", "--model", "demo-2", cwd=tmp_path)

    assert "demo-2" in line and "demo-1" in line


@pytest.mark.slow
def test_a_web_page_is_no_gateway(tmp_path):
    """HTML with status 200."""
    page = "HTTP 200 text/html\n---\n<!DOCTYPE html><html><body>Welcome</body></html>"
    with FakeGateway(page) as fake:
        line = refused("--target", fake.url, "--model", "m", cwd=tmp_path)

    assert "web page" in line and "--api" in line


@pytest.mark.slow
def test_dry_run_sends_nothing(tmp_path):
    """The whole plan is printed, SLOs as sentences; the target hears nothing and no folder is made."""
    with FakeGateway() as fake:
        done = ha_sweep(
            "run", "--levels", "1,4", "--target", fake.url, "--dry-run", "--slo", "stream.ttft_ms.p95<=500",
            cwd=tmp_path,
        )  # fmt: skip
        received = fake.requests_received

    assert (0, 0) == (done.returncode, received)
    assert "95 %" in done.stdout and "s01-c1-stream-k1" in done.stdout
    assert [] == list(tmp_path.iterdir())


def test_a_fault_of_ours_is_exit_5(tmp_path):
    """Not 1, which is only ever a judgement about the target; the traceback is in a file."""
    code = "from sweep import cli, refusals; refusals.check = None; cli.main(['run', '--levels', '1', '--demo'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=30)

    assert 5 == done.returncode
    line = done.stderr.strip()
    trace = Path(line.rpartition(" ")[2])
    assert "fault of ours" in line and trace.read_text().startswith("Traceback")
    trace.unlink()


def test_a_fault_of_ours_while_preparing_is_exit_5_too(tmp_path):
    """The run's scratch folder is gone by then: the traceback is kept beside it."""
    code = (
        "import sweep.prepare\n"
        "def broken(*_): raise KeyError('mine')\n"
        "sweep.prepare.prepare = broken\n"
        "from sweep.cli import main\n"
        "main(['run', '--levels', '1', '--target', 'http://127.0.0.1:9'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True,
        text=True, timeout=30,
    )  # fmt: skip

    assert (5, 1) == (done.returncode, done.stderr.count("\n")), done.stderr
    (trace,) = tmp_path.iterdir()
    assert str(trace) in done.stderr
    assert "KeyError: 'mine'" in trace.read_text()
