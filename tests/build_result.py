"""A result.json as the judging half writes it, for tests of its renderings; not a file of the project's evidence."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from sweep.evidence import Evidence, frame
from sweep.records import GeneratorLine, HealthLine, Mark, Record
from sweep.sample_lines import Process, SampleLine, process_frame, sample_frame

HOSTILE = (
    "x|`rm`</style><script>alert(1)</script><img src=//evil.example/a>\n# $\\frac{1}{2}$ \x1b[31m\u202e&amp; @you _k_"
)


def judged(v: Any, n: int | None = None, lo: Any = None, hi: Any = None, why: str | None = None) -> dict[str, Any]:
    return {"v": v, "n": n, "lo": lo, "hi": hi, "why": why}


def percentiles(p50: Any, n: int, p99: Any = None) -> dict[str, Any]:
    return {
        "p50": judged(p50, n, p50 * 0.95, p50 * 1.06),
        "p95": judged(p50 * 1.71, n, p50 * 1.6, p50 * 2.15),
        "p99": judged(p50 * 2.6 if p99 is None else p99, n, p50 * 2.2, "inf" if p99 is not None else p50 * 3.4),
    }


def make_finding(**changed: Any) -> dict[str, Any]:
    finding = {
        "gate": "slo",
        "level": 8,
        "mode": "stream",
        "step": None,
        "status": "pass",
        "required": True,
        "exploring": False,
        "rule": "p95 of TTFT at most 500 ms at 8 concurrent",
        "observed": judged(412.371, 320, 398.02, 455.9),
        "limit": 500,
        "unit": "ms",
        "n": 320,
        "n_needed": 59,
        "reason": "the upper bound is within the limit",
        "evidence": ["requests/s03-c8-stream-k1.w01.jsonl"],
    }
    return finding | changed


def make_level(level: int = 8, mode: str = "stream", **changed: Any) -> dict[str, Any]:
    n = 90 + 40 * level
    failed = 7 if level == 8 else 0
    ttft, e2e = 38.2 * (1 + level**1.6 / 9), 305.0 * (1 + level**1.3 / 14)
    if mode == "nonstream":
        n, e2e = n + 17, e2e * 0.88
    row: dict[str, Any] = {
        "level": str(level),
        "kind": "concurrency",
        "mode": mode,
        "exploring": False,
        "steps": [f"s{level:02d}-c{level}-{mode}-k1"],  # as make_step names it
        "valid": True,
        "invalid_why": None,
        "window_s": 61.24,
        "offered": n,
        "ok": n - failed,
        "outcomes": {"ok": n - failed, "truncated": failed}, "shares_step": False,
        "cut": 2,
        "flags": {},
        "request_rate_per_s": judged(n / 61.24, n, n / 61.24 * 0.91, n / 61.24 * 1.09),
        "token_rate_per_s": judged(128 * n / 61.24, 128 * n),
        "token_source": "usage",
        "e2e_ms": percentiles(e2e, n, "inf" if failed else None),
        "e2e_ms_ok": percentiles(e2e * 0.98, n - failed),
        "error_ratio": judged(failed / n, n, 0.0, 0.03),
        "shed_ratio": judged(0.0, n, 0.0, 3 / n),
        "in_flight": judged(level * 0.97, n),
        "goodput": judged(1 - failed / n - 0.01 * level, n, 0.85, 0.99),
        "generator": {"cpu_share_max": 0.03 * level + 0.041, "lag_p99_ms_max": 1.27, "users_min": level,
                      "achieved_ratio_min": 1.0, "connections_max": float(level), "ports_left_min": 28232.0 - level,
                      "ports_why": None, "why": None},
        "cpu_cores": judged(0.113 * level, 60),
        "cpu_ms_per_request": judged(9.31, n),
        "cpu_by_process": [
            {"pid": 4100, "comm": "gateway", "cores": 0.09 * level},
            {"pid": 4107, "comm": "worker", "cores": 0.02 * level},
        ],
        "memory_anon_bytes": {
            "v": 181_403_648 + level * 2_000_000,
            "max": 201_403_648,
            "source": "cgroup anon",
            "why": None,
        },
        "fds": {"v": 31 + level, "max": 33 + level, "why": None},
        "threads": {"v": 12, "max": 13, "why": None},
        "ctx_switches_per_s": judged(812.5 * level, 60),
    }
    if mode == "stream":
        for key, scale in (("ttft_ms", ttft), ("tpot_ms", 3.07 + level / 8), ("gap_ms", 3.01 + level / 9)):
            row[key] = percentiles(scale, n, "inf" if failed else None)
            row[f"{key}_ok"] = percentiles(scale * 0.99, n - failed)
    return row | changed


def make_step(number: int, level: int, mode: str, **changed: Any) -> dict[str, Any]:
    t_open = 5.0 + number * 80
    step = {
        "step": f"s{level:02d}-c{level}-{mode}-k1",
        "level": str(level),
        "mode": mode,
        "cycle": 1,
        "valid": True,
        "invalid_why": None,
        "closed_by": "duration",
        "started": 140 + 40 * level,
        "sent": 140 + 40 * level,
        "lines": 140 + 40 * level,
        "offered": 90 + 40 * level,
        "ok": 90 + 40 * level,
        "cut": 2,
        "window_s": 61.24,
        "t_open_s": t_open,
        "t_window_s": t_open + 10,
        "t_close_s": t_open + 71.24,
        "t_end_s": t_open + 72.5,
    }
    return step | changed


def make_result(**changed: Any) -> dict[str, Any]:
    """A run that failed: truncated streams at the sustained level; every kind of finding occurs."""
    pairs = [(level, mode) for level in (1, 2, 4, 8) for mode in ("stream", "nonstream")]
    result: dict[str, Any] = {
        "format": 1,
        "rules": "1",
        "run": "20261130T154900Z-staging",
        "verdict": "FAIL",
        "exit_code": 1,
        "sentence": "NOT READY for 8 concurrent requests of openai-chat with model qwen2.5:0.5b on one node; "
        "not tested: restart, drain, backend loss, leak (1 cycle), tenants",
        "scope": "for 8 concurrent requests of openai-chat with model qwen2.5:0.5b on one node",
        "labels": {"ticket": "OPS-12"},
        "subject": None,
        "others": None,
        "knee": {"text": "level 8 gives 3 % more tokens/s than 4 for 1.9 × the TTFT (p95)", "proposed_slo": None},
        "why": [
            "stream integrity: 7 of 820 streams were truncated, all at 8 concurrent; at most 0.1 % may be",
            "shed: unknown at 8 concurrent, 12 of 200 requests",
        ],
        "run_status": "COMPLETE",
        "status_reason": None,
        "sustain": 8,
        "sustain_default": True,
        "capacity": {
            "level": 4,
            "bracketed": True,
            "stopped_by": "stream integrity",
            "failed_at": 8,
            "text": "4 concurrent; at 8 concurrent stream integrity failed",
        },
        "target": {
            "url": "http://127.0.0.1:8080",
            "api": "openai-chat",
            "model": "qwen2.5:0.5b",
            "name": "staging",
            "started_at": "2026-11-30T15:49:00Z",
            "duration_s": 652.4,
            "levels": ["1", "2", "4", "8"],
            "modes": ["stream", "nonstream"],
            "acknowledged": None,
            "gateway": {"pid": 4100, "ownership": "proved", "comm": "gateway", "declared": None},
        },
        "findings": [
            make_finding(),
            make_finding(
                gate="errors",
                level=None,
                mode=None,
                rule="error ratio at most 1 %, pooled to the sustained level",
                observed=judged(0.0099996, 1230, 0.0042, 0.0141),
                limit=0.01,
                unit="ratio",
                status="warn",
                reason="the interval holds the limit",
            ),
            make_finding(
                gate="integrity",
                mode="stream",
                level=None,
                status="fail",
                rule="truncated, error_event, bad_body, reset at most 0.1 % of streams",
                observed=judged(7 / 820, 820, 0.0041, 0.0153),
                limit=0.001,
                unit="ratio",
                n_needed=100,
                reason="7 of 820 streams; the lower bound is above the limit",
            ),
            make_finding(
                gate="shed",
                status="unknown",
                observed=judged(0.0, 12, 0.0, 0.22),
                limit=0.01,
                unit="ratio",
                n=12,
                n_needed=299,
                rule="refused at most 1 %",
                reason="12 of 299 requests",
            ),
            make_finding(
                gate="same_process",
                level=None,
                mode=None,
                observed={},
                limit=None,
                unit="",
                n=None,
                n_needed=None,
                rule="one incarnation for the whole run",
                reason="pid 4100 lived from start to end",
                evidence=["samples.jsonl"],
            ),
            make_finding(
                gate="ownership",
                level=None,
                mode=None,
                status="assumed",
                observed={},
                limit=None,
                unit="",
                n=None,
                n_needed=None,
                rule="the pid listens at the target",
                reason="declared; another network namespace",
                evidence=["run.json"],
            ),
            make_finding(
                gate="leak",
                level=None,
                mode=None,
                status="skipped",
                required=False,
                observed={},
                limit=None,
                unit="",
                n=None,
                n_needed=None,
                rule="no growth of idle floors",
                reason="1 cycle",
                evidence=[],
            ),
            make_finding(
                gate="slo",
                level=16,
                required=False,
                exploring=True,
                status="fail",
                observed=judged("inf", 44, 1210.2, "inf"),
                reason="exploring: the lower bound is above the limit",
            ),
        ],
        "levels": [make_level(level, mode) for level, mode in pairs],
        "steps": [make_step(number, level, mode) for number, (level, mode) in enumerate(pairs, 1)],
        "errors": [
            {
                "outcome": "truncated",
                "status": 200,
                "error_code": None,
                "count": 7,
                "first_at_s": 566.12,
                "last_at_s": 598.77,
                "levels": ["8"],
                "text": 'data: {"choices":[{"delta":{"content":"the"}}]}',
                "request_ids": ["9f1c0b7e-0001", "9f1c0b7e-0002", "9f1c0b7e-0003"],
            },
            {
                "outcome": "shed",
                "status": 503,
                "error_code": "queue_full",
                "count": 1,
                "first_at_s": 610.0,
                "last_at_s": 610.0,
                "levels": ["8"],
                "text": "queue is full, try again later",
                "request_ids": ["9f1c0b7e-0004"],
            },
        ],
        "survival": {
            "tested": True,
            "same_process": True,
            "died_at_s": None,
            "died_in_step": None,
            "text": "the gateway was one process, pid 4100, for the whole run",
        },
        "floors": [
            {"cycle": 1, "memory_bytes": 179_306_496, "fds": 24, "threads": 12, "limit_bytes": 2**29, "why": None}
        ],
        "leak": "leak: not tested (1 cycle)",
        "sampler": {
            "n_samples": 652, "n_processes": 2, "holes": [], "cpu_share": 0.0041, "cost_us_median": 3120.0,
            "lag_ms_p99": 0.61,
        },
        "visibility": [{"source": "io", "why": "EACCES: another user's process"}],
        "health": {"live": {"n": 640, "missed": 0, "p99_ms": 4.2, "path": "/healthz", "left_out": 0}, "ready": None},
        "not_tested": ["restart", "drain", "backend loss", "leak (1 cycle)", "tenants"],
        "left_behind": [
            "1,240 requests and 158,720 output tokens charged to no key",
            "models loaded: qwen2.5:0.5b",
            "files: none outside OUT_DIR",
        ],
        "next": "ha-sweep run --target http://127.0.0.1:8080 --levels 4,5,6,7,8 --gateway-pid 4100 --sustain 4",
        "next_text": "between 4 (held) and 8 (failed): levels 4,5,6,7,8",
        "problems": [],
        "warnings": ["the first stream request failed: http_5xx overloaded"],
        "versions": {"ha-sweep": "0.1.0", "locust": "2.43.0", "python": "3.11.9"},
        "machine": {
            "cpu_model": "AMD EPYC 7B13",
            "n_cpus": 2,
            "memory_bytes": 8_325_021_696,
            "kernel": "6.6.113",
            "arch": "x86_64",
            "boot_id": "2f0a",
        },
    }
    return result | changed


def make_evidence(
    result: dict[str, Any], *, slo: tuple[str, ...] = ("stream.ttft_ms.p95<=500",), sampled: bool = True
) -> Evidence:
    """Evidence that fits make_result: requests of each level's step, one sample a second, seeded noise."""
    noise = random.Random(7)
    records, samples = [], []
    for place, row in enumerate(result["levels"]):
        for number in range(row["offered"]):
            at = (100 + 80 * place) * 10**9 + 10**7 * number
            is_bad = number < row["outcomes"].get("truncated", 0)
            ttft_ns = int(row.get("ttft_ms", row["e2e_ms"])["p50"]["v"] * 1e6 * noise.lognormvariate(0, 0.35))
            records.append(
                Record(
                    request_id=f"r{number}",
                    step=row["steps"][0],
                    user=1,
                    phase="window",
                    api="openai-chat",
                    stream=row["mode"] == "stream",
                    t_start_ns=at,
                    t_first_ns=None if is_bad else at + ttft_ns,
                    t_end_ns=None if is_bad else at + 2 * ttft_ns,
                    t_over_ns=at + 2 * ttft_ns,
                    outcome="truncated" if is_bad else "ok",
                )
            )
    used = 0.0
    for second in range(660 if sampled else 0):
        if 300 <= second < 312:
            continue  # a hole
        busy = next((float(s["level"]) for s in result["steps"] if s["t_open_s"] <= second <= s["t_end_s"]), 0.0)
        used += 11.3 * busy * noise.uniform(0.85, 1.15)
        root = Process(
            pid=4100,
            start_ticks=9,
            comm="gateway",
            utime_ticks=int(used),
            stime_ticks=0,
            n_threads=12,
            rss_anon_kb=int(170_000 + 30 * second**0.8 + 900 * busy),
            n_fds=24 + int(busy * 1.3),
        )
        at = 5 * 10**9 + second * 10**9
        samples.append(SampleLine(subject="gateway", incarnation=1, seq=second, t_mono_ns=at, root=root))
    marks = [Mark(mark="start", t_mono_ns=5 * 10**9, t_boot_ns=0, t_wall_ns=0)]
    steps = []
    for place, row in enumerate(result["levels"]):
        step = {"step": row["steps"][0], "level": row["level"], "kind": row["kind"], "mode": row["mode"], "cycle": 1}
        steps.append(step)
        for name, t_s in (("window", 100 + 80 * place), ("close", 160 + 80 * place)):
            marks.append(Mark(mark=name, step=step["step"], t_mono_ns=t_s * 10**9, t_boot_ns=0, t_wall_ns=0))
    return Evidence(
        out_dir=Path("/nowhere"),
        run={
            "plan": {"slo": list(slo)},
            "steps": steps,
            "subjects": [{"name": "gateway", "pid": 4100, "start_ticks": 9}],
        },
        marks=marks,
        requests=frame(Record, records),
        generator=frame(GeneratorLine, []),
        health=frame(HealthLine, []),
        sampler_starts=[{"interval_s": 1.0, "clk_tck": 100}] if sampled else [],
        sampler_ends=[],
        samples=sample_frame(samples),
        processes=process_frame(samples),
        step_files={},
        snapshots={},
        problems=[],
    )
