"""Whose connections lead to the target: looked at before the load, and once a second during it.

A connection is ours when the socket at its client end is open in our own process, one that it started itself, which
Locust is, or one that Locust forked; what a locustfile starts in turn is somebody else. During load each look also says
how many bytes went through ours and through the others' since the look before.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from sweep import outdir
from sweep.endpoint import Endpoint
from sweep.ownership import comm, command_line, network_namespace, parents, socket_inodes
from sweep.records import ConnectionLine, to_line
from sweep.refusals import is_loopback
from sweep.sockets import Address, Flow, flows_of, holders, n_accepted, own_flows

SHOWN_PEERS = 5
_EVERY_S = 1.0
_MOST_SHARE = 0.02  # of a core for looking; dearer looks are taken less often
_JOIN_S = 10.0
WORKERS_ELSEWHERE = "workers on other machines connect too, and are not told from others"
_NAMES = {"localhost": ("127.0.0.1", "::1")}

Peer = tuple[Address, int]


class Place(NamedTuple):
    """Where connections to the target can be seen. pid: whose network namespace, None for ours."""

    host: str
    port: int
    pid: int | None


class Look(NamedTuple):
    """Established connections by their client end. inodes: of client ends of others on this machine."""

    ours: Mapping[Peer, Flow]
    others: Mapping[Peer, Flow]
    inodes: Mapping[Peer, int]


def place_of(target: Endpoint, pid: int | None, listen: Endpoint | None) -> Place | str:
    """The place, or why none is seen. listen: where the pid listens when a proxy stands before it."""
    proxied = listen is not None and (listen.host, listen.port) != (target.host, target.port)
    if pid is not None and not proxied:
        namespace = network_namespace(pid)
        if namespace is None:
            return f"the network namespace of pid {pid} cannot be read"
        return Place(target.host, target.port, None if namespace == network_namespace(None) else pid)
    if is_loopback(target.host):
        return Place(target.host, target.port, None)
    return "the target is another machine" if not proxied else "the proxy before the gateway is another machine"


def look(place: Place) -> Look | None:
    """All connections to the target as they are now; None when they cannot be read."""
    flows = own_flows()
    served = flows if place.pid is None else flows_of(place.pid)
    if flows is None or served is None:
        return None
    inodes = set[int]().union(*(socket_inodes(pid) or () for pid in _ours()))
    clients = {(flow.address, flow.port): flow.inode for flow in flows if flow.peer_port == place.port}
    ours, others = dict[Peer, Flow](), dict[Peer, Flow]()
    at = _addresses(place, served)
    for flow in served:
        if flow.port == place.port and not flow.is_listening and (at is None or flow.address in at):
            peer = (flow.peer, flow.peer_port)
            (ours if clients.get(peer) in inodes else others)[peer] = flow
    if others:
        # Without keep-alive one of ours begins or ends while we look. Only what is there before and after the list of
        # our sockets was made, and is not in it, is somebody else's.
        later = own_flows()
        still = later if place.pid is None else flows_of(place.pid)
        there = {(flow.peer, flow.peer_port) for flow in still or served if flow.port == place.port}
        clients |= {(flow.address, flow.port): flow.inode for flow in later or () if flow.peer_port == place.port}
        others = {peer: flow for peer, flow in others.items() if peer in there and clients.get(peer) not in inodes}
    return Look(ours, others, {peer: clients[peer] for peer in others if clients.get(peer)})


def _ours() -> list[int]:
    """A fork has its parent's command line; what was started by exec has its own."""
    me, parent_of = os.getpid(), parents()
    started = [pid for pid, parent in parent_of.items() if parent == me]
    forked = [pid for pid, up in parent_of.items() if up in started and command_line(pid) == command_line(up)]
    return [me, *started, *forked]


def listener(place: Place) -> tuple[bool, int | None]:
    """Whether something listens at the target in our namespace, and which process; None: this user may not see it."""
    at = _wanted(place.host)
    inodes = [flow.inode for flow in own_flows() or () if _serves(flow, place.port, at)]
    return bool(inodes), next(iter(holders(inodes).values()), None)


def peer_texts(seen: Look) -> list[str]:
    """`127.0.0.1:40312 (python3, pid 77)` for each connection of others; without the process where it is not seen."""
    pids = holders(seen.inodes.values()) if seen.inodes else {}
    return [_text(peer, pids.get(seen.inodes.get(peer, 0))) for peer in sorted(seen.others, key=str)]


def connection_watches(place: Place | str, out_dir: Path) -> list[ConnectionWatch]:
    """The watch of a place; none where nothing can be seen."""
    return [] if isinstance(place, str) else [ConnectionWatch(place, out_dir)]


class ConnectionWatch(threading.Thread):
    """Looks once a second and appends to connections.jsonl, until stopped.

    failure: why it ended before that, for the runner: OSError when the disk is full, else a fault of ours.
    """

    def __init__(self, place: Place, out_dir: Path) -> None:
        super().__init__(name="connections", daemon=True)
        self.file = outdir.CONNECTIONS
        self.failure: Exception | None = None
        self._place = place
        self._lines = outdir.LineFile(out_dir / outdir.CONNECTIONS)
        self._over = threading.Event()
        self._growth: Growth | None = None
        self._named: dict[Peer, str] = {}
        self._before: tuple[set[Peer], int | None] | None = None  # ours, and connections accepted by then

    def run(self) -> None:
        due = time.monotonic()
        try:
            while not self._over.wait(max(0.0, due - time.monotonic())):
                began = time.monotonic()
                self._look()
                cost_s = time.monotonic() - began
                due = max(due + _EVERY_S, began + cost_s / _MOST_SHARE)
        except Exception as error:  # noqa: BLE001 - in a thread it would be lost, and looks with it
            self.failure = error

    def stop(self) -> None:
        self._over.set()
        if self.ident is not None:
            self.join(_JOIN_S)
        self._lines.close()

    def _look(self) -> None:
        t_ns = time.monotonic_ns()
        accepted = n_accepted() if self._place.pid is None else None
        seen = look(self._place)
        if seen is None:
            return  # a second without a line is a second nobody looked
        if self._growth is None:
            self._growth = Growth(seen)
        ours, others, n_active = self._growth.since(seen)
        if any(peer not in self._named for peer in seen.others):
            self._named = dict(zip(sorted(seen.others, key=str), peer_texts(seen), strict=True))
        peers = [self._named[peer] for peer in sorted(seen.others, key=str)[:SHOWN_PEERS]]
        n_new, n_opened = self._opened(set(seen.ours), accepted)
        line = ConnectionLine(
            t_mono_ns=t_ns, n_ours=len(seen.ours), n_others=len(seen.others), n_active=n_active,
            n_ours_new=n_new, n_opened=n_opened,
            ours_in_bytes=ours[0], ours_out_bytes=ours[1], others_in_bytes=others[0], others_out_bytes=others[1],
            peers=peers,
        )  # fmt: skip
        self._lines.append(to_line(line))


    def _opened(self, ours: set[Peer], accepted: int | None) -> tuple[int | None, int | None]:
        """New ones of ours, and connections accepted anywhere, since the look before."""
        before, self._before = self._before, (ours, accepted)
        if before is None:
            return None, None
        opened = None if before[1] is None or accepted is None else accepted - before[1]
        return len(ours - before[0]), opened


class Growth:
    """Bytes since the look before. A connection counts from its second look on, then with all it has carried.

    One that was there before the first look counts from there. So ours and others' are counted alike, and one that is
    opened or closed while we look is never taken for the other's.
    """

    def __init__(self, first: Look) -> None:
        self._counted = {peer: (flow.n_in, flow.n_out) for side in first[:2] for peer, flow in side.items()}
        self._ours = set(first.ours)

    def since(self, seen: Look) -> tuple[tuple[int | None, int | None], tuple[int | None, int | None], int]:
        """(in, out) of ours, (in, out) of others, and how many of the others' are new or carried something.

        None: the kernel does not tell the bytes of one of them; then all of the others' count as active.
        """
        counted: dict[Peer, tuple[int | None, int | None]] = {}
        grown: list[list[tuple[int, int]]] = []
        n_active, unknown = 0, False
        for side in (seen.ours, seen.others):
            parts: list[tuple[int, int]] = []
            for peer, flow in side.items():
                before_in, before_out = self._counted.get(peer, (None, None))
                is_same = peer in self._counted and (peer in self._ours) == (side is seen.ours)
                if flow.n_in is None or flow.n_out is None:
                    unknown = True
                    counted[peer] = (None, None)
                elif not is_same or before_in is None or before_out is None or flow.n_in < before_in:
                    counted[peer] = (0, 0)
                else:
                    counted[peer] = (flow.n_in, flow.n_out)
                    parts.append((flow.n_in - before_in, max(0, flow.n_out - before_out)))
                if side is seen.others and (flow.n_in is None or counted[peer] == (0, 0) or sum(parts[-1]) > 0):
                    n_active += 1
            grown.append(parts)
        self._counted, self._ours = counted, set(seen.ours)
        if unknown:
            return (None, None), (None, None), n_active
        ours, others = ((sum(p[0] for p in parts), sum(p[1] for p in parts)) for parts in grown)
        return ours, others, n_active


def _addresses(place: Place, flows: list[Flow]) -> set[Address] | None:
    """Where the target's listener accepts connections; None for everywhere, or when no listener is seen."""
    at = _wanted(place.host)
    found = {flow.address for flow in flows if _serves(flow, place.port, at)}
    return None if not found or any(address.is_unspecified for address in found) else found


def _serves(flow: Flow, port: int, at: set[Address] | None) -> bool:
    if not flow.is_listening or flow.port != port:
        return False
    return at is None or flow.address.is_unspecified or flow.address in at


def _wanted(host: str) -> set[Address] | None:
    """Addresses of a host as written; None for a name, which may be any."""
    try:
        return {ip_address(each) for each in _NAMES.get(host, (host,))}
    except ValueError:
        return None


def _text(peer: Peer, pid: int | None) -> str:
    address, port = peer
    where = f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
    return where if pid is None else f"{where} ({comm(pid) or 'ended'}, pid {pid})"
