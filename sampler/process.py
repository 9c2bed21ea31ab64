"""One process: its held /proc/PID folder, and the row of raw fields it gives at each tick.

The folder's descriptor is the identity: once the process is gone every read through it fails, also when the number
is already another process's. What cannot be read is None in the row, and `why` says which file and which reason.
"""

from __future__ import annotations

import os

from sampler import fields
from sampler.procfs import (
    FLAGS,
    GONE,
    Descriptors,
    Source,
    count_fds,
    number,
    parse_keys,
    parse_limits,
    parse_stat,
    reason,
    text,
)
from sampler.threads import Threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple, Union

    Value = Union[int, str, None]
    Row = Dict[str, Value]
    Why = Dict[str, str]

LIMIT_EVERY = 10                 # ticks; prlimit can change the limit of a running process

STAT = tuple((field.name, int(field.key) - 1) for field in fields.of("process", "stat"))
STAT_GAUGES = tuple(field.name for field in fields.of("process", "stat") if field.kind == "gauge")
STATUS = tuple((field.name, field.key.encode()) for field in fields.of("process", "status"))
IO = tuple((field.name, field.key.encode()) for field in fields.of("process", "io"))
EMPTY: Row = {
    field.name: None for field in fields.FIELDS if field.group == "process" and field.source != "task/*/status"
}


class Process:
    """A process held by its folder's descriptor. Raises OSError when the folder cannot be opened, ValueError on a
    malformed stat; `start_ticks` is read through the descriptor."""

    def __init__(self, procfs: str, pid: int, by_size: bool, held: Descriptors) -> None:
        self.pid = pid
        self.n_threads = 1
        self.dir_fd = os.open(f"{procfs}/{pid}", FLAGS | os.O_DIRECTORY)
        self._by_size = by_size
        self._limit: Tuple[Value, Optional[str]] = (None, None)
        self._threads = Threads(pid, self.dir_fd, held)
        self._files = {
            path: Source(path, self.dir_fd, held, size)
            for path, size in (
                ("stat", 2048), ("status", 8192), ("io", 1024), ("limits", 4096), ("cgroup", 4096),
            )
        }
        try:
            stat = parse_stat(self._files["stat"].read())
            self.start_ticks = int(stat[21])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._threads.close()
        for file in self._files.values():
            file.close()
        os.close(self.dir_fd)

    def read(self, path: str) -> bytes:
        """One of its held files. Raises OSError."""
        return self._files[path].read()

    def sample(self, who: str, tick: int, deep: bool, with_children: bool, why: Why) -> Tuple[Optional[Row], List[int]]:
        """Its row and its children, or (None, []) when it is gone. deep: read every thread's context switches too."""
        row: Row = dict(EMPTY)
        row["pid"], row["start_ticks"] = self.pid, self.start_ticks
        try:
            stat = parse_stat(self._files["stat"].read())
            for name, at in STAT:
                row[name] = text(stat[at]) if name in ("comm", "state") else int(stat[at])
        except (OSError, ValueError, IndexError) as error:
            why[f"{who}.stat"] = reason(error)
            return (None if why[f"{who}.stat"] in GONE else row), []
        if row["start_ticks"] != self.start_ticks:
            why[f"{who}.stat"] = "start_ticks"
            return None, []
        self.n_threads = int(row["n_threads"] or 0)
        if row["state"] in ("Z", "X"):
            # The leader has given its memory and descriptors back; the kernel then shows 0, which is not a reading.
            why[f"{who}.gauges"] = "zombie"
            row.update(dict.fromkeys(STAT_GAUGES))
        else:
            self._read_gauges(row, who, tick, why)
        self._read_keys("io", IO, row, who, why)
        return row, self._read_threads(row, who, deep, with_children, why)

    def _read_gauges(self, row: Row, who: str, tick: int, why: Why) -> None:
        self._read_keys("status", STATUS, row, who, why)
        try:
            row["n_fds"] = count_fds(self.dir_fd, self._by_size)
        except OSError as error:
            why[f"{who}.fd"] = reason(error)
        if self._limit == (None, None) or tick % LIMIT_EVERY == 0:
            try:
                soft = parse_limits(self._files["limits"].read())["Max open files"][0]
                self._limit = (None, "unlimited") if soft == b"unlimited" else (int(soft), None)
            except (OSError, ValueError, KeyError) as error:
                self._limit = (None, reason(error))
        row["fd_soft_limit"], missing = self._limit
        if missing is not None:
            why[f"{who}.limits"] = missing

    def _read_keys(
        self, path: str, wanted: Tuple[Tuple[str, bytes], ...], row: Row, who: str, why: Why
    ) -> None:
        try:
            values = parse_keys(self._files[path].read())
        except OSError as error:
            why[f"{who}.{path}"] = reason(error)
            return
        for name, key in wanted:
            try:
                row[name] = number(values[key])
            except (KeyError, ValueError, IndexError) as error:
                why[f"{who}.{path}"] = reason(error)

    def _read_threads(self, row: Row, who: str, deep: bool, with_children: bool, why: Why) -> List[int]:
        """Fills the sums over threads; returns the children, whichever thread started them."""
        try:
            run, switches, children = self._threads.read(self.n_threads, deep, with_children)
        except (OSError, ValueError, IndexError) as error:
            why[f"{who}.task"] = reason(error)
            return []
        if run is None:
            why[f"{who}.task"] = "ENOENT"       # a kernel without CONFIG_SCHED_INFO, or the process is just ending
        else:
            row.update(run)
        if switches is not None:
            row.update(switches)
        return children
