"""Taking hold of one process: whether it may be sampled, who it is, and what of it this user can read."""

from __future__ import annotations

import hashlib
import os
from functools import partial

from sampler import fields
from sampler.procfs import (
    PF_KTHREAD,
    Descriptors,
    count_fds,
    parse_keys,
    parse_limits,
    parse_stat,
    read_at,
    reason,
    text,
)
from sampler.program import container_id, read_program
from sampler.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Tuple, Union

    from sampler.cgroup import Cgroup
    from sampler.process import Why

    Fact = Union[None, bool, int, str, List[int], Dict[str, str], Dict[str, List[Union[int, str]]]]

REAL_PROCFS = "/proc"


class Refused(Exception):
    """The process cannot be sampled; the text says what is the matter and what to do next."""


def attach(pid: int, procfs: str, held: Descriptors) -> Tuple[Tree, Optional[int]]:
    """The held process and its pidfd (None where there is none: another procfs, an old kernel). Raises Refused.

    The order proves that folder and pidfd name one process: folder, pidfd, then stat through the folder.
    """
    if procfs == REAL_PROCFS and pid == os.getpid():
        raise Refused(f"pid {pid} is this sampler itself; give --pid the gateway's")
    if procfs == REAL_PROCFS and pid == os.getppid():
        raise Refused(f"pid {pid} is the process that started this sampler; give --pid the gateway's")
    try:
        tree = Tree(procfs, pid, held)
    except FileNotFoundError:
        raise Refused(_not_there(pid, procfs)) from None
    except ProcessLookupError:
        raise Refused(f"pid {pid} ended a moment ago; start the gateway and give its new pid") from None
    except (OSError, ValueError, IndexError) as error:
        code = reason(error)
        raise Refused(f"pid {pid}: {procfs}/{pid} cannot be read ({code}); run as its user or as root") from None
    pidfd = None
    try:
        if procfs == REAL_PROCFS and hasattr(os, "pidfd_open"):
            pidfd = _pidfd(pid)
        _refuse_unfit(pid, tree)
    except Refused:
        tree.close()
        if pidfd is not None:
            os.close(pidfd)
        raise
    return tree, pidfd


def is_dead(stat: List[bytes]) -> bool:
    """A zombie of one thread. A leader that ended while its threads go on has state Z too, and is alive."""
    return stat[2] in (b"Z", b"X") and int(stat[19]) <= 1


def _not_there(pid: int, procfs: str) -> str:
    try:
        if procfs == REAL_PROCFS:
            os.kill(pid, 0)      # signal 0: asks, sends nothing
            return f"pid {pid} lives but /proc does not show it; run as its user or as root (hidepid)"
    except PermissionError:
        return f"pid {pid} lives but /proc does not show it; run as its user or as root (hidepid)"
    except OverflowError:
        pass
    except ProcessLookupError:
        pass
    return f"no process {pid} is visible here; give the pid as this host and pid namespace see it"


def _pidfd(pid: int) -> Optional[int]:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise Refused(f"pid {pid} ended a moment ago; start the gateway and give its new pid") from None
    except OSError:
        return None              # an old kernel, a seccomp filter, or a thread id (refused below): the folder decides


def _refuse_unfit(pid: int, tree: Tree) -> None:
    try:
        stat = parse_stat(tree.root.read("stat"))
        group = parse_keys(tree.root.read("status")).get(b"Tgid", b"").strip()
    except (OSError, ValueError) as error:
        raise Refused(f"pid {pid} ended a moment ago ({reason(error)}); give the new pid") from None
    if int(stat[8]) & PF_KTHREAD:
        raise Refused(f"pid {pid} ({text(stat[1])}) is a kernel thread; give --pid the gateway's")
    if is_dead(stat):
        raise Refused(f"pid {pid} ({text(stat[1])}) is a zombie, dead but not waited for; give a living process")
    if group and int(group) != pid:
        raise Refused(f"pid {pid} is a thread of process {int(group)}; give --pid {int(group)}")


def identity(tree: Tree, procfs: str, cgroup: Cgroup) -> Tuple[Dict[str, Fact], Why]:
    """Who the process is; None and a reason for what this user may not see. Arguments are hashed, not kept."""
    why: Why = {}
    fd = tree.root.dir_fd

    def get(name: str, read: Callable[[], Fact]) -> Fact:
        try:
            return read()
        except (OSError, ValueError, IndexError, KeyError) as error:
            why[f"identity.{name}"] = reason(error)
            return None

    status = parse_keys(_or_empty(lambda: tree.root.read("status")))
    stat = parse_stat(tree.root.read("stat"))
    exe = get("exe", lambda: text(os.fsencode(os.readlink("exe", dir_fd=fd))))
    program, program_why = None, "absent"
    try:
        program = read_program(fd)
    except (OSError, ValueError) as error:
        program_why = reason(error)
    facts: Dict[str, Fact] = {
        "pid": tree.root.pid,
        "start_ticks": tree.root.start_ticks,
        "boot_id": get("boot_id", lambda: read_at(f"{procfs}/sys/kernel/random/boot_id").decode().strip()),
        "pid_ns": get("pid_ns", lambda: os.stat("ns/pid", dir_fd=fd).st_ino),
        "ns_pid": get("ns_pid", lambda: [int(pid) for pid in status[b"NSpid"].split()]),
        "comm": text(stat[1]),
        "exe": exe,
        "exe_sha256": get("exe_sha256", lambda: hash_exe(fd)),
        "exe_deleted": None if exe is None else str(exe).endswith(" (deleted)"),
        "arch": None if program is None else program.arch,
        "build_id": None if program is None else program.build_id,
        "go_build_id": None if program is None else program.go_build_id,
        "container_id": get("container_id", lambda: container_id(read_at("cgroup", fd))),
        "uid": get("uid", lambda: int(status[b"Uid"].split()[1])),
        "cmdline_sha256": get("cmdline_sha256", lambda: hashlib.sha256(read_at("cmdline", fd)).hexdigest()),
        "cgroup": dict(cgroup.paths),
        "limits": get("limits", lambda: _limits(tree.root.read("limits"))),
        "kernel": os.uname().release,
    }
    for name in ("arch", "build_id", "go_build_id", "container_id"):
        if facts[name] is None:
            why.setdefault(f"identity.{name}", "absent" if name == "container_id" else program_why)
    return facts, why


def hash_exe(dir_fd: int) -> str:
    """sha256 of the running program, also when its file was deleted or replaced. Raises OSError."""
    digest = hashlib.sha256()
    block = bytearray(1 << 18)
    fd = os.open("exe", os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        while True:
            n = os.readv(fd, [block])
            if n == 0:
                return digest.hexdigest()
            digest.update(memoryview(block)[:n])
    finally:
        os.close(fd)


def visibility(tree: Tree, procfs: str, why: Why) -> List[Dict[str, Union[str, bool, None]]]:
    """Every source, whether this user can read it, and why not. `why` is that of a first sample and of the identity."""
    pid = tree.root.pid
    rows = [_row(source, why.get(f"root.{source}")) for source in ("stat", "status", "io", "limits")]
    rows.append(_row("fd", why.get("root.fd") or _trial(lambda: os.stat("fd", dir_fd=tree.root.dir_fd))))
    rows.append(_row("fd list", _trial(lambda: count_fds(tree.root.dir_fd, by_size=False))))
    for source in ("schedstat", "status", "children"):
        rows.append(_row(f"task/*/{source}", _trial(partial(read_at, f"task/{pid}/{source}", tree.root.dir_fd))))
    for fact in ("exe", "exe_sha256", "cmdline_sha256", "pid_ns", "boot_id"):
        rows.append(_row(fact, why.get(f"identity.{fact}")))
    for group in ("net", "host"):
        for source in fields.sources(group):
            name = f"{group}.{source.rpartition('net/')[2]}"
            rows.append(_row(name, why.get(name)))
    unread = {key: code for key, code in why.items() if key.startswith("cgroup.") and code != "unlimited"}
    rows += [_row(key, code) for key, code in sorted(unread.items())] or [_row("cgroup", None)]
    return rows


def _row(source: str, why: Optional[str]) -> Dict[str, Union[str, bool, None]]:
    return {"source": source, "readable": why is None, "why": why}


def _trial(read: Callable[[], object]) -> Optional[str]:
    try:
        read()
    except OSError as error:
        return reason(error)
    return None


def _or_empty(read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except OSError:
        return b""


def _limits(data: bytes) -> Dict[str, List[Union[int, str]]]:
    """Every limit as [soft, hard]; a number or "unlimited"."""
    return {
        name.lower().replace(" ", "_"): [int(value) if value.isdigit() else text(value) for value in pair]
        for name, pair in parse_limits(data).items()
    }
