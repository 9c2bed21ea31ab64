"""What lets a stranger check the bundle: prefix seals of raw files at marks, at the end a manifest and SHA256SUMS."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from sweep import outdir
from sweep.errors import EvidenceError
from sweep.records import FORMAT, Mark, Seal, from_lines

_RAW = (outdir.SAMPLES, outdir.HEALTH, outdir.CONNECTIONS)
_RAW_FOLDERS = (outdir.REQUESTS, outdir.GENERATOR)
_REQUIRED = (outdir.RUN, outdir.MARKS, outdir.RESULT)
_RENDERED = (outdir.REPORT_HTML, outdir.SUMMARY_MD, outdir.JUNIT_XML)


class PrefixSeals:
    """Running sha256 of every raw file; each byte is read once, however many seals are taken."""

    def __init__(self, out_dir: Path) -> None:
        self._out_dir = out_dir
        self._hashes: dict[str, tuple[Any, int]] = {}

    def take(self) -> list[Seal]:
        """A seal of each raw file as it is now, cut at the end of its last whole line."""
        return [self._seal(name) for name in sorted(self._names())]

    def _names(self) -> Iterator[str]:
        for name in _RAW:
            if (self._out_dir / name).exists():
                yield name
        for path in self._out_dir.glob(outdir.samples_file("*")):
            yield path.name
        for folder in _RAW_FOLDERS:
            for path in (self._out_dir / folder).iterdir():
                yield f"{folder}/{path.name}"

    def _seal(self, name: str) -> Seal:
        digest, n_bytes = self._hashes.get(name, (hashlib.sha256(), 0))
        with (self._out_dir / name).open("rb") as file:
            file.seek(n_bytes)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        digest.update(new)
        n_bytes += len(new)
        self._hashes[name] = (digest, n_bytes)
        return Seal(name, n_bytes, digest.copy().hexdigest())


class FileEntry(msgspec.Struct, frozen=True):
    """One file of a bundle; bytes and sha256 are null when it is missing."""

    path: str
    bytes: int | None
    sha256: str | None
    role: Literal["evidence", "judged", "rendered"]
    required: bool
    status: Literal["present", "missing"]


class Manifest(msgspec.Struct, frozen=True):
    format: int
    files: list[FileEntry]


def write_manifest(out_dir: Path) -> None:
    """manifest.json (every file of the bundle) and SHA256SUMS, which covers the manifest too."""
    files = [_entry(out_dir, path) for path in sorted(_files(out_dir))]
    listed = {entry.path for entry in files}
    files += [FileEntry(name, None, None, role_of(name), True, "missing") for name in _REQUIRED if name not in listed]
    content = msgspec.json.format(msgspec.json.encode(Manifest(FORMAT, files)), indent=1)
    outdir.write_atomic(out_dir / outdir.MANIFEST, content)
    outdir.write_atomic(out_dir / outdir.SHA256SUMS, sums(content, files))


def sums(manifest: bytes, files: Sequence[FileEntry]) -> bytes:
    """SHA256SUMS of a manifest and the files it lists, as `sha256sum -c` reads it."""
    lines = [f"{entry.sha256}  {entry.path}\n" for entry in files if entry.status == "present"]
    lines.append(f"{hashlib.sha256(manifest).hexdigest()}  {outdir.MANIFEST}\n")
    return "".join(lines).encode()


def seal_faults(out_dir: Path) -> Iterator[str]:
    """Each prefix seal against the file's first bytes; of each file only the last seal, which covers the others."""
    lines, _ = outdir.read_lines(out_dir / outdir.MARKS)
    try:
        marks = from_lines(Mark, lines, outdir.MARKS)
    except EvidenceError as error:
        yield str(error)
        return
    for sealed in {each.file: each for mark in marks for each in mark.seals}.values():
        path = out_dir / sealed.file
        content = path.read_bytes()[: sealed.bytes] if path.is_file() else b""
        if hashlib.sha256(content).hexdigest() != sealed.sha256:
            yield f"{sealed.file}: its first {sealed.bytes} bytes are not those sealed during the run"


def role_of(name: str) -> Literal["evidence", "judged", "rendered"]:
    if name == outdir.RESULT:
        return "judged"
    return "rendered" if name in _RENDERED or name.startswith(f"{outdir.PLOTS}/") else "evidence"


def _files(out_dir: Path) -> Iterator[str]:
    for path in out_dir.rglob("*"):
        name = path.relative_to(out_dir).as_posix()
        if path.is_file() and not path.is_symlink() and name not in (outdir.MANIFEST, outdir.SHA256SUMS):
            yield name


def _entry(out_dir: Path, name: str) -> FileEntry:
    with (out_dir / name).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        n_bytes = file.tell()
    return FileEntry(name, n_bytes, digest, role_of(name), name in _REQUIRED, "present")
