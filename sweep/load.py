"""What one load process knows of its step: phase, counts, files. Users tell it of each request; the driver moves it on.

Without an order (plain `locust -f`) it only counts: the phase is always `window`, nothing drains, no file is written.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from gevent.event import Event

from sweep import outdir
from sweep.dialects import BY_NAME, Ask
from sweep.endpoint import parse_endpoint
from sweep.exchange import Ending
from sweep.leaving import Leaving, phase_of
from sweep.masking import Masked
from sweep.negotiation import refused_parameter
from sweep.outcomes import one_line
from sweep.prompts import without_prompt
from sweep.recording import record_of
from sweep.records import UNFIRED, Phase, Record, to_line
from sweep.request import RequestTemplate, prompt_text
from sweep.senders import Senders
from sweep.step_files import StepOrder
from sweep.timeouts import Timeouts
from sweep.wire import Connection, Watch, client_context


class LineSink(Protocol):
    """Where lines of evidence go."""

    def append(self, line: bytes) -> None: ...
    def close(self) -> None: ...


class Load:
    """Shared by all users of one process."""

    def __init__(self, order: StepOrder, write_records: bool, records: LineSink | None = None) -> None:
        """records: where they go; None: a file of OUT_DIR."""
        self.order = order
        self.phase = "warmup" if write_records else "window"
        self.draining = Event()
        self.step_over = Event()  # never set: users wait for it until they are killed
        self.started = 0
        self.started_in_window: Counter[str] = Counter()  # by mode
        self._numbers = itertools.count(1)  # of its own: the judge looks for gaps
        self.sent = 0
        self.due: int | None = None  # open loop: requests the schedule wanted so far
        self._start_lags_ms: list[float] = []  # since the last look
        self.in_flight = 0
        self.tokens_asked = 0
        self.outcomes: Counter[str] = Counter()
        self.finished_by_user: Counter[int] = Counter()
        self.n_users = 0
        self.fault: str | None = None
        self.user_fault: str | None = None  # an exception of the locustfile's own
        self.is_over = False  # users are being stopped; what they still ask for is not sent
        self.endpoint = parse_endpoint(order.url)
        self.dialect = BY_NAME[order.api]
        self.timeouts = Timeouts(order.connect_timeout_s, order.first_timeout_s, order.idle_timeout_s, order.timeout_s)
        self.watch = Watch(self.timeouts)
        self.connections: set[Connection] = set()
        self._context = client_context(order) if self.endpoint.tls else None
        self.senders = Senders(order, os.environ)
        if not order.keepalive:
            for headers in self.senders.headers.values():
                headers["Connection"] = "close"
        self._leaving = Leaving(order)
        self._masked = Masked(self.senders.secrets)
        self._prompt = prompt_text(order.prompt_words, order.seed, order.shared_prefix_words, order.prefix_seed)
        self._templates = self._made_templates()
        self.writes_records = write_records
        self._records = self._open_records() if write_records and records is None else records

    def _made_templates(self) -> dict[tuple[str | None, bool], RequestTemplate]:
        return {
            (tenant, stream): self._template(self.ask_of(stream), tenant)
            for tenant in self.senders.headers for stream in (True, False)
        }  # fmt: skip

    def agree(self, record: Record) -> bool:
        """Whether a refusal was about a parameter that can be changed; it is, for every request from here on."""
        said = f"{record.error_code or ''} {record.error_text or ''}"
        asked = self._templates[record.tenant, record.stream].asked
        change = refused_parameter(record.status, said, asked, self.order.agreed)
        self.order.agreed |= change
        self._templates = self._made_templates()
        return bool(change)

    @property
    def phase(self) -> Phase:
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._phase = phase
        self.t_phase_ns = time.monotonic_ns()

    def start_lag_p99_ms(self) -> float | None:
        """How late requests started since it was last asked; None when none was due (closed loop: always)."""
        lags, self._start_lags_ms = sorted(self._start_lags_ms), []
        return lags[int(len(lags) * 0.99)] if lags else None

    def connection(self) -> Connection:
        made = Connection(
            self.endpoint.host, self.endpoint.port, self._context, self.timeouts, self.watch,
            keepalive=self.order.keepalive,
        )  # fmt: skip
        self.connections.add(made)
        return made

    def masked(self, text: str) -> str:
        """One line of a text from outside, without our secrets."""
        return one_line(text, self._masked) or ""

    def is_spent(self) -> bool:
        """The step's share of the run's caps is used up; a process without a user has none, and ends nothing."""
        order = self.order
        return order.users > 0 and (
            self.started >= order.max_requests or self.tokens_asked >= order.max_output_tokens
        )

    def ask_of(
        self,
        stream: bool,
        prompt: str | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        max_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> Ask:
        """The order's request, with what a task says of its own. Raises ValueError for what cannot be asked."""
        order = self.order
        if prompt is not None and messages is not None:
            raise ValueError("ask: give a prompt or messages, not both")
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"ask: max_tokens {max_tokens}; give 1 or more")
        text = self._prompt if prompt is None else prompt
        n_tokens = order.max_tokens if max_tokens is None else max_tokens
        ask = Ask(order.model, text, n_tokens, stream, order.extra_body | dict(extra_body or {}), messages)
        for name in extra_body or {}:
            if name not in self.dialect.replaceable and name in self.dialect.body(replace(ask, extra_body={})):
                raise ValueError(f"ask: extra_body may not hold {name!r}, which ask itself sets")
        if "num_predict" in ((extra_body or {}).get("options") or {}):
            raise ValueError("ask: give max_tokens instead of options.num_predict")
        return ask

    def ask(
        self,
        connection: Connection,
        user: int,
        stream: bool,
        own: Ask | None = None,
        *,
        tenant: str | None = None,
        due_ns: int | None = None,
        finished: Callable[[Record], None] | None = None,
    ) -> Record:
        """One call, its record written however it ends. own: instead of the order's request, as it is.

        tenant: whose key it carries. due_ns: when the schedule wanted it (open loop only). finished: is given the
        record of a call that was not ended from here, also when the user is killed just as the answer is complete.
        Raises GreenletExit (the step's end, or a cancel by the locustfile) after writing the record.
        """
        if own is None:
            own = self.senders.next_ask(stream)
        template = self._templates[tenant, stream] if own is None else self._template(own, tenant)
        max_tokens = self.order.max_tokens if own is None else own.max_tokens
        phase = self.phase if due_ns is None or due_ns >= self.t_phase_ns else "warmup"  # that it was due in
        self._count(phase, stream, max_tokens)
        request_id, request = template.fill(next(self._numbers))
        exchange = self._leaving.exchange(self.dialect, stream, request_id, template.asked)
        self._note_lag(exchange.t_start_ns, due_ns)
        ending: Ending = "cut"
        try:
            ending = connection.run(request, exchange)
        except Exception as error:
            # What an own locustfile throws into its waiting user (a gevent.Timeout with an exception) is its own.
            if exchange.fault is error or self.order.locustfile_folder is None:
                self.fault = f"{request_id}: {error!r}"
            raise
        finally:
            self.in_flight -= 1
            exchange.t_over_ns = time.monotonic_ns()
            record = record_of(
                self.order, exchange, ending, self._masked, user=user, phase=phase, max_tokens=max_tokens,
                may_cut=self.is_over or not self.writes_records, tenant=tenant, t_due_ns=due_ns,
                leaves_at=phase_of(exchange),
            )  # fmt: skip
            if own is not None:
                record.error_text = without_prompt(record.error_text, own)
                record.error_code = without_prompt(record.error_code, own)
            self._write(record)
            self._leaving.saw(record)
            if finished is not None and record.outcome not in UNFIRED:
                finished(record)
        return record

    def _count(self, phase: Phase, stream: bool, max_tokens: int) -> None:
        """A request that starts."""
        self.started += 1
        if phase == "window":
            self.started_in_window["stream" if stream else "nonstream"] += 1
        self.tokens_asked += max_tokens if self.dialect.has_tokens else 0
        self.in_flight += 1

    def _note_lag(self, t_start_ns: int, due_ns: int | None) -> None:
        if due_ns is not None and self.writes_records:
            self._start_lags_ms.append((t_start_ns - due_ns) / 1e6)

    def close(self) -> None:
        if self._records is not None:
            self._records.close()
            self._records = None

    def _write(self, record: Record) -> None:
        if self._records is not None:
            try:
                self._records.append(to_line(record))
            except OSError as error:
                self.fault = f"{record.request_id} cannot be written: {error.strerror}"
                raise
        self.outcomes[record.outcome] += 1
        # Of an open loop one user schedules, whichever client served it.
        self.finished_by_user[0 if record.t_due_ns is not None else record.user] += 1
        if record.t_sent_ns is not None:
            self.sent += 1

    def _template(self, ask: Ask, tenant: str | None = None) -> RequestTemplate:
        order = self.order
        prefix = f"{order.step}.{order.worker}"
        varies = ask.messages is None and ask.prompt is self._prompt
        headers = self.senders.headers[tenant]
        return RequestTemplate(self.endpoint, self.dialect, ask, headers, prefix, order.seed,
                               varies=varies, agreed=order.agreed)  # fmt: skip

    def _open_records(self) -> LineSink:
        return outdir.LineFile(Path(self.order.out_dir) / outdir.requests_file(self.order.step, self.order.worker))
