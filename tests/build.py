"""Builds evidence for tests: one record, one sample, or a whole OUT_DIR that is READY until a test changes it.

A new column or file edits this place only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sweep import outdir, stats
from sweep.finding import Facts
from sweep.health_table import Probes
from sweep.latency import LATENCIES, Timed, percentiles
from sweep.level_table import LevelRow
from sweep.plan import SweepPlan
from sweep.plan_json import as_json
from sweep.plan_steps import steps
from sweep.records import FORMAT, GeneratorLine, HealthLine, Mark, Record, to_line
from sweep.run_table import Survival
from sweep.slo import parse_slo
from sweep.step_files import ProcessReport, StepReport
from sweep.step_table import StepRow
from sweep.token_rate import TokenRate
from sweep.units import parse_level, parse_levels
from sweep.windows import StepTimes

S = 1_000_000_000
MS = 1_000_000
T0 = 5_000 * S  # monotonic ns of the start mark
PID, START_TICKS = 4242, 77
SLO = "stream.ttft_ms.p95<=500"
WORKER = "w01"


def make_record(**changes: Any) -> Record:
    """A good streamed answer of four tokens, 10 ms each, first after 100 ms; changes by field name.

    A failed outcome gets no t_end and no tokens, unless they are given.
    """
    start = changes.get("t_start_ns", T0)
    values: dict[str, Any] = {
        "request_id": "s.w01.1", "step": "s01-c1-stream-k1", "user": 0, "phase": "window", "api": "openai-chat",
        "stream": True, "t_start_ns": start, "t_sent_ns": start + MS, "t_over_ns": start + 130 * MS, "outcome": "ok",
    }  # fmt: skip
    if changes.get("outcome", "ok") == "ok":
        values |= {"t_end_ns": start + 130 * MS, "status": 200, "n_in": 12, "n_out": 4, "token_source": "usage"}
        if changes.get("stream", True):
            values |= {
                "t_event_ns": start + 99 * MS, "t_first_ns": start + 100 * MS, "t_answer_ns": start + 100 * MS,
                "t_last_ns": start + 130 * MS, "n_events": 4, "gaps_us": [10_000, 10_000, 10_000],
            }  # fmt: skip
    return Record(**(values | changes))


def make_process(pid: int = PID, **changes: Any) -> dict[str, Any]:
    """One process of a sample, every field known."""
    return {
        "pid": pid, "start_ticks": START_TICKS, "ppid": 1, "comm": "gateway", "state": "S", "utime_ticks": 0,
        "stime_ticks": 0, "minflt": 0, "majflt": 0, "n_threads": 3, "rss_pages": 5000, "vm_hwm_kb": 20000,
        "rss_anon_kb": 10_000, "rss_file_kb": 4000, "rss_shmem_kb": 0, "vm_swap_kb": 0, "n_fds": 12,
        "fd_soft_limit": 1024, "run_ns": 0, "wait_ns": 0, "slices": 0, "ctx_voluntary": 0, "ctx_involuntary": 0,
        "rchar": 0, "wchar": 0, "read_bytes": 0, "write_bytes": 0,
    } | changes  # fmt: skip


def make_sample(seq: int, t_mono_ns: int, root: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """One sample line; the root has used 20 ticks and 5 switches more at each seq."""
    ticks = {"utime_ticks": 15 * seq, "stime_ticks": 5 * seq, "ctx_voluntary": 4 * seq, "ctx_involuntary": seq}
    return {
        "kind": "sample", "subject": "gateway", "incarnation": 1, "seq": seq, "t_mono_ns": t_mono_ns,
        "t_boot_ns": t_mono_ns, "t_wall_ns": t_mono_ns, "lag_ns": 50_000, "cost_ns": 300_000, "cpu_ns": 300_000 * seq,
        "root": make_process(**ticks) if root is None else root, "tree": [], "born": [], "gone": [],
        "cgroup": {"version": "v2", "only_this_tree": False, "oom_kill": 0}, "net": {}, "host": {}, "why": {},
    } | changes  # fmt: skip


@dataclass
class BuiltStep:
    """One step of a run under construction; its report is counted from its records unless `report` changes it."""

    id: str
    level: str
    mode: str
    cycle: int
    t_begin_ns: int
    records: list[Record]
    generator: list[GeneratorLine]
    report: dict[str, Any] = field(default_factory=dict)
    process: dict[str, Any] = field(default_factory=dict)
    has_report: bool = True
    window_s: int = 12
    target: str | None = None
    block: int | None = None

    @property
    def t_open_ns(self) -> int:
        return self.t_begin_ns + S

    @property
    def t_window_ns(self) -> int:
        return self.t_begin_ns + 3 * S

    @property
    def t_close_ns(self) -> int:
        return self.t_window_ns + self.window_s * S

    @property
    def t_end_ns(self) -> int:
        return self.t_close_ns + S

    @property
    def t_idle_ns(self) -> int:
        return self.t_end_ns + 6 * S

    @property
    def users(self) -> int:
        """Of a rate one, which schedules."""
        level = parse_level(self.level)
        return int(level.value) if level.kind == "concurrency" else 1

    def make(self, n: int, **changes: Any) -> list[Record]:
        """n requests, evenly over the window, as `make_record` makes them; of a rate as many as it has, 1 ms late."""
        level = parse_level(self.level)
        if level.kind == "rate" or level.value == 0:
            n = int(self.window_s * level.value)
        room = self.window_s * S // max(n, 1)
        lag_ns = MS if level.kind == "rate" else 0
        return [
            make_record(**{
                "request_id": f"{self.id}.{WORKER}.{i}", "step": self.id, "user": i % max(1, self.users),
                "t_start_ns": self.t_window_ns + i * room + lag_ns, "stream": self.mode == "stream",
                "t_due_ns": self.t_window_ns + i * room if lag_ns else None,
            } | changes)
            for i in range(n)
        ]  # fmt: skip


class BuiltRun:
    """A run under construction: change `steps`, `marks`, `samples`, `health` or `run`, then `write`."""

    def __init__(self, levels: str = "1,2", n: int = 160, *, slos: Sequence[str] = (SLO,), pid: int | None = PID,
                 **plan: Any) -> None:  # fmt: skip
        plan.setdefault("mode", "stream")
        plan.setdefault("api", "openai-chat")
        if "sustain" in plan:
            plan["sustain"] = parse_level(plan["sustain"])
        self.plan = SweepPlan(
            target="http://127.0.0.1:9", levels=parse_levels(levels), model="m", gateway_pid=pid,
            slos=tuple(parse_slo(text) for text in slos), **plan,
        )  # fmt: skip
        self.steps: list[BuiltStep] = []
        t_ns = T0 + 2 * S
        for step in steps(self.plan):
            built = BuiltStep(step.id, str(step.level), step.mode, step.cycle, t_ns, [], [])
            built.target, built.block = step.target, step.block
            built.records = built.make(n)
            built.generator = [make_generator(built.t_open_ns + i * S) for i in range(1, 17)] if built.users else []
            self.steps.append(built)
            t_ns = built.t_idle_ns + S
        self.t_finish_ns = t_ns
        self.run = self._run(pid)
        self.marks = self._marks()
        n_samples = (self.t_finish_ns - T0) // S
        self.samples = [make_sample(i, T0 + i * S) for i in range(n_samples)] if pid is not None else []
        self.starts = [make_start()] if pid is not None else []
        self.ends = [make_end(self.t_finish_ns)] if pid is not None else []
        self.health = [
            HealthLine(t_mono_ns=t, what=what, status=200, ms=2.0)
            for t in range(T0, self.t_finish_ns, S) for what in ("live", "ready")
        ]  # type: ignore[arg-type]  # fmt: skip

    def step(self, level: str, mode: str = "stream") -> BuiltStep:
        return next(step for step in self.steps if (step.level, step.mode) == (level, mode))

    def write(self, out_dir: Path) -> Path:
        """Writes every evidence file; gives the folder."""
        for folder in (outdir.REQUESTS, outdir.GENERATOR, outdir.LOCUST, outdir.SNAPSHOTS):
            (out_dir / folder).mkdir(parents=True, exist_ok=True)
        (out_dir / outdir.RUN).write_bytes(msgspec.json.encode(self.run))
        (out_dir / outdir.MARKS).write_bytes(b"".join(map(to_line, self.marks)))
        (out_dir / outdir.HEALTH).write_bytes(b"".join(map(to_line, self.health)))
        lines = [*self.starts, *self.samples, *self.ends]
        if lines:
            (out_dir / outdir.SAMPLES).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        for step in self.steps:
            records = b"".join(map(to_line, step.records))
            (out_dir / outdir.requests_file(step.id, WORKER)).write_bytes(records)
            (out_dir / outdir.generator_file(step.id, WORKER)).write_bytes(b"".join(map(to_line, step.generator)))
            if step.has_report:
                (out_dir / outdir.locust_json(step.id)).write_bytes(msgspec.json.encode(_report(step)))
        return out_dir

    def _run(self, pid: int | None) -> dict[str, Any]:
        subject = {
            "name": "gateway", "pid": pid, "start_ticks": START_TICKS, "boot_id": "b", "pid_ns": 1,
            "ownership": "proved", "why": "holds the listening socket", "declared": None, "seen": {"comm": "gateway"},
        }  # fmt: skip
        return {
            "format": FORMAT, "run": "20261130T154900Z-sweep", "plan": as_json(self.plan), "guessed": [],
            "steps": [
                {"step": step.id, "level": parse_level(step.level).value, "kind": parse_level(step.level).kind,
                 "mode": step.mode, "cycle": step.cycle, "n_wanted": 59,
                 **({} if step.block is None else {"target": step.target, "block": step.block})}
                for step in self.steps
            ],
            "subjects": [] if pid is None else [subject], "hosts": {WORKER: "host"}, "versions": {"ha-sweep": "0"},
            "machine": {"n_cpus": 2}, "policy": {"name": "builtin", "sha256": ""},
            "preflight": {}, "paths": {"health": "/healthz", "ready": "/readyz", "metrics": None},
        }  # fmt: skip

    def _marks(self) -> list[Mark]:
        marks = [make_mark("start", T0), make_mark("preflight", T0 + S)]
        for step in self.steps:
            for name in ("begin", "open", "window", "close", "end", "idle"):
                marks.append(make_mark(name, getattr(step, f"t_{name}_ns"), step.id))
        return [*marks, make_mark("finish", self.t_finish_ns)]


def make_mark(name: str, t_ns: int, step: str | None = None, **detail: Any) -> Mark:
    wall = 1_796_054_400 * S + t_ns - T0
    return Mark(mark=name, step=step, t_mono_ns=t_ns, t_boot_ns=t_ns, t_wall_ns=wall, detail=detail)  # type: ignore[arg-type]


def make_generator(t_ns: int, **changes: Any) -> GeneratorLine:
    """An idle second of a Locust process."""
    values: dict[str, Any] = {
        "t_mono_ns": t_ns, "cpu_share": 0.2, "lag_p50_ms": 0.2, "lag_p99_ms": 1.5, "in_flight": 1, "started": 1,
        "connections": 1, "users": 1,
    }  # fmt: skip
    return GeneratorLine(**(values | changes))


def make_start(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "start", "format": 1, "subject": "gateway", "incarnation": 1, "t_mono_ns": T0, "t_boot_ns": T0,
        "t_wall_ns": T0, "interval_s": 1.0, "clk_tck": 100, "page_bytes": 4096, "n_cpus": 2,
        "identity": {"pid": PID, "start_ticks": START_TICKS}, "visibility": [], "sampler": {}, "why": {},
    } | changes  # fmt: skip


def make_end(t_ns: int, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "end", "subject": "gateway", "t_mono_ns": t_ns, "t_boot_ns": t_ns, "t_wall_ns": t_ns,
        "reason": "signal", "n_samples": 1, "n_late": 0, "cpu_ns": 1, "rss_kb": 1,
    } | changes  # fmt: skip


def write_run(out_dir: Path, change: Callable[[BuiltRun], None] | None = None, **made: Any) -> Path:
    """A READY run of two levels, changed before it is written."""
    run = BuiltRun(**made)
    if change is not None:
        change(run)
    return run.write(out_dir)


def fail_some(step: BuiltStep, k: int, outcome: str = "http_5xx", **changes: Any) -> None:
    """Replaces k good answers, spread over the window, by another outcome."""
    n = len(step.records)
    if outcome == "cut":
        changes = {"t_over_ns": step.t_close_ns} | changes
    for i in range(0, n, max(1, n // k))[:k] if k else ():
        old = step.records[i]
        step.records[i] = make_record(
            request_id=old.request_id, step=old.step, user=old.user, t_start_ns=old.t_start_ns, stream=old.stream,
            outcome=outcome, **({"status": 500} if outcome == "http_5xx" else {}), **changes,
        )  # fmt: skip


def make_row(
    level: str = "2",
    mode: str = "stream",
    *,
    ms: Sequence[float] = (),
    exploring: bool = False,
    cut: int = 0,
    flags: dict[str, int] | None = None,
    valid: bool = True,
    **outcomes: int,
) -> LevelRow:
    """A level row whose good answers took `ms` to the first token and to the end; other outcomes by count."""
    names = ["ok"] * len(ms) + [name for name, n in (outcomes | {"cut": cut}).items() for _ in range(n)]
    values = np.full(len(names), np.nan)
    values[: len(ms)] = ms
    of = Timed(
        outcome=np.array(names, dtype=object), values=dict.fromkeys(LATENCIES, values),
        over_ms=np.full(len(names), 10_000.0), few_tokens=np.zeros(len(names), dtype=bool),
        gaps=[np.array([int(each * 1000)]) for each in ms] + [np.array([], dtype=np.int64)] * (len(names) - len(ms)),
    )  # fmt: skip
    metrics = LATENCIES if mode == "stream" else ("e2e_ms",)
    latencies = {metric: percentiles(of, metric) for metric in metrics}
    times = StepTimes(
        f"s01-c{level}-{mode}-k1", parse_level(level), mode, 1, 0, 0, 0, 10 * S, 11 * S, 12 * S, None, False
    )
    step = StepRow(times, None if valid else "counts disagree", None, len(names), len(names), len(names),
                   len(names) - cut, len(ms), cut, outcomes.get("shed", 0), 0, 0.1, 1.0)  # fmt: skip
    counts = {"ok": len(ms), **outcomes, "cut": cut}
    return LevelRow(
        level=times.level, mode=mode, exploring=exploring, rows=(step,), valid=valid,
        invalid_why=None if valid else "counts disagree", window_s=10.0,
        outcomes={name: n for name, n in counts.items() if n}, cut=cut, flags=flags or {},
        request_rate=stats.rate(len(ms), 10.0), tokens=TokenRate(stats.unknown("no tokens"), None), latencies=latencies,
        missing={}, goodput=None,
    )  # fmt: skip


def make_probes(
    n: int = 60, missed: int = 0, longest_row: int = 0, *, ms: float = 2.0, gap_why: str | None = None
) -> Probes:
    """Probes of which all that were answered took `ms`."""
    values = np.array([ms] * (n - missed) + [np.inf] * missed)
    return Probes(n, missed, longest_row, stats.percentile(values, np.zeros(n, dtype=bool), 0.99), gap_why)


def make_facts(*rows: LevelRow, slos: Sequence[str] = (SLO,), mode: str = "stream", **changes: Any) -> Facts:
    """The facts of a run with these rows, everything else in order."""
    levels = sorted({row.level for row in rows}, key=lambda level: level.value) or [parse_level("2")]
    sustained = [row.level for row in rows if not row.exploring] or levels
    highest = max(sustained, key=lambda level: level.value)
    plan = SweepPlan(
        target="http://127.0.0.1:9", levels=tuple(levels), api="openai-chat", model="m", gateway_pid=PID, mode=mode,
        sustain=highest, slos=tuple(map(parse_slo, slos)),
    )  # fmt: skip
    steps_ = tuple(step for row in rows for step in row.rows)
    values: dict[str, Any] = {
        "plan": plan, "planned": tuple((level, mode) for level in levels for mode in plan.modes), "rows": rows,
        "planned_steps": tuple((step.times.step, step.times.level, step.times.mode) for step in steps_),
        "steps": steps_, "guards": (), "survival": Survival(True, True, None, None, "the same process"),
        "subject": {"name": "gateway", "pid": PID, "ownership": "proved", "why": "holds the socket"},
        "process_why": {step.times.step: None for step in steps_}, "live": make_probes(),
        "ready": make_probes(), "oom_kills": 0, "oom_alone": True,
    }  # fmt: skip
    return Facts(**(values | changes))


def _report(step: BuiltStep) -> StepReport:
    outcomes = Counter(record.outcome for record in step.records)
    finished = sum(n for name, n in outcomes.items() if name not in ("cut", "left"))
    process: dict[str, Any] = {
        "worker": WORKER, "started": len(step.records),
        "sent": sum(record.t_sent_ns is not None for record in step.records), "outcomes": dict(outcomes),
        "locust_requests": finished, "locust_failures": finished - outcomes["ok"], "ended": True,
    } | ({"due": len(step.records)} if step.level.endswith("/s") else {}) | step.process  # fmt: skip
    report: dict[str, Any] = {
        "step": step.id, "t_open_ns": step.t_open_ns, "t_window_ns": step.t_window_ns, "t_close_ns": step.t_close_ns,
        "t_end_ns": step.t_end_ns, "clocks": {}, "closed_by": "duration", "users_wanted": step.users,
        "users_min": step.users, "boot_id": "b", "processes": [ProcessReport(**process)] if step.users else [],
        "counts_agree": True,
    } | step.report  # fmt: skip
    return StepReport(**report)
