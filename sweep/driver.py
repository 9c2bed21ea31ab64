"""Drives one step inside a Locust process: opens and closes the window, drains, counts, reports, ends Locust.

Locust spawns the users; we decide when the step is over (Locust's own run time and stop_timeout lose requests in
flight). The pipe to the runner ends the step: a byte asks for it, its end means that the runner is gone.
"""

from __future__ import annotations

import os
import resource
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import gevent
import msgspec
from locust.env import Environment

from sweep import outdir
from sweep.children import PARENT_FD_ENV, die_with_parent
from sweep.clocks import boot_id, read_clocks
from sweep.load import Load
from sweep.plan import EARLY_FACTOR, WARMUP_FACTOR, WARMUP_REQUESTS
from sweep.records import GeneratorLine, to_line
from sweep.step_files import ClosedBy, ProcessReport, StepOrder, StepReport, disagreement

_LOOK_S = 0.01  # how often the driver looks whether the window may open or close
_STOP_S = 3.0  # for the users' on_stop
_TIMER_S = 0.01  # period of the timer whose lateness is the loop lag


def attach(environment: Environment, order_file: str) -> Load:
    """The Load of the ordered step; its timeline starts with Locust's test."""
    die_with_parent()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # one descriptor a user
    order = msgspec.json.decode(Path(order_file).read_bytes(), type=StepOrder)
    load = Load(order, write_records=True)
    if order.locustfile_folder is not None:
        # Locust takes it out again after the import; a module beside the file may be imported later, in a task.
        sys.path.append(order.locustfile_folder)
    driver = _Driver(environment, load)
    environment.events.test_start.add_listener(lambda **_: gevent.spawn(driver.run))
    environment.events.user_error.add_listener(driver.on_user_error)
    environment.events.quitting.add_listener(driver.on_quitting)
    return load


class _Driver:
    def __init__(self, environment: Environment, load: Load) -> None:
        self._environment = environment
        self._load = load
        self._order = load.order
        self._stopped = self._is_over = self._is_held = False
        self._users_min: int | None = None
        self._closed_by: ClosedBy | None = None
        self._t_open_ns: int | None = None
        self._t_window_ns: int | None = None
        self._t_close_ns: int | None = None

    def run(self) -> None:
        """The step, from its first user to Locust's end; also the end of a step that failed by our own doing."""
        try:
            self._run()
        finally:
            self._is_over = self._load.is_over = True
            if self._environment.process_exit_code is None:
                self._environment.process_exit_code = 1  # no report: the runner hears of it
            if self._is_held:  # Locust would wait for its users once more
                sys.stderr.flush()
                os._exit(int(self._environment.process_exit_code))
            self._environment.runner.quit()

    def _run(self) -> None:
        self._t_open_ns = t_open_ns = time.monotonic_ns()
        helpers = [gevent.spawn(self._write_generator_lines)]
        parent_fd = os.environ.get(PARENT_FD_ENV)
        if parent_fd is not None:
            helpers.append(gevent.spawn(self._listen, int(parent_fd)))
        self._warm_up(t_open_ns)
        self._measure()
        self._drain()
        t_end_ns = time.monotonic_ns()
        self._load.is_over = True
        self._stop_users()
        gevent.killall(helpers)
        self._load.close()
        self._report(t_open_ns, t_end_ns)
        self._environment.process_exit_code = 0

    def _stop_users(self) -> None:
        """Locust waits until each has ended; those that take the exception that ends them for an error never do."""
        with gevent.Timeout(_STOP_S, False):
            self._environment.runner.stop()
            return
        self._is_held = True
        self._load.user_fault = self._load.user_fault or (
            "users of the locustfile do not end: an `except:` or `except BaseException:` in it takes the end of the "
            f"step for an error (write `except Exception:`), or an on_stop takes longer than {_STOP_S:g} s"
        )

    def on_user_error(self, user_instance: Any, exception: Exception, tb: TracebackType | None, **_: Any) -> None:
        """An exception that left a task or an on_start: ours if the load says so, else the locustfile's own."""
        if self._load.fault is None and self._load.user_fault is None:
            user = getattr(user_instance, "user", user_instance)  # a task set, when the exception left a task
            self._load.user_fault = f"{type(user).__name__} raised {self._load.masked(repr(exception))}"
            file = getattr(sys.modules.get(type(user).__module__), "__file__", None)
            own = [frame for frame in traceback.extract_tb(tb) if frame.filename == file]
            if own:
                self._load.user_fault += f" in {Path(own[-1].filename).name}, line {own[-1].lineno}"

    def on_quitting(self, **_: Any) -> None:
        """Locust ends. With an own locustfile that may be the file's doing, which is no fault of ours."""
        if not self._is_over and self._t_open_ns is not None and self._order.locustfile_folder is not None:
            self._load.user_fault = self._load.user_fault or "Locust was ended during the step, not by ha-sweep"
            self._load.close()
            self._report(self._t_open_ns, time.monotonic_ns())

    # -- timeline ------------------------------------------------------------------------------------------------------

    def _warm_up(self, t_open_ns: int) -> None:
        load, order = self._load, self._order
        while not self._ends_now():
            elapsed_s = (time.monotonic_ns() - t_open_ns) / 1e9
            warm = sum(1 for n in load.finished_by_user.values() if n >= WARMUP_REQUESTS) >= order.users
            over = elapsed_s >= order.warmup_s and (warm or elapsed_s >= WARMUP_FACTOR * order.warmup_s)
            if over or load.is_spent():
                break
            gevent.sleep(_LOOK_S)
        if not self._ends_now():
            self._t_window_ns = time.monotonic_ns()
            load.phase = "window"

    def _measure(self) -> None:
        load = self._load
        while self._t_window_ns is not None and self._closed_by is None:
            alive = self._environment.runner.user_count
            self._users_min = alive if self._users_min is None else min(self._users_min, alive)
            if alive < self._order.users and self._order.locustfile_folder is not None:
                load.user_fault = load.user_fault or "users of the locustfile ended before the step did"
            self._closed_by = self._why_close((time.monotonic_ns() - self._t_window_ns) / 1e9)
            if self._closed_by is None:
                gevent.sleep(_LOOK_S)
        self._t_close_ns = time.monotonic_ns() if self._t_window_ns is not None else None
        load.phase = "drain"
        load.draining.set()

    def _why_close(self, window_s: float) -> ClosedBy | None:
        order, by_mode = self._order, self._load.started_in_window
        started = by_mode.total()
        # A mode of an own locustfile that was not sent yet may never be: it is not waited for.
        least = min((by_mode[mode] / n for mode, n in order.n_by_mode.items() if by_mode[mode]), default=EARLY_FACTOR)
        if self._ends_now():
            return "signal" if self._load.user_fault is None else "locustfile"
        if self._load.is_spent() or (order.cap_s is not None and window_s >= order.cap_s):
            return "cap"
        if window_s >= order.duration_s and started >= order.n_wanted and least >= 1:
            return "duration"
        if window_s >= order.min_early_s and started >= order.n_early and least >= EARLY_FACTOR:
            return "n_early"
        return "max_step" if window_s >= order.max_step_s else None

    def _drain(self) -> None:
        until = time.monotonic() + self._order.drain_s
        while self._load.in_flight and not self._ends_now() and time.monotonic() < until:
            gevent.sleep(_LOOK_S)

    def _ends_now(self) -> bool:
        """Asked from outside, evidence cannot be written, or a user failed: then not one request more."""
        return self._stopped or self._load.fault is not None or self._load.user_fault is not None

    def _listen(self, fd: int) -> None:
        """A byte from the runner, or the end of its pipe, ends the step at once."""
        gevent.os.make_nonblocking(fd)
        gevent.os.nb_read(fd, 1)
        self._stopped = True

    # -- evidence ------------------------------------------------------------------------------------------------------

    def _write_generator_lines(self) -> None:
        """One line a second: CPU, loop lag by a 10 ms timer, what is open."""
        load, order = self._load, self._order
        path = Path(order.out_dir) / outdir.generator_file(order.step, order.worker)
        with outdir.LineFile(path) as lines:
            cpu_s, mono_s = time.process_time(), time.monotonic()
            lags_ms: list[float] = []
            while True:
                due_s = time.monotonic() + _TIMER_S
                gevent.sleep(_TIMER_S)
                now_s = time.monotonic()
                lags_ms.append((now_s - due_s) * 1000)
                if now_s - mono_s < 1.0:
                    continue
                lags_ms.sort()
                used_s = time.process_time()
                line = GeneratorLine(
                    t_mono_ns=time.monotonic_ns(),
                    cpu_share=(used_s - cpu_s) / (now_s - mono_s),
                    lag_p50_ms=lags_ms[len(lags_ms) // 2],
                    lag_p99_ms=lags_ms[int(len(lags_ms) * 0.99)],
                    in_flight=load.in_flight,
                    started=load.started,
                    connections=sum(connection.is_open for connection in load.connections),
                    users=self._environment.runner.user_count,
                )
                lines.append(to_line(line))
                cpu_s, mono_s, lags_ms = used_s, now_s, []

    def _report(self, t_open_ns: int, t_end_ns: int) -> None:
        load, order, total = self._load, self._order, self._environment.stats.total
        process = ProcessReport(
            worker=order.worker,
            started=load.started,
            sent=load.sent,
            outcomes=dict(load.outcomes),
            locust_requests=total.num_requests,
            locust_failures=total.num_failures,
            ended=True,
        )
        why = disagreement(process)
        if load.fault is not None:
            why = f"our reader failed: {load.fault}"
        elif load.user_fault is not None:
            why = load.user_fault
        report = StepReport(
            step=order.step, t_open_ns=t_open_ns, t_window_ns=self._t_window_ns, t_close_ns=self._t_close_ns,
            t_end_ns=t_end_ns, clocks=read_clocks(), boot_id=boot_id(), closed_by=self._closed_by,
            users_wanted=order.users, users_min=self._users_min, processes=[process], counts_agree=why is None, why=why,
        )  # fmt: skip
        outdir.write_atomic(Path(order.out_dir) / outdir.locust_json(order.step), msgspec.json.encode(report))
        if why is not None:
            sys.stderr.write(f"{order.step}: {why}\n")
