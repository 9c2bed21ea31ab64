"""What is special about the requests of a plan, in words: for a dry run, the scope of a verdict and a report. Pure."""

from __future__ import annotations

from sweep.plan import SweepPlan
from sweep.tenants import tenants_of
from sweep.units import MODES


def leaving_told(plan: SweepPlan) -> str | None:
    """`10 % of the clients leave`; None when all stay."""
    shares = {mode: plan.leaving(mode) for mode in MODES if mode in plan.sent_modes and plan.leaving(mode)}
    if not shares:
        return None
    whose = "" if set(shares) == set(plan.sent_modes) else f" of {' and '.join(shares)} requests"
    at = f" ({', '.join(plan.cancel_at)})" if plan.cancel_at else ""
    return f"{plan.cancel_ratio * 100:.4g} % of the clients{whose} leave{at}"


def mix_told(plan: SweepPlan) -> str | None:
    """`70 % streaming`; None for a plan whose steps are of one mode each."""
    return f"{plan.stream_share * 100:.4g} % streaming" if plan.mode == "mixed" else None


def prefix_caches(plan: SweepPlan) -> str:
    """Whether a cache of prefixes can know a prompt."""
    if plan.prompts is not None:
        return (
            f"as {plan.prompts.rpartition('/')[2]} has it: its prompts go out as they are, each step in an order of "
            "its own, each once before any again"
        )
    if plan.shared_prefix:
        return f"on for {plan.shared_prefix} tokens, the same in every request; a nonce follows"
    return "off by nonce"


def special(plan: SweepPlan) -> list[str]:
    """What a verdict of this plan is about beside its load: mix, tenants, clients that leave; [] for nothing."""
    n = len(tenants_of(plan))
    return [
        *filter(None, [mix_told(plan)]), *([f"{n} tenants"] if n else []), *filter(None, [leaving_told(plan)]),
    ]  # fmt: skip
