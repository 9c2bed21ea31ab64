"""Ephemeral ports that are still free for a connection to the target: the range of this machine less what is taken.

A port is taken per (own address, target address, target port); TIME_WAIT counts. Source: ip(7) ip_local_port_range and
sock_diag(7), which the kernel filters by the target's port.
"""

from __future__ import annotations

import _socket
import ipaddress
import struct
from pathlib import Path
from typing import NamedTuple

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP = 4, 20, 0x301
_DONE, _ERROR = 3, 2
_CLOSE, _LISTEN, _NEW_SYN_RECV = 7, 10, 12
_STATES = 0x1FFF & ~(1 << _CLOSE | 1 << _LISTEN | 1 << _NEW_SYN_RECV | 1)


class Way(NamedTuple):
    """Own address, target's address, target's port, of one connection."""

    own: str
    target: str
    port: int


class Ports(NamedTuple):
    """total, left: None where unknown, with why."""

    total: int | None
    left: int | None
    why: str | None


def ports_left(path: Way | None) -> Ports:
    """What is free for one more connection on this path."""
    try:
        first, last = map(int, RANGE.read_text().split())
    except (OSError, ValueError) as error:
        return Ports(None, None, f"{RANGE}: {getattr(error, 'strerror', None) or 'not two numbers'}")
    total = last - first + 1
    if path is None:
        return Ports(total, None, "no connection to the target was made yet")
    try:
        return Ports(total, max(0, total - _n_taken(path)), None)
    except OSError as error:
        return Ports(total, None, f"sock_diag: {error.strerror or error}")


def _n_taken(path: Way) -> int:
    """Sockets of the path in any state that holds its port. Raises OSError.

    The answer is searched for the ends' bytes instead of taken apart: tens of thousands of sockets in TIME_WAIT would
    hold up the event loop for longer than the lateness that makes a step invalid.
    """
    ends = struct.pack(">H", path.port) + _packed(path.own) + _packed(path.target)
    family = _socket.AF_INET6 if ":" in path.target else _socket.AF_INET
    body = struct.pack("=BBBxI", family, _socket.IPPROTO_TCP, 0, _STATES) + struct.pack(">HH44x", 0, path.port)
    kernel = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    try:
        kernel.settimeout(1.0)
        kernel.send(struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + body)
        n_taken = 0
        while True:
            answer = kernel.recv(1 << 20)
            (kind,) = struct.unpack_from("=H", answer, 4)
            if kind == _ERROR:
                raise OSError(-struct.unpack_from("=i", answer, 16)[0], "refused")
            n_taken += answer.count(ends)
            if kind == _DONE:
                return n_taken
    finally:
        kernel.close()


def _packed(address: str) -> bytes:
    return ipaddress.ip_address(address.partition("%")[0]).packed.ljust(16, b"\0")
