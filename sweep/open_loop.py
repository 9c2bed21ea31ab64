"""OpenLoopUser, the Locust user class whose requests arrive by a schedule and do not wait for each other.

One user schedules: each arrival runs one task, in a greenlet of its own, on an idle keep-alive connection or a new one.
How many are in flight is the target's doing; nothing bounds it but the open files of the process.
"""

from __future__ import annotations

import logging
import random
import time
import traceback
from collections.abc import Iterator

import gevent
from gevent.pool import Group
from locust import events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopUser
from locust.user.users import LOCUST_STATE_RUNNING, LOCUST_STATE_STOPPING

from sweep.arrivals import START_LAG_LIMIT_MS, due_ns
from sweep.llm_user import LlmUser

_LOOK_S = 0.5  # how often a waiting scheduler looks whether Locust asked it to stop
_TELL_S = 5.0
_logger = logging.getLogger(__name__)


class OpenLoopUser(LlmUser):
    """Derive from it, call `self.ask(stream=…)` once in a task; each arrival runs one of the tasks.

    Arrivals do not wait: not for an answer, not for wait_time, not after a refusal. Times count from when a request was
    due. on_start and on_stop run once, in the scheduling user; a task's self is the client that serves one arrival.
    """

    abstract = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._idle: list[OpenLoopUser] = []
        self._draw = random.Random(self._load.order.seed)  # of tasks and modes; its clients share the scheduler's
        self._told_s = 0.0

    def is_next_streamed(self) -> bool:
        """Mode of this arrival, drawn by the streaming share that was ordered; streaming without one."""
        share = self._load.order.stream_share
        return share is None or self._load.senders.draw_stream()

    def run(self) -> None:
        """The scheduling user's life."""
        if any(isinstance(each, type) for each in self.tasks):
            _logger.error("%s: an arrival runs a function with @task, no TaskSet; take it out", type(self).__name__)
            self.environment.process_exit_code = 2
            self.environment.runner.quit()
            return
        arrivals = Group()
        self._state = LOCUST_STATE_RUNNING
        try:
            self.on_start()
            self._schedule(arrivals)
        except (gevent.GreenletExit, StopUser):
            arrivals.kill()
            self.on_stop()
        finally:
            arrivals.kill()  # each writes its record
            for client in (self, *self._idle):
                client._connection.close()
                self._load.connections.discard(client._connection)

    def _schedule(self, arrivals: Group) -> None:
        """Starts every request at its instant, late ones at once, until the step drains or Locust stops the user."""
        load = self._load
        load.due = load.due or 0
        t_zero_ns = time.monotonic_ns()
        for since_ns in self._schedule_ns():
            t_due_ns = t_zero_ns + since_ns
            while (ahead_s := (t_due_ns - time.monotonic_ns()) / 1e9) > 0 and not self._is_over():
                load.draining.wait(min(ahead_s, _LOOK_S))
            if self._is_over() and t_due_ns > load.t_phase_ns:
                break
            if load.writes_records and load.is_spent():
                break  # the driver closes the window
            load.due += 1
            if not self._is_over():
                arrivals.spawn(self._serve, t_due_ns)
                gevent.sleep(0)  # it starts before the next: many may be due at once
                self._tell_lag(t_due_ns)
        if load.writes_records:
            load.step_over.wait()
        arrivals.join()

    def _schedule_ns(self) -> Iterator[int]:
        order = self._load.order
        ramp_s = order.warmup_s / 2 if order.ramp_s is None else order.ramp_s
        first = (order.index + 1) / order.n_processes  # the processes share the rate
        rate_per_s = 1.0 if order.rate_per_s is None else order.rate_per_s
        seed = order.seed + order.index + self._number  # no two processes, and no two users, draw the same instants
        return due_ns(rate_per_s, order.arrivals, seed, ramp_s, first)

    def _is_over(self) -> bool:
        return self._load.draining.is_set() or self._state == LOCUST_STATE_STOPPING

    def _serve(self, t_due_ns: int) -> None:
        """One arrival, by a client of its own."""
        client = self._idle.pop() if self._idle else type(self)(self.environment)  # last in, first out: few stay open
        client._draw = self._draw
        client._t_due_ns = t_due_ns
        try:
            self._draw.choice(self.tasks)(client)
        except StopUser:
            pass
        except Exception as error:  # noqa: BLE001 - the task's own, told as Locust tells one that leaves a task
            _logger.error("%s\n%s", error, traceback.format_exc())
            self.environment.events.user_error.fire(user_instance=client, exception=error, tb=error.__traceback__)
        finally:
            self._idle.append(client)

    def _tell_lag(self, t_due_ns: int) -> None:
        """Under plain Locust nothing else says that the schedule is not kept."""
        now_ns = time.monotonic_ns()
        lag_ms = (now_ns - t_due_ns) / 1e6
        if self._load.writes_records or lag_ms <= START_LAG_LIMIT_MS or now_ns / 1e9 - self._told_s < _TELL_S:
            return
        self._told_s = now_ns / 1e9
        _logger.warning("requests start %.0f ms late: this process cannot keep the rate; use more processes", lag_ms)


@events.init_command_line_parser.add_listener
def _options(parser: LocustArgumentParser) -> None:
    add = parser.add_argument
    add("--llm-rate", type=float, default=1.0, help="Arrivals a second of each user of an open loop class")
    add("--llm-arrivals", choices=["poisson", "constant"], default="poisson", help="How they are spaced")
    add("--llm-ramp", type=float, default=0.0, help="Seconds over which the rate grows from 0")
