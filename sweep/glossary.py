"""Where each published number comes from: its definition, and the file and fields of OUT_DIR that give it."""

from __future__ import annotations

from typing import NamedTuple

from sweep import outdir
from sweep.records import CONNECTION_COLUMNS, GENERATOR_COLUMNS, HEALTH_COLUMNS, REQUEST_COLUMNS, Column


class Source(NamedTuple):
    """A published number: how it is derived, and from which file. of_tokens: of an API that generates some."""

    name: str
    definition: str
    file: str
    of_tokens: bool = False


_REQUESTS = f"{outdir.REQUESTS}/"

NUMBERS = (
    Source("offered", "requests that started (open loop: were due) in the window, less those the step's end cut",
           _REQUESTS),
    Source("error ratio", "(offered − ok − limited − shed − rejected_unclear − left) / offered", _REQUESTS),
    Source("shed ratio", "requests refused because the server is full / offered", _REQUESTS),
    Source("requests /s", "requests with t_end in the window / window", _REQUESTS),
    Source("output tokens /s", "tokens that arrived in the window / window", _REQUESTS, of_tokens=True),
    Source("in flight", "time that requests spent inside the window, whatever phase they started in / window",
           _REQUESTS),
    Source("due, start lag", "requests the arrival schedule wanted in the window; t_start − t_due, the generator's own "
           "lateness", _REQUESTS),
    Source("goodput", "requests that met every SLO / offered", _REQUESTS),
    Source("left", "clients that left on purpose (--cancel-ratio), by when: offered, no error, in no percentile",
           _REQUESTS),
    Source("share of a tenant", "good answers per client and second, open loop per request due / those of the best "
           "served tenant; minimum share: the smallest", _REQUESTS),
    Source("Jain's index", "(Σx)² / (n Σx²) of the tenants' good answers for what they asked for; 1: even", _REQUESTS),
    Source("longest wait", "longest time of a window in which no request of the tenant was completed", _REQUESTS),
    Source("TTFT", "t_first − t_start; open loop t_first − t_due", _REQUESTS, of_tokens=True),
    Source("TTFA", "t_answer − t_start", _REQUESTS, of_tokens=True),
    Source("TPOT", "(t_last − t_first) / (output tokens − 1)", _REQUESTS, of_tokens=True),
    Source("gap", "time between consecutive reads that carried tokens, pooled over the level", _REQUESTS,
           of_tokens=True),
    Source("E2E", "t_end − t_start; open loop t_end − t_due", _REQUESTS),
    Source("p50 p95 p99", "nearest rank over requests; a failed one counts as ∞, a cut one as at least its time",
           _REQUESTS),
    Source("interval", "one-sided 95 % bounds: exact ranks for percentiles, Clopper–Pearson for ratios", outdir.RESULT),
    Source("load generator", "worst second of any Locust process: share of one core, p99 lateness of a 10 ms timer, "
           "users alive / level (open loop: started / due), open connections of one process, ephemeral ports free "
           "towards the target", f"{outdir.GENERATOR}/"),
    Source("CPU", "Δ(utime + stime) of the gateway and its descendants / time, first to last sample of the window",
           outdir.SAMPLES),
    Source("CPU per request", "the same CPU time / requests completed between the same two samples", outdir.SAMPLES),
    Source("memory (anon)", "cgroup anon if the cgroup held only this tree in every window, else the sum of RssAnon",
           outdir.SAMPLES),
    Source("file descriptors, threads", "open descriptors and threads, summed over the tree", outdir.SAMPLES),
    Source("switches", "voluntary and involuntary context switches of the tree / s", outdir.SAMPLES),
    Source("liveness, readiness", "probes sent during the steps; p99 counts a missed one as ∞", outdir.HEALTH),
    Source("declared and seen", "what was declared, and what the process and its answers say of the build",
           f"{outdir.RUN}, {outdir.SNAPSHOTS}/"),
    Source("who answered", "answers by the model they name and by allow-listed headers; after retries: more than one "
           "upstream attempt told", _REQUESTS),
    Source("others' traffic", "requests the target counted and we did not send / all; else the smaller of the others' "
           "shares of the bytes to and from the target", f"{outdir.SNAPSHOTS}/, {outdir.CONNECTIONS}"),
    Source("instants of steps", "the Locust master's clock, CLOCK_MONOTONIC", outdir.MARKS),
)  # fmt: skip

FILES = (
    (outdir.RUN, "the plan as run, subject, environment, versions"),
    (outdir.MARKS, "instants that cut the run into steps"),
    (_REQUESTS, "one line a request, one file a Locust process and step"),
    (f"{outdir.GENERATOR}/", "each Locust process, once a second"),
    (outdir.SAMPLES, "the gateway's process tree, once an interval"),
    (outdir.HEALTH, "liveness and readiness probes during load"),
    (outdir.CONNECTIONS, "connections to the target, ours and others', once a second"),
    (f"{outdir.SNAPSHOTS}/", "ps, probes and metrics before and after each step"),
    (f"{outdir.LOCUST}/", "each step's counts, instants and log"),
    (outdir.RESULT, "the judgement; this page is a rendering of it"),
)

COLUMNS: tuple[tuple[str, tuple[Column, ...]], ...] = (
    (f"{_REQUESTS}*.jsonl", REQUEST_COLUMNS),
    (f"{outdir.GENERATOR}/*.jsonl", GENERATOR_COLUMNS),
    (outdir.HEALTH, HEALTH_COLUMNS),
    (outdir.CONNECTIONS, CONNECTION_COLUMNS),
)


def numbers(has_tokens: bool) -> list[Source]:
    """Those that a report of such an API can hold."""
    return [source for source in NUMBERS if has_tokens or not source.of_tokens]
