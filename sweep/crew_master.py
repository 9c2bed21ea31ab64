"""The workers of one step, as the Locust master sees them: gathers them, tells them the phase, hears their counts.

Locust goes on when a worker is gone, and ends with 0: here it is noticed, by its process, connection or silence.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import gevent
import msgspec
from locust.env import Environment
from locust.runners import MasterRunner

from sweep import __version__, outdir
from sweep.crew_messages import (
    GATHER_S,
    HELLO,
    LINES,
    ORDER,
    PHASE,
    PROGRESS,
    REFUSED,
    Hello,
    PhaseMessage,
    Progress,
    share_of,
)
from sweep.errors import RunError
from sweep.records import GeneratorLine, to_line
from sweep.step_files import StepOrder

_LOOK_S = 0.01
_SILENT_S = 5.0  # a worker tells its progress ten times a second
_MISSED_S = 0.5  # silent for so long while another comes: that one takes its place
_SLACK_S = 10.0  # for workers to stop their users and to send their last lines
_SPAWN_S = 5.0  # for Locust to deal out its users


class _Worker:
    """One worker: who it is, its lines from another machine, and when it was last heard of."""

    def __init__(self, name: str, hello: Hello, order: StepOrder) -> None:
        self.name = name
        self.hello = hello
        self.progress: Progress | None = None
        self.heard_s = time.monotonic()
        self.gone: str | None = None
        self.lines: dict[str, outdir.LineFile] = {}
        self.fault: str | None = None
        if not hello.is_local:
            out_dir = Path(order.out_dir)
            self.lines = {
                "requests": outdir.LineFile(out_dir / outdir.requests_file(order.step, name)),
                "generator": outdir.LineFile(out_dir / outdir.generator_file(order.step, name)),
            }

    @property
    def has_ended(self) -> bool:
        return self.progress is not None and self.progress.counts.ended

    def write(self, kind: str, lines: bytes) -> None:
        """Lines as they came. A generator line gets our clock beside the worker's own: one is judged by the other."""
        if kind == "generator":
            now_ns = time.monotonic_ns()
            decoded = [msgspec.json.decode(line, type=GeneratorLine) for line in lines.splitlines()]
            lines = b"".join(to_line(msgspec.structs.replace(line, t_master_ns=now_ns)) for line in decoded)
        try:
            self.lines[kind].append(lines)
        except OSError as error:
            self.fault = f"the {kind} lines of {self.name} cannot be written: {error.strerror}"


class Workers:
    """Every worker of a step. lost: the first that was lost or came too late, for the report."""

    def __init__(self, environment: Environment, order: StepOrder) -> None:
        assert isinstance(environment.runner, MasterRunner)
        self.lost: str | None = None
        self._runner = environment.runner
        self._order = order
        self._hellos: dict[str, Hello] = {}  # by Locust's client id
        self._workers: dict[str, _Worker] = {}
        self._refusals: list[str] = []
        self._told: set[PhaseMessage] = set()
        self._began_s: float | None = None
        self._is_over = False
        self._runner.register_message(HELLO, self._on_hello)
        self._runner.register_message(REFUSED, self._on_refused)
        self._runner.register_message(PROGRESS, self._on_progress)
        self._runner.register_message(LINES, self._on_lines)
        environment.events.worker_connect.add_listener(self._on_connect)

    def gather(self, must_stop: Callable[[], bool]) -> None:
        """Waits until all are there and have their orders. Raises RunError, naming how many came."""
        order, until_s = self._order, time.monotonic() + GATHER_S
        self._wait(lambda: len(self._hellos) >= order.n_processes, until_s, must_stop)
        for index, client_id in enumerate(_in_turn(self._hellos)):
            name = f"w{index + 1:02d}"
            self._workers[client_id] = _Worker(name, self._hellos[client_id], order)
            share = share_of(order, name, index)
            self._runner.send_message(ORDER, msgspec.to_builtins(share), client_id)
        self._wait(lambda: all(each.progress for each in self._workers.values()), until_s, must_stop)

    def begin(self) -> None:
        self._began_s = time.monotonic()
        for client_id in self._runner.clients:
            if client_id not in self._workers:
                self._on_connect(client_id)

    def is_complete(self) -> bool:
        late = self._began_s is not None and time.monotonic() - self._began_s > _SPAWN_S
        seen = self.progress()
        return late or (
            all(each.has_begun for each in seen) and sum(each.n_users for each in seen) >= self._order.users
        )

    def tell(self, phase: PhaseMessage) -> None:
        if phase not in self._told:
            self._told.add(phase)
            for client_id, worker in self._workers.items():
                if worker.gone is None:
                    self._runner.send_message(PHASE, {"phase": phase}, client_id)

    def progress(self) -> Sequence[Progress]:
        now_s = time.monotonic()
        for client_id, worker in self._workers.items():
            if worker.gone is None and not worker.has_ended:
                worker.gone = self._why_gone(client_id, worker, now_s)
                if worker.gone is not None:
                    self.lost = self.lost or f"worker {worker.name} on {worker.hello.host} lost: {worker.gone}"
        return [_with_fault(each) for each in self._workers.values() if each.progress is not None]

    def drain(self) -> None:
        until_s = time.monotonic() + self._order.drain_s + _SLACK_S
        while time.monotonic() < until_s:
            seen = self.progress()
            if all(each.is_drained for each in seen) or self.lost is not None:
                return
            if any(each.fault is not None or each.user_fault is not None for each in seen):
                self.tell("stop")
            gevent.sleep(_LOOK_S)

    def end(self) -> bool:
        """Also waits for what a lost one's neighbours still have to say."""
        if self.lost is not None:
            self.tell("stop")
        until_s = time.monotonic() + _SLACK_S
        while time.monotonic() < until_s:
            self.progress()
            if all(each.has_ended or each.gone is not None for each in self._workers.values()):
                break
            gevent.sleep(_LOOK_S)
        self._is_over = True
        for worker in self._workers.values():
            for file in worker.lines.values():
                file.close()
            worker.lines = {}
        return True

    def leaves_early(self) -> bool:
        self.lost = self.lost or "Locust was ended during the step, not by ha-sweep"
        return self._began_s is not None

    def _wait(self, is_there: Callable[[], bool], until_s: float, must_stop: Callable[[], bool]) -> None:
        while not is_there():
            if self._refusals:
                raise RunError(self._refusals[0])
            if must_stop():
                raise RunError("stopped before every worker had come")
            if time.monotonic() > until_s:
                came, wanted = len(self._hellos), self._order.n_processes
                ready = sum(each.progress is not None for each in self._workers.values())
                what = f"{came} of {wanted} workers came" if came < wanted else f"{ready} of {wanted} workers got ready"
                raise RunError(f"{what} within {GATHER_S:.0f} s; elsewhere they are started by `ha-sweep worker`")
            gevent.sleep(_LOOK_S)

    def _why_gone(self, client_id: str, worker: _Worker, now_s: float) -> str | None:
        if worker.hello.is_local and _has_ended(worker.hello.pid):
            return "its process ended"
        if client_id not in self._runner.clients:
            return "it left before the end of the step"
        if now_s - worker.heard_s > _SILENT_S:
            return f"nothing was heard of it for {_SILENT_S:.0f} s"
        return None

    # -- what they say -------------------------------------------------------------------------------------------------

    def _on_hello(self, msg: Any, **_: Any) -> None:
        hello = msgspec.convert(msg.data, Hello)
        if hello.version != __version__:
            why = f"the run is ha-sweep {__version__}, this worker {hello.version}: install the same"
            self._refuse(msg.node_id, why)
        elif len(self._hellos) < self._order.n_processes:
            self._hellos[msg.node_id] = hello
        elif (missed := self._missed()) is not None:
            missed.gone = missed.gone or "it fell silent, and another came"
            self.lost = f"worker {missed.name} on {missed.hello.host} lost: {missed.gone}"  # that is why one joined
            self._refuse(msg.node_id, "the step under way lost a worker", is_for_now=True)
        else:
            self._refuse(msg.node_id, f"the run has its {self._order.n_processes} workers; this one is not needed")

    def _missed(self) -> _Worker | None:
        """One whose place a newcomer takes, from the next step on: its `ha-sweep worker` has started a new Locust."""
        silent_since_s = time.monotonic() - _MISSED_S
        open_ = (each for each in self._workers.values() if not each.has_ended)
        return next((each for each in open_ if each.gone is not None or each.heard_s < silent_since_s), None)

    def _refuse(self, client_id: str, why: str, *, is_for_now: bool = False) -> None:
        self._runner.send_message(REFUSED, {"why": why, "is_for_now": is_for_now}, client_id)
        self._runner.clients.pop(client_id, None)  # else Locust deals out users to it

    def _on_refused(self, msg: Any, **_: Any) -> None:
        host = self._hellos[msg.node_id].host if msg.node_id in self._hellos else "?"
        self._refusals.append(f"the worker on {host} cannot do this step: {msg.data['why']}")

    def _on_connect(self, client_id: str, **_: Any) -> None:
        """Locust deals its users out anew when one joins: what the others did then is no level of the plan's."""
        if self._began_s is not None and not self._is_over and client_id not in self._workers:
            host = client_id.rpartition("_")[0]
            self.lost = self.lost or f"a worker on {host} joined after the step began"

    def _on_progress(self, msg: Any, **_: Any) -> None:
        worker = self._workers.get(msg.node_id)
        if worker is not None:
            worker.progress, worker.heard_s = msgspec.convert(msg.data, Progress), time.monotonic()

    def _on_lines(self, msg: Any, **_: Any) -> None:
        worker = self._workers.get(msg.node_id)
        if worker is not None and worker.lines:
            worker.write(msg.data["kind"], msg.data["lines"])


def _in_turn(client_ids: Iterable[str]) -> list[str]:
    """In the order in which Locust deals out users (UsersDispatcher._sort_workers): one of each host, then the next."""
    by_host: dict[str, list[str]] = {}
    for client_id in sorted(client_ids):
        by_host.setdefault(client_id.split("_")[0], []).append(client_id)
    rank = {client_id: place for ids in by_host.values() for place, client_id in enumerate(ids)}
    return sorted(rank, key=lambda client_id: (rank[client_id], client_id))


def _with_fault(worker: _Worker) -> Progress:
    progress = worker.progress
    assert progress is not None
    return progress if worker.fault is None else msgspec.structs.replace(progress, fault=worker.fault)


def _has_ended(pid: int) -> bool:
    """A child of ours, which Locust reaps only at its own end, or gevent at once."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True
