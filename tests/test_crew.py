"""A step of several Locust processes: shares, counts, one that is killed; what master and worker say to each other."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgpack
import msgspec
import pytest
import zmq
from command import QUICK, ha_sweep, marks_of, result_of, start_ha_sweep
from fake_gateway import FakeGateway
from locust_step import order_of, run_step

from sweep import __version__, outdir
from sweep.crew_messages import HELLO, ORDER, REFUSED, share_of
from sweep.crew_options import check_bind, n_processes
from sweep.errors import PlanError
from sweep.plan import SweepPlan
from sweep.step_files import ORDER_ENV, StepReport
from sweep.units import parse_level

FAST = {"ttft_s": 0.02, "gap_s": 0.002, "n_tokens": 4}
DEADLINE_S = 30.0


@pytest.mark.parametrize(("users", "n"), [(5, 3), (1, 3), (6, 2), (0, 2)])
def test_the_shares_of_a_step_are_the_step(users, n):
    """Users, rate and caps add up to the step's; no two processes send the same prompts."""
    whole = order_of(
        "http://x", Path("o"), users=users, n_processes=n, max_requests=100, max_output_tokens=1000, rate_per_s=6.0
    )
    shares = [share_of(whole, f"w{index + 1:02d}", index) for index in range(n)]

    assert users == sum(share.users for share in shares)
    assert max(share.users for share in shares) - min(share.users for share in shares) <= 1
    assert 6.0 == pytest.approx(sum(share.rate_per_s for share in shares))
    assert (100, 1000) == tuple(sum(getattr(s, cap) for s in shares) for cap in ("max_requests", "max_output_tokens"))
    assert n == len({share.seed for share in shares})


def test_a_cap_of_one_request_a_user_gives_each_process_its_own():
    """A share of none would close the window before anything was sent; 49 / 49 users is no 0.999… of a request."""
    whole = order_of("http://x", Path("o"), users=49, n_processes=49, max_requests=49, max_output_tokens=49)

    shares = [share_of(whole, f"w{index + 1:02d}", index) for index in range(49)]
    assert [(1, 1)] * 49 == [(share.max_requests, share.max_output_tokens) for share in shares]


def test_a_closed_level_has_no_more_processes_here_than_users():
    """Idle ones would only burn processor time; workers that were waited for all belong to the step."""
    plan = SweepPlan(target="http://x", levels=(), processes=3)
    workers = SweepPlan(target="http://x", levels=(), expect_workers=4)

    assert [1, 2, 3, 3] == [n_processes(plan, parse_level(text)) for text in ("1", "2", "8", "1/s")]
    assert 4 == n_processes(workers, parse_level("1"))


def test_where_workers_cannot_connect_is_bad_input(tmp_path):
    """A port that another has, an address of another machine: one line, before the target is asked anything."""
    plan = SweepPlan(target="http://x", levels=(), expect_workers=1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for host, why in ((f"127.0.0.1:{port}", "Address already in use"), ("192.0.2.1", "Cannot assign")):
            with pytest.raises(PlanError, match=f"--master-bind {host}.*{why}.*free port"):
                check_bind(replace(plan, master_bind=host))
        refused = ha_sweep(
            "run", "--target", "http://127.0.0.1:9", "--levels", "1", "--expect-workers", "1", "--master-bind",
            f"127.0.0.1:{port}", cwd=tmp_path,
        )  # fmt: skip
    assert (2, True) == (refused.returncode, "Address already in use" in refused.stderr), refused.stderr
    check_bind(replace(plan, master_bind=f"127.0.0.1:{port}"))
    check_bind(replace(plan, expect_workers=0, master_bind="192.0.2.1"))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A step of five users in three processes, and what the server received."""
    with FakeGateway(FAST) as fake:
        folder = tmp_path_factory.mktemp("three")
        return run_step(folder, fake.url, users=5, n_processes=3, max_requests=60, duration_s=20.0), fake.log()


@pytest.mark.slow
def test_each_process_writes_its_file_and_all_counts_agree(three):
    """Two users in two of them and one in the third; each of the server's answers is in one file, under its worker."""
    done, answers = three
    report = done.report

    assert (True, None, 5) == (report.counts_agree, report.why, report.users_min)
    assert ["w01", "w02", "w03"] == [process.worker for process in report.processes]
    assert [2, 2, 1] == [len({record.user for record in records}) for records in done.by_worker.values()]
    for process in report.processes:
        records = done.by_worker[process.worker]
        assert {process.worker} == {record.request_id.split(".")[1].split("-")[0] for record in records}
        assert len(records) == process.started == process.locust_requests and process.ended
    assert {answer["request_id"] for answer in answers} == {record.request_id for record in done.records}


@pytest.mark.slow
def test_a_cap_holds_over_all_processes(three):
    """Each has its share, and the first that has used it up closes the window."""
    done, answers = three

    started = [process.started for process in done.report.processes]
    assert "cap" == done.report.closed_by
    assert len(answers) <= 60
    assert any(n == share for n, share in zip(started, (24, 24, 12), strict=True))


@pytest.mark.slow
def test_a_process_without_a_user_does_not_end_the_step(tmp_path):
    """Level 1 of two workers: the one that sends nothing has no share of the caps, and has not used it up."""
    with FakeGateway(FAST) as fake:
        done = run_step(tmp_path / "one", fake.url, users=1, n_processes=2, max_requests=500)

    assert ("duration", True, 1) == (done.report.closed_by, done.report.counts_agree, done.report.users_min)
    assert [0, len(done.records)] == sorted(process.started for process in done.report.processes)
    assert 10 < len(done.records)


def forked_workers(out_dir: Path) -> dict[str, int]:
    """Worker -> pid, by the records it writes."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            targets = [os.readlink(fd) for fd in (entry / "fd").iterdir()]
        except OSError:
            continue
        for target in targets:
            match = re.fullmatch(rf"{out_dir}/requests/s01-\S+\.(w\d\d)\.jsonl", target)
            if match is not None:
                found[match[1]] = int(entry.name)
    return found


@pytest.mark.slow
def test_a_worker_that_is_killed_makes_its_step_invalid_and_the_run_goes_on(tmp_path):
    """Locust would go on with half the load and end with 0; here the step names it, and the next step has all three."""
    out_dir = tmp_path / "run"
    with FakeGateway(FAST) as fake:
        run = start_ha_sweep(
            "run", *QUICK, "--target", fake.url, "--api", "openai-chat", "--model", "m", "--levels", "3,4",
            "--mode", "stream", "--processes", "3", "--max-step", "2s", "--out-dir", str(out_dir), cwd=tmp_path,
        )  # fmt: skip
        until = time.monotonic() + DEADLINE_S
        file = out_dir / outdir.requests_file("s01-c3-stream-k1", "w02")
        while not file.exists() or b'"phase":"window"' not in file.read_bytes():
            assert run.poll() is None and time.monotonic() < until
            time.sleep(0.02)
        workers = forked_workers(out_dir)
        os.kill(workers["w02"], signal.SIGKILL)
        said = run.communicate(timeout=DEADLINE_S)

    assert run.returncode == 3, said
    lost, after = result_of(out_dir)["steps"]
    assert (False, "worker") == (lost["valid"], lost["closed_by"])
    assert lost["invalid_why"].startswith("w02: worker lost: it sent no end")
    report = msgspec.json.decode((out_dir / outdir.locust_json(after["step"])).read_bytes(), type=StepReport)
    assert (3, True) == (len(report.processes), report.counts_agree)
    first = msgspec.json.decode((out_dir / outdir.locust_json(lost["step"])).read_bytes(), type=StepReport)
    assert [True, False, True] == [process.ended for process in first.processes]
    assert "worker w02 on " in first.why and "its process ended" in first.why
    assert "finish" in [mark["mark"] for mark in marks_of(out_dir)]
    assert {False} == {Path(f"/proc/{pid}").exists() for pid in workers.values()}


class Worker:
    """What a Locust worker says to its master, by hand."""

    def __init__(self, port: int, name: str = "elsewhere_1") -> None:
        self._name = name
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, name.encode())
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"tcp://127.0.0.1:{port}")
        self.bytes_heard = b""

    def say(self, kind: str, data: object) -> None:
        self._socket.send(msgpack.dumps((kind, data, self._name)))

    def hear(self, *kinds: str) -> tuple[str, dict]:
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            if self._socket.poll(100):
                heard = self._socket.recv()
                self.bytes_heard += heard
                kind, data, _ = msgpack.loads(heard)
                if kind in kinds:
                    return kind, data
        raise TimeoutError(f"none of {kinds} was heard")

    def close(self) -> None:
        self._socket.close()


@pytest.mark.slow
def test_a_master_takes_its_own_version_only_and_sends_no_secret(tmp_path):
    """Another version is told what to install; the order names the key's variable, the bytes do not hold the key.

    One too many is not needed; once one of ours is not heard any more, it shall come back for the next step: a worker
    whose Locust was killed starts another. A worker that lacks what it needs says so, and the master does not wait.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    outdir.create(tmp_path / "out")
    order = order_of("http://127.0.0.1:9", tmp_path / "out", n_processes=1, api_key_env="THE_KEY")
    (tmp_path / "order.json").write_bytes(msgspec.json.encode(order))
    command = [
        sys.executable, "-P", "-m", "locust", "-f", str(outdir.data_folder("locustfiles") / "streaming.py"),
        "--headless", "--host", "http://127.0.0.1:9", "--master", "--master-bind-host", "127.0.0.1",
        "--master-bind-port", str(port), "--expect-workers", "1",
    ]  # fmt: skip
    env = dict(os.environ) | {ORDER_ENV: str(tmp_path / "order.json"), "HOME": str(tmp_path), "THE_KEY": "sk-secret"}
    master = subprocess.Popen(
        command, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    worker, another = Worker(port), Worker(port, "elsewhere_2")
    try:
        hello = {"version": "0.0.0", "host": "elsewhere", "pid": 1, "is_local": False}
        worker.say("client_ready", "2.47.0")
        worker.hear("ack")
        worker.say(HELLO, hello)
        refused = worker.hear(REFUSED, ORDER)
        worker.say("client_ready", "2.47.0")
        worker.say(HELLO, hello | {"version": __version__})
        kind, ordered = worker.hear(REFUSED, ORDER)
        answers, until = [], time.monotonic() + DEADLINE_S
        while time.monotonic() < until and True not in answers:
            another.say("client_ready", "2.47.0")
            another.say(HELLO, hello | {"version": __version__})
            answers.append(another.hear(REFUSED, ORDER)[1]["is_for_now"])
            time.sleep(0.05)  # the master writes a line each time, which nobody reads yet
        worker.say(REFUSED, {"why": "environment variable THE_KEY is not set"})
        said = master.communicate(timeout=DEADLINE_S)[1]
    finally:
        worker.close()
        another.close()
        master.kill()
        master.wait()

    why = f"the run is ha-sweep {__version__}, this worker 0.0.0: install the same"
    assert (REFUSED, {"why": why, "is_for_now": False}) == refused
    assert (False, True) == (answers[0], answers[-1])
    assert (ORDER, "w01", "THE_KEY") == (kind, ordered["worker"], ordered["api_key_env"])
    assert b"sk-secret" not in worker.bytes_heard
    last = "the worker on elsewhere cannot do this step: environment variable THE_KEY is not set"
    assert (1, last) == (master.returncode, said.splitlines()[-1])
