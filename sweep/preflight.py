"""Before any load: is the target there, does the model answer in each mode, what will the plan cost.

Raises PlanError, one clear line, for everything an operator must mend first.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from sweep import outdir
from sweep.access import Access, absolute
from sweep.children import Child
from sweep.dialects import BY_NAME
from sweep.endpoint import Endpoint
from sweep.errors import PlanError, RunError
from sweep.estimate import Estimate, Measured, estimate
from sweep.negotiation import CONSEQUENCE
from sweep.plan import Level, Mode, SweepPlan
from sweep.records import PREFLIGHT, REJECTED, Record, from_lines
from sweep.slo import did_you_mean
from sweep.step_files import StepOrder, TenantOrder
from sweep.tenants import parts_of, tenants_of

WORKER = "w01"  # the one load process on this machine
WORDS_PER_TOKEN = 0.75  # first guess; the preflight's own usage replaces it
# Counts outside these set nothing: some servers count only tokens that were not cached.
_TOKENS_PER_WORD, _TEMPLATE_TOKENS = (0.5, 4.0), 200
_CONNECT_S = 5.0
_WANTS_CERTIFICATE = re.compile(r"no required SSL certificate|client certificate", re.I)  # nginx says it so, with 400


@dataclass(frozen=True, slots=True)
class Preflight:
    """What the first requests showed. prompt_words: words that make the prompt tokens asked for.

    records: without those whose refusal was negotiated. agreed: what is sent instead, as of `negotiation`. kept: of the
    body, what keeps the model in memory as it was found. usual: phase of --cancel-at -> seconds, or token events, until
    it.
    """

    measured: Mapping[Mode, Measured]
    records: tuple[Record, ...]
    prompt_words: int
    estimate: Estimate
    odd_count: str | None
    agreed: Mapping[str, str | None] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)
    n_sent: int = 0
    usual: Mapping[str, float] = field(default_factory=dict)

    @property
    def failures(self) -> list[str]:
        """First requests that failed by the target's own doing."""
        return [
            f"the first {_mode(record)} request failed: {record.outcome} {record.error_text or ''}".rstrip()
            for record in self.records
            if record.outcome != "ok"
        ]

    @property
    def warnings(self) -> list[str]:
        """First requests that failed by the target's own doing, and gates the plan cannot decide."""
        odd = [CONSEQUENCE[key] for key in self.agreed] + ([] if self.odd_count is None else [self.odd_count])
        return self.failures + odd + [f"cannot be decided by this plan: {line}" for line in self.estimate.undecidable]

    def as_json(self) -> dict[str, Any]:
        """run.json's `preflight`."""
        rows = {_mode(record): _row(record) for record in _of_first(self.records)}
        tried = {record.tenant: record.outcome for record in self.records if record.tenant is not None}
        return {**rows} | ({"tenants": tried} if tried else {}) | {
            "prompt_words": self.prompt_words,
            "estimate": list(self.estimate.lines),
            "undecidable": list(self.estimate.undecidable),
            "agreed": dict(self.agreed),
            "kept": dict(self.kept),
        }


def reach(endpoint: Endpoint) -> None:
    """Raises PlanError when nothing accepts a connection there."""
    try:
        socket.create_connection((endpoint.host, endpoint.port), timeout=_CONNECT_S).close()
    except OSError as error:
        raise PlanError(
            f"target {endpoint.url}: {error.strerror or error}; start the gateway or give --target its address"
        ) from error


def run_preflight(
    plan: SweepPlan, seed: int, listed: list[str], out_dir: Path, scratch: Path, access: Access,
    kept: Mapping[str, Any], step: str = PREFLIGHT,
) -> Preflight:  # fmt: skip
    """Sends one request of each mode of a plan whose model is set, and estimates. Raises PlanError.

    kept: more of the body, which keeps the model as it was found; --extra-body wins. step: what its records are of.
    """
    words = max(1, round(plan.prompt_tokens * WORDS_PER_TOKEN))
    order = StepOrder(
        step=step, worker=WORKER, out_dir=str(out_dir), url=plan.target, api=plan.api or "", model=plan.model or "",
        users=1, max_tokens=plan.max_tokens, prompt_words=words, seed=seed, extra_body={**kept, **plan.extra_body},
        **access.order(), keep_headers=list(plan.keep_headers),
        first_timeout_s=plan.load_timeout_s, idle_timeout_s=max(plan.idle_timeout_s, plan.load_timeout_s),
        timeout_s=plan.load_timeout_s, tenants=tenant_orders(plan, plan.sustained), prompts_file=absolute(plan.prompts),
        shared_prefix_words=prefix_words(plan, words), prefix_seed=seed, keepalive=not plan.no_keepalive,
    )  # fmt: skip
    order_file = scratch / f"{step}.json"
    order_file.write_bytes(msgspec.json.encode(order))
    # Not streaming first: a model that loads then does not spoil the first token time of the estimate.
    modes = sorted(plan.sent_modes)
    log = out_dir / outdir.locust_log(step)
    asking = ("-m", "sweep.ask", str(order_file), *modes)
    child = Child(asking, log, access.environment(sends=True), scratch, access.masked)
    try:
        code = child.wait(order.timeout_s * (len(modes) + len(order.tenants)) + 30)
    except BaseException:
        child.end(grace_s=1.0)
        raise
    lines, _ = outdir.read_lines(out_dir / outdir.requests_file(step, WORKER))
    sent = from_lines(Record, lines, outdir.requests_file(step, WORKER))
    records = _settled(sent)
    if code != 0:
        raise RunError(f"the preflight process failed ({code}): {child.last_words()}")
    for record in records:
        if record.outcome != "ok" and not _is_the_targets(record):
            raise PlanError(_refused(plan, listed, record))
    n_sent = sum(record.t_sent_ns is not None for record in sent)
    agreed = msgspec.json.decode(order_file.read_bytes(), type=StepOrder).agreed
    good = [record for record in _of_first(records) if record.outcome == "ok"]
    measured = {_mode(record): measured_of(record) for record in good}
    words, odd = _words_by(good, plan, words)
    to_come = {mode: _with_words(each, words / order.prompt_words) for mode, each in measured.items()}
    told = estimate(plan, to_come)
    return Preflight(measured, tuple(records), words, told, odd, agreed, kept, n_sent, usual_of(good))


def _words_by(good: Sequence[Record], plan: SweepPlan, words: int) -> tuple[int, str | None]:
    """(words that make --prompt-tokens by the server's own count, why that count is not used); words: those sent."""
    counted = next((record.n_in for record in good if record.n_in is not None and plan.prompts is None), None)
    if counted is None:
        return words, None
    if _TOKENS_PER_WORD[0] * words <= counted <= _TOKENS_PER_WORD[1] * words + _TEMPLATE_TOKENS:
        return max(1, round(words * plan.prompt_tokens / counted)), None
    why = f"the server counts {counted} tokens in a prompt of {words} words: not used to set the prompt's length"
    return words, why


def _settled(records: list[Record]) -> list[Record]:
    """The last of each mode: those before it were sent again with what was agreed."""
    return list({(_mode(record), record.tenant): record for record in records}.values())


def unasked(plan: SweepPlan) -> Preflight:
    """Of a plan that only observes: no request is sent before it either."""
    return Preflight({}, (), 0, estimate(plan, {}), None)


def tenant_orders(plan: SweepPlan, level: Level) -> list[TenantOrder]:
    return [TenantOrder(**part._asdict()) for part in parts_of(plan, level)]


def prefix_words(plan: SweepPlan, words: int) -> int:
    """Words of --shared-prefix, if so many words make --prompt-tokens."""
    return round(words * plan.shared_prefix / plan.prompt_tokens)


def usual_of(good: Sequence[Record]) -> dict[str, float]:
    """Phase of --cancel-at -> seconds, or token events, until the answer had it; without the load of a cold model."""
    usual = {}
    for record in good:
        loaded_ns = record.load_ns or 0
        first, end = record.t_first_ns, record.t_end_ns
        if record.stream and first is not None:
            usual["before_first"] = max(first - record.t_start_ns - loaded_ns, 0) / 1e9
            usual["mid_stream"] = float(record.n_events)
        elif not record.stream and end is not None:
            usual["nonstream"] = max(end - record.t_start_ns - loaded_ns, 0) / 1e9
    return usual


def _of_first(records: Sequence[Record]) -> list[Record]:
    """Those that measure: one of each mode. Of further tenants only the key is tried."""
    first = records[0].tenant if records else None
    return [record for record in records if record.tenant == first]


def _with_words(measured: Measured, factor: float) -> Measured:
    """The same request with the steps' prompt, so many times as long as the preflight's."""
    return replace(measured, n_in=None if measured.n_in is None else round(measured.n_in * factor))


def _is_the_targets(record: Record) -> bool:
    """A failure that no option mends: the run goes on and judges it, instead of calling it bad input."""
    return record.outcome in ("truncated", "error_event", "http_5xx", "reset", "stalled", *REJECTED)


def _mode(record: Record) -> Mode:
    return "stream" if record.stream else "nonstream"


def measured_of(record: Record) -> Measured:
    """Without the time a cold model took to load, where the server tells it: later requests find it loaded."""
    end_ns = record.t_end_ns
    took_ns = None if end_ns is None else end_ns - record.t_start_ns
    if took_ns is not None and record.load_ns is not None and 0 < record.load_ns < took_ns:
        took_ns -= record.load_ns
    has_tokens = BY_NAME[record.api].has_tokens
    return Measured(None if took_ns is None else took_ns / 1e9, record.n_in, record.n_out, has_tokens)


def _row(record: Record) -> dict[str, Any]:
    row = msgspec.to_builtins(record)
    names = ("outcome", "status", "error_text", "n_in", "n_out", "token_source", "flags", "model_served")
    kept = {name: row[name] for name in names}
    first, end = record.t_first_ns, record.t_end_ns
    return kept | {
        "ttft_ms": None if first is None else (first - record.t_start_ns) / 1e6,
        "e2e_ms": None if end is None else (end - record.t_start_ns) / 1e6,
    }


def _refused(plan: SweepPlan, listed: list[str], record: Record) -> str:
    """One line for a preflight request that failed: what came back, and what to do."""
    said = f"{record.status or record.outcome}" + (f": {record.error_text}" if record.error_text else "")
    mode = "streaming" if record.stream else "non-streaming"
    where = f"{plan.target} answered the first {mode} {plan.api} request with {said}"
    if record.status in (401, 403) and record.tenant is not None:
        key_env = next(each.key_env for each in tenants_of(plan) if each.name == record.tenant)
        return f"{where}; the key in {key_env} of tenant {record.tenant} is refused, set the right one"
    if record.error_code == "redirect":
        return f"{where}; a POST is not followed: it would carry key and prompt there, and each one would be two"
    if record.status in (401, 403):
        return f"{where}; {key_advice(plan)}"
    if plan.cert is None and _WANTS_CERTIFICATE.search(record.error_text or ""):
        return f"{where}; it wants a client certificate: give one with --cert and --key"
    if (record.error_text or "").lstrip().lower().startswith(("<!doctype", "<html")):
        return f"{where}; that is a web page, no {plan.api} API: check --target and --api"
    if listed and plan.model not in listed:
        known = f"; it lists {', '.join(listed[:8])}{did_you_mean(plan.model or '', listed)}"
        return f"{where}; --model {plan.model} is unknown there{known}"
    if record.status in (404, 405):
        return f"{where}; check --api, --model and the path of --target"
    if record.outcome in ("timeout", "stalled"):
        return f"{where} within --load-timeout; raise it, or look why the model does not load"
    return f"{where}; mend this before a load makes sense"


def key_advice(plan: SweepPlan) -> str:
    """What to do about a 401 or 403, as the end of a sentence."""
    if plan.api_key_cmd is not None:
        return "the key that --api-key-cmd prints is refused; look what it prints, and at --key-style"
    if plan.api_key_env is not None:
        return f"the key in {plan.api_key_env} is refused, set the right one, or name its header with --key-style"
    if plan.headers:
        return f"what --header sends ({', '.join(plan.headers)}) is refused; set the right value"
    return "it wants a key: name its environment variable with --api-key-env"
