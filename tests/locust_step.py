"""Runs one step with the real Locust, as the runner does, and gives what it wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from sweep import outdir
from sweep.crew_options import local_arguments
from sweep.records import GeneratorLine, Record, from_lines
from sweep.step_files import ORDER_ENV, StepOrder, StepReport

DEADLINE_S = 60.0


class Done(NamedTuple):
    records: list[Record]
    generator: list[GeneratorLine]
    report: StepReport
    output: str
    by_worker: dict[str, list[Record]]


def order_of(url: str, out_dir: Path, **order: object) -> StepOrder:
    """A quick step's order; order: fields that differ."""
    quick = {
        "step": "s01-c1-stream-k1", "worker": "w01", "out_dir": str(out_dir), "url": url, "api": "openai-chat",
        "model": "m", "users": 1, "max_tokens": 16, "prompt_words": 8, "seed": 1, "warmup_s": 0.2, "duration_s": 1.0,
        "max_step_s": 30.0, "min_early_s": 30.0, "drain_s": 10.0, "n_wanted": 1, "n_early": 10**6,
        "max_requests": 10**6, "max_output_tokens": 10**9,
    }  # fmt: skip
    return StepOrder(**(quick | order))


def run_step(folder: Path, url: str, *, locustfile: str = "streaming.py", **order: object) -> Done:
    """One step in `folder`, which must be new; order: fields of StepOrder that differ from a quick step's.

    n_processes above 1: as many workers of this machine.
    """
    out_dir, work = folder / "out", folder / "work"
    work.mkdir(parents=True)
    outdir.create(out_dir)
    step = order_of(url, out_dir, **order)
    (folder / "order.json").write_bytes(msgspec.json.encode(step))
    command = [
        sys.executable, "-P", "-m", "locust", "-f", str(outdir.data_folder("locustfiles") / locustfile), "--headless",
        "--only-summary", "--host", url, "-u", str(step.users), "-r", "100",
    ]  # fmt: skip
    if step.n_processes > 1:
        command += local_arguments(step.n_processes)
    env = dict(os.environ) | {ORDER_ENV: str(folder / "order.json"), "HOME": str(work)}
    done = subprocess.run(
        command, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert 0 == done.returncode, done.stderr
    workers = [f"w{index + 1:02d}" for index in range(step.n_processes)]
    by_worker = {worker: lines(out_dir / outdir.requests_file(step.step, worker), Record) for worker in workers}
    return Done(
        [record for records in by_worker.values() for record in records],
        lines(out_dir / outdir.generator_file(step.step, step.worker), GeneratorLine),
        msgspec.json.decode((out_dir / outdir.locust_json(step.step)).read_bytes(), type=StepReport),
        done.stdout + done.stderr,
        by_worker,
    )


def lines(path: Path, line_type: type) -> list:
    whole, torn = outdir.read_lines(path)
    assert not torn
    return from_lines(line_type, whole, path.name)
