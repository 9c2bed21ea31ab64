"""`--gateway-pid` in its forms to the PID it means: a number, port:N, pidfile:PATH, unit:NAME, container:ID.

Reads files of /proc and of the cgroup file system, executes nothing, and takes none of several: each that is meant by
the form is listed in the refusal. Every refusal is one PlanError.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sweep.errors import PlanError
from sweep.ownership import LISTEN, comm, parents, socket_inodes, tcp_sockets
from sweep.slo import did_you_mean

_KNOWN = "N, port:N, pidfile:PATH, unit:NAME or container:ID"
_MAX_LISTED = 8
_MAX_DIGITS = 10
_MAX_PIDFILE = 4096
# Some write the file a moment before their process starts; clocks are set meanwhile.
_STARTED_LATER_S = 60.0
# Hold a port for someone else: systemd until the service takes it, the others for a container behind them.
_KEEPERS = ("systemd", "init")
_FORWARDERS = ("docker-proxy", "rootlessport")
# 64 hex digits in Docker, containerd, CRI-O and podman, 32 in some others; a pod's id has dashes or underscores in it.
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{32,64}(?![0-9a-f])")
_MONITOR = "conmon"  # podman's and CRI-O's watcher has a cgroup with the container's id, but is not in the container
_UNIT_TYPES = (".service", ".scope", ".slice")


class Roots(NamedTuple):
    """The folders that are read; others only in tests."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")


_MACHINE = Roots()


def resolve(text: str, roots: Roots = _MACHINE) -> int:
    """The PID. A plain number is not looked at: whether it lives is asked when it is watched. Raises PlanError."""
    if re.fullmatch("[0-9]+", text):
        if len(text) > _MAX_DIGITS:
            told = f"--gateway-pid {text[:_MAX_DIGITS]}…"
            raise PlanError(f"{told}: no such process; give the PID of the running gateway")
        return int(text)
    form, colon, value = text.partition(":")
    if not colon or form not in _FORMS:
        near = did_you_mean(form, _FORMS)
        raise PlanError(f"--gateway-pid {text!r} is no process{near}; write {_KNOWN}")
    if not value.strip():
        raise PlanError(f"--gateway-pid {text!r}: nothing after the colon; write {_KNOWN}")
    return _FORMS[form](value.strip(), roots)


def port_of(text: str) -> int | None:
    """N of port:N, which is also the port to send to; None for every other form."""
    match = re.fullmatch(r"port:\s*([0-9]+)\s*", text)
    return None if match is None else int(match[1])


def _by_port(text: str, roots: Roots) -> int:
    """The process that listens; of a tree that shares the socket, its root."""
    option = f"--gateway-pid port:{text}"
    if not re.fullmatch("[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise PlanError(f"{option}: write a port of this machine, like port:8080")
    sockets = tcp_sockets(os.getpid(), roots.proc)
    inodes = {each.inode for each in sockets or () if each.state == LISTEN and each.port == int(text)}
    if not inodes:
        raise PlanError(f"{option}: nothing listens on it (in this network namespace); give the gateway's port or PID")
    above = parents(roots.proc)
    holders = [pid for pid in above if inodes & (socket_inodes(pid, roots.proc) or set())]
    holders = [pid for pid in holders if comm(pid, roots.proc) not in _KEEPERS] or holders
    if not holders:
        raise PlanError(
            f"{option}: who listens there cannot be seen by this user; run as the gateway's user, or give its PID"
        )
    top = [pid for pid in holders if not any(each in holders for each in _ancestors(pid, above))]
    found = _only(option, top, "give one of these PIDs", roots)
    name = comm(found, roots.proc)
    if name in _FORWARDERS:
        raise PlanError(f"{option} is held by {name} (pid {found}), which leads to a container; give container:ID")
    return found


def _ancestors(pid: int, above: Mapping[int, int]) -> Iterator[int]:
    while (pid := above.get(pid, 0)) > 0:
        yield pid


def _by_pidfile(path: str, roots: Roots) -> int:
    """Raises PlanError too when the process started after the file was written: then it is another one."""
    option, advice = f"--gateway-pid pidfile:{path}", "give the file that the gateway writes its PID into"
    try:
        content, written_s = _short_file(path)
    except ValueError as error:
        raise PlanError(f"{option}: {error}; {advice}") from error
    except OSError as error:
        raise PlanError(f"{option}: {error.strerror}; {advice}") from error
    words = content.split()
    if not words or not re.fullmatch(rb"[0-9]{1,10}", words[0]):
        raise PlanError(f"{option} does not begin with a number; {advice}")
    pid = int(words[0])
    ticks = _start_ticks(pid, roots)
    if ticks is None:
        raise PlanError(f"{option} names pid {pid}, which does not run: the file is stale; start the gateway")
    since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    later_s = time.time() - since_boot_s - written_s
    if later_s > _STARTED_LATER_S:
        raise PlanError(
            f"{option} was written {later_s:.0f} s before {_named(pid, roots)} started: the file is stale, or written "
            "beforehand; if it is the gateway, give its PID as a number"
        )
    return pid


def _short_file(path: str) -> tuple[bytes, float]:
    """What it begins with, and when it was last written (s since the epoch). Raises OSError; ValueError for what is no
    file, which might be read for ever."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode):
            raise ValueError("it is no regular file")
        return os.read(file, _MAX_PIDFILE), state.st_mtime
    finally:
        os.close(file)


def _by_unit(name: str, roots: Roots) -> int:
    """The oldest process below the unit's cgroup, in whichever hierarchy shows it."""
    option = f"--gateway-pid unit:{name}"
    if "/" in name:
        raise PlanError(f"{option}: write the unit's name, like unit:ollama or unit:ollama.service")
    wanted = name if name.endswith(_UNIT_TYPES) else f"{name}.service"
    units: dict[str, set[int]] = {}
    for hierarchy in _hierarchies(roots.cgroup):
        for folder, subfolders, _ in os.walk(hierarchy):
            if wanted in subfolders:
                subfolders.remove(wanted)
                unit = Path(folder) / wanted
                units.setdefault(str(unit.relative_to(hierarchy)), set()).update(_members(unit))
    oldest = _oldest_of_each(units, roots)
    if not oldest and units:
        raise PlanError(f"{option}: no process runs in its cgroup ({_listed(units)}); start the unit, or give a PID")
    if not oldest:
        near = did_you_mean(wanted, _units(roots.cgroup))
        raise PlanError(f"{option}: no cgroup below {roots.cgroup} is named {wanted}{near}; name a running unit")
    if len(set(oldest.values())) > 1:
        places = _listed(f"{path}: {_named(pid, roots)}" for path, pid in sorted(oldest.items()))
        raise PlanError(f"{option} means {len(oldest)} units ({places}); give the PID of one")
    return next(iter(oldest.values()))


def _hierarchies(cgroup: Path) -> list[Path]:
    """The mount points: the folder itself in cgroup v2, one a controller below it in v1, both kinds in a hybrid."""
    if (cgroup / "cgroup.procs").exists():
        return [cgroup]
    try:
        return sorted(each for each in cgroup.iterdir() if (each / "cgroup.procs").exists())
    except OSError:
        return []


def _units(cgroup: Path) -> set[str]:
    return {
        name
        for hierarchy in _hierarchies(cgroup)
        for _, folders, _ in os.walk(hierarchy)
        for name in folders
        if name.endswith(_UNIT_TYPES)
    }


def _members(unit: Path) -> Iterator[int]:
    """PIDs of a cgroup and those below it; 0 stands for one outside this PID namespace."""
    for folder, _, _ in os.walk(unit):
        try:
            yield from (pid for pid in map(int, (Path(folder) / "cgroup.procs").read_bytes().split()) if pid > 0)
        except OSError:  # gone meanwhile, or a threaded cgroup (EOPNOTSUPP)
            continue


def _by_container(prefix: str, roots: Roots) -> int:
    """The oldest process whose cgroup path holds a container id that starts so."""
    option = f"--gateway-pid container:{prefix}"
    wanted = prefix.lower()
    if not re.fullmatch("[0-9a-f]{1,64}", wanted):
        raise PlanError(f"{option}: write the container's id or the start of it, in hex digits")
    members: dict[str, set[int]] = {}
    for pid in parents(roots.proc):
        for found in _containers(pid, roots):
            if found.startswith(wanted):
                members.setdefault(found, set()).add(pid)
    oldest = _oldest_of_each(members, roots)
    if not oldest:
        raise PlanError(f"{option}: no process of this machine is in such a container; give the id of a running one")
    if len(oldest) > 1:
        listed = _listed(f"{found[:12]}: {_named(pid, roots)}" for found, pid in sorted(oldest.items()))
        raise PlanError(f"{option} means {len(oldest)} containers ({listed}); give more of the id")
    return next(iter(oldest.values()))


def _containers(pid: int, roots: Roots) -> set[str]:
    """Container ids in the process's cgroup paths, in any hierarchy."""
    try:
        text = (roots.proc / str(pid) / "cgroup").read_bytes().decode("utf-8", "replace")
    except OSError:
        return set()
    names = {name for line in text.splitlines() for name in line.split("/")[1:] if _MONITOR not in name}
    return {match[0] for name in names for match in _CONTAINER.finditer(name)}


def _oldest_of_each(groups: Mapping[str, Iterable[int]], roots: Roots) -> dict[str, int]:
    """Groups whose processes have all ended are left out."""
    found = {name: _oldest(pids, roots) for name, pids in groups.items()}
    return {name: pid for name, pid in found.items() if pid is not None}


def _oldest(pids: Iterable[int], roots: Roots) -> int | None:
    """By start ticks, the lower PID among those of one tick; None when all have ended."""
    started = [(ticks, pid) for pid in pids if (ticks := _start_ticks(pid, roots)) is not None]
    return min(started)[1] if started else None


def _start_ticks(pid: int, roots: Roots) -> int | None:
    """None when it has ended, zombies included. Source: proc_pid_stat(5), fields 3 and 22."""
    try:
        fields = (roots.proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _only(option: str, pids: list[int], advice: str, roots: Roots) -> int:
    if len(pids) > 1:
        listed = _listed(_named(pid, roots) for pid in sorted(pids))
        raise PlanError(f"{option} means {len(pids)} processes ({listed}); {advice}")
    return pids[0]


def _named(pid: int, roots: Roots) -> str:
    return f"pid {pid} {comm(pid, roots.proc) or 'unknown'}"


def _listed(items: Iterable[str]) -> str:
    every = list(items)
    more = f" and {len(every) - _MAX_LISTED} more" if len(every) > _MAX_LISTED else ""
    return ", ".join(every[:_MAX_LISTED]) + more


_FORMS: Mapping[str, Callable[[str, Roots], int]] = {
    "port": _by_port,
    "pidfile": _by_pidfile,
    "unit": _by_unit,
    "container": _by_container,
}
