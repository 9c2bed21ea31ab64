"""The machine and the network namespace around the process: /proc/stat, pressure, and TCP counters."""

# ruff: noqa: B905 - zip(strict=) needs Python 3.10
from __future__ import annotations

from sampler import fields
from sampler.procfs import Columns, Descriptors, Source, parse_keys, parse_pressure, parse_sockstat, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Tuple

    from sampler.process import Why

    Numbers = Dict[str, Optional[int]]
    Parser = Callable[[bytes], List[Optional[int]]]


class Group:
    """The files of one group of fields, kept open, one row a call."""

    def __init__(self, group: str, files: List[Tuple[str, Source, Tuple[str, ...], Parser]]) -> None:
        self._group = group
        self._files = files
        self._empty: Numbers = {field.name: None for field in fields.FIELDS if field.group == group}

    def sample(self, why: Why) -> Numbers:
        row = dict(self._empty)
        for source, file, names, parse in self._files:
            try:
                values = parse(file.read())
                row.update(zip(names, values))
                if None in values:
                    why[f"{self._group}.{source}"] = "short"
            except (OSError, ValueError, IndexError) as error:
                why[f"{self._group}.{source}"] = reason(error)
        return row

    def close(self) -> None:
        for _, file, _, _ in self._files:
            file.close()


def net(dir_fd: int, held: Descriptors) -> Group:
    """TCP counters of the network namespace of the process whose folder is `dir_fd`."""
    files = []
    for source in fields.sources("net"):
        rows = fields.of("net", source)
        keys = tuple(row.key for row in rows)
        parse = _sockstat(keys) if source.endswith("sockstat") else Columns(keys).parse
        file = Source(source, dir_fd, held=held, size=8192)
        files.append((source.partition("/")[2], file, tuple(row.name for row in rows), parse))
    return Group("net", files)


def host(procfs: str, held: Descriptors) -> Group:
    """CPU times and pressure of the whole machine."""
    files = []
    for source in fields.sources("host"):
        rows = fields.of("host", source)
        keys = tuple(row.key for row in rows)
        parse = _pressure(keys) if source.startswith("pressure/") else _stat(keys)
        file = Source(f"{procfs}/{source}", held=held, size=16384)
        files.append((source, file, tuple(row.name for row in rows), parse))
    return Group("host", files)


def _sockstat(keys: Tuple[str, ...]) -> Parser:
    def parse(data: bytes) -> List[Optional[int]]:
        values = parse_sockstat(data)
        return [values.get(key) for key in keys]

    return parse


def _pressure(keys: Tuple[str, ...]) -> Parser:
    def parse(data: bytes) -> List[Optional[int]]:
        values = parse_pressure(data)
        return [values.get(key.encode()) for key in keys]

    return parse


def _stat(keys: Tuple[str, ...]) -> Parser:
    def parse(data: bytes) -> List[Optional[int]]:
        lines = parse_keys(data)
        cpu = lines.get(b"cpu", b"").split()
        return [
            int(cpu[int(key[4:])]) if key.startswith("cpu:") else int(lines[key.encode()]) if key.encode() in lines
            else None
            for key in keys
        ]

    return parse
