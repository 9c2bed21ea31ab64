"""The root and its descendants, tick by tick: who is there, who was born, who is gone.

A descendant belongs to the tree until it ends, also when its parent ends first and init adopts it. One that starts,
forks and ends between two ticks is never seen. Each is held by its own folder's descriptor.
"""

from __future__ import annotations

import os

from sampler.process import Process
from sampler.procfs import GONE, Descriptors, fd_size_is_count, parse_stat, read_at, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    from sampler.process import Row, Why

DEEP_THREADS = 32        # threads in the tree up to which switches are read each tick (12 us a thread)
DEEP_EVERY = 10          # ticks, above that


class Tree:
    """The process tree below `root_pid`. Raises OSError or ValueError when the root cannot be held."""

    def __init__(self, procfs: str, root_pid: int, held: Descriptors) -> None:
        self.procfs = procfs
        self._held = held
        self.by_size = fd_size_is_count(procfs)
        self.root = Process(procfs, root_pid, self.by_size, held)
        # CONFIG_PROC_CHILDREN; without it parents are found by reading every process's stat.
        self.has_children_file = os.path.exists(f"{procfs}/{root_pid}/task/{root_pid}/children")
        self._members: Dict[int, Process] = {}
        self._first = True

    def close(self) -> None:
        for process in (self.root, *self._members.values()):
            process.close()

    def pids(self) -> frozenset[int]:
        """The root and its descendants as of the last tick."""
        return frozenset((self.root.pid, *self._members))

    def sample(self, tick: int, why: Why) -> Tuple[Optional[Row], List[Row], List[int], List[int]]:
        """The root's row (None: gone), its descendants' rows, pids born and pids gone since the last tick."""
        n_threads = self.root.n_threads + sum(process.n_threads for process in self._members.values())
        deep = n_threads <= DEEP_THREADS or tick % DEEP_EVERY == 1
        root, found = self.root.sample("root", tick, deep, self.has_children_file, why)
        if root is None:
            return None, [], [], []
        rows: List[Row] = []
        born: List[int] = []
        gone: List[int] = []
        for pid, process in list(self._members.items()):
            row, children = process.sample(str(pid), tick, deep, self.has_children_file, why)
            if row is None:
                why.pop(f"{pid}.stat", None)
                gone.append(pid)
                process.close()
                del self._members[pid]
            else:
                rows.append(row)
                found += children
        if not self.has_children_file:
            try:
                found = _children_by_scan(self.procfs, self.pids())
            except OSError as error:
                why["tree"] = reason(error)
        while found:
            pid = found.pop()
            if pid != self.root.pid and pid not in self._members:
                self._adopt(pid, tick, deep, why, rows, born, found)
        if self._first:
            self._first = False
            born = []            # already there when the sampler came: not births
        return root, rows, born, gone

    def _adopt(
        self, pid: int, tick: int, deep: bool, why: Why, rows: List[Row], born: List[int], found: List[int]
    ) -> None:
        """Takes a new descendant in, unless it is gone already or its number is now a stranger's."""
        try:
            process = Process(self.procfs, pid, self.by_size, self._held)
        except (OSError, ValueError, IndexError) as error:
            if reason(error) not in GONE:
                why[f"{pid}.dir"] = reason(error)
            return
        row, children = process.sample(str(pid), tick, deep, self.has_children_file, why)
        if row is None or row["ppid"] not in self.pids():
            for key in [key for key in why if key.startswith(f"{pid}.")]:
                del why[key]
            process.close()
            return
        self._members[pid] = process
        rows.append(row)
        born.append(pid)
        found += children


def parent_of(procfs: str, pid: int) -> Optional[int]:
    """The parent's pid, None when the process is gone or hidden."""
    try:
        return int(parse_stat(read_at(f"{procfs}/{pid}/stat"))[3])
    except (OSError, ValueError, IndexError):
        return None


def _children_by_scan(procfs: str, members: frozenset[int]) -> List[int]:
    """Every process that has a member among its ancestors, parents before children (the list is taken from its end)."""
    parents = {int(name): parent_of(procfs, int(name)) for name in os.listdir(procfs) if name.isdigit()}
    family = set(members)
    found: List[int] = []
    generation = [pid for pid, parent in parents.items() if parent in family and pid not in family]
    while generation:
        found += generation
        family.update(generation)
        generation = [pid for pid, parent in parents.items() if parent in generation and pid not in family]
    return found[::-1]
