"""LlmUser, the Locust user class that calls an LLM gateway: derive from it, call `self.ask(stream=…)` in a task.

Runs under plain `locust -f` (then its settings are Locust options) and under `ha-sweep run` (then a step order sets
them). Fires one `request` event a finished call, with the time to the end of the answer.
"""

from __future__ import annotations

import gc
import logging
import os
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from http.client import HTTPConnection, HTTPSConnection
from typing import Any

import gevent
import msgspec
from locust import User, events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from sweep import driver
from sweep.dialects import BY_NAME
from sweep.endpoint import Endpoint, is_header_name, parse_endpoint
from sweep.errors import PlanError
from sweep.load import Load
from sweep.records import WAIT_AFTER, Record
from sweep.request import authorization
from sweep.step_files import ORDER_ENV, StepOrder

_AT_ONCE_NS = 50_000_000
_AFTER_THE_STEP_S = 0.01
_FIRST_WAIT_S, _LONGEST_WAIT_S, _LONGEST_RETRY_AFTER_S = 0.25, 2.0, 10.0


class LlmError(Exception):
    """A call that was no success, as Locust's failure table shows it."""


class LlmUser(User):
    """A client that sends one inference request at a time over a connection of its own.

    Closed loop: by default the next request starts when the last one is over; set `wait_time` for think time. A class
    derived from it may have any tasks, weights, on_start and on_stop; none of them needs to call super().
    """

    abstract = True
    _t_due_ns: int | None = None  # of the next request, in an open loop

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._load = load_of(environment)
        self._number = self._load.n_users
        self._load.n_users += 1
        self._connection = self._load.connection()
        self._wait_s = _FIRST_WAIT_S
        self._is_asking = False

    def wait_time(self) -> float:
        """Seconds between two tasks; a class sets its own with `wait_time = between(1, 3)`."""
        return self._load.order.think_s

    def run(self) -> None:
        """The user's life. Here and not in on_start and on_stop, which a class may replace without calling ours.

        Users start evenly over the ramp, the first half of the warm-up if none was ordered: those that start together
        move in lockstep.
        """
        order = self._load.order
        ramp_s = order.warmup_s / 2 if order.ramp_s is None else order.ramp_s
        try:
            if ramp_s:
                place = self._number + order.index / order.n_processes  # among the users of all processes
                gevent.sleep(place * ramp_s / max(1, order.users))
            super().run()
        finally:
            self._connection.close()
            self._load.connections.discard(self._connection)

    def draw_stream(self) -> bool:
        """Whether the next request should stream, by --stream-share: a seeded draw over all users of the process."""
        return self._load.senders.draw_stream()

    def ask(
        self,
        *,
        stream: bool,
        prompt: str | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        max_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Record:
        """Sends one request and waits for the whole answer; the record says how it ended, no outcome raises.

        What is not given is the plan's, or Locust's --llm-… options': a prompt of common words that no cache has seen,
        its length, max_tokens. prompt, messages: sent as they are, each time the same bytes; never kept in evidence.
        extra_body: more keys of the request's body, beside the plan's. name: the row in Locust's own statistics.
        After a refusal, a failed connection or any failure that came at once it waits before it returns: 0.25 s,
        doubling to 2 s, and at least Retry-After (at most 10 s), so that a full or broken gateway is not hammered.
        A wait that the class itself ends (gevent.Timeout, kill) is a failed request, `cancelled`.
        Raises ValueError for what cannot be sent.
        """
        load = self._load
        if self._is_asking:
            raise RuntimeError("a user has one request in flight; start more users instead of greenlets that ask")
        own = None
        if not (prompt is None and messages is None and max_tokens is None and extra_body is None):
            own = load.ask_of(stream, prompt, messages, max_tokens, extra_body)
        if load.is_over:
            gevent.sleep(_AFTER_THE_STEP_S)  # a task that asks again and again must not keep the driver from ending it
            raise gevent.GreenletExit  # an on_stop that asks, after the step
        if load.draining.is_set() or (load.writes_records and load.is_spent()):
            load.step_over.wait()  # the step's end kills this user here
        self._is_asking = True
        t_due_ns, self._t_due_ns = self._t_due_ns, None
        try:
            record = load.ask(
                self._connection, self._number, stream, own, tenant=load.senders.tenant_of(self._number),
                due_ns=t_due_ns, finished=partial(self._fire, name),
            )  # fmt: skip
        finally:
            self._is_asking = False
        if t_due_ns is None:  # arrivals do not wait
            self._hold_back(record)
        return record

    def _hold_back(self, record: Record) -> None:
        """The wait after a refusal or a failure at once; nothing after an answer."""
        at_once = record.outcome not in ("ok", "left") and record.t_over_ns - record.t_start_ns < _AT_ONCE_NS
        if at_once or record.outcome in WAIT_AFTER:
            asked_s = 0.0 if record.retry_after_s is None else min(record.retry_after_s, _LONGEST_RETRY_AFTER_S)
            wait_s = max(self._wait_s, asked_s)
            self._wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S)
            self._load.draining.wait(wait_s)
        else:
            self._wait_s = _FIRST_WAIT_S

    def _fire(self, name: str | None, record: Record) -> None:
        failed = None
        if record.outcome != "ok":
            failed = LlmError(" ".join(filter(None, (record.outcome, str(record.status or ""), record.error_code))))
        self.environment.events.request.fire(
            request_type="stream" if record.stream else "nonstream",
            name=record.api if name is None else name,
            response_time=((record.t_end_ns or record.t_over_ns) - (record.t_due_ns or record.t_start_ns)) / 1e6,
            response_length=record.bytes_in,
            exception=failed,
            context=self.context(),
        )


def load_of(environment: Environment) -> Load:
    """The process's Load: from the step order if ha-sweep started us, else from Locust's options."""
    load: Load | None = getattr(environment, "ha_sweep_load", None)
    if load is None:
        load = Load(_order_from_options(environment), write_records=False)
        environment.ha_sweep_load = load
    return load


def _order_from_options(environment: Environment) -> StepOrder:
    options: Any = environment.parsed_options
    host = environment.host or next((each.host for each in environment.user_classes if each.host), None)
    if not host:
        raise PlanError("no target; give --host http://HOST:PORT")
    if not is_header_name(options.llm_key_style):
        raise PlanError("--llm-key-style: write bearer, x-api-key, or the name of the header that holds the key")
    return StepOrder(
        step="locust",
        worker=f"{os.getpid()}",
        out_dir="",
        url=host,
        api=options.llm_api,
        model=options.llm_model or _only_model(parse_endpoint(host), options),
        users=1,
        max_tokens=options.llm_max_tokens,
        prompt_words=options.llm_prompt_words,
        think_s=options.llm_think_time,
        **_open_loop(options),
        seed=zlib.crc32(os.urandom(8)),
        api_key_env=options.llm_key_env or None,
        key_style=options.llm_key_style,
    )


def _open_loop(options: Any) -> dict[str, Any]:
    """What open_loop.py's own options say; nothing where no locustfile imports it. Raises PlanError."""
    if not hasattr(options, "llm_rate"):
        return {}
    if not options.llm_rate > 0 or not options.llm_ramp >= 0:
        raise PlanError("--llm-rate: give a number above 0, and 0 or more for --llm-ramp")
    return {"rate_per_s": options.llm_rate, "arrivals": options.llm_arrivals, "ramp_s": options.llm_ramp}


def _only_model(endpoint: Endpoint, options: Any) -> str:
    """The one model the target lists. Raises PlanError when there is none or more than one."""
    dialect = BY_NAME[options.llm_api]
    key = os.environ.get(options.llm_key_env) if options.llm_key_env else None
    connect = HTTPSConnection if endpoint.tls else HTTPConnection
    connection = connect(endpoint.host, endpoint.port, timeout=10)
    try:
        connection.request("GET", endpoint.path(dialect.models), headers=authorization(key, options.llm_key_style))
        names = dialect.names(msgspec.json.decode(connection.getresponse().read()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(f"{endpoint.url}{dialect.models} lists no models ({error}); give --llm-model") from error
    finally:
        connection.close()
    if len(names) != 1:
        raise PlanError(f"the target lists {len(names)} models ({', '.join(names[:8])}); give --llm-model")
    return names[0]


@events.init_command_line_parser.add_listener
def _options(parser: LocustArgumentParser) -> None:
    # On the parser itself: Locust shows no option of a group in its web UI.
    add = parser.add_argument
    add("--llm-api", choices=sorted(BY_NAME), default="openai-chat", help="API to speak")
    add("--llm-model", default="", help="Model to ask for; default: the only one the target lists")
    add("--llm-max-tokens", type=int, default=128, help="Output tokens to ask for")
    add("--llm-prompt-words", type=int, default=200, help="Words in each prompt")
    add("--llm-think-time", type=float, default=0.0, help="Seconds between two tasks of a class without a wait_time")
    add("--llm-key-env", default="", help="Name of the environment variable that holds the API key")
    add("--llm-key-style", default="bearer", help="Header that carries the key: bearer, x-api-key or another name")


@events.test_start.add_listener
def _read_options(environment: Environment, **_: Any) -> None:
    """Options may have been changed in the web UI since the last test; one that cannot be is one line, exit 2."""
    if ORDER_ENV in os.environ:
        return
    environment.ha_sweep_load = None
    try:
        load_of(environment)
    except PlanError as error:
        logging.getLogger(__name__).error("%s", error)
        environment.process_exit_code = 2
        environment.runner.quit()


@events.init.add_listener
def _start_driver(environment: Environment, **_: Any) -> None:
    gc.freeze()  # a collection looks at what the run makes, not at a quarter of a million objects of the imports
    order_file = os.environ.get(ORDER_ENV)
    if order_file is not None:
        environment.ha_sweep_load = driver.attach(environment, order_file)
