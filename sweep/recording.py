"""What an exchange showed -> its record: outcome, flags, counts. Pure."""

from __future__ import annotations

from typing import Literal

from sweep import told
from sweep.exchange import Ending, Exchange
from sweep.masking import Masked
from sweep.outcomes import conclude, one_line, retry_after_s
from sweep.records import Phase, Record
from sweep.step_files import StepOrder

LATE_END_NS = 100_000_000  # real servers end their body 15-35 ms after the terminal event
COLD_NS = 500_000_000  # a model load this long is a cold start (Ollama reports 20-50 ms for a warm model too)
_BUFFERED_SHARE, _MANY = 0.9, 8


def record_of(
    order: StepOrder, x: Exchange, ending: Ending, masked: Masked, *,
    user: int, phase: Phase, max_tokens: int, may_cut: bool, tenant: str | None = None, t_due_ns: int | None = None,
    leaves_at: str | None = None,
) -> Record:  # fmt: skip
    """The record of a call that is over. may_cut: the driver may have ended it; else a `cut` is the locustfile's.

    leaves_at: the phase in which its client meant to leave.
    """
    outcome, code, text = conclude(x, ending)
    if outcome == "cut" and not may_cut:
        # Only the driver ends a step; a wait that anybody else ended was too long for them.
        outcome, text = "cancelled", "the locustfile ended the wait for the answer"
    answer = x.answer
    streamed = x.stream and _is_streamed(x)
    flags = _flags(x, order.model, max_tokens) if outcome == "ok" else _flags_of_failure(x)
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
        request_id=x.request_id, step=order.step, user=user, phase=phase, tenant=tenant, t_due_ns=t_due_ns,
            api=order.api, stream=x.stream,
        t_start_ns=x.t_start_ns, t_sent_ns=x.t_sent_ns, t_headers_ns=x.t_headers_ns, t_event_ns=x.t_event_ns,
        t_first_ns=x.t_first_ns, t_answer_ns=x.t_answer_ns, t_last_ns=x.t_last_ns, t_end_ns=x.t_end_ns,
        t_over_ns=x.t_over_ns or x.now, outcome=outcome,
        flags=flags, status=x.status, n_in=answer.n_in, n_out=n_out, token_source=source, n_events=x.n_events,
        gaps_us=x.gaps_us, read_tokens=None if x.read_tokens.count(1) == len(x.read_tokens) else x.read_tokens,
        bytes_in=x.bytes_in, model_served=one_line(answer.model, masked),
        finish=one_line(answer.finish, masked), load_ns=answer.load_ns,
        prompt_eval_ns=answer.prompt_eval_ns, eval_ns=answer.eval_ns, total_ns=answer.total_ns,
        left_at=leaves_at if outcome == "left" else None,
        server_id=one_line(answer.server_id or x.headers.get("x-request-id"), masked),
        attempts=told.attempts(x.headers), backend=told.backend(x.headers, masked),
        headers=told.kept(x.headers, order.keep_headers, masked),
        error_code=one_line(code, masked), error_text=one_line(text, masked),
        retry_after_s=retry_after_s(x.headers),
    )  # fmt: skip


def _is_streamed(x: Exchange) -> bool:
    """More than one event came: a single NDJSON line, or a JSON body, is no stream."""
    return x.is_streamed and not (x.dialect.has_lines and x.n_units == 1)


def _flags(x: Exchange, model: str, max_tokens: int) -> tuple[str, ...]:
    """Remarks on a successful answer. model, max_tokens: what was asked for."""
    answer = x.answer
    streamed = x.stream and _is_streamed(x)
    remarks = {
        "no_done": streamed and not x.dialect.needs_done and not answer.done,
        "no_finish": streamed and not x.dialect.has_lines and answer.finish is None,
        "buffered": streamed and _is_buffered(x),
        "not_streamed": x.stream and not streamed,
        "cold": answer.load_ns is not None and answer.load_ns > COLD_NS,
        "no_answer": x.t_answer_ns is None if streamed else not (x.carried_whole or x.n_events),
        "late_tokens": x.late,
        "lost_events": answer.skipped,
        "late_end": x.t_end_ns is not None and x.t_over_ns is not None and x.t_over_ns - x.t_end_ns > LATE_END_NS,
        "odd_count": answer.n_out is not None and answer.n_out > max_tokens,
        "retried_stale": x.retried,
        "fallback": told.is_fallback(x.headers),
        "other_model": answer.model not in (None, model) and _model_name(answer.model) != _model_name(model),
    }
    if not any(remarks.values()):  # nearly every answer
        return ()
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
