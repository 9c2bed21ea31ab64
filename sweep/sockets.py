"""TCP sockets and how many bytes went through them: asked of the kernel, or read in another network namespace.

Source: sock_diag(7) gives both, for one's own namespace only; proc_net(5) any readable one's, without bytes.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from sweep.ownership import socket_inodes, tcp_sockets

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP = 4, 20, 0x301
_DONE, _ERROR = 3, 2
_ESTABLISHED, _LISTEN = 1, 10
_INET_DIAG_INFO = 2
_MESSAGE_BYTES = 72  # struct inet_diag_msg; its attributes follow
_BYTES_AT = 120  # tcpi_bytes_acked and tcpi_bytes_received in struct tcp_info, Linux 4.1 and later
_TIMEOUT_S = 2.0
_STATES = {"01": _ESTABLISHED, "0A": _LISTEN}


class Flow(NamedTuple):
    """One established or listening socket.

    n_in: bytes it received. n_out: bytes it sent that were acknowledged. None: the source does not tell.
    """

    address: Address
    port: int
    peer: Address
    peer_port: int
    is_listening: bool
    inode: int
    n_in: int | None
    n_out: int | None


def own_flows() -> list[Flow] | None:
    """Sockets of our own network namespace; None when neither source can be read."""
    try:
        return [flow for family in (socket.AF_INET, socket.AF_INET6) for flow in _dump(family)]
    except (OSError, struct.error, ValueError):  # no such socket family in a sandbox, or an answer of another shape
        return flows_of(os.getpid())


def flows_of(pid: int) -> list[Flow] | None:
    """Sockets of the pid's network namespace, without bytes; None when they cannot be read."""
    sockets = tcp_sockets(pid)
    if sockets is None:
        return None
    return [
        Flow(each.address, each.port, each.peer, each.peer_port, _STATES[each.state] == _LISTEN, each.inode, None, None)
        for each in sockets
        if each.state in _STATES
    ]


def n_accepted(snmp: Path = Path("/proc/net/snmp")) -> int | None:
    """Connections our network namespace has accepted so far, at any port, however short they were; None: not told.

    Source: proc_net(5), PassiveOpens of RFC 4022, which counts IPv6 too.
    """
    try:
        names, values = (line.split() for line in snmp.read_text().splitlines() if line.startswith("Tcp:"))
        return int(values[names.index("PassiveOpens")])
    except (OSError, ValueError, IndexError):
        return None


def holders(inodes: Collection[int]) -> dict[int, int]:
    """Which process has each of these sockets open, as far as this user may see: inode -> pid."""
    wanted, found = set(inodes), dict[int, int]()
    for entry in Path("/proc").iterdir():
        if not wanted:
            break
        if entry.name.isdigit():
            held = wanted & (socket_inodes(int(entry.name)) or set())
            found |= dict.fromkeys(held, int(entry.name))
            wanted -= held
    return found


def _dump(family: int) -> Iterator[Flow]:
    """All established and listening TCP sockets of a family. Raises OSError."""
    states = 1 << _ESTABLISHED | 1 << _LISTEN
    body = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), states)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + body)
        while True:
            answer, at = kernel.recv(1 << 18), 0
            while at < len(answer):
                length, kind = struct.unpack_from("=IH", answer, at)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", answer, at + 16)[0], "sock_diag")
                yield _flow(answer[at + 16 : at + length])
                at += (length + 3) & ~3


def _flow(message: bytes) -> Flow:
    family, state = message[0], message[1]
    port, peer_port = struct.unpack_from(">HH", message, 4)
    size = 4 if family == socket.AF_INET else 16
    address, peer = (_plain(message[at : at + size]) for at in (8, 24))
    (inode,) = struct.unpack_from("=I", message, 68)
    n_in, n_out = _bytes_of(message)
    return Flow(address, port, peer, peer_port, state == _LISTEN, inode, n_in, n_out)


def _bytes_of(message: bytes) -> tuple[int | None, int | None]:
    at = _MESSAGE_BYTES
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == _INET_DIAG_INFO and length >= 4 + _BYTES_AT + 16:
            n_out, n_in = struct.unpack_from("=QQ", message, at + 4 + _BYTES_AT)
            return n_in, n_out
        at += max(4, (length + 3) & ~3)
    return None, None


def _plain(packed: bytes) -> Address:
    """An IPv4 address that came in an IPv6 socket is an IPv4 address."""
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
