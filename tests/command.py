"""The real `ha-sweep` as a process: run to its end, or started to be stopped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from sweep import outdir

DEADLINE_S = 150.0
QUICK = ("--duration", "1s", "--warmup", "0.3s", "--cooldown", "0.5s", "--max-tokens", "4", "--prompt-tokens", "16")


def clean_environment(**more: str) -> dict[str, str]:
    """Ours without what would set options."""
    dropped = ("GATEWAY_PID", "OUT_DIR")
    return {name: value for name, value in os.environ.items() if name not in dropped} | more


def quickly(arguments: tuple[str, ...]) -> list[str]:
    """A run looks ten seconds for others before it sends anything; tests that are not about that need not wait."""
    is_run = arguments[:1] == ("run",) and not {"--quiet-check", "--demo", "--dry-run"} & set(arguments)
    return [*arguments[:1], *(("--quiet-check", "0") if is_run else ()), *arguments[1:]]


def ha_sweep(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "sweep", *quickly(arguments)],
        cwd=cwd,
        env=clean_environment(**environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def start_ha_sweep(*arguments: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "sweep", *quickly(arguments)],
        cwd=cwd,
        env=clean_environment(**environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def undisturbed(attempt: Callable[[], subprocess.CompletedProcess[str]]) -> subprocess.CompletedProcess[str]:
    """The first of at most three attempts, each in a folder of its own, that the machine's other work did not spoil.

    A generator that was late or saturated makes its step invalid, as it must: such a run says nothing of the target.
    """
    for _ in range(2):
        done = attempt()
        if done.returncode != 3 or not _LATE.search(done.stdout):
            return done
    return attempt()


_LATE = re.compile(r"generator (late|saturated)|no generator/ line")


def result_of(out_dir: Path) -> Mapping:
    return msgspec.json.decode((out_dir / outdir.RESULT).read_bytes())


def marks_of(out_dir: Path) -> list[Mapping]:
    return [msgspec.json.decode(line) for line in outdir.read_lines(out_dir / outdir.MARKS)[0]]
