"""A run's folder -> faults: what does not match the manifest or a seal, and what would be judged otherwise today.

Needs nothing but the folder: no network, no clock, no other file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sweep import judge, outdir, report, seal
from sweep.errors import EvidenceError


class Faults(NamedTuple):
    """evidence: files that are not what was sealed. judgement: the result is not what the evidence gives."""

    evidence: tuple[str, ...]
    judgement: tuple[str, ...]


def verify(out_dir: Path) -> Faults:
    """Raises EvidenceError when the folder holds no manifest, or anything but files and folders."""
    outdir.check_plain(out_dir)
    evidence = (*_manifest_faults(out_dir), *seal.seal_faults(out_dir))
    return Faults(evidence, tuple(_judgement_faults(out_dir)))


def changed_evidence(out_dir: Path) -> list[str]:
    """Evidence that is not what the manifest sealed; none in a folder that has no manifest yet. Raises EvidenceError.

    Judged again it would be sealed again, and the change with it.
    """
    if not (out_dir / outdir.MANIFEST).exists():
        return []
    _, files = _manifest(out_dir)
    evidence = [entry for entry in files if entry.role == "evidence" and entry.status == "present"]
    return [fault for entry in evidence if (fault := _fault_of(out_dir, entry)) is not None]


def _fault_of(out_dir: Path, entry: seal.FileEntry) -> str | None:
    path = out_dir / entry.path
    if ".." in Path(entry.path).parts or Path(entry.path).is_absolute():
        return f"{entry.path}: the manifest names a file outside the folder"
    if not path.is_file():
        return f"{entry.path}: missing"
    return None if _sha256(path) == entry.sha256 else f"{entry.path}: changed since it was sealed"


def _manifest_faults(out_dir: Path) -> Iterator[str]:
    content, files = _manifest(out_dir)
    listed = {entry.path for entry in files}
    for path in sorted(out_dir.rglob("*")):
        name = path.relative_to(out_dir).as_posix()
        if path.is_file() and name not in listed and name not in (outdir.MANIFEST, outdir.SHA256SUMS):
            yield f"{name}: not in the manifest"
    yield from (fault for entry in files if (fault := _fault_of(out_dir, entry)) is not None)
    sums = out_dir / outdir.SHA256SUMS
    if not sums.is_file() or sums.read_bytes() != seal.sums(content, files):
        yield f"{outdir.SHA256SUMS}: does not say what the manifest says"


def _manifest(out_dir: Path) -> tuple[bytes, list[seal.FileEntry]]:
    """The manifest as written, and its entries."""
    try:
        content = (out_dir / outdir.MANIFEST).read_bytes()
        return content, msgspec.json.decode(content, type=seal.Manifest).files
    except FileNotFoundError as error:
        missing = f"{out_dir} has no {outdir.MANIFEST}: it was not sealed"
        raise EvidenceError(f"{missing}; of a run that was killed `ha-sweep report` makes the report first") from error
    except (OSError, msgspec.DecodeError) as error:
        raise EvidenceError(f"{out_dir}/{outdir.MANIFEST} cannot be read ({error}); this is no sealed run") from error


def _judgement_faults(out_dir: Path) -> Iterator[str]:
    stored = (out_dir / outdir.RESULT).read_bytes() if (out_dir / outdir.RESULT).is_file() else None
    if stored is None:
        yield f"{outdir.RESULT}: missing; `ha-sweep report` writes it"
        return
    try:
        today = report.to_json(judge.judge(out_dir))
    except EvidenceError as error:
        yield str(error)
        return
    if stored == today:
        return
    now = msgspec.json.decode(today)
    try:
        before = msgspec.json.decode(stored, type=dict[str, Any])
    except msgspec.DecodeError as error:
        yield f"{outdir.RESULT}: {error}"
        return
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    yield (
        f"{outdir.RESULT} says {before.get('verdict')}, the evidence gives {now['verdict']}; "
        f"they differ in {', '.join(keys[:5])}"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
