"""What a plan with --levels auto must not be. Pure; every refusal is one PlanError of one line."""

from __future__ import annotations

from sweep.errors import PlanError
from sweep.plan import SweepPlan, duration_text
from sweep.plan_steps import least_requests


def check_search(plan: SweepPlan) -> None:
    """Nothing, if the levels are given or can be searched for. Raises PlanError."""
    if plan.auto_max is None:
        return
    _check_limits(plan)
    _check_slos(plan)
    if plan.cycles > 1:
        raise PlanError("--levels auto with --cycles: the search runs once; repeat the level it finds: --leak-cycles")
    if plan.tenants:
        raise PlanError("--levels auto with --tenant: whose part of a level is how large is unknown; give levels")
    if plan.beside:
        raise PlanError("--levels auto with --beside: each target has its own highest level; give levels like 1,2,4")
    first = plan.levels[0]
    shortest_s = len(plan.modes) * (plan.warmup_s + plan.duration_s + plan.cooldown_s)
    if shortest_s > plan.max_time_s:
        raise PlanError(
            f"one level of --levels auto takes {duration_text(shortest_s)}, over --max-time "
            f"{duration_text(plan.max_time_s)}; raise it, or lower --duration"
        )
    needed = least_requests(plan, first)
    if min(plan.max_requests, plan.max_output_tokens // plan.max_tokens) < needed:
        raise PlanError(
            f"--levels auto needs {needed} requests for level {first} alone, {needed * plan.max_tokens} output tokens; "
            "raise --max-requests or --max-output-tokens, or lower --max-tokens"
        )


def _check_limits(plan: SweepPlan) -> None:
    highest, first = plan.auto_max, plan.levels[0]
    if highest is None or highest.kind != "concurrency" or first.kind != "concurrency":
        raise PlanError("--levels auto searches numbers of requests in flight; give --auto-max and --sustain like 64")
    if highest.value < max(1, first.value):
        raise PlanError(f"--auto-max {highest} is below the first level {first}; raise it")
    if plan.auto_steps < 1:
        raise PlanError(f"--auto-steps {plan.auto_steps}: give how many levels may be tried, 1 or more")


def _check_slos(plan: SweepPlan) -> None:
    if not any(slo.kind == "latency" for slo in plan.slos):
        raise PlanError(
            "--levels auto needs a latency to search by; give one, like --slo 'stream.ttft_ms.p95<=500', or levels "
            "like --levels 1,2,4,8"
        )
    for slo in plan.slos:
        if slo.at is not None:
            raise PlanError(f"SLO {slo.text!r}: --levels auto looks for the level; leave out @{slo.at}")
        if slo.kind == "rate":
            raise PlanError(
                f"SLO {slo.text!r}: a rate grows with the level, so --levels auto cannot search by it; leave it out, "
                "or give levels like --levels 1,2,4,8"
            )
