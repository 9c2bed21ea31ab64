"""What a plan may ask of its API: one without streaming, or without tokens, takes no mode or SLO that needs them."""

from __future__ import annotations

from dataclasses import replace

from sweep.dialects import BY_NAME
from sweep.errors import PlanError
from sweep.plan import SweepPlan

_OF_TOKENS = ("ttft_ms", "ttfa_ms", "tpot_ms", "gap_ms", "token_rate_per_s")


def fitted(plan: SweepPlan) -> SweepPlan:
    """The plan, of mode `nonstream` if its API has no streaming; as it is while the API is not known.

    Raises PlanError for a mode, an SLO or a share of streams that the API cannot have.
    """
    dialect = BY_NAME.get(plan.api or "")
    if dialect is None:
        return plan
    if not dialect.streams and plan.mode in ("stream", "mixed"):
        raise PlanError(f"--mode {plan.mode}: {plan.api} has no streaming; leave --mode out, or write nonstream")
    for slo in plan.slos:
        if not dialect.streams and slo.modes == ("stream",):
            raise PlanError(f"SLO {slo.text!r} is about streams, and {plan.api} has no streaming; drop it")
        if not dialect.has_tokens and slo.metric in _OF_TOKENS:
            raise PlanError(f"SLO {slo.text!r} is about output tokens, and {plan.api} generates none; drop it")
    return replace(plan, mode="nonstream") if not dialect.streams and plan.mode == "both" else plan


def remarks(plan: SweepPlan) -> list[str]:
    """What to know of the API before the load, a line each; none of a plan that asks nothing."""
    dialect = BY_NAME.get(plan.api or "")
    if dialect is None:
        return []
    silent = [] if dialect.streams else [f"{dialect.name} has no streaming: every request asks for a whole answer"]
    return silent + ([] if dialect.harm is None else [dialect.harm])
