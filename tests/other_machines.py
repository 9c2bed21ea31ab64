"""A run whose load comes from two other machines: network namespaces with host names and clocks of their own.

Runs by itself in a network namespace: `unshare --net python tests/other_machines.py FOLDER`. First a whole run into
FOLDER/run, then one that is killed; prints what it saw as JSON, instants CLOCK_MONOTONIC ns of the first machine.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from command import QUICK, marks_of, result_of, start_ha_sweep
from fake_gateway import FakeGateway

from sweep import outdir
from sweep.ownership import command_line, parents

CLOCKS_APART_S = 100_000
DEADLINE_S = 60.0
AFTER_S = 0.5  # for a request that would come all the same
FAST = {"ttft_s": 0.02, "gap_s": 0.002, "n_tokens": 4}


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def here(n: int) -> str:
    return f"10.77.{n}.1"


def start_machine(n: int, folder: Path) -> subprocess.Popen:
    """Its `ha-sweep worker`; ends with us."""
    command = ["unshare", "--net", "--uts", "--time", "--monotonic", str(n * CLOCKS_APART_S), "--fork", "--kill-child"]
    with (folder / f"machine{n}.log").open("w") as log:
        machine = subprocess.Popen(
            [*command, sys.executable, __file__, f"machine{n}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    ip("link", "add", f"to{n}", "type", "veth", "peer", "name", f"from{n}")
    ip("addr", "add", f"{here(n)}/24", "dev", f"to{n}")
    ip("link", "set", f"to{n}", "up")
    until = time.monotonic() + DEADLINE_S
    while os.stat(f"/proc/{machine.pid}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino:
        assert time.monotonic() < until
        time.sleep(0.01)
    ip("link", "set", f"from{n}", "netns", str(machine.pid))
    return machine


def be_machine(n: int) -> None:
    socket.sethostname(f"machine{n}")
    while f"from{n}" not in (name for _, name in socket.if_nameindex()):
        time.sleep(0.01)
    for arguments in (
        ("link", "set", "lo", "up"), ("addr", "add", f"10.77.{n}.2/24", "dev", f"from{n}"),
        ("link", "set", f"from{n}", "up"), ("route", "add", "default", "via", here(n)),
    ):  # fmt: skip
        ip(*arguments)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "sweep", "worker", "--master", here(n)])


def start_run(folder: Path, name: str, url: str, *more: str) -> subprocess.Popen:
    arguments = (
        "--target", url, "--allow-host", here(1), "--acknowledge-load", "tests: two machines", "--api", "openai-chat",
        "--model", "m", "--mode", "stream", "--levels", "3", "--expect-workers", "2", "--master-bind", "0.0.0.0",
        "--drain", "2s", "--out-dir", str(folder / name), "--quiet",
    )  # fmt: skip
    return start_ha_sweep("run", *QUICK, *arguments, *more, cwd=folder)


def received(gateway: FakeGateway, step: str = "") -> dict[str, int]:
    """request id -> when it was in, of the step's requests."""
    lines = [(line["request_id"], line["t_received_ns"]) for line in gateway.log(kind="received")]
    return {request_id: t_ns for request_id, t_ns in lines if request_id.startswith(step)}


def until_finished(run: subprocess.Popen, out_dir: Path) -> None:
    """Its load is over; what it judges meanwhile needs no worker."""
    until = time.monotonic() + DEADLINE_S
    while not (out_dir / outdir.MARKS).exists() or "finish" not in [mark["mark"] for mark in marks_of(out_dir)]:
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


def master_of(run: subprocess.Popen) -> int:
    children = [pid for pid, parent in parents().items() if parent == run.pid]
    return next(pid for pid in children if b"--master-bind-host" in (command_line(pid) or b""))


def run_that_is_killed(folder: Path, gateway: FakeGateway, url: str) -> dict:
    n_before = len(gateway.log(kind="received"))
    with start_run(folder, "killed", url, "--duration", "50s", "--max-step", "50s") as run:
        until = time.monotonic() + DEADLINE_S
        while not (folder / "killed" / outdir.generator_file("s01-c3-stream-k1", "w01")).exists() or (
            len(gateway.log(kind="received")) < n_before + 50
        ):
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < until
            time.sleep(0.02)
        # Locust's master first: one that sees ha-sweep's end before its own tells its workers to stop.
        os.kill(master_of(run), signal.SIGKILL)
        run.send_signal(signal.SIGKILL)
        t_kill_ns = time.monotonic_ns()
    while not all("its load ended" in (folder / f"machine{n}.log").read_text() for n in (1, 2)):
        assert time.monotonic() < until
        time.sleep(0.1)
    time.sleep(AFTER_S)
    return {"t_kill_ns": t_kill_ns, "received": received(gateway)}


def main(folder: Path) -> None:
    ip("link", "set", "lo", "up")
    machines = [start_machine(n, folder) for n in (1, 2)]
    try:
        with FakeGateway(FAST, host="0.0.0.0") as gateway:
            url = f"http://{here(1)}:{gateway.port}"
            with start_run(folder, "run", url, "--max-step", "2s") as run:
                until_finished(run, folder / "run")
                whole = {"received": received(gateway, "s01-")}
                killed = run_that_is_killed(folder, gateway, url)
                said = run.communicate(timeout=DEADLINE_S)
            whole |= {"said": said, "result": result_of(folder / "run")}
        alive = [machine.poll() is None for machine in machines]
    finally:
        for machine in machines:
            machine.kill()
            machine.wait()
    print(json.dumps({"whole": whole, "killed": killed, "alive": alive}))


if __name__ == "__main__":
    if sys.argv[1].startswith("machine"):
        be_machine(int(sys.argv[1][-1]))
    else:
        main(Path(sys.argv[1]))
