"""Line types of the evidence files, one declaration each: writer, reader, schema check and glossary come from it.

A field is `Annotated[type, column(unit, doc)]`; missing is None. Pure: bytes in, bytes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_type_hints

import msgspec

from sweep.errors import EvidenceError

FORMAT = 1

Phase = Literal["warmup", "window", "drain"]
Outcome = Literal[
    "ok", "limited", "shed", "rejected_unclear", "http_4xx", "http_5xx", "error_event", "truncated", "bad_body",
    "stalled", "timeout", "connect", "reset", "cancelled", "left", "cut",
]  # fmt: skip
REJECTED = ("limited", "shed", "rejected_unclear")
FAILED = (
    "http_4xx", "http_5xx", "error_event", "truncated", "bad_body", "stalled", "timeout", "connect", "reset",
    "cancelled",
)  # fmt: skip
NOT_THE_TARGETS = ("left", "cut")
UNFIRED = (*NOT_THE_TARGETS, "cancelled")  # their wait ended by an exception: Locust's statistics do not hold them
PREFLIGHT = "preflight"  # step of the requests before the load; of a target beside the first: preflight.NAME
KEY_REFUSED = (401, 403)  # status of an answer that may be about our key rather than about the request
OUTCOMES: tuple[str, ...] = ("ok", *REJECTED, *FAILED, *NOT_THE_TARGETS)
# A closed-loop user waits after these: an instant 503 otherwise draws over a thousand requests a second (design §6a).
WAIT_AFTER = ("limited", "shed", "rejected_unclear", "connect", "reset", "http_5xx")

OUTCOME_MEANING = {
    "ok": "answered completely, by the one rule of success",
    "limited": "refused: the caller's own limit (rate, quota, budget)",
    "shed": "refused: the server says it is full",
    "rejected_unclear": "refused with 429, 503 or 529 and nothing that tells why",
    "http_4xx": "any other 4xx status",
    "http_5xx": "any other 5xx status",
    "error_event": "an error object inside a 2xx answer",
    "truncated": "the answer ended before its terminal marker",
    "bad_body": "bytes that are not valid for the API",
    "stalled": "nothing arrived for the idle time-out",
    "timeout": "no first byte, or no end, within its time-out",
    "connect": "no connection could be made",
    "reset": "the connection was reset or closed before the answer ended",
    "cancelled": "given up by the locustfile itself before the answer ended",
    "left": "our own cancel",
    "cut": "ended by the end of the step",
}


class Column(NamedTuple):
    """One field of a line type: name, unit ("" if none) and a one-line meaning."""

    name: str
    unit: str
    doc: str


def column(unit: str, doc: str) -> msgspec.Meta:
    return msgspec.Meta(description=doc, extra={"unit": unit})


class Record(msgspec.Struct, kw_only=True):
    """One request, written when it ended, however it ended."""

    request_id: Annotated[str, column("", "ours, sent as X-Request-Id")]
    step: Annotated[str, column("", "step the request belongs to; `preflight` before the first")]
    user: Annotated[int, column("", "number of the Locust user that sent it")]
    phase: Annotated[Phase, column("", "phase of the step it started in")]
    tenant: Annotated[str | None, column("", "tenant whose key was used")] = None
    api: Annotated[str, column("", "dialect spoken")]
    stream: Annotated[bool, column("", "a streaming answer was asked for")]
    t_due_ns: Annotated[int | None, column("ns", "when the schedule wanted it (open loop only)")] = None
    t_start_ns: Annotated[int, column("ns", "handed to the client, before connecting")]
    t_sent_ns: Annotated[int | None, column("ns", "request bytes handed to the kernel; null: never sent")] = None
    t_headers_ns: Annotated[int | None, column("ns", "status line and headers are in")] = None
    t_event_ns: Annotated[int | None, column("ns", "first event of any kind (role chunk, ping)")] = None
    t_first_ns: Annotated[int | None, column("ns", "first generated token of any kind")] = None
    t_answer_ns: Annotated[int | None, column("ns", "first token that is answer text, not reasoning")] = None
    t_last_ns: Annotated[int | None, column("ns", "last read that carried a generated token")] = None
    t_end_ns: Annotated[int | None, column("ns", "terminal event, or last byte of a non-streaming body")] = None
    t_over_ns: Annotated[int, column("ns", "the record was closed, whatever the outcome")]
    outcome: Annotated[Outcome, column("", "how it ended")]
    flags: Annotated[tuple[str, ...], column("", "remarks that do not change the outcome")] = ()
    status: Annotated[int | None, column("", "HTTP status")] = None
    n_in: Annotated[int | None, column("tokens", "prompt tokens, by the server's count")] = None
    n_out: Annotated[int | None, column("tokens", "output tokens, by token_source")] = None
    token_source: Annotated[Literal["usage", "events"] | None, column("", "server's count, or content events")] = None
    n_events: Annotated[int, column("", "events that carried a generated token")] = 0
    gaps_us: Annotated[list[int], column("us", "times between consecutive reads that carried tokens")] = []
    read_tokens: Annotated[list[int] | None, column("", "token events per such read; null: one each")] = None
    bytes_in: Annotated[int, column("bytes", "bytes received")] = 0
    model_served: Annotated[str | None, column("", "model the answer names")] = None
    finish: Annotated[str | None, column("", "finish reason the answer names")] = None
    load_ns: Annotated[int | None, column("ns", "model load time the server reports (Ollama)")] = None
    prompt_eval_ns: Annotated[int | None, column("ns", "prefill time the server reports (Ollama)")] = None
    eval_ns: Annotated[int | None, column("ns", "decoding time the server reports (Ollama)")] = None
    total_ns: Annotated[int | None, column("ns", "total time the server reports (Ollama)")] = None
    left_at: Annotated[str | None, column("", "where our own cancel came: before_first, mid_stream, nonstream")] = None
    server_id: Annotated[str | None, column("", "the server's own id of the request")] = None
    attempts: Annotated[int | None, column("", "upstream attempts, from an allow-listed header")] = None
    backend: Annotated[str | None, column("", "upstream that answered, from an allow-listed header")] = None
    headers: Annotated[dict[str, str] | None, column("", "response headers of --keep-header; null: none asked")] = None
    error_code: Annotated[str | None, column("", "code the error names")] = None
    error_text: Annotated[str | None, column("", "start of the error, scrubbed of secrets")] = None
    retry_after_s: Annotated[float | None, column("s", "Retry-After as sent")] = None


class GeneratorLine(msgspec.Struct, kw_only=True):
    """One second of one Locust process."""

    t_mono_ns: Annotated[int, column("ns", "end of the second")]
    cpu_share: Annotated[float, column("ratio", "share of one core this process used")]
    lag_p50_ms: Annotated[float | None, column("ms", "median lateness of a 10 ms timer")]
    lag_p99_ms: Annotated[float | None, column("ms", "99th percentile lateness of a 10 ms timer")]
    in_flight: Annotated[int, column("", "requests being answered")]
    started: Annotated[int, column("", "requests started so far in this step")]
    connections: Annotated[int, column("", "open connections")]
    users: Annotated[int, column("", "users alive")]
    start_lag_p99_ms: Annotated[float | None, column("ms", "lateness of starts (open loop only)")] = None
    achieved_ratio: Annotated[float | None, column("ratio", "users alive / level; open loop: started / due")] = None
    ports: Annotated[int | None, column("", "ephemeral ports of this machine")] = None
    ports_left: Annotated[int | None, column("", "of these, free for another connection to the target")] = None
    ports_why: Annotated[str | None, column("", "why that is unknown")] = None
    t_master_ns: Annotated[int | None, column("ns", "the master's clock when it came; null: its own machine")] = None


class HealthLine(msgspec.Struct, kw_only=True):
    """One liveness or readiness probe."""

    t_mono_ns: Annotated[int, column("ns", "the probe was sent")]
    what: Annotated[Literal["live", "ready"], column("", "which path was asked")]
    status: Annotated[int | None, column("", "HTTP status; null: no answer")]
    ms: Annotated[float | None, column("ms", "time to the whole answer")]
    error: Annotated[str | None, column("", "why there was no answer")] = None
    stood_still_ms: Annotated[float | None, column("ms", "our own process did not run for so long of it")] = None


class ConnectionLine(msgspec.Struct, kw_only=True):
    """One look at the connections to the target. Bytes: since the look before; null: the kernel does not tell them."""

    t_mono_ns: Annotated[int, column("ns", "the look began")]
    n_ours: Annotated[int, column("", "established connections of our processes")]
    n_others: Annotated[int, column("", "established connections of anybody else")]
    n_active: Annotated[int, column("", "of the others': new, or carried bytes since the look before")]
    n_ours_new: Annotated[int | None, column("", "of ours: opened since the look before; null: the first look")] = None
    n_opened: Annotated[int | None, column("", "accepted since the look before, by any port of this machine")] = None
    ours_in_bytes: Annotated[int | None, column("bytes", "sent to the target by ours")] = None
    ours_out_bytes: Annotated[int | None, column("bytes", "answered by the target to ours")] = None
    others_in_bytes: Annotated[int | None, column("bytes", "sent to the target by the others'")] = None
    others_out_bytes: Annotated[int | None, column("bytes", "answered by the target to the others'")] = None
    peers: Annotated[list[str], column("", "client ends of the others', at most five, with their process if seen")] = []


MarkName = Literal["start", "preflight", "begin", "open", "window", "close", "end", "idle", "abort", "finish"]


class Seal(msgspec.Struct):
    """sha256 of the first `bytes` bytes of a raw file, taken at a mark."""

    file: str
    bytes: int
    sha256: str


class Mark(msgspec.Struct, kw_only=True):
    """One instant of the run that cuts the evidence into steps."""

    mark: Annotated[MarkName, column("", "which instant")]
    step: Annotated[str | None, column("", "step it belongs to")] = None
    t_mono_ns: Annotated[int, column("ns", "CLOCK_MONOTONIC")]
    t_boot_ns: Annotated[int, column("ns", "CLOCK_BOOTTIME")]
    t_wall_ns: Annotated[int, column("ns", "CLOCK_REALTIME, for people only")]
    detail: Annotated[dict[str, Any], column("", "what else is known of it")] = {}
    seals: Annotated[list[Seal], column("", "prefix seals of the raw files")] = []


def columns(line_type: type[msgspec.Struct]) -> tuple[Column, ...]:
    """The column table of a line type, in the order it is written."""
    hints = get_type_hints(line_type, include_extras=True)
    found = []
    for name in line_type.__struct_fields__:
        meta = hints[name].__metadata__[0]
        found.append(Column(name, meta.extra["unit"], meta.description))
    return tuple(found)


REQUEST_COLUMNS = columns(Record)
GENERATOR_COLUMNS = columns(GeneratorLine)
HEALTH_COLUMNS = columns(HealthLine)
CONNECTION_COLUMNS = columns(ConnectionLine)

_encode = msgspec.json.Encoder().encode
Line = TypeVar("Line", bound=msgspec.Struct)


def to_line(line: msgspec.Struct) -> bytes:
    """One JSON object and its newline."""
    return _encode(line) + b"\n"


def from_lines(line_type: type[Line], lines: Sequence[bytes], source: str) -> list[Line]:
    """Decodes whole lines. Raises EvidenceError naming `source` and the line number of one that is not of this type."""
    decode = msgspec.json.Decoder(line_type).decode
    decoded = []
    for number, line in enumerate(lines, 1):
        try:
            decoded.append(decode(line))
        except msgspec.DecodeError as error:
            raise EvidenceError(f"{source}:{number}: {error}; the file was changed or damaged") from error
    return decoded
