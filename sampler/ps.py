"""What the real `ps` says of a process, its threads and its tree: parsed and raw. For marks, never under load.

Names only: arguments and environment can hold keys. Not `comm` but `fname` (its first 8 bytes), and -q, not -p:
procps 4 opens environ and cmdline of every process of the machine to print a `comm` (seen with strace), and environ
is never opened here. One ps costs 9-13 ms; its %CPU is the lifetime average and is not asked for.
"""

# ruff: noqa: B905 - zip(strict=) needs Python 3.10
from __future__ import annotations

import os
import subprocess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Sequence, Tuple, Union

    Row = Dict[str, Union[int, str, None]]
    Snapshot = Dict[str, Union[List[Row], Dict[str, str], None]]

TIMEOUT_S = 10.0
TEXT = ("stat", "time", "fname")
PROCESS = ("pid", "ppid", "uid", "stat", "nlwp", "rss", "vsz", "etimes", "time", "fname")
THREADS = ("pid", "lwp", "stat", "psr", "time", "fname")


def snapshot(pid: int, tree: Sequence[int]) -> Snapshot:
    """`process`, `threads` and `tree` (the process and its descendants `tree`) as rows, `raw` texts, `why` for null.

    rss and vsz in KiB, etimes in s, time as ps prints it (CPU, [DD-]HH:MM:SS).
    """
    found: Snapshot = {}
    raw: Dict[str, str] = {}
    why: Dict[str, str] = {}
    calls: Tuple[Tuple[str, Tuple[str, ...], List[str]], ...] = (
        ("process", PROCESS, ["-q", str(pid)]),
        ("threads", THREADS, ["-L", "-q", str(pid)]),
        ("tree", PROCESS, ["-q", ",".join(str(member) for member in (pid, *tree))]),
    )
    for name, columns, chosen in calls:
        try:
            output = _run(["ps", "-ww", *chosen, "-o", ",".join(columns)])
            raw[name] = output
            found[name] = parse(output, columns)
        except FileNotFoundError:
            found[name], why[name] = None, "no ps on PATH"
        except subprocess.TimeoutExpired:
            found[name], why[name] = None, f"no answer in {TIMEOUT_S:.0f} s"
        except (OSError, ValueError) as error:
            found[name], why[name] = None, f"ps failed: {error}"
    found["raw"], found["why"] = raw, why
    return found


def parse(output: str, columns: Sequence[str]) -> List[Row]:
    """ps's lines below its heading. The name is last and may hold spaces; a line that is too short is left out."""
    rows: List[Row] = []
    for line in output.split("\n")[1:]:
        words = line.split(None, len(columns) - 1)
        if len(words) >= len(columns) - 1 and words:
            words += [""] * (len(columns) - len(words))
            rows.append({
                column: word if column in TEXT else int(word) if word.lstrip("-").isdigit() else None
                for column, word in zip(columns, words)
            })
    return rows


def _run(arguments: List[str]) -> str:
    """ps's standard output. Exit 1 without a complaint means that no process matched: an empty table, no failure.

    Raises OSError, TimeoutExpired, ValueError with ps's complaint (busybox's ps knows none of these options).
    """
    done = subprocess.run(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TIMEOUT_S,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}, check=False,
    )
    if done.returncode not in (0, 1) or (done.returncode and done.stderr):
        complaint = done.stderr.decode("utf-8", "backslashreplace").strip()
        raise ValueError(complaint.partition("\n")[0][:200] or f"exit {done.returncode}")
    return done.stdout.decode("utf-8", "backslashreplace")
