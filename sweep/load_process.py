"""What every Locust process of a step does, alone or as a worker: phases, drain, generator lines, its own counts."""

from __future__ import annotations

import resource
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import gevent
from locust.env import Environment

from sweep.crew_messages import PhaseMessage, Progress
from sweep.generator_health import write_lines
from sweep.load import LineSink, Load
from sweep.plan import WARMUP_REQUESTS
from sweep.step_files import ProcessReport

LOOK_S = 0.01  # how often it is looked whether something is over
_STOP_S = 3.0  # for the users' on_stop


def raise_descriptor_limit() -> None:
    """One descriptor a user."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class LoadProcess:
    """One process that sends. host: None if it is the machine of the master, whose instants then hold for it too.

    is_held: its users do not end, so Locust would wait for them for ever.
    """

    def __init__(self, environment: Environment, load: Load, generator: LineSink, host: str | None = None) -> None:
        self._environment = environment
        self._load = load
        self._generator = generator
        self._host = host
        self.is_held = self.has_begun = False
        self._is_drained = self._has_ended = self._stopped = False
        self._users_min: int | None = None
        self._t_window_ns: int | None = None
        self._t_close_ns: int | None = None
        self._health: gevent.Greenlet | None = None
        folder = load.order.locustfile_folder
        if folder is not None:
            # Locust takes it out again after the import; a module beside the file may be imported later, in a task.
            sys.path.append(folder)
        self._n_reported = self._n_reported_failures = 0  # to Locust's master: a worker's statistics begin anew then
        environment.events.report_to_master.add_listener(self._on_report_to_master)
        environment.events.user_error.add_listener(self._on_user_error)

    def begin(self) -> None:
        self.has_begun = True
        self._health = gevent.spawn(write_lines, self._environment, self._load, self._generator)

    def enter(self, phase: PhaseMessage) -> None:
        """The step goes on. `stop`: at once, not one request more, and nothing in flight is waited for."""
        load = self._load
        if phase == "window":
            self._t_window_ns, load.phase = time.monotonic_ns(), "window"
        elif phase == "drain":
            self._t_close_ns = time.monotonic_ns() if self._t_window_ns is not None else None
            load.phase = "drain"
            load.draining.set()
        else:
            self._stopped = True
            load.draining.set()

    def look(self) -> None:
        """How many users are alive in the window; to be called often."""
        load = self._load
        if load.phase != "window":
            return
        alive = self._environment.runner.user_count
        self._users_min = alive if self._users_min is None else min(self._users_min, alive)
        if alive < load.order.users and load.order.locustfile_folder is not None:
            load.user_fault = load.user_fault or "users of the locustfile ended before the step did"

    def must_end(self) -> bool:
        """Asked from outside, evidence cannot be written, or a user failed: then not one request more."""
        return self._stopped or self._load.fault is not None or self._load.user_fault is not None

    def drain(self) -> None:
        """Until nothing is in flight, or the drain is over."""
        until = time.monotonic() + self._load.order.drain_s
        while self._load.in_flight and not self.must_end() and time.monotonic() < until:
            gevent.sleep(LOOK_S)
        self._is_drained = True

    def end(self) -> None:
        """Stops the users, after which every record is written, and closes the evidence."""
        self._load.is_over = True
        self._stop_users()
        if self._health is not None:
            self._health.kill()
        self.close()

    def close(self) -> None:
        """No further record is written; what was counted so far is what there is."""
        self._load.is_over = True
        self._load.close()
        self._generator.close()
        self._is_drained = self._has_ended = True

    def progress(self) -> Progress:
        load, total = self._load, self._environment.stats.total
        counts = ProcessReport(
            worker=load.order.worker, started=load.started, due=load.due, sent=load.sent, outcomes=dict(load.outcomes),
            locust_requests=self._n_reported + total.num_requests,
            locust_failures=self._n_reported_failures + total.num_failures, ended=self._has_ended, host=self._host,
            t_window_ns=None if self._host is None else self._t_window_ns,
            t_close_ns=None if self._host is None else self._t_close_ns,
        )  # fmt: skip
        n_warm = 0
        if load.phase == "warmup":
            n_warm = sum(1 for n in load.finished_by_user.values() if n >= WARMUP_REQUESTS)
        return Progress(
            counts=counts, has_begun=self.has_begun, n_users=self._environment.runner.user_count,
            users_min=self._users_min, n_warm=n_warm, started_in_window=dict(load.started_in_window),
            is_spent=load.is_spent(), is_drained=self._is_drained, fault=load.fault, user_fault=load.user_fault,
        )  # fmt: skip

    def on_quitting(self) -> bool:
        """Locust ends; whether during the step. With an own locustfile that may be the file's doing, no fault of ours.
        """
        if self._has_ended or not self.has_begun or self._load.order.locustfile_folder is None:
            return False
        self._load.user_fault = self._load.user_fault or "Locust was ended during the step, not by ha-sweep"
        self.close()
        return True

    def _stop_users(self) -> None:
        """Locust waits until each has ended; those that take the exception that ends them for an error never do."""
        with gevent.Timeout(_STOP_S, False):
            self._environment.runner.stop()
            return
        self.is_held = True
        self._load.user_fault = self._load.user_fault or (
            "users of the locustfile do not end: an `except:` or `except BaseException:` in it takes the end of the "
            f"step for an error (write `except Exception:`), or an on_stop takes longer than {_STOP_S:g} s"
        )

    def _on_report_to_master(self, data: dict[str, Any], **_: Any) -> None:
        self._n_reported += data["stats_total"]["num_requests"]
        self._n_reported_failures += data["stats_total"]["num_failures"]

    def _on_user_error(self, user_instance: Any, exception: Exception, tb: TracebackType | None, **_: Any) -> None:
        """An exception that left a task or an on_start: ours if the load says so, else the locustfile's own."""
        if self._load.fault is None and self._load.user_fault is None:
            user = getattr(user_instance, "user", user_instance)  # a task set, when the exception left a task
            self._load.user_fault = f"{type(user).__name__} raised {self._load.masked(repr(exception))}"
            file = getattr(sys.modules.get(type(user).__module__), "__file__", None)
            own = [frame for frame in traceback.extract_tb(tb) if frame.filename == file]
            if own:
                self._load.user_fault += f" in {Path(own[-1].filename).name}, line {own[-1].lineno}"
