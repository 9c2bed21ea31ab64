"""Who holds the port: by address, by network namespace, with the name of who does. Real sockets and processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from require import need

from sweep.ownership import judge_ownership, tcp_sockets

LISTEN = (
    "import socket, sys; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1);"
    "s.bind((sys.argv[1], int(sys.argv[2]))); s.listen(); print(s.getsockname()[1], flush=True); sys.stdin.read()"
)


class Listener:
    """A process that listens until it is closed."""

    def __init__(self, host: str, port: int = 0, before: tuple[str, ...] = ()) -> None:
        command = [*before, sys.executable, "-c", LISTEN, host, str(port)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())
        self.pid = self.process.pid

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate("")


def test_the_holder_is_proved():
    """On the address clients use, and on every address."""
    with Listener("127.0.0.1") as one, Listener("0.0.0.0") as any_:
        assert "proved" == judge_ownership(one.pid, "127.0.0.1", one.port, proxied=False).verdict
        assert "proved" == judge_ownership(one.pid, "localhost", one.port, proxied=False).verdict
        assert "proved" == judge_ownership(any_.pid, "127.0.0.1", any_.port, proxied=False).verdict


def test_a_parent_of_the_holder_is_proved():
    """A supervisor that serves nothing itself: the tree holds the socket."""
    with Listener("127.0.0.1", before=("sh", "-c", '"$@"; true', "sh")) as listener:
        assert "proved" == judge_ownership(listener.pid, "127.0.0.1", listener.port, proxied=False).verdict


def test_another_address_with_the_same_port_is_not_it():
    """The pid listens on 127.0.0.2; clients reach the process on 127.0.0.1."""
    with Listener("127.0.0.2") as ours, Listener("127.0.0.1", ours.port) as theirs:
        found = judge_ownership(ours.pid, "127.0.0.1", ours.port, proxied=False)

        assert "contradicted" == found.verdict
        assert f"pid {theirs.pid} " in found.why


def test_nobody_listening_contradicts():
    """The pid exists and nothing has the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = judge_ownership(os.getpid(), "127.0.0.1", free.getsockname()[1], proxied=False)

    assert ("contradicted", True) == (found.verdict, "nothing listens" in found.why)


def test_a_proxy_in_between_is_assumed():
    """That the clients' path leads to the pid cannot be seen."""
    with Listener("127.0.0.1") as listener:
        found = judge_ownership(listener.pid, "127.0.0.1", listener.port, proxied=True)

    assert ("declared", True) == (found.verdict, "assumed" in found.why)


def test_another_network_namespace_is_declared():
    """The same port there is another port."""
    need("netns", os.geteuid() == 0, "run as root: the test makes a network namespace")
    with Listener("0.0.0.0", before=("unshare", "--net")) as listener:
        found = judge_ownership(listener.pid, "127.0.0.1", listener.port, proxied=False)

    assert ("declared", True) == (found.verdict, "another network namespace" in found.why)


def test_ipv6_addresses_are_read():
    """Words of the kernel's table in host byte order."""
    with socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        found = [str(each.address) for each in tcp_sockets(os.getpid()) if each.port == port and each.state == "0A"]

        assert ["::1"] == found
        assert "proved" == judge_ownership(os.getpid(), "::1", port, proxied=False).verdict
