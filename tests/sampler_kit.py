"""Real processes to sample, and the sampler run as its users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 10.0

# Runs each line it is given and prints `result`; so a test can ask the process itself what is true of it.
CHILD = """
import ctypes, os, signal, sys, threading, time
libc = ctypes.CDLL(None)
space = dict(globals())
for line in sys.stdin:
    space["result"] = None
    exec(line, space)
    print(repr(space["result"]), flush=True)
"""


class Child:
    """A Python process that does what it is told, one line at a time."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process
        self.pid = process.pid

    def do(self, code: str) -> object:
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()
        return eval(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def child(*arguments: str) -> Iterator[Child]:
    command = [sys.executable, "-S", "-c", CHILD, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            one = Child(process)
            one.do("pass")
            yield one
        finally:
            process.kill()


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "sampler", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("GATEWAY_PID", "OUT_DIR")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def run(*arguments: object, **more: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=30, check=False,
        **{"env": environment(), **more},
    )


@contextmanager
def running(*arguments: object, **more: object) -> Iterator[subprocess.Popen]:
    with subprocess.Popen(command("run", *arguments), stderr=subprocess.PIPE, env=environment(), **more) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(out_dir: Path) -> list[dict]:
    """The whole lines written so far."""
    path = out_dir / "samples.jsonl"
    content = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def samples(out_dir: Path) -> list[dict]:
    return [line for line in lines(out_dir) if line["kind"] == "sample"]


def state(pid: int) -> str:
    """The letter of its state: R S D T Z."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]


def wait_for(condition: Callable[[], object], what: str) -> object:
    """Waits until the condition holds and gives what it gave."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within {DEADLINE_S:.0f} s: {what}")
