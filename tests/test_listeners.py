"""Where a tree listens, and how it is reached from here. Real sockets of real processes."""

from __future__ import annotations

import os
import socket
import subprocess

import psutil
import pytest
from require import need
from sampler_kit import child
from test_ownership import Listener

from sweep.errors import PlanError
from sweep.listeners import find_listeners, locate


def refusal(*arguments: int) -> str:
    with pytest.raises(PlanError) as caught:
        find_listeners(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("host", "url", "bound"),
    [
        ("127.0.0.1", "http://127.0.0.1:{}", "127.0.0.1:{}"),
        ("0.0.0.0", "http://127.0.0.1:{}", "0.0.0.0:{}"),
        ("127.0.0.2", "http://127.0.0.2:{}", "127.0.0.2:{}"),
        ("::1", "http://[::1]:{}", "[::1]:{}"),
        ("::", "http://[::1]:{}", "[::]:{}"),
    ],
)
def test_a_listener_is_reached_by_loopback(host, url, bound):
    """On every address too; the answer is the one that a client can use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        try:
            sock.bind((host, 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        sock.listen()
        port = sock.getsockname()[1]
        (found,) = find_listeners(os.getpid(), port)

        assert (url.format(port), bound.format(port)) == (found.url, found.bound)
        assert (port, os.getpid(), True, True) == (found.port, found.pid, found.is_own, found.is_loopback)
        with socket.create_connection((found.url.split("//")[1].rpartition(":")[0].strip("[]"), port)):
            pass


def test_ipv4_comes_before_ipv6_of_one_port():
    """A server that binds both is one port, not two."""
    with socket.socket() as four, socket.socket(socket.AF_INET6) as six:
        four.bind(("127.0.0.1", 0))
        port = four.getsockname()[1]
        try:
            six.bind(("::1", port))
        except OSError:
            pytest.skip("this machine has no IPv6, or the port is taken there")
        for each in (four, six):
            each.listen()

        assert [f"http://127.0.0.1:{port}"] == [each.url for each in find_listeners(os.getpid(), port)]


def test_a_worker_that_holds_the_socket_is_named():
    """The process given serves nothing itself: its worker does."""
    listen = "import socket; s = socket.create_server(('127.0.0.1', 0)); result = s.getsockname()[1]"
    with child() as process:
        port = process.do(listen)
        worker = process.do("result = os.fork() or (time.sleep(60), os._exit(0))")
        assert [(process.pid, True)] == [(each.pid, each.is_own) for each in find_listeners(process.pid)]
        process.do("s.close()")
        (found,) = find_listeners(process.pid)
        os.kill(worker, 9)

    assert (port, worker, False) == (found.port, found.pid, found.is_own)


def test_several_ports_are_several_rows():
    """Ascending, whichever process holds them; one of them on request."""
    listen = "import socket; s = [socket.create_server(('127.0.0.1', 0)) for _ in range(2)]; result = 0"
    with child() as process:
        process.do(listen)
        ports = sorted(process.do("result = [each.getsockname()[1] for each in s]"))
        assert ports == [each.port for each in find_listeners(process.pid)]
        assert ports[1:] == [each.port for each in find_listeners(process.pid, ports[1])]
        assert f"no port {ports[0] - 1 or 1}" in refusal(process.pid, ports[0] - 1 or 1)


def test_another_address_of_the_machine_is_named_with_what_to_give():
    """It is not loopback: the operator must agree to the load. Loopback comes first where there is both."""
    addresses = [each.address for entries in psutil.net_if_addrs().values() for each in entries if each.family == 2]
    others = [address for address in addresses if not address.startswith("127.")]
    if not others:
        pytest.skip("this machine has no address but loopback")
    with Listener(others[0]) as outside:
        line = refusal(outside.pid)
        assert f"--target http://{others[0]}:{outside.port} --allow-host {others[0]} --acknowledge-load" in line
    both = f"import socket; a = socket.create_server(('{others[0]}', 0)); b = socket.create_server(('127.0.0.1', 0))"
    with child() as process:
        process.do(both)
        assert [False, True] == sorted(each.is_loopback for each in find_listeners(process.pid))


def test_no_port_is_one_line():
    """A process that only connects, one that has ended."""
    with child() as process:
        assert "listens on no TCP port, nor does a child of it; give --target" in refusal(process.pid)
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert "no such process" in refusal(ended.pid)


def test_another_network_namespace_needs_a_target():
    """Its ports are not this machine's: of the process itself, and of a child of one that is here."""
    need("netns", os.geteuid() == 0, "run as root: the test makes a network namespace")
    with Listener("0.0.0.0", before=("unshare", "--net")) as listener:
        assert "is in another network namespace" in refusal(listener.pid)
    with Listener("0.0.0.0", before=("sh", "-c", 'unshare --net "$@"; true', "sh")) as listener:
        assert "has children in another network namespace" in refusal(listener.pid)


@pytest.mark.parametrize("pid", [os.getppid(), os.getpid()], ids=["parent", "itself"])
def test_our_own_parent_is_refused_before_its_ports_are_looked_at(pid):
    """The ports of a shell are those of everything started in it, also of what nobody wants asked."""
    with pytest.raises(PlanError, match=f"--gateway-pid {pid} is .*ha-sweep itself; give the gateway's PID"):
        locate({"demo": False, "gateway_pid": pid, "target": None, "gateway_listen": None})
