"""What a step orders of the Locust processes that drive it. Pure."""

from __future__ import annotations

import zlib

from sweep import crew_options, own_locustfile
from sweep.access import absolute
from sweep.plan import SweepPlan
from sweep.plan_steps import Step
from sweep.preflight import WORKER, prefix_words, tenant_orders
from sweep.prepared import Prepared
from sweep.step_files import StepOrder
from sweep.tenants import driven


def order_of(run: Prepared, step: Step, *, cap_s: float) -> StepOrder:
    """cap_s: what is left of --max-time for this step's window."""
    at = run.at(step)
    plan, words = at.plan, run.preflight.prompt_words
    n_processes = crew_options.n_processes(plan, step.level)
    return StepOrder(
        step=step.id, worker=WORKER, out_dir=str(run.out_dir.resolve()), url=plan.target, api=plan.api or "",
        **at.access.order(),
        model=plan.model or "", users=_users(plan, step, n_processes), max_tokens=plan.max_tokens,
        prompt_words=words, seed=(run.seed + zlib.crc32(step.id.encode())) % 2**32,
        extra_body={**at.preflight.kept, **plan.extra_body}, agreed=dict(at.preflight.agreed),
        keep_headers=list(plan.keep_headers),
        first_timeout_s=plan.first_byte_timeout_s, idle_timeout_s=plan.idle_timeout_s, timeout_s=plan.timeout_s,
        warmup_s=step.warmup_s, duration_s=step.duration_s, max_step_s=step.max_step_s,
        min_early_s=step.min_early_s, drain_s=step.drain_s, n_wanted=step.n_wanted, n_early=step.n_early,
        n_by_mode=dict(step.n_by_mode), locustfile_folder=own_locustfile.folder_of(plan),
        max_requests=step.max_requests, max_output_tokens=step.max_output_tokens,
        cap_s=cap_s, think_s=plan.think_time_s, ramp_s=plan.ramp_s, arrivals=plan.arrivals, n_processes=n_processes,
        rate_per_s=driven(plan, step.level) if step.level.kind == "rate" else None,  # of all processes together
        stream_share=_stream_share(plan, step), keepalive=not plan.no_keepalive,
        cancel_ratio=plan.cancel_ratio, cancel_at=list(plan.cancel_at), usual=dict(at.preflight.usual),
        tenants=tenant_orders(plan, step.level), prompts_file=absolute(plan.prompts),
        shared_prefix_words=prefix_words(plan, words), prefix_seed=run.seed,
    )  # fmt: skip


def _users(plan: SweepPlan, step: Step, n_processes: int) -> int:
    """Of an open loop one a process, which schedules."""
    return int(driven(plan, step.level)) if step.level.kind == "concurrency" else n_processes


def _stream_share(plan: SweepPlan, step: Step) -> float | None:
    """None where the locustfile says it."""
    if step.mode == "mixed":
        return plan.stream_share
    return float(step.mode == "stream") if step.level.kind == "rate" else None
