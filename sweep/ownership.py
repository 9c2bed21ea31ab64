"""Who the gateway is: whether the given PID, or a child of it, holds the loaded socket. Reads /proc only.

proc: the folder read, /proc but in tests.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal, NamedTuple

LISTEN = "0A"
_PROC = Path("/proc")
_LOOPBACK_NAMES = {"localhost": ("127.0.0.1", "::1")}


class Ownership(NamedTuple):
    """proved: the tree holds the listening socket. declared: cannot be told. contradicted: another holds it."""

    verdict: Literal["proved", "declared", "contradicted"]
    why: str


class Socket(NamedTuple):
    """One row of /proc/PID/net/tcp or tcp6. Source: proc_net(5); addresses are hex in host byte order."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int
    state: str
    inode: int
    peer: ipaddress.IPv4Address | ipaddress.IPv6Address
    peer_port: int


def judge_ownership(pid: int, host: str, port: int, *, proxied: bool) -> Ownership:
    """Who listens where clients, or the proxy before the gateway, connect to.

    proxied: the clients' path is another address than the one the pid listens on.
    """
    namespace = network_namespace(pid)
    if namespace is not None and namespace != network_namespace(None):
        return Ownership("declared", f"pid {pid} is in another network namespace")
    sockets = tcp_sockets(pid)
    if sockets is None:
        return Ownership("declared", f"the sockets of pid {pid} cannot be read")
    inodes = {each.inode for each in sockets if each.state == LISTEN and each.port == port and _serves(each, host)}
    if not inodes and namespace is None:
        return Ownership("declared", f"the network namespace of pid {pid} cannot be read")
    if not inodes:
        return Ownership("contradicted", f"nothing listens on {host} port {port} of this machine")
    tree = [pid, *descendants(pid)]
    holders = {each: held for each in tree if (held := socket_inodes(each)) is not None}
    if any(inodes & held for held in holders.values()):
        if proxied:
            return Ownership("declared", f"pid {pid} listens on port {port}; that the target leads there is assumed")
        return Ownership("proved", f"the tree of pid {pid} holds the listening socket of port {port}")
    if len(holders) < len(tree):
        return Ownership("declared", f"open files of pid {pid} or a child cannot be read by this user")
    owner = _owner(inodes, tree)
    if owner is None:
        return Ownership("declared", f"who holds port {port} cannot be seen by this user")
    return Ownership("contradicted", f"port {port} is held by pid {owner} ({comm(owner) or 'unknown'})")


def tcp_sockets(pid: int, proc: Path = _PROC) -> list[Socket] | None:
    """TCP sockets of the pid's network namespace; None when they cannot be read."""
    found: list[Socket] = []
    readable = False
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / str(pid) / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        readable = True
        for line in lines:
            fields = line.split()
            (address, _, port), (peer, _, peer_port) = (each.rpartition(":") for each in fields[1:3])
            ends = (_address(peer), int(peer_port, 16))
            found.append(Socket(_address(address), int(port, 16), fields[3], int(fields[9]), *ends))
    return found if readable else None


def descendants(pid: int, proc: Path = _PROC) -> list[int]:
    """Children of the process and theirs, breadth first; those that vanish meanwhile are left out."""
    children: dict[int, list[int]] = {}
    for each, parent in parents(proc).items():
        children.setdefault(parent, []).append(each)
    found: list[int] = []
    queue = [pid]
    while queue:
        born = children.get(queue.pop(0), [])
        found += born
        queue += born
    return found


def parents(proc: Path = _PROC) -> dict[int, int]:
    """The parent of every process that can be seen."""
    found: dict[int, int] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_bytes()
            except OSError:
                continue
            found[int(entry.name)] = int(stat.rpartition(b")")[2].split()[1])
    return found


def socket_inodes(pid: int, proc: Path = _PROC) -> set[int] | None:
    """Inodes of the sockets the process has open; None when its open files cannot be read."""
    found: set[int] = set()
    try:
        entries = list((proc / str(pid) / "fd").iterdir())
    except OSError:
        return None
    for entry in entries:
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def comm(pid: int, proc: Path = _PROC) -> str | None:
    """The process's name, or None when it is gone."""
    try:
        return (proc / str(pid) / "comm").read_bytes().decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return None


def command_line(pid: int, proc: Path = _PROC) -> bytes | None:
    """To compare two processes by, never to keep (it may hold secrets); None when it is gone."""
    try:
        return (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Words of 32 bits, each in host byte order (little-endian on every machine this runs on)."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _serves(listener: Socket, host: str) -> bool:
    """A connection to `host` can end at this listener; of a name that is no address, any listener may."""
    try:
        wanted = {ipaddress.ip_address(each) for each in _LOOPBACK_NAMES.get(host, (host,))}
    except ValueError:
        return True
    return listener.address.is_unspecified or listener.address in wanted


def network_namespace(pid: int | None) -> str | None:
    """Its name; of our own process for None. None when it cannot be read."""
    try:
        return str((_PROC / ("self" if pid is None else str(pid)) / "ns" / "net").readlink())
    except OSError:
        return None


def _owner(inodes: set[int], tree: list[int]) -> int | None:
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) not in tree and inodes & (socket_inodes(int(entry.name)) or set()):
            return int(entry.name)
    return None
