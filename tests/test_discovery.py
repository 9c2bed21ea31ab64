"""`GATEWAY_PID=1234 ha-sweep run --levels 1` alone, as a user starts it: what was found is told and recorded."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from command import QUICK, ha_sweep, result_of
from demo_process import demo
from fake_gateway import FakeGateway
from fake_gateway import __file__ as fake_file
from test_bad_input import refused
from test_choosing import NOTHING, OLLAMA

from sweep import outdir


@contextlib.contextmanager
def tree(*every: dict):
    """A process that serves nothing, and for each of these routes a FakeGateway as its child: its PID, their ports."""
    program = (
        "import subprocess, sys\n"
        "every = [subprocess.Popen([sys.executable, sys.argv[1], '--config', each], stdin=subprocess.PIPE,"
        " stdout=subprocess.PIPE) for each in sys.argv[2:]]\n"
        "print(*(each.stdout.readline().decode().strip() for each in every), sep='\\n', flush=True)\n"
        "sys.stdin.read()\n"
        "for each in every: each.communicate(b'')\n"
    )
    routes = [
        {path: one if isinstance(one, list) else [{"script": one}] for path, one in each.items()} for each in every
    ]
    arguments = [json.dumps({"log": "/dev/null", "routes": each}) for each in routes]
    command = [sys.executable, "-c", program, fake_file, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process.pid, [json.loads(process.stdout.readline())["port"] for _ in every]
        process.communicate("")


def run_file(out_dir: Path) -> dict:
    return msgspec.json.decode((out_dir / outdir.RUN).read_bytes())


@pytest.mark.slow
def test_the_pid_alone_is_enough(tmp_path):
    """Target, API and model of the embedded gateway are found, told before the load, recorded, shown in the report."""
    with demo() as gateway:
        options = ("--levels", "1", *QUICK, "--mode", "stream", "--out-dir", "run")
        done = ha_sweep("run", *options, cwd=tmp_path, GATEWAY_PID=str(gateway.pid))
        url = f"http://127.0.0.1:{gateway.port}"
    out_dir = tmp_path / "run"

    assert done.returncode in (0, 3), done.stderr
    guessed = [line.split(" (")[0] for line in done.stdout.splitlines() if line.startswith("guessed: ")]
    expected = [f"--target {url}", "--api openai-chat", "--model demo-1"]
    assert [f"guessed: {each}" for each in expected] == guessed
    run, result = run_file(out_dir), result_of(out_dir)
    assert ["target", "api", "model"] == run["guessed"] == list(run["guesses"])
    assert {"value": "demo-1", "how": "the only one that /v1/models lists"} == run["guesses"]["model"]
    assert (url, "openai-chat", "demo-1", gateway.pid) == tuple(
        run["plan"][name] for name in ("target", "api", "model", "gateway_pid")
    )
    assert "proved" == result["target"]["gateway"]["ownership"]
    for file in (outdir.REPORT_HTML, outdir.SUMMARY_MD):
        text = (out_dir / file).read_text()
        assert "the only one that /v1/models lists" in text and f"listens on 127.0.0.1:{gateway.port}" in text
    assert result["next"] is None or "--target" not in result["next"]


@pytest.mark.slow
def test_an_ollama_among_the_children_of_a_process_is_found(tmp_path):
    """Two ports in children, one of which only has a page of metrics: the other is loaded, in Ollama's own API."""
    ollama = OLLAMA | {"/api/chat": [{"ttft_s": 0.02, "gap_s": 0.001, "n_tokens": None}]}
    with tree(NOTHING, ollama) as (pid, ports):
        form = f"port:{ports[1]}"
        dry = ha_sweep("run", "--levels", "1", "--dry-run", cwd=tmp_path, GATEWAY_PID=form)
        several = ha_sweep("run", "--levels", "1", "--dry-run", cwd=tmp_path, GATEWAY_PID=str(pid))
        done = ha_sweep(
            "run", "--levels", "1", *QUICK, "--mode", "stream", "--gateway", "ollama", "--out-dir", "run",
            cwd=tmp_path, GATEWAY_PID=str(pid),
        )  # fmt: skip

    assert 0 == dry.returncode and f"target: http://127.0.0.1:{ports[1]}\n" in dry.stdout
    assert 2 == several.returncode and f"127.0.0.1:{min(ports)} (pid" in several.stderr
    assert done.returncode in (0, 3), done.stderr
    run = run_file(tmp_path / "run")
    assert f"http://127.0.0.1:{ports[1]}" == run["plan"]["target"]
    assert "the only one that speaks an API" in run["guesses"]["target"]["how"]
    assert {"value": "ollama-chat", "how": "--gateway ollama"} == run["guesses"]["api"]
    assert "/" == run["paths"]["health"]


@pytest.mark.slow
def test_the_form_of_the_process_is_kept(tmp_path):
    """A run that decides too little says how to run again: by the port, not by a PID that is gone after a restart."""
    with FakeGateway() as fake:
        form = f"port:{fake.port}"
        done = ha_sweep(
            "run", "--levels", "1", *QUICK, "--mode", "stream", "--max-requests", "20", "--out-dir", "run",
            cwd=tmp_path, GATEWAY_PID=form,
        )  # fmt: skip
        pid = fake.pid

    assert 3 == done.returncode, done.stdout + done.stderr
    plan = run_file(tmp_path / "run")["plan"]
    assert (pid, form) == (plan["gateway_pid"], plan["gateway_pid_given"])
    words = result_of(tmp_path / "run")["next"].split()
    assert ["ha-sweep", "run", "--levels", "1", "--gateway-pid", form] == words[:6]
    assert not {"--target", "--api", "--model", "--gateway-pid-given"} & set(words)


@pytest.mark.parametrize(
    ("arguments", "process", "words"),
    [
        ([], "unit:no-such-unit-here", ["unit:no-such-unit-here", "no cgroup"]),
        ([], "gateway", ["'gateway'", "port:N"]),
        (["--gateway-listen", "127.0.0.1:1"], "1", ["--gateway-listen", "--target"]),
        (["--gateway", "olama", "--target", "http://127.0.0.1:9"], "", ["did you mean ollama?"]),
    ],
)
def test_what_cannot_be_found_is_one_line(tmp_path, arguments, process, words):
    """Exit 2, nothing sent, nothing left behind."""
    line = refused(*arguments, cwd=tmp_path, GATEWAY_PID=process)

    assert [] == [word for word in words if word not in line]


def test_a_process_without_a_port_is_one_line(tmp_path):
    """The PID of something else."""
    with subprocess.Popen(["sleep", "60"]) as other:
        line = refused(cwd=tmp_path, GATEWAY_PID=str(other.pid))
        other.kill()

    assert f"pid {other.pid} (sleep) listens on no TCP port" in line
