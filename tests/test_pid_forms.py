"""`--gateway-pid` in its forms: real processes for port and pidfile, /proc- and cgroup-shaped folders for others."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from sampler_kit import child

from sweep.errors import PlanError
from sweep.pid_forms import Roots, port_of, resolve

LISTEN = (
    "import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); "
    "s.bind(('127.0.0.1', {port})); s.listen(); result = s.getsockname()[1]"
)
ID = "c3d2" + "0" * 60
OTHER = "c3ff" + "1" * 60


def refusal(text: str, *roots: Roots) -> str:
    with pytest.raises(PlanError) as caught:
        resolve(text, *roots)
    return str(caught.value)


class Machine:
    """A /proc- and a cgroup-shaped folder."""

    def __init__(self, folder: Path, layout: str = "v2") -> None:
        self.roots = Roots(folder / "proc", folder / "cgroup")
        self.layout = layout
        self.roots.proc.mkdir(parents=True)
        hierarchies = {"v2": [""], "v1": ["cpu", "memory", "systemd"], "hybrid": ["memory", "systemd", "unified"]}
        self.hierarchies = [self.roots.cgroup / name for name in hierarchies[layout]]
        for hierarchy in self.hierarchies:
            hierarchy.mkdir(parents=True)
            (hierarchy / "cgroup.procs").write_text("1\n")

    def process(self, pid: int, ticks: int, cgroup: str, comm: str = "gw", state: str = "S") -> None:
        """In the cgroup in every hierarchy; its name would mislead who splits the line at spaces."""
        entry = self.roots.proc / str(pid)
        entry.mkdir()
        rest = " ".join(["0"] * 17)
        (entry / "stat").write_text(f"{pid} ({comm}) 1) {state} 1 {rest} {ticks} 0 0\n")
        (entry / "comm").write_text(f"{comm}\n")
        (entry / "cgroup").write_text(f"4:memory:{cgroup}\n0::{cgroup}\n")
        for hierarchy in self.hierarchies:
            folder = hierarchy / cgroup.strip("/")
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "cgroup.procs").open("a") as file:
                file.write(f"{pid}\n")


@contextlib.contextmanager
def listening(port: int = 0):
    """A child that listens, and the port."""
    with child() as process:
        yield process, process.do(LISTEN.format(port=port))


def test_a_number_is_taken_as_it_is():
    """Whether it lives is asked where it is watched, with the words for it."""
    assert 4242 == resolve("4242")
    assert "--gateway-pid 1111111111…: no such process" in refusal("1" * 5000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-5", ["'-5'", "N, port:N, pidfile:PATH, unit:NAME or container:ID"]),
        ("pid:5", ["'pid:5'", "write N, port:N"]),
        ("conatiner:ab", ["did you mean container?"]),
        ("unit:", ["nothing after the colon"]),
        ("port:x", ["like port:8080"]),
        ("port:70000", ["like port:8080"]),
        ("container:xyz", ["hex digits"]),
        ("unit:a/b", ["unit:ollama.service"]),
        ("pidfile:/nowhere/at/all", ["No such file"]),
    ],
)
def test_what_is_no_form_is_refused(text, words):
    """One line that says what to write."""
    line = refusal(text)

    assert [] == [word for word in words if word not in line]


def test_port_means_the_process_that_listens():
    """And the port itself is known."""
    with listening() as (process, port):
        assert process.pid == resolve(f"port:{port}")
    assert (8080, None, None) == (port_of("port:8080"), port_of("8080"), port_of("unit:a"))


def test_port_of_a_tree_means_its_root():
    """A worker shares the socket with its parent; one that alone keeps it is the one meant."""
    with listening() as (process, port):
        worker = process.do("result = os.fork() or (time.sleep(60), os._exit(0))")
        assert process.pid == resolve(f"port:{port}")
        process.do("s.close()")
        assert worker == resolve(f"port:{port}")
        os.kill(worker, 9)


def test_two_processes_with_one_port_are_listed():
    """SO_REUSEPORT: neither is the other's parent."""
    with listening() as (one, port), listening(port) as (two, _):
        line = refusal(f"port:{port}")

    assert "2 processes" in line and f"pid {one.pid} " in line and f"pid {two.pid} " in line


def test_a_port_nobody_listens_on():
    """Bound is not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert "nothing listens" in refusal(f"port:{bound.getsockname()[1]}")


def test_pidfile(tmp_path):
    """The number it begins with; a stale one and one that holds something else are refused."""
    file = tmp_path / "gateway.pid"
    with child() as process:
        file.write_text(f"  {process.pid}\nstarted today\n")
        assert process.pid == resolve(f"pidfile:{file}")
    assert "stale" in refusal(f"pidfile:{file}")
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    file.write_text(str(ended.pid))
    assert "stale" in refusal(f"pidfile:{file}")  # a zombie
    ended.wait()
    file.write_text("gateway")
    assert "does not begin with a number" in refusal(f"pidfile:{file}")


def test_a_pidfile_older_than_its_process_names_another_one(tmp_path):
    """A number is used again; a file that was written in the same minute may well be before its process."""
    file = tmp_path / "gateway.pid"
    file.write_text(str(os.getpid()))
    started_s = psutil.Process().create_time()
    os.utime(file, (started_s - 30, started_s - 30))
    assert os.getpid() == resolve(f"pidfile:{file}")
    os.utime(file, (started_s - 3600, started_s - 3600))
    assert re.search(r"written 3[56]\d\d s before pid .* started: the file is stale", refusal(f"pidfile:{file}"))


def test_a_pidfile_is_a_file(tmp_path):
    """A pipe that nobody writes into, a device without end and a name with a zero byte hold nothing."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        assert "it is no regular file" in refusal(f"pidfile:{path}")
    assert "null byte" in refusal("pidfile:a\0b")


@pytest.mark.parametrize("layout", ["v2", "v1", "hybrid"])
def test_unit_means_its_oldest_process(tmp_path, layout):
    """Not the lowest PID: numbers wrap. Processes of cgroups below the unit's count, ended ones do not."""
    machine = Machine(tmp_path, layout)
    machine.process(900, 500, "/system.slice/ollama.service")
    machine.process(40, 700, "/system.slice/ollama.service/runner")
    machine.process(41, 100, "/system.slice/ollama.service", state="Z")
    machine.process(42, 50, "/system.slice/ollama-other.service")

    assert 900 == resolve("unit:ollama", machine.roots)
    assert 900 == resolve("unit:ollama.service", machine.roots)
    assert "did you mean ollama.service?" in refusal("unit:olama", machine.roots)


def test_a_process_of_another_pid_namespace_is_passed_over(tmp_path):
    """The kernel writes 0 for it."""
    machine = Machine(tmp_path)
    machine.process(7, 5, "/system.slice/gw.service")
    procs = machine.roots.cgroup / "system.slice/gw.service/cgroup.procs"
    procs.write_text("0\n7\n")

    assert 7 == resolve("unit:gw", machine.roots)


def test_units_of_one_name_are_listed(tmp_path):
    """The system's and a user's."""
    machine = Machine(tmp_path)
    machine.process(7, 5, "/system.slice/gw.service")
    machine.process(8, 4, "/user.slice/user-1000.slice/user@1000.service/app.slice/gw.service")
    line = refusal("unit:gw", machine.roots)

    assert "2 units" in line
    assert "system.slice/gw.service: pid 7 gw" in line and "app.slice/gw.service: pid 8 gw" in line


def test_a_unit_without_processes_is_not_taken(tmp_path):
    """Its cgroup may outlive them for a moment."""
    machine = Machine(tmp_path)
    machine.process(7, 5, "/system.slice/gw.service", state="Z")

    assert "no process runs" in refusal("unit:gw", machine.roots)


@pytest.mark.parametrize(
    ("layout", "path"),
    [
        ("v1", f"/docker/{ID}"),
        ("v2", f"/system.slice/docker-{ID}.scope"),
        ("v2", f"/kubepods.slice/kubepods-pod1234_5678.slice/cri-containerd-{ID}.scope"),
        ("hybrid", f"/kubepods/besteffort/pod8c0e/{ID}"),
        ("v2", f"/machine.slice/libpod-{ID}.scope/container"),
    ],
)
def test_container_means_its_oldest_process(tmp_path, layout, path):
    """As Docker, containerd, CRI-O and podman write the path; podman's watcher outside is not in it."""
    machine = Machine(tmp_path, layout)
    machine.process(900, 500, path, comm="tini")
    machine.process(30, 600, path)
    machine.process(31, 400, f"/machine.slice/libpod-conmon-{ID}.scope", comm="conmon")
    machine.process(32, 1, f"/docker/{OTHER}")

    assert [900] * 3 == [resolve(f"container:{each}", machine.roots) for each in (ID, ID[:12], "C3D2")]


def test_containers_with_one_beginning_are_listed(tmp_path):
    """The middle of an id is no beginning, and neither is a short hex word of the path."""
    machine = Machine(tmp_path)
    machine.process(7, 5, f"/docker/{ID}")
    machine.process(8, 5, f"/docker/{OTHER}")
    machine.process(9, 5, "/system.slice/c3d2.service")

    assert f"2 containers ({ID[:12]}: pid 7 gw, {OTHER[:12]}: pid 8 gw)" in refusal("container:c3", machine.roots)
    assert "no process of this machine" in refusal("container:d2", machine.roots)
