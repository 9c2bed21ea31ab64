"""The threads of one process: their schedstat and context switches summed, and the children any of them started.

/proc/PID/schedstat and the switches in /proc/PID/status are the leader's alone (measured: 10 of 2,828 in a process of
five threads), so every thread is read. Its files stay open while descriptors last: then a read costs 1-2 us, not 7.
"""

# ruff: noqa: B905 - zip(strict=) needs Python 3.10
from __future__ import annotations

import os

from sampler import fields
from sampler.procfs import FLAGS, GONE, Descriptors, Source, number, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    Counts = Dict[int, Tuple[int, ...]]
    Sums = Dict[str, int]

RUN = tuple((field.name, int(field.key)) for field in fields.of("process", "task/*/schedstat") if field.key)
SWITCHES = tuple(
    # The line break before the key keeps a name like "x\tvoluntary_ctxt_switches:" from being taken for it.
    (field.name, b"\n" + field.key.encode() + b":") for field in fields.of("process", "task/*/status")
)


class ThreadSums:
    """Counters of threads, summed so that a thread's end does not lower the sum: its last reading stays in it."""

    def __init__(self) -> None:
        self.n_gone = 0
        self._ended: Tuple[int, ...] = ()
        self._last: Counts = {}

    def update(self, now: Counts) -> Tuple[int, ...]:
        """The sums, given one reading of every live thread. A tid whose counter fell is another thread's."""
        for tid, last in self._last.items():
            current = now.get(tid)
            if current is None or current[0] < last[0]:
                self.n_gone += 1
                self._ended = _add(self._ended, last)
        self._last = now
        return _add(self._ended, tuple(map(sum, zip(*now.values()))))


class Task:
    """One thread's files."""

    __slots__ = ("children", "schedstat", "status")

    def __init__(self, dir_fd: int, tid: int, held: Descriptors) -> None:
        self.schedstat = Source(f"task/{tid}/schedstat", dir_fd, held, 256)
        self.children = Source(f"task/{tid}/children", dir_fd, held, 1024)
        self.status = Source(f"task/{tid}/status", dir_fd, held, 4096)

    def close(self) -> None:
        for file in (self.schedstat, self.children, self.status):
            file.close()


class Threads:
    """The threads of the process whose folder is `dir_fd`."""

    def __init__(self, pid: int, dir_fd: int, held: Descriptors) -> None:
        self._pid = pid
        self._dir_fd = dir_fd
        self._held = held
        self._tasks: Dict[int, Task] = {}
        self._run = ThreadSums()
        self._switches = ThreadSums()

    def close(self) -> None:
        for task in self._tasks.values():
            task.close()

    def read(self, n_threads: int, deep: bool, with_children: bool) -> Tuple[Optional[Sums], Optional[Sums], List[int]]:
        """Sums of schedstat (None without such a file), of switches (None unless `deep`), and the children's pids.

        A thread that ended meanwhile is left out. Raises OSError, ValueError.
        """
        run: Counts = {}
        switches: Counts = {}
        children: List[int] = []
        for tid, task in self._present(n_threads):
            try:
                if with_children:
                    children.extend(map(int, task.children.read().split()))
                if deep:
                    switches[tid] = _switches(task.status.read())
                run[tid] = tuple(map(int, task.schedstat.read().split()))
            except OSError as error:
                # Its number may be a new thread's by now: the files are taken anew at the next tick.
                self._tasks.pop(tid).close()
                if reason(error) not in GONE:
                    raise
        sums: Optional[Sums] = None
        if run:
            total = self._run.update(run)
            sums = {name: total[at] for name, at in RUN}
            sums["n_tids_gone"] = self._run.n_gone
        counted = self._switches.update(switches) if switches else None
        return sums, None if counted is None else dict(zip((name for name, _ in SWITCHES), counted)), children

    def _present(self, n_threads: int) -> List[Tuple[int, Task]]:
        tids = [self._pid] if n_threads == 1 else _listed(self._dir_fd)
        for tid in self._tasks.keys() - set(tids):
            self._tasks.pop(tid).close()
        for tid in tids:
            if tid not in self._tasks:
                self._tasks[tid] = Task(self._dir_fd, tid, self._held)
        return list(self._tasks.items())


def _listed(dir_fd: int) -> List[int]:
    fd = os.open("task", FLAGS | os.O_DIRECTORY, dir_fd=dir_fd)
    try:
        return [int(name) for name in os.listdir(fd)]
    finally:
        os.close(fd)


def _switches(status: bytes) -> Tuple[int, ...]:
    """The switches at the end of a status file. Raises ValueError when it has none."""
    found = [status.rfind(key) for _, key in SWITCHES]
    if min(found) < 0:
        raise ValueError("status without context switches")
    return tuple(number(status[at + len(key):]) for at, (_, key) in zip(found, SWITCHES))


def _add(some: Tuple[int, ...], more: Tuple[int, ...]) -> Tuple[int, ...]:
    return tuple(one + other for one, other in zip(some, more)) if some and more else some or more
