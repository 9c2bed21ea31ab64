"""Ephemeral ports towards a target: what is taken by open and by just closed connections."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from sweep.connections import Place, look
from sweep.ports import RANGE, Way, ports_left

FAMILIES = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}


def server(host: str) -> socket.socket:
    try:
        return socket.create_server((host, 0), family=FAMILIES[host], backlog=128)
    except OSError:
        pytest.skip(f"needs {host}")


@pytest.mark.parametrize("host", FAMILIES)
def test_each_connection_takes_one_and_keeps_it_for_a_while(host):
    """Also in TIME_WAIT, after our own close; connections to another port of the same host take none."""
    first, last = map(int, RANGE.read_text().split())
    with server(host) as listener, server(host) as other:
        port = listener.getsockname()[1]
        way = Way(host, host, port)
        free = ports_left(way)
        elsewhere = [socket.create_connection(other.getsockname()[:2]) for _ in range(3)]
        ours = [socket.create_connection((host, port)) for _ in range(20)]
        accepted = [listener.accept()[0] for _ in ours]
        taken = ports_left(way)
        for each in (*ours, *accepted):  # we first: TIME_WAIT is ours
            each.close()
        waiting = ports_left(way)
        for each in elsewhere:
            each.close()

    assert (last - first + 1, None) == (free.total, free.why)
    assert free.total == free.left
    assert [20, 20] == [free.left - taken.left, free.left - waiting.left]


def test_before_the_first_connection_it_is_unknown_with_the_reason():
    """Which address ours is, nobody knows yet."""
    assert (None, "no connection to the target was made yet") == ports_left(None)[1:]


def test_our_own_short_connections_are_nobody_else_s():
    """Without keep-alive they end while one looks."""
    over = threading.Event()
    with server("127.0.0.1") as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            while not over.is_set():
                with listener.accept()[0] as connection:
                    connection.recv(1)

        def come_and_go(stay_s: float) -> None:
            while not over.is_set():
                with socket.create_connection(("127.0.0.1", port)):
                    time.sleep(stay_s)

        threads = [threading.Thread(target=serve, daemon=True) for _ in range(4)]
        threads += [threading.Thread(target=come_and_go, args=(s,), daemon=True) for s in (0.003, 0.003, 0.01, 0.1)]
        for thread in threads:
            thread.start()
        seen = [look(Place("127.0.0.1", port, None)) for _ in range(60)]
        over.set()
        for _ in range(4):  # those that wait for one
            socket.create_connection(("127.0.0.1", port)).close()
        for thread in threads:
            thread.join(10)

    assert any(each.ours for each in seen)
    assert 0 == sum(len(each.others) for each in seen)
