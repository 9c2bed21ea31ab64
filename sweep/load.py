"""What one load process knows of its step: phase, counts, files. Users tell it of each request; the driver moves it on.

Without an order (plain `locust -f`) it only counts: the phase is always `window`, nothing drains, no file is written.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from gevent.event import Event

from sweep import outdir, told
from sweep.dialects import BY_NAME, Ask
from sweep.endpoint import parse_endpoint
from sweep.exchange import Ending, Exchange, Timeouts
from sweep.masking import Masked
from sweep.outcomes import conclude, one_line, retry_after_s
from sweep.records import Phase, Record, to_line
from sweep.request import RequestTemplate, access_headers, prompt_text
from sweep.step_files import StepOrder
from sweep.wire import Connection, Watch, client_context

LATE_END_NS = 100_000_000  # real servers end their body 15-35 ms after the terminal event
COLD_NS = 500_000_000  # a model load this long is a cold start (Ollama reports 20-50 ms for a warm model too)
_BUFFERED_SHARE, _MANY = 0.9, 8


class Load:
    """Shared by all users of one process."""

    def __init__(self, order: StepOrder, write_records: bool) -> None:
        self.order = order
        self.phase: Phase = "warmup" if write_records else "window"
        self.draining = Event()
        self.step_over = Event()  # never set: users wait for it until they are killed
        self.started = 0
        self.started_in_window: Counter[str] = Counter()  # by mode
        self._numbers = itertools.count(1)  # of its own: the judge looks for gaps
        self.sent = 0
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
        self._headers, secrets = access_headers(order, os.environ)
        self._masked = Masked(secrets)
        self._prompt = prompt_text(order.prompt_words, order.seed)
        self._templates = {stream: self._template(self.ask_of(stream)) for stream in (True, False)}
        self.writes_records = write_records
        self._records = self._open_records() if write_records else None

    def connection(self) -> Connection:
        made = Connection(self.endpoint.host, self.endpoint.port, self._context, self.timeouts, self.watch)
        self.connections.add(made)
        return made

    def masked(self, text: str) -> str:
        """One line of a text from outside, without our secrets."""
        return one_line(text, self._masked) or ""

    def is_spent(self) -> bool:
        """The step's share of the run's caps is used up."""
        return self.started >= self.order.max_requests or self.tokens_asked >= self.order.max_output_tokens

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
            if name != "options" and name in self.dialect.body(replace(ask, extra_body={})):
                raise ValueError(f"ask: extra_body may not hold {name!r}, which ask itself sets")
        if "num_predict" in ((extra_body or {}).get("options") or {}):
            raise ValueError("ask: give max_tokens instead of options.num_predict")
        return ask

    def ask(self, connection: Connection, user: int, stream: bool, own: Ask | None = None) -> Record:
        """One call, its record written however it ends. own: instead of the order's request, as it is.

        Raises GreenletExit (the step's end, or a cancel by the locustfile) after writing the record.
        """
        template = self._templates[stream] if own is None else self._template(own)
        max_tokens = self.order.max_tokens if own is None else own.max_tokens
        phase = self.phase
        self.started += 1
        if phase == "window":
            self.started_in_window["stream" if stream else "nonstream"] += 1
        self.tokens_asked += max_tokens
        self.in_flight += 1
        request_id, request = template.fill(next(self._numbers))
        exchange = Exchange(self.dialect, stream, request_id)
        ending: Ending = "cut"
        record: Record | None = None
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
            record = self._record(request_id, user, phase, exchange, ending, max_tokens)
            self._write(record)
        return record

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
        self.finished_by_user[record.user] += 1
        if record.t_sent_ns is not None:
            self.sent += 1

    def _record(self, request_id: str, user: int, phase: Phase, x: Exchange, ending: Ending, max_tokens: int) -> Record:
        outcome, code, text = conclude(x, ending)
        if outcome == "cut" and self.writes_records and not self.is_over:
            # Only the driver ends a step; a wait that anybody else ended was too long for them.
            outcome, text = "cancelled", "the locustfile ended the wait for the answer"
        answer = x.answer
        streamed = x.stream and _is_streamed(x)
        flags = _flags(x, self.order.model, max_tokens) if outcome == "ok" else _flags_of_failure(x)
        if outcome == "ok" and not streamed:
            x.t_first_ns = x.t_answer_ns = x.t_last_ns = None
            x.gaps_us, x.read_tokens = [], []
        n_out = answer.n_out
        source: Literal["usage", "events"] | None = None if n_out is None else "usage"
        if n_out is not None and n_out > max_tokens:
            n_out, source = None, None  # more than was asked for cannot be: no figure is made of it
        elif outcome == "ok" and not answer.n_out and x.n_events:
            # No count, or 0 tokens of which some arrived; a whole answer in one event is no count either.
            n_out, source = (x.n_events, "events") if streamed else (None, None)
        return Record(
            request_id=request_id, step=self.order.step, user=user, phase=phase, api=self.order.api, stream=x.stream,
            t_start_ns=x.t_start_ns, t_sent_ns=x.t_sent_ns, t_headers_ns=x.t_headers_ns, t_event_ns=x.t_event_ns,
            t_first_ns=x.t_first_ns, t_answer_ns=x.t_answer_ns, t_last_ns=x.t_last_ns, t_end_ns=x.t_end_ns,
            t_over_ns=x.t_over_ns or x.now, outcome=outcome,
            flags=flags, status=x.status, n_in=answer.n_in, n_out=n_out, token_source=source, n_events=x.n_events,
            gaps_us=x.gaps_us, read_tokens=None if all(n == 1 for n in x.read_tokens) else x.read_tokens,
            bytes_in=x.bytes_in, model_served=one_line(answer.model, self._masked),
            finish=one_line(answer.finish, self._masked), load_ns=answer.load_ns,
            server_id=one_line(answer.server_id or x.headers.get("x-request-id"), self._masked),
            attempts=told.attempts(x.headers), backend=told.backend(x.headers, self._masked),
            headers=told.kept(x.headers, self.order.keep_headers, self._masked),
            error_code=one_line(code, self._masked), error_text=one_line(text, self._masked),
            retry_after_s=retry_after_s(x.headers),
        )  # fmt: skip

    def _template(self, ask: Ask) -> RequestTemplate:
        order = self.order
        prefix = f"{order.step}.{order.worker}"
        varies = ask.messages is None and ask.prompt is self._prompt
        return RequestTemplate(self.endpoint, self.dialect, ask, self._headers, prefix, order.seed, varies=varies)

    def _open_records(self) -> outdir.LineFile:
        return outdir.LineFile(Path(self.order.out_dir) / outdir.requests_file(self.order.step, self.order.worker))


def _is_streamed(x: Exchange) -> bool:
    """More than one event came: a single NDJSON line, or a JSON body, is no stream."""
    return x.is_streamed and not (x.dialect.needs_done and x.n_units == 1)


def _flags(x: Exchange, model: str, max_tokens: int) -> tuple[str, ...]:
    """Remarks on a successful answer. model, max_tokens: what was asked for."""
    answer = x.answer
    streamed = x.stream and _is_streamed(x)
    remarks = {
        "no_done": streamed and not x.dialect.needs_done and not answer.done,
        "no_finish": streamed and not x.dialect.needs_done and answer.finish is None,
        "buffered": streamed and _is_buffered(x),
        "not_streamed": x.stream and not streamed,
        "cold": answer.load_ns is not None and answer.load_ns > COLD_NS,
        "no_answer": x.t_answer_ns is None if streamed else not (x.carried_whole or x.n_events),
        "late_tokens": x.late,
        "late_end": x.t_end_ns is not None and x.t_over_ns is not None and x.t_over_ns - x.t_end_ns > LATE_END_NS,
        "odd_count": answer.n_out is not None and answer.n_out > max_tokens,
        "retried_stale": x.retried,
        "fallback": told.is_fallback(x.headers),
        "other_model": answer.model is not None and _model_name(answer.model) != _model_name(model),
    }
    return tuple(flag for flag, holds in remarks.items() if holds)


def _flags_of_failure(x: Exchange) -> tuple[str, ...]:
    remarks = {"retried_stale": x.retried, "fallback": told.is_fallback(x.headers)}
    return tuple(flag for flag, holds in remarks.items() if holds)


def _model_name(model: str) -> str:
    """Ollama answers `m:latest` to `m`."""
    return model.removesuffix(":latest")


def _is_buffered(x: Exchange) -> bool:
    """The first token came with the end, and most tokens in one read or two: the path held the stream back.

    Neither alone: a long prefill before a short answer has the one, a server that sends words in batches the other.
    """
    if x.t_first_ns is None or x.t_end_ns is None:
        return False
    share = (x.t_first_ns - x.t_start_ns) / max(1, x.t_end_ns - x.t_start_ns)
    n_tokens = x.n_events if x.answer.n_out is None else x.answer.n_out
    in_one = x.n_events > 1 and max(x.read_tokens) > x.n_events / 2
    return share > _BUFFERED_SHARE and (in_one or (len(x.read_tokens) <= 2 and n_tokens >= _MANY))
