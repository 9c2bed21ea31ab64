"""Where the gateway's process tree listens, and the URL that leads there from this machine. Reads /proc only."""

from __future__ import annotations

import os
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, NamedTuple

from sweep.errors import PlanError
from sweep.ownership import LISTEN, Socket, comm, descendants, network_namespace, socket_inodes, tcp_sockets
from sweep.pid_forms import port_of, resolve

_V6_LOOPBACK = f"{1:032x}"


class Listener(NamedTuple):
    """A port that the tree listens on.

    url: http, by loopback if it can be reached so. bound: address and port as bound. is_own: the given process itself
    holds the socket; else only a descendant, `pid`, does.
    """

    url: str
    bound: str
    port: int
    is_loopback: bool
    pid: int
    comm: str
    is_own: bool

    def __str__(self) -> str:
        return f"{self.bound} (pid {self.pid} {self.comm})"


def locate(given: dict[str, Any]) -> tuple[Listener, ...]:
    """Where the gateway listens, if --target is not among the options; the first place becomes the target.

    given: fields of the plan, None where an option is not given; the form of --gateway-pid becomes its PID.
    Raises PlanError.
    """
    if given["demo"]:
        return ()
    process = "" if given["gateway_pid"] is None else str(given["gateway_pid"])
    if process:
        given["gateway_pid"] = resolve(process)
        given["gateway_pid_given"] = None if process.isdecimal() else process
    if given["target"] is not None:
        return ()
    if not process:
        raise PlanError("no target; give the gateway's --gateway-pid or --target http://HOST:PORT, or --demo")
    if given["gateway_listen"] is not None:
        raise PlanError("--gateway-listen says that a proxy stands before the gateway; give its address with --target")
    _refuse_own(given["gateway_pid"])
    found = find_listeners(given["gateway_pid"], port_of(process))
    given["target"] = next(each.url for each in found if each.is_loopback)
    return found


def _refuse_own(pid: int) -> None:
    """Before anything of that process is asked: its ports are those of everything it started. Raises PlanError."""
    if os.getpid() in (pid, *descendants(pid)):
        whose = "ha-sweep itself" if os.getpid() == pid else "a parent of ha-sweep itself"
        raise PlanError(f"--gateway-pid {pid} is {whose}; give the gateway's PID")


def find_listeners(pid: int, port: int | None = None) -> tuple[Listener, ...]:
    """One row a port, ascending; only `port` when it is given. At least one row can be reached by loopback.

    Raises PlanError: no such process, none to be seen, or none on loopback; each names what to give instead.
    """
    option = f"no --target, and pid {pid} ({comm(pid) or 'unknown'})"
    if not Path(f"/proc/{pid}").exists():
        raise PlanError(f"--gateway-pid {pid}: no such process; give the PID of the running gateway")
    if network_namespace(pid) not in (None, network_namespace(None)):
        raise PlanError(
            f"{option} is in another network namespace (a container?), so its ports are not this machine's; "
            "give --target, the address that leads to it"
        )
    tree = [pid, *descendants(pid)]
    held = {each: inodes for each in tree if (inodes := socket_inodes(each)) is not None}
    holders = {inode: each for each in reversed(tree) for inode in held.get(each, ())}
    sockets = [each for each in tcp_sockets(os.getpid()) or () if each.state == LISTEN and each.inode in holders]
    ports = sorted({each.port for each in sockets if port in (None, each.port)})
    if not ports:
        raise PlanError(f"{option} {_why_none(held, tree, port)}")
    own = held.get(pid, set())
    found = tuple(_listener([s for s in sockets if s.port == each], holders, own) for each in ports)
    if not any(each.is_loopback for each in found):
        raise PlanError(f"{option} listens on no loopback address, only on {_elsewhere(found)}")
    return found


def _why_none(held: Collection[int], tree: list[int], port: int | None) -> str:
    if len(held) < len(tree):
        return (
            "or a child of it has open files that this user may not read, so its port is unknown; "
            "run as its user, or give --target"
        )
    if any(network_namespace(each) not in (None, network_namespace(None)) for each in tree):
        return "has children in another network namespace (a container?); give --target, the address that leads there"
    where = "no TCP port" if port is None else f"no port {port}"
    return f"listens on {where}, nor does a child of it; give --target, or the PID of the process that listens"


def _elsewhere(found: tuple[Listener, ...]) -> str:
    first = found[0]
    host = first.bound.rpartition(":")[0]
    return (
        f"{', '.join(each.bound for each in found)}; to load it give --target {first.url} --allow-host {host} "
        '--acknowledge-load "who: why"'
    )


def _listener(sockets: list[Socket], holders: dict[int, int], own: Collection[int]) -> Listener:
    """Of the sockets of one port the one that is reached best: loopback first, IPv4 before IPv6."""
    best = min(sockets, key=lambda each: (_reached(each.address) is None, each.address.version, str(each.address)))
    reached = _reached(best.address)
    holder = holders[best.inode]
    return Listener(
        url=f"http://{_bracketed(best.address if reached is None else reached)}:{best.port}",
        bound=f"{_bracketed(best.address)}:{best.port}",
        port=best.port,
        is_loopback=reached is not None,
        pid=holder,
        comm=comm(holder) or "unknown",
        is_own=best.inode in own,
    )


def _reached(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address | None:
    """The loopback address that leads to a listener; None when none does."""
    if not address.is_unspecified:
        return address if address.is_loopback else None
    # `::` mostly takes IPv4 too, but need not; a machine may have IPv6 and no ::1.
    return IPv6Address("::1") if address.version == 6 and _has_v6_loopback() else IPv4Address("127.0.0.1")


def _has_v6_loopback() -> bool:
    """Source: /proc/net/if_inet6, one address a line."""
    try:
        return any(line.startswith(_V6_LOOPBACK) for line in Path("/proc/net/if_inet6").read_text().splitlines())
    except OSError:
        return False


def _bracketed(address: IPv4Address | IPv6Address) -> str:
    return f"[{address}]" if address.version == 6 else str(address)
