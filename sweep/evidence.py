"""OUT_DIR -> Evidence: every raw file decoded, checked once against its column table, nothing judged.

A torn last line is dropped and counted, a missing file is named; both are Problems, for a killed run is readable.
Any other damage, and files that contradict each other, raise EvidenceError.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pandas as pd

from sweep import other_clocks, outdir, sample_lines
from sweep.errors import EvidenceError
from sweep.other_clocks import Ahead
from sweep.records import FORMAT, ConnectionLine, GeneratorLine, HealthLine, Mark, Record, from_lines

# Decoded at once: 10,000 records of 128 gaps are about 50 MB of Python integers before they become arrays.
CHUNK_LINES = 10_000
INSTANTS = (
    "t_sent_ns", "t_headers_ns", "t_event_ns", "t_first_ns", "t_answer_ns", "t_last_ns", "t_end_ns", "t_over_ns",
)  # fmt: skip
OWN_INSTANTS = ("t_due_ns", "t_start_ns", *INSTANTS)

Line = TypeVar("Line", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What OUT_DIR holds.

    requests: one row a request of every step (and `preflight`), the columns of Record and `worker`; integers that may
        be missing are Int64, texts `string`; gaps_us an int array a row, read_tokens an int array or None.
    generator: the columns of GeneratorLine, `step`, `worker`. health: the columns of HealthLine.
    connections: the columns of ConnectionLine.
    ahead_ns: what was added to the instants of workers on other machines.
    samples: one row a sample; processes: one row a process of a sample (sample_lines.py gives both shapes).
    step_files: step -> locust/<step>.json. snapshots: mark -> snapshots/<mark>.json.
    """

    out_dir: Path
    run: dict[str, Any]
    marks: list[Mark]
    requests: pd.DataFrame
    generator: pd.DataFrame
    health: pd.DataFrame
    sampler_starts: list[dict[str, Any]]
    sampler_ends: list[dict[str, Any]]
    samples: pd.DataFrame
    processes: pd.DataFrame
    step_files: dict[str, dict[str, Any]]
    snapshots: dict[str, dict[str, Any]]
    problems: list[str]
    connections: pd.DataFrame = field(default_factory=lambda: frame(ConnectionLine, []))
    ahead_ns: Ahead = field(default_factory=dict)


def read(out_dir: Path) -> Evidence:
    """Reads a run, finished or killed.

    Raises EvidenceError when run.json is missing, when a line other than a torn last one is damaged, when a file is of
    a newer format, or when files contradict each other.
    """
    problems: list[str] = []
    run = read_run(out_dir)
    marks = from_lines(Mark, _lines(out_dir, outdir.MARKS, problems, required=True), outdir.MARKS)
    starts, samples, ends = _read_samples(out_dir, run, problems)
    snapshots = _read_folder(out_dir, outdir.SNAPSHOTS)
    problems += _snapshot_problems(snapshots)
    health = from_lines(HealthLine, _lines(out_dir, outdir.HEALTH, problems, required=False), outdir.HEALTH)
    looked = (run.get("others") or {"connections_why": "not looked"}).get("connections_why") is None
    looks = from_lines(
        ConnectionLine, _lines(out_dir, outdir.CONNECTIONS, problems, required=looked), outdir.CONNECTIONS
    )
    step_files = _read_folder(out_dir, outdir.LOCUST)
    generator = _read_generator(out_dir, problems)
    ahead = other_clocks.ahead_ns(generator, step_files)
    return Evidence(
        out_dir=out_dir,
        run=run,
        marks=marks,
        requests=other_clocks.on_our_clock(_read_requests(out_dir, problems), OWN_INSTANTS, ahead),
        generator=other_clocks.on_our_clock(generator, ("t_mono_ns",), ahead),
        health=frame(HealthLine, health),
        sampler_starts=starts,
        sampler_ends=ends,
        samples=sample_lines.sample_frame(samples),
        processes=sample_lines.process_frame(samples),
        step_files=step_files,
        snapshots=snapshots,
        problems=problems,
        connections=frame(ConnectionLine, looks),
        ahead_ns=ahead,
    )


def read_run(out_dir: Path) -> dict[str, Any]:
    """run.json. Raises EvidenceError when it is missing, damaged or of a newer format, or OUT_DIR holds odd entries."""
    outdir.check_plain(out_dir)
    path = out_dir / outdir.RUN
    if not path.is_file():
        raise EvidenceError(f"{out_dir} has no {outdir.RUN}; give the OUT_DIR of a run")
    run = _read_json(path, outdir.RUN)
    if run.get("format") != FORMAT:
        raise EvidenceError(f"{outdir.RUN}: format {run.get('format')!r}, this version reads {FORMAT}")
    return run


def frame(line_type: type[Line], lines: Sequence[Line]) -> pd.DataFrame:
    """Lines as a frame with the columns of their type, in its order; missing is NA, lists stay objects."""
    hints = get_type_hints(line_type)
    columns = {}
    for name in line_type.__struct_fields__:
        values = [getattr(line, name) for line in lines]
        dtype = _dtype(hints[name])
        if dtype == "object":
            cells = np.empty(len(values), dtype=object)
            for index, value in enumerate(values):
                cells[index] = value
            columns[name] = pd.Series(cells, dtype="object")
        else:
            columns[name] = pd.Series(values, dtype=dtype)
    return pd.DataFrame(columns)


def _dtype(hint: Any) -> str:
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    optional = type(None) in parts
    kind = next(part for part in parts if part is not type(None))
    if kind is int:
        return "Int64" if optional else "int64"
    if kind is float:
        return "Float64" if optional else "float64"
    if kind is bool:
        return "bool"
    if kind is str or isinstance(get_args(kind)[:1] and get_args(kind)[0], str):
        return "string"
    return "object"


def _lines(out_dir: Path, name: str, problems: list[str], *, required: bool) -> list[bytes]:
    path = out_dir / name
    if required and not path.exists():
        problems.append(f"{name} is missing")
    lines, torn = outdir.read_lines(path)
    if torn:
        problems.append(f"{name}: its last line was torn and is not counted")
    return lines


def _read_samples(
    out_dir: Path, run: dict[str, Any], problems: list[str]
) -> tuple[list[dict[str, Any]], list[sample_lines.SampleLine], list[dict[str, Any]]]:
    """Start lines, samples and end lines of every process that was watched, one file each."""
    starts, samples, ends = [], [], []
    subjects = run.get("subjects") or []
    for name in dict.fromkeys(outdir.samples_file(each.get("target")) for each in subjects or [{}]):
        lines = _lines(out_dir, name, problems, required=bool(subjects))
        found = sample_lines.decode(lines, name)
        if found[1] and not found[2]:
            problems.append(f"{name} has no end line: the sampler was killed")
        starts += found[0]
        samples += found[1]
        ends += found[2]
    return starts, samples, ends


def _read_requests(out_dir: Path, problems: list[str]) -> pd.DataFrame:
    frames = []
    for path, step, worker in _step_files(out_dir / outdir.REQUESTS, problems):
        source = f"{outdir.REQUESTS}/{path.name}"
        lines = _lines(out_dir, source, problems, required=False)
        for begin in range(0, len(lines), CHUNK_LINES):
            records = _records(lines, begin, source)
            _check(records, step, source)
            gaps = _flat_views([record.gaps_us for record in records])
            tokens = [None if record.read_tokens is None else np.array(record.read_tokens) for record in records]
            for record in records:
                record.gaps_us, record.read_tokens = [], None
            part = frame(Record, records)
            part["gaps_us"] = pd.Series(gaps, dtype="object")
            part["read_tokens"] = pd.Series(tokens, dtype="object")
            part["worker"] = pd.Series(pd.array([worker] * len(records), dtype="string"))
            frames.append(part)
    if not frames:
        return frame(Record, []).assign(worker=pd.Series(pd.array([], dtype="string")))
    return pd.concat(frames, ignore_index=True)


def _records(lines: Sequence[bytes], begin: int, source: str) -> list[Record]:
    chunk = lines[begin : begin + CHUNK_LINES]
    try:
        records = msgspec.json.Decoder(Record).decode_lines(b"\n".join(chunk))
    except msgspec.DecodeError:
        return from_lines(Record, lines, source)  # again, one by one: it raises with the line's number
    return records if len(records) == len(chunk) else from_lines(Record, lines, source)  # it passes over empty lines


def _check(records: Sequence[Record], step: str, source: str) -> None:
    for record in records:
        if record.step != step:
            raise EvidenceError(f"{source}: request {record.request_id} says step {record.step!r}: files were mixed")
        for name in INSTANTS:
            instant = getattr(record, name)
            if instant is not None and instant < record.t_start_ns:
                raise EvidenceError(f"{source}: request {record.request_id}: {name} is before t_start_ns")
        if record.read_tokens is not None and len(record.read_tokens) != len(record.gaps_us) + 1:
            raise EvidenceError(f"{source}: request {record.request_id}: read_tokens and gaps_us do not fit together")
        if record.outcome == "ok" and record.t_end_ns is None:
            raise EvidenceError(f"{source}: request {record.request_id} is ok without t_end_ns")


def _flat_views(lists: Sequence[Sequence[int]]) -> list[np.ndarray[Any, Any]]:
    """One array a request, all of them views of one block."""
    lengths = np.fromiter((len(values) for values in lists), dtype=np.int64, count=len(lists))
    flat: np.ndarray[Any, Any] = np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=int(lengths.sum()))
    if not len(flat) or flat.max() < 2**31:
        flat = flat.astype(np.int32)  # half the memory, for gaps below 35 minutes
    return np.split(flat, np.cumsum(lengths)[:-1]) if len(lists) else []


def _read_generator(out_dir: Path, problems: list[str]) -> pd.DataFrame:
    frames = []
    for path, step, worker in _step_files(out_dir / outdir.GENERATOR, problems):
        source = f"{outdir.GENERATOR}/{path.name}"
        lines = from_lines(GeneratorLine, _lines(out_dir, source, problems, required=False), source)
        if lines:
            frames.append(_named(frame(GeneratorLine, lines), step, worker))
    return pd.concat(frames, ignore_index=True) if frames else _named(frame(GeneratorLine, []), "", "")


def _named(part: pd.DataFrame, step: str, worker: str) -> pd.DataFrame:
    return part.assign(
        step=pd.Series(pd.array([step] * len(part), dtype="string")),
        worker=pd.Series(pd.array([worker] * len(part), dtype="string")),
    )


def _step_files(folder: Path, problems: list[str]) -> list[tuple[Path, str, str]]:
    """(file, step, worker) of a folder, by name; a name of another shape is a Problem."""
    found = []
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        step, dot, worker = path.name.removesuffix(".jsonl").rpartition(".")
        if path.suffix == ".jsonl" and dot and outdir.NAME.fullmatch(path.name):
            found.append((path, step, worker))
        else:
            problems.append(f"{folder.name}/{path.name} is no evidence file; it was not read")
    if not folder.is_dir():
        problems.append(f"{folder.name}/ is missing")
    return found


def _read_folder(out_dir: Path, folder: str) -> dict[str, dict[str, Any]]:
    paths = sorted((out_dir / folder).glob("*.json")) if (out_dir / folder).is_dir() else []
    return {path.stem: _read_json(path, f"{folder}/{path.name}") for path in paths}


def _snapshot_problems(snapshots: dict[str, dict[str, Any]]) -> list[str]:
    """What a look at the gateway found amiss, said once with the mark it was first seen at, in order of time."""
    marks: dict[str, list[str]] = {}
    for mark, snapshot in sorted(snapshots.items(), key=lambda item: (item[1].get("t_mono_ns") or 0, item[0])):
        for text in snapshot.get("problems") or []:
            marks.setdefault(str(text), []).append(mark)
    return [
        f"{seen[0]}: {text}" + (f" (and at {len(seen) - 1} more)" if len(seen) > 1 else "")
        for text, seen in marks.items()
    ]


def _read_json(path: Path, source: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise EvidenceError(f"{source}: {error}; the file was changed or damaged") from error
    except OSError as error:
        raise EvidenceError(f"{source}: {error.strerror}; the evidence cannot be read") from error
