"""A child ends with all it started in its session; what it prints is kept masked and bounded."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sweep.child_log import HEAD_BYTES, TAIL_BYTES
from sweep.children import Child
from sweep.masking import Masked

DEADLINE_S = 20.0
SECRET = "sk-very-secret-0123456789"
STARTS = """
import os, signal, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
plain = subprocess.Popen(sleep)
job = subprocess.Popen(sleep, process_group=0)
print(plain.pid, job.pid, flush=True)
"""


def child(folder: Path, code: str, masked=str) -> Child:
    return Child(("-c", code), folder / "log", os.environ, folder, masked)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except FileNotFoundError:
        return False


def started(folder: Path) -> list[int]:
    until = time.monotonic() + DEADLINE_S
    while not (log := (folder / "log").read_text()).endswith("\n"):
        assert time.monotonic() < until
        time.sleep(0.02)
    return [int(pid) for pid in log.split()]


def ends_by_itself(one: Child) -> int:
    until = time.monotonic() + DEADLINE_S
    while not one.has_ended():
        assert time.monotonic() < until
        time.sleep(0.02)
    return one.wait(0.0)


@pytest.mark.parametrize(
    ("goes_on", "end", "code"),
    [
        ("", ends_by_itself, 0),
        ("sys.exit(3)", lambda one: one.wait(DEADLINE_S), 3),
        ("time.sleep(60)", lambda one: one.end(DEADLINE_S), -15),
        ("signal.signal(15, 1); print(flush=True); time.sleep(60)", lambda one: one.wait(0.2), -9),
    ],
)
def test_what_a_child_started_in_its_session_ends_with_it(tmp_path, goes_on, end, code):
    """Also of another process group; and however the child ends."""
    one = child(tmp_path, STARTS + goes_on)
    pids = started(tmp_path)
    assert len(pids) == 2

    assert code == end(one)

    until = time.monotonic() + DEADLINE_S
    while any(map(is_running, pids)):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_another_session_does_not_hold_the_end_up(tmp_path):
    """One that holds the log's pipe is not ours to end, and nothing is waited for."""
    setsid = "os.setsid(); print(os.getpid(), flush=True); time.sleep(60)"
    one = child(tmp_path, f"import os, time\nif os.fork() == 0: {setsid}")
    (pid,) = started(tmp_path)
    began = time.monotonic()
    try:
        assert 0 == one.wait(DEADLINE_S)
        assert time.monotonic() - began < DEADLINE_S
        assert is_running(pid)
    finally:
        os.kill(pid, 9)


def test_a_secret_is_masked_before_it_is_in_the_log(tmp_path):
    """In a line, across two writes, and in what is no line."""
    code = f"""
import sys, time
print("key {SECRET} of", flush=True); time.sleep(0.2)
sys.stdout.write("again {SECRET[:9]}"); sys.stdout.flush(); time.sleep(0.2)
sys.stdout.write("{SECRET[9:]}, the end"); sys.stdout.flush()
"""
    one = child(tmp_path, code, Masked([SECRET]))
    seen = ""
    while not one.has_ended():
        seen += (tmp_path / "log").read_text()
    assert "sk-" not in seen
    assert "key *** of\nagain ***, the end" == (tmp_path / "log").read_text()
    assert "again ***, the end" == one.last_words()


@pytest.mark.parametrize("end", ["", "\\n"])
def test_of_much_the_first_and_the_last_part_are_kept(tmp_path, end):
    code = f"""
import sys
sys.stdout.write("first {SECRET}{end}")
for _ in range(400): sys.stdout.write(("x" * 9000 + "{SECRET}") * 3 + "{end}")
sys.stdout.write("last {SECRET}")
"""
    one = child(tmp_path, code, Masked([SECRET]))
    assert 0 == one.wait(DEADLINE_S)
    log = (tmp_path / "log").read_text()
    assert SECRET[3:12] not in log
    assert (log.startswith("first ***"), log.endswith("last ***")) == (True, True)
    assert HEAD_BYTES + TAIL_BYTES / 2 < len(log) < HEAD_BYTES + 2 * TAIL_BYTES + 300_000
    assert "bytes left out]" in log
