"""A Locust worker's part of a step: gets its order from the master, tells its progress, sends what is evidence.

On another machine it keeps a lease: each heartbeat of the master renews it, and without one its load ends at once
(Locust itself would go on for a minute).
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import gevent
import msgspec
from locust.env import Environment
from locust.runners import WorkerRunner

from sweep import __version__, outdir
from sweep.crew_messages import (
    AGAIN_EXIT,
    GATHER_S,
    HELLO,
    LINES,
    ORDER,
    PHASE,
    PROGRESS,
    PROGRESS_S,
    REFUSED,
    REFUSED_EXIT,
    Hello,
    PhaseMessage,
)
from sweep.load import Load
from sweep.load_process import LOOK_S, LoadProcess
from sweep.step_files import StepOrder

_LEASE_S = 4.0  # Locust's master answers each heartbeat, one a second; all load ends within 5 s of the last
_LOOK_AT_LEASE_S = 0.1
_LAST_WORDS_S = 0.5  # for ZeroMQ to send what it holds


def join(environment: Environment, *, is_local: bool) -> Load:
    """This worker's Load, once the master has sent its order. Ends the process when it is refused.

    is_local: forked by the master, so OUT_DIR and the clocks are the same.
    """
    return _Member(environment, is_local).load


class Outbox:
    """Lines of evidence on their way to the master's OUT_DIR. is_prompt: each goes at once, else many together."""

    def __init__(self, runner: WorkerRunner, kind: str, *, is_prompt: bool = False) -> None:
        self._runner = runner
        self._kind = kind
        self._is_prompt = is_prompt
        self._lines: list[bytes] = []

    def append(self, line: bytes) -> None:
        self._lines.append(line)
        if self._is_prompt:
            self.send()

    def send(self) -> None:
        if self._lines:
            lines, self._lines = b"".join(self._lines), []
            self._runner.send_message(LINES, {"kind": self._kind, "lines": lines})

    def close(self) -> None:
        self.send()


class _Member:
    def __init__(self, environment: Environment, is_local: bool) -> None:
        assert isinstance(environment.runner, WorkerRunner)
        self._environment = environment
        self._runner = environment.runner
        self._phases: set[PhaseMessage] = set()
        self._order: StepOrder | None = None
        self._records: Outbox | None = None
        self._heard_s = time.monotonic()
        for name, listener in ((ORDER, self._on_order), (PHASE, self._on_phase), (REFUSED, self._on_refused)):
            self._runner.register_message(name, listener)
        if not is_local:
            environment.events.heartbeat_received.add_listener(self._on_heartbeat)
            gevent.spawn(self._keep_lease)
        hello = Hello(version=__version__, host=socket.gethostname(), pid=os.getpid(), is_local=is_local)
        self._runner.send_message(HELLO, msgspec.to_builtins(hello))
        order = self._wait_for_order()
        try:
            self.load, self._process = self._make(order, is_local)
        except Exception as error:  # noqa: BLE001 - whatever it is, the master must not wait for us in vain
            self._runner.send_message(REFUSED, {"why": str(error) or repr(error)})
            gevent.sleep(_LAST_WORDS_S)
            _leave(str(error) or repr(error), REFUSED_EXIT)
        self._tell()
        environment.events.test_start.add_listener(lambda **_: gevent.spawn(self._run))
        environment.events.quitting.add_listener(self._on_quitting)

    def _make(self, order: StepOrder, is_local: bool) -> tuple[Load, LoadProcess]:
        unset = [name for name in _variables(order) if not os.environ.get(name)]
        if unset:
            raise LookupError(
                f"environment variable {unset[0]} is not set where the worker runs; export it before `ha-sweep worker`"
            )
        if is_local:
            file = outdir.LineFile(Path(order.out_dir) / outdir.generator_file(order.step, order.worker))
            load = Load(order, write_records=True)
            return load, LoadProcess(self._environment, load, file)
        self._records = Outbox(self._runner, "requests")
        generator = Outbox(self._runner, "generator", is_prompt=True)  # the master compares the clocks by them
        load = Load(order, write_records=True, records=self._records)
        return load, LoadProcess(self._environment, load, generator, socket.gethostname())

    def _wait_for_order(self) -> StepOrder:
        until_s = time.monotonic() + GATHER_S + _LEASE_S
        while self._order is None:
            if time.monotonic() > until_s:
                _leave("the master sent no order", AGAIN_EXIT)
            gevent.sleep(LOOK_S)
        return self._order

    # -- the step ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        process = self._process
        process.begin()
        teller = gevent.spawn(self._tell_often)
        while not self._phases & {"drain", "stop"}:
            process.look()
            if process.must_end():  # the master hears of it, and says drain
                process.enter("stop")
            gevent.sleep(LOOK_S)
        process.drain()
        self._tell()
        process.end()
        teller.kill()
        self._end()
        self._environment.process_exit_code = 0
        if process.is_held:  # Locust would wait for its users once more
            gevent.sleep(_LAST_WORDS_S)
            _leave("", 0)

    def _tell_often(self) -> NoReturn:
        while True:
            gevent.sleep(PROGRESS_S)
            if self._records is not None:
                self._records.send()
            self._tell()

    def _tell(self) -> None:
        self._runner.send_message(PROGRESS, msgspec.to_builtins(self._process.progress()))

    def _end(self) -> None:
        """The last counts, after Locust's own, which the master adds up."""
        data: dict[str, Any] = {}
        self._environment.events.report_to_master.fire(client_id=self._runner.client_id, data=data)
        self._runner.send_message("stats", data)
        self._tell()

    def _keep_lease(self) -> NoReturn:
        while True:
            gevent.sleep(_LOOK_AT_LEASE_S)
            if time.monotonic() - self._heard_s > _LEASE_S:
                _leave(f"the master has not been heard for {_LEASE_S:.0f} s; its load ended", AGAIN_EXIT)

    # -- what the master says ------------------------------------------------------------------------------------------

    def _on_heartbeat(self, **_: Any) -> None:
        self._heard_s = time.monotonic()

    def _on_order(self, msg: Any, **_: Any) -> None:
        self._order = msgspec.convert(msg.data, StepOrder)

    def _on_phase(self, msg: Any, **_: Any) -> None:
        phase: PhaseMessage = msg.data["phase"]
        self._process.enter(phase)
        self._phases.add(phase)

    def _on_refused(self, msg: Any, **_: Any) -> None:
        _leave(msg.data["why"], AGAIN_EXIT if msg.data["is_for_now"] else REFUSED_EXIT)

    def _on_quitting(self, **_: Any) -> None:
        if self._process.on_quitting():
            self._end()


def _variables(order: StepOrder) -> list[str]:
    """Environment variables that hold what this order sends."""
    return [*([] if order.api_key_env is None else [order.api_key_env]), *order.headers.values()]


def _leave(why: str, code: int) -> NoReturn:
    """At once: users that swallow their end, and Locust's own shutdown, are not waited for."""
    if why:
        sys.stderr.write(f"{why}\n")
    sys.stderr.flush()
    os._exit(code)
