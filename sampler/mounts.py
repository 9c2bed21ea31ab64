"""Where the cgroup hierarchies are mounted, and which folder a path of /proc/PID/cgroup means. No reading of values."""

from __future__ import annotations

import os

from sampler.procfs import read_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, List, Optional, Tuple

CONTROLLERS = ("memory", "cpu", "cpuacct", "pids")


class Mounts:
    """Where this host's cgroup hierarchies are: v2 folder and its controllers, v1 folder of each controller.

    Each folder comes with the path inside the hierarchy that it shows ("/" unless it is a bind mount of a part).
    """

    def __init__(self, procfs: str, cgroupfs: Optional[str]) -> None:
        self.v2: Optional[Tuple[str, str]] = None
        self.v1: Dict[str, Tuple[str, str]] = {}
        if cgroupfs is None:
            self._from_mountinfo(read_at(f"{procfs}/self/mountinfo"))
        else:
            self._from_folder(cgroupfs)
        self.v2_controllers: FrozenSet[str] = frozenset()
        if self.v2 is not None:
            self.v2_controllers = frozenset(_words(f"{self.v2[0]}/cgroup.controllers"))

    def _from_mountinfo(self, data: bytes) -> None:
        for line in os.fsdecode(data).splitlines():
            left, _, right = line.partition(" - ")
            place, kind = left.split(), right.split()
            if len(place) < 5 or len(kind) < 3:
                continue
            here = (_unescape(place[4]), _unescape(place[3]))
            if kind[0] == "cgroup2" and self.v2 is None:
                self.v2 = here
            elif kind[0] == "cgroup":
                for option in kind[2].split(","):
                    if option in CONTROLLERS:
                        self.v1.setdefault(option, here)

    def _from_folder(self, root: str) -> None:
        for folder in (root, f"{root}/unified"):
            if self.v2 is None and os.path.exists(f"{folder}/cgroup.controllers"):
                self.v2 = (folder, "/")
        for controller in CONTROLLERS:
            if os.path.isdir(f"{root}/{controller}") and self.v2 != (root, "/"):
                self.v1[controller] = (f"{root}/{controller}", "/")

    def version(self) -> Optional[str]:
        """v1, v2, hybrid (some controllers each), None when no cgroup is mounted."""
        if self.v2 is None:
            return "v1" if self.v1 else None
        return "hybrid" if self.v1 else "v2"


def paths_of(member: bytes) -> Dict[str, str]:
    """/proc/PID/cgroup as controller to path; "" is the v2 hierarchy."""
    paths: Dict[str, str] = {}
    for line in os.fsdecode(member).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def folder_of(mount: Optional[Tuple[str, str]], path: str) -> Optional[str]:
    """The folder of a cgroup path below a mount, None when that mount does not show it."""
    if mount is None or ".." in path.split("/"):
        return None
    point, shown = mount
    if shown != "/":
        if path != shown and not path.startswith(f"{shown}/"):
            return None
        path = path[len(shown):]
    folder = f"{point}/{path.strip('/')}".rstrip("/")
    return folder if os.path.isdir(folder) else None


def nearest(folder: str, path: str, top: str, controller: str) -> Tuple[str, str]:
    """The cgroup that accounts for this one in cgroup v2: itself or the first above it with the controller on.

    Itself when none has it: cpu.stat has the CPU time without any controller.
    """
    for above in ancestors(folder, top):
        if controller in _words(f"{above}/cgroup.controllers"):
            return above, path[:len(path) - len(folder) + len(above)] or "/"
    return folder, path


def ancestors(folder: str, top: str) -> List[str]:
    """The folder and those above it up to the mount point, in this order."""
    found = [folder]
    while folder != top and folder.startswith(top):
        folder = os.path.dirname(folder)
        found.append(folder)
    return found


def _words(path: str) -> Tuple[str, ...]:
    try:
        return tuple(read_at(path).decode().split())
    except OSError:
        return ()


def _unescape(path: str) -> str:
    """Mount points in mountinfo have \\040 for a space, and so on."""
    head, *rest = path.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)
