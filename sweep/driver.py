"""Drives one step: opens and closes the window, has every process drain, collects their counts, reports, ends Locust.

Locust spawns the users; we decide when the step is over (Locust's own run time and stop_timeout lose requests in
flight). The pipe to the runner ends the step: a byte asks for it, its end means that the runner is gone.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import gevent
import msgspec
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from sweep import crew_worker, outdir
from sweep.children import PARENT_FD_ENV, die_with_parent
from sweep.clocks import boot_id, read_clocks
from sweep.crew_master import Workers
from sweep.crew_messages import PhaseMessage, Progress
from sweep.errors import RunError
from sweep.load import Load
from sweep.load_process import LOOK_S, LoadProcess, raise_descriptor_limit
from sweep.plan import EARLY_FACTOR, WARMUP_FACTOR
from sweep.step_files import ORDER_ENV, ClosedBy, StepOrder, StepReport, disagreement


class Crew(Protocol):
    """The processes that send. `lost` names one that is gone without its end, or came too late, and why."""

    lost: str | None

    def gather(self, must_stop: Callable[[], bool]) -> None:
        """Until each has its order. Raises RunError."""

    def begin(self) -> None: ...
    def is_complete(self) -> bool:
        """Each has begun with all its users, or never will."""

    def tell(self, phase: PhaseMessage) -> None: ...
    def progress(self) -> Sequence[Progress]: ...
    def drain(self) -> None:
        """Until nothing is in flight anywhere, or the drain is over."""

    def end(self) -> bool:
        """Until the last record of each is written. False when Locust would wait for its users for ever."""

    def leaves_early(self) -> bool:
        """Locust ends during the step; whether that is told as the end of the step."""


if ORDER_ENV in os.environ:
    # Before Locust connects or waits for anybody. A worker that it forks (--processes) has to ask the kernel again.
    die_with_parent()
    os.register_at_fork(after_in_child=partial(die_with_parent, os.getpid()))


def attach(environment: Environment, order_file: str) -> Load | None:
    """The Load of the ordered step; its timeline starts with Locust's test. None in a master, which sends nothing.

    order_file: empty on another machine than the run's; the order comes from the master then.
    """
    raise_descriptor_limit()
    if isinstance(environment.runner, WorkerRunner):
        return crew_worker.join(environment, is_local=bool(order_file))
    order = msgspec.json.decode(Path(order_file).read_bytes(), type=StepOrder)
    if isinstance(environment.runner, MasterRunner):
        _Driver(environment, order, Workers(environment, order)).gather()
        return None
    load = Load(order, write_records=True)
    generator = outdir.LineFile(Path(order.out_dir) / outdir.generator_file(order.step, order.worker))
    _Driver(environment, order, _Alone(LoadProcess(environment, load, generator)))
    return load


class _Alone:
    """A step in one process, which is this one."""

    lost: str | None = None

    def __init__(self, process: LoadProcess) -> None:
        self._process = process
        self.begin, self.tell, self.leaves_early = process.begin, process.enter, process.on_quitting

    def gather(self, must_stop: Callable[[], bool]) -> None:
        pass

    def is_complete(self) -> bool:
        return True

    def progress(self) -> Sequence[Progress]:
        self._process.look()
        return [self._process.progress()]

    def drain(self) -> None:
        self._process.drain()

    def end(self) -> bool:
        self._process.end()
        return not self._process.is_held


class _Driver:
    def __init__(self, environment: Environment, order: StepOrder, crew: Crew) -> None:
        self._environment = environment
        self._order = order
        self._crew = crew
        self._is_over = self._stopped = False
        self._seen: Sequence[Progress] = ()
        self._closed_by: ClosedBy | None = None
        self._t_open_ns = 0
        self._t_window_ns: int | None = None
        self._t_close_ns: int | None = None
        self._t_end_ns: int | None = None
        parent_fd = os.environ.get(PARENT_FD_ENV)
        self._listener = None if parent_fd is None else gevent.spawn(self._listen, int(parent_fd))
        environment.events.test_start.add_listener(lambda **_: gevent.spawn(self.run))
        environment.events.quitting.add_listener(self._on_quitting)

    def gather(self) -> None:
        """Waits for the step's workers; ends Locust when they do not come. Its last words say why."""
        try:
            self._crew.gather(lambda: self._stopped)
        except RunError as error:
            self._environment.runner.quit()  # those that came must not wait
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
            os._exit(1)

    def run(self) -> None:
        """The step, from its first user to Locust's end; also the end of a step that failed by our own doing."""
        is_free = True
        try:
            is_free = self._run()
        finally:
            self._is_over = True
            if self._environment.process_exit_code is None:
                self._environment.process_exit_code = 1  # no report: the runner hears of it
            if not is_free:  # Locust would wait for its users once more
                sys.stderr.flush()
                os._exit(int(self._environment.process_exit_code))
            self._environment.runner.quit()

    def _run(self) -> bool:
        self._t_open_ns = time.monotonic_ns()
        self._crew.begin()
        self._warm_up()
        self._measure()
        self._crew.drain()
        self._t_end_ns = time.monotonic_ns()
        is_free = self._crew.end()
        gevent.killall([self._listener] if self._listener is not None else [])
        self._report()
        self._environment.process_exit_code = 0
        return is_free

    # -- timeline ------------------------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        order = self._order
        while not self._ends_now():
            elapsed_s = (time.monotonic_ns() - self._t_open_ns) / 1e9
            warm = sum(seen.n_warm for seen in self._seen) >= order.users
            over = elapsed_s >= order.warmup_s and (warm or elapsed_s >= WARMUP_FACTOR * order.warmup_s)
            if (over and self._crew.is_complete()) or self._is_spent():
                break
            gevent.sleep(LOOK_S)
        if not self._ends_now():
            self._t_window_ns = time.monotonic_ns()
            self._crew.tell("window")

    def _measure(self) -> None:
        while self._t_window_ns is not None and self._closed_by is None:
            self._closed_by = self._why_close((time.monotonic_ns() - self._t_window_ns) / 1e9)
            if self._closed_by is None:
                gevent.sleep(LOOK_S)
        self._t_close_ns = time.monotonic_ns() if self._t_window_ns is not None else None
        self._crew.tell("drain")

    def _why_close(self, window_s: float) -> ClosedBy | None:
        order = self._order
        if self._ends_now():
            if self._crew.lost is not None:
                return "worker"
            return "signal" if _first(seen.user_fault for seen in self._seen) is None else "locustfile"
        by_mode: Counter[str] = Counter()
        for seen in self._seen:
            by_mode.update(seen.started_in_window)
        started = by_mode.total()
        # A mode of an own locustfile that was not sent yet may never be: it is not waited for.
        least = min((by_mode[mode] / n for mode, n in order.n_by_mode.items() if by_mode[mode]), default=EARLY_FACTOR)
        if self._is_spent() or (order.cap_s is not None and window_s >= order.cap_s):
            return "cap"
        if window_s >= order.duration_s and started >= order.n_wanted and least >= 1:
            return "duration"
        if window_s >= order.min_early_s and started >= order.n_early and least >= EARLY_FACTOR:
            return "n_early"
        return "max_step" if window_s >= order.max_step_s else None

    def _is_spent(self) -> bool:
        """A process has used up its share of the step's caps: its users stand still, so the level is no longer held."""
        return any(seen.is_spent for seen in self._seen)

    def _ends_now(self) -> bool:
        """Asked from outside, evidence cannot be written, a user failed or a worker is lost: not one request more."""
        self._seen = self._crew.progress()
        failed = any(seen.fault is not None or seen.user_fault is not None for seen in self._seen)
        if self._stopped or failed or self._crew.lost is not None:
            self._crew.tell("stop")
            return True
        return False

    def _listen(self, fd: int) -> None:
        """A byte from the runner, or the end of its pipe, ends the step at once."""
        gevent.os.make_nonblocking(fd)
        gevent.os.nb_read(fd, 1)
        self._stopped = True
        self._crew.tell("stop")

    def _on_quitting(self, **_: Any) -> None:
        if not self._is_over and self._crew.leaves_early():
            self._report()

    # -- evidence ------------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Writes locust/<step>.json."""
        order = self._order
        self._seen = self._crew.progress()
        t_end_ns = time.monotonic_ns() if self._t_end_ns is None else self._t_end_ns
        minima = [seen.users_min for seen in self._seen if seen.users_min is not None]
        why = self._why_wrong()
        report = StepReport(
            step=order.step, t_open_ns=self._t_open_ns, t_window_ns=self._t_window_ns, t_close_ns=self._t_close_ns,
            t_end_ns=t_end_ns, clocks=read_clocks(), boot_id=boot_id(), closed_by=self._closed_by,
            users_wanted=order.users, users_min=sum(minima) if minima else None,
            processes=[seen.counts for seen in self._seen], counts_agree=why is None, why=why,
        )  # fmt: skip
        outdir.write_atomic(Path(order.out_dir) / outdir.locust_json(order.step), msgspec.json.encode(report))
        if why is not None:
            sys.stderr.write(f"{order.step}: {why}\n")

    def _why_wrong(self) -> str | None:
        """What does not agree, or failed on our side."""
        fault = _first(seen.fault for seen in self._seen)
        if fault is not None:
            return f"our reader failed: {fault}"
        user_fault = _first(seen.user_fault for seen in self._seen)
        if user_fault is not None or self._crew.lost is not None:
            return user_fault or self._crew.lost
        for seen in self._seen:
            why = disagreement(seen.counts)
            if why is not None:
                return why if len(self._seen) == 1 else f"{seen.counts.worker}: {why}"
        total = self._environment.stats.total
        counted = sum(seen.counts.locust_requests for seen in self._seen)
        if total.num_requests != counted:
            return f"Locust's master counted {total.num_requests} requests, its workers {counted}"
        return None


def _first(texts: Any) -> str | None:
    return next((text for text in texts if text is not None), None)
