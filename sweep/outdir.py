"""Every evidence file's name, and the two ways a file is written: append one line, or replace atomically.

Nothing else in the project spells a file name of OUT_DIR. Names match [A-Za-z0-9._-]+.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from sweep.errors import EvidenceError, PlanError

RUN = "run.json"
MARKS = "marks.jsonl"
SAMPLES = "samples.jsonl"
HEALTH = "health.jsonl"
CONNECTIONS = "connections.jsonl"
RESULT = "result.json"
REPORT_HTML = "report.html"
SUMMARY_MD = "summary.md"
JUNIT_XML = "junit.xml"
MANIFEST = "manifest.json"
SHA256SUMS = "SHA256SUMS"
STOP = "STOP"
TRACEBACK = "traceback.txt"

REQUESTS = "requests"
GENERATOR = "generator"
SNAPSHOTS = "snapshots"
LOCUST = "locust"
PLOTS = "plots"

NAME = re.compile(r"[A-Za-z0-9._-]+")


def samples_file(target: str | None) -> str:
    """Samples of a target beside the first one have a file of their own."""
    return SAMPLES if target is None else f"samples.{target}.jsonl"


def requests_file(step: str, worker: str) -> str:
    return f"{REQUESTS}/{step}.{worker}.jsonl"


def generator_file(step: str, worker: str) -> str:
    return f"{GENERATOR}/{step}.{worker}.jsonl"


def locust_json(step: str) -> str:
    return f"{LOCUST}/{step}.json"


def locust_log(step: str) -> str:
    return f"{LOCUST}/{step}.log"


def snapshot_file(mark: str) -> str:
    return f"{SNAPSHOTS}/{mark}.json"


def create(out_dir: Path) -> None:
    """Makes OUT_DIR and its folders, for its owner only. Raises PlanError when it holds files or cannot be written."""
    try:
        if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
            raise PlanError(f"OUT_DIR {out_dir} is not an empty folder; give --out-dir a new one")
        out_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (REQUESTS, GENERATOR, SNAPSHOTS, LOCUST):
            (out_dir / folder).mkdir(mode=0o700)
        with tempfile.TemporaryFile(dir=out_dir):
            pass
    except OSError as error:
        raise PlanError(f"OUT_DIR {out_dir}: {error.strerror}; give --out-dir a writable folder") from error


class LineFile:
    """Append-only JSON Lines: one write() a line, so that a kill tears at most the last one."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, line: bytes) -> None:
        """Writes one line. Raises OSError (disk full); a partial line is completed or the error is raised."""
        written = os.write(self._fd, line)
        while written < len(line):
            written += os.write(self._fd, line[written:])

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_lines(path: Path) -> tuple[list[bytes], bool]:
    """Whole lines of a JSON Lines file, and whether its last line was torn (no newline). A missing file has none.

    Raises EvidenceError when the file exists and cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], False
    except OSError as error:
        raise EvidenceError(f"{path}: {error.strerror}; the evidence cannot be read") from error
    lines = content.split(b"\n")
    torn = lines.pop() != b""
    return lines, torn


def check_plain(out_dir: Path) -> None:
    """Raises EvidenceError when the folder holds what no run writes: a link leads elsewhere, a pipe is waited for."""
    for path in out_dir.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise EvidenceError(f"{path.relative_to(out_dir)}: neither a file nor a folder, and no run writes such")


def write_atomic(path: Path, content: bytes) -> None:
    """The file holds the old or the new content, never half of it."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def data_folder(name: str) -> Path:
    """`templates` or `locustfiles`: inside the package in a wheel, beside it in an editable install."""
    package = Path(__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
