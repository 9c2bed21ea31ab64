"""The cgroup of a process, controller by controller, in cgroup v2, v1 or both at once (hybrid).

A path outside what this sampler's mounts show (`/../..` in a cgroup namespace, or a folder that is not there) is
"unreachable": null, not zero.
"""

from __future__ import annotations

import os

from sampler import fields
from sampler.mounts import CONTROLLERS, Mounts, ancestors, folder_of, nearest, paths_of
from sampler.procfs import FLAGS, NO_LIMIT_V1, Descriptors, Source, number, parse_keys, reason
from sampler.tree import parent_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, FrozenSet, List, Optional, Tuple, Union

    from sampler.process import Why

    Value = Union[int, str, bool, None]

FIELDS = tuple(field for field in fields.FIELDS if field.group == "cgroup")
CHECK_EVERY = 10                 # ticks between two looks at whether the process was moved to another cgroup
MAX_FOLDERS = 256                # cgroups below the process's own that are searched for strangers


class Cgroup:
    """Reads the cgroup of one process. `membership` gives its /proc/PID/cgroup; `pids` its tree as of this tick."""

    def __init__(
        self, procfs: str, cgroupfs: Optional[str], membership: Callable[[], bytes],
        pids: Callable[[], FrozenSet[int]], held: Descriptors,
    ) -> None:
        self._held = held
        self._procfs = procfs
        self._pids = pids
        self._membership = membership
        self._member: Optional[bytes] = None
        self._mount_why: Optional[str] = None
        try:
            self._mounts: Optional[Mounts] = Mounts(procfs, cgroupfs)
        except OSError as error:
            self._mounts, self._mount_why = None, reason(error)
        self.version: Optional[str] = None
        self.paths: Dict[str, str] = {}
        self._why: Dict[str, str] = {}
        self._plan: List[Tuple[Source, List[Tuple[str, str]], str]] = []
        self._limits: List[Source] = []
        self._memory_folder: Optional[str] = None

    def sample(self, tick: int, why: Why) -> Dict[str, Value]:
        """One row of the cgroup's fields."""
        if self._member is None or tick % CHECK_EVERY == 0:
            self._follow()
        row: Dict[str, Value] = {"version": self.version, "memory_path": self.paths.get("memory")}
        row.update((field.name, None) for field in FIELDS)
        row["only_this_tree"] = None
        why.update({f"cgroup.{what}": code for what, code in self._why.items()})
        for file, wanted, name in self._plan:
            self._read_file(file, wanted, name, row, why)
        self._tighten(row, why)
        if self._memory_folder is not None:
            try:
                row["only_this_tree"] = self._holds_only(self._memory_folder)
            except (OSError, ValueError) as error:
                why["cgroup.only_this_tree"] = reason(error)
        return row

    def close(self) -> None:
        for file in [file for file, _, _ in self._plan] + self._limits:
            file.close()

    def _follow(self) -> None:
        """Takes up the process's present cgroups; costs one read when nothing changed."""
        try:
            member = self._membership()
        except OSError as error:
            self._why = {"membership": reason(error)}
            return
        if member == self._member:
            return
        self.close()
        self._member, self._plan, self._limits, self._why, self.paths = member, [], [], {}, {}
        self._memory_folder = None
        if self._mounts is None:
            self._why = {"mounts": self._mount_why or "parse"}
            return
        self.version = self._mounts.version()
        for controller in CONTROLLERS:
            self._resolve(controller, paths_of(member), self._mounts)

    def _resolve(self, controller: str, paths: Dict[str, str], mounts: Mounts) -> None:
        on_v1 = controller in mounts.v1 and controller in paths
        # cpuacct is a v1 controller; in v2 cpu.stat has its figure, also without the cpu controller enabled.
        on_v2 = not on_v1 and mounts.v2 is not None and "" in paths
        if controller == "cpuacct" and not on_v1:
            return
        if not on_v1 and not (on_v2 and (controller == "cpu" or controller in mounts.v2_controllers)):
            self._why[controller] = "no controller"
            return
        path = paths[controller] if on_v1 else paths[""]
        self.paths[controller] = path
        folder = folder_of(mounts.v1[controller] if on_v1 else mounts.v2, path)
        if folder is None:
            self._why[controller] = "unreachable"
            return
        if not on_v1 and mounts.v2 is not None:
            folder, self.paths[controller] = nearest(folder, path, mounts.v2[0], controller)
        by_file: Dict[str, List[Tuple[str, str]]] = {}
        for field in FIELDS:
            place = (field.v1 if on_v1 else (field.source, field.key))
            if place is not None and place[0].split(".")[0] == controller and place != ("memory.max", ""):
                by_file.setdefault(place[0], []).append((field.name, place[1]))
        for name, wanted in by_file.items():
            self._plan.append((Source(f"{folder}/{name}", held=self._held), wanted, name))
        if controller == "memory":
            self._memory_folder = folder
            if not on_v1 and mounts.v2 is not None:
                self._limits = [
                    Source(f"{above}/memory.max", held=self._held) for above in ancestors(folder, mounts.v2[0])
                ]

    def _read_file(
        self, file: Source, wanted: List[Tuple[str, str]], name: str, row: Dict[str, Value], why: Why
    ) -> None:
        try:
            data = file.read()
            values = parse_keys(data) if wanted[0][1] else {b"": data}
        except OSError as error:
            why[f"cgroup.{name}"] = reason(error)
            return
        for field, key in wanted:
            try:
                raw = values[key.encode()]
                if raw.strip() == b"max" or (field.endswith("limit_bytes") and number(raw) >= NO_LIMIT_V1):
                    why[f"cgroup.{field}"] = "unlimited"
                else:
                    row[field] = number(raw) * (1000 if key.endswith("_usec") else 1)
            except (KeyError, ValueError, IndexError) as error:
                why[f"cgroup.{name}"] = reason(error)

    def _tighten(self, row: Dict[str, Value], why: Why) -> None:
        """cgroup v2: the smallest memory.max from the process's cgroup up. The root has no such file."""
        limits: List[int] = []
        n_read = 0
        for file in self._limits:
            try:
                data = file.read().strip()
                n_read += 1
                if data != b"max":
                    limits.append(int(data))
            except (OSError, ValueError) as error:
                if reason(error) != "ENOENT":
                    why["cgroup.memory.max"] = reason(error)
                    return
        if limits:
            row["memory_limit_bytes"] = min(limits)
        elif self._limits:
            why["cgroup.memory_limit_bytes"] = "unlimited" if n_read else "ENOENT"

    def _holds_only(self, folder: str) -> bool:
        """Whether every process in the cgroup and those below it is of the tree. Raises OSError, ValueError."""
        folders = [folder]
        n_searched = 0
        while folders:
            here = folders.pop()
            n_searched += 1
            if n_searched > MAX_FOLDERS:
                raise ValueError("too many cgroups")
            if not self._is_ours(f"{here}/cgroup.procs"):
                return False
            if os.stat(here).st_nlink != 2:      # a cgroup folder has one link more for each cgroup below it
                with os.scandir(here) as entries:
                    folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        return True

    def _is_ours(self, procs: str) -> bool:
        """Stops at the first stranger: the root cgroup of a busy host lists thousands."""
        pids = self._pids()
        fd = os.open(procs, FLAGS)
        try:
            rest = b""
            while True:
                data = os.read(fd, 4096)
                *whole, rest = (rest + data).split(b"\n")
                if any(not self._is_related(int(pid), pids) for pid in whole):
                    return False
                if not data:
                    return True
        finally:
            os.close(fd)

    def _is_related(self, pid: int, pids: FrozenSet[int]) -> bool:
        """Of the tree, or born into it since the tree was walked, or gone meanwhile. 0: of a foreign pid namespace."""
        seen = 0
        while pid not in pids:
            parent = parent_of(self._procfs, pid) if pid > 0 else 0
            if parent is None:
                # Gone: no stranger. Hidden (hidepid): one. A parent that went while we walked up: undecided, so one.
                return seen == 0 and self._procfs == "/proc" and not _is_alive(pid)
            seen += 1
            if parent <= 1 or seen > 64:
                return parent in pids
            pid = parent
        return True


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)          # signal 0: asks, sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
