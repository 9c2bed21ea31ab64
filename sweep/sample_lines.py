"""samples.jsonl as the judging half reads it: line types of the sampler's evidence, and their two frames.

Which fields a process and a cgroup have is the sampler's own table (`sampler.fields`), the one thing of that program
that is imported here. Every field of a process may be null; keys this version does not know are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pandas as pd

from sampler.fields import of_group
from sweep.errors import EvidenceError


class _Identified(msgspec.Struct, kw_only=True):
    """What every process of a sample is told by."""

    pid: int


TEXT_FIELDS = tuple(each.name for each in of_group("process") if each.unit in ("text", "letter"))
if TYPE_CHECKING:
    Process = _Identified
else:
    Process = msgspec.defstruct(
        "Process",
        [
            (each.name, (str if each.name in TEXT_FIELDS else int) | None, None)
            for each in of_group("process") if each.name != "pid"
        ],
        bases=(_Identified,), module=__name__, kw_only=True,
    )  # fmt: skip
    Process.__doc__ = "One process of one sample, raw: ticks, pages, kB, ns."


class SampleLine(msgspec.Struct, kw_only=True):
    """One tick of the sampler."""

    subject: str
    incarnation: int
    seq: int
    t_mono_ns: int
    t_boot_ns: int | None = None
    t_wall_ns: int | None = None
    lag_ns: int | None = None
    cost_ns: int | None = None
    cpu_ns: int | None = None
    root: Process | None = None
    tree: list[Process] = []
    born: list[int] = []
    gone: list[int] = []
    cgroup: dict[str, Any] | None = None
    net: dict[str, Any] | None = None
    host: dict[str, Any] | None = None
    why: dict[str, str] = {}


class _Kind(msgspec.Struct):
    kind: str


PROCESS_FIELDS = Process.__struct_fields__
SAMPLE_FIELDS = ("subject", "incarnation", "seq", "t_mono_ns", "t_boot_ns", "t_wall_ns", "lag_ns", "cost_ns", "cpu_ns")
CGROUP_INTS = tuple(each.name for each in of_group("cgroup"))


def decode(lines: Sequence[bytes], source: str) -> tuple[list[dict[str, Any]], list[SampleLine], list[dict[str, Any]]]:
    """Start lines, samples and end lines in file order. Raises EvidenceError naming the line that is none of them."""
    starts: list[dict[str, Any]] = []
    samples: list[SampleLine] = []
    ends: list[dict[str, Any]] = []
    kind_of = msgspec.json.Decoder(_Kind).decode
    as_sample = msgspec.json.Decoder(SampleLine).decode
    as_dict = msgspec.json.Decoder(dict[str, Any]).decode
    for number, line in enumerate(lines, 1):
        try:
            kind = kind_of(line).kind
            if kind == "sample":
                samples.append(as_sample(line))
            elif kind == "start":
                starts.append(as_dict(line))
            elif kind == "end":
                ends.append(as_dict(line))
            else:
                raise EvidenceError(f"{source}:{number}: unknown kind {kind!r}; the file was changed or damaged")
        except msgspec.DecodeError as error:
            raise EvidenceError(f"{source}:{number}: {error}; the file was changed or damaged") from error
    return starts, samples, ends


def sample_frame(samples: Sequence[SampleLine]) -> pd.DataFrame:
    """One row a sample: SAMPLE_FIELDS, n_processes, cgroup_* (bytes, ns, counts), cgroup_only_this_tree, net_*, host_*.

    Integers are Int64 with NA where the source could not be read; `why` holds the reasons, `born` and `gone` the pids.
    """
    columns: dict[str, Any] = {}
    for name in SAMPLE_FIELDS:
        values = [getattr(sample, name) for sample in samples]
        columns[name] = pd.array(values, dtype="string" if name == "subject" else "Int64")
    columns["n_processes"] = pd.array([len(s.tree) + (s.root is not None) for s in samples], dtype="Int64")
    groups: list[Mapping[str, Any]] = [sample.cgroup or {} for sample in samples]
    for name in CGROUP_INTS:
        columns[f"cgroup_{name}"] = _integers([group.get(name) for group in groups])
    only = [group.get("only_this_tree") for group in groups]
    columns["cgroup_only_this_tree"] = pd.array([v if isinstance(v, bool) else None for v in only], dtype="boolean")
    for part in ("net", "host"):
        parts: list[Mapping[str, Any]] = [getattr(sample, part) or {} for sample in samples]
        for name in sorted({key for fields in parts for key in fields}):
            columns[f"{part}_{name}"] = _integers([fields.get(name) for fields in parts])
    for name in ("born", "gone", "why"):
        columns[name] = pd.Series([getattr(sample, name) for sample in samples], dtype="object")
    return pd.DataFrame(columns)


def process_frame(samples: Sequence[SampleLine]) -> pd.DataFrame:
    """One row a process of a sample: subject, incarnation, seq, t_mono_ns, is_root and the fields of Process, raw."""
    rows = [
        (sample, process, process is sample.root)
        for sample in samples
        for process in (*([] if sample.root is None else [sample.root]), *sample.tree)
    ]
    columns: dict[str, Any] = {
        "subject": pd.array([sample.subject for sample, _, _ in rows], dtype="string"),
        "is_root": pd.array([is_root for _, _, is_root in rows], dtype="bool"),
    }
    for name in ("incarnation", "seq", "t_mono_ns"):
        columns[name] = pd.array([getattr(sample, name) for sample, _, _ in rows], dtype="Int64")
    for name in PROCESS_FIELDS:
        values = [getattr(process, name) for _, process, _ in rows]
        columns[name] = pd.array(values, dtype="string" if name in TEXT_FIELDS else "Int64")
    return pd.DataFrame(columns)


def _integers(values: Sequence[Any]) -> pd.api.extensions.ExtensionArray:
    known = [value if isinstance(value, int) and not isinstance(value, bool) else None for value in values]
    return pd.array(known, dtype="Int64")
