"""What a plan leaves open whatever comes out, by the names the verdict uses. Pure."""

from __future__ import annotations

from collections.abc import Collection

from sweep.plan import SweepPlan
from sweep.slo import METRICS

MIN_CYCLES_FOR_LEAK = 3  # fewer floors cannot tell a leak from a warm-up (facts §2.1)


def not_tested(plan: SweepPlan, sent: Collection[str] | None = None, *, streams: bool = True) -> tuple[str, ...]:
    """What this plan leaves open whatever comes out, by the names the verdict uses.

    sent: modes that were sent; before the run all that may be. streams: False when the API has no streaming to test.
    """
    sent = (plan.sent_modes if plan.asks else ()) if sent is None else sent
    open_ = ["restart", "drain", "backend loss", "tenants (shown, not judged)" if plan.tenants else "tenants"]
    open_.append(f"leak ({leak_left_open(plan.n_cycles, plan.leak_cycles)})")
    if plan.gateway_pid is None and not plan.demo:
        open_.append("process evidence (no --gateway-pid)")
    if streams and "stream" not in sent:
        open_ += ["streaming", "stream integrity"]
    if "nonstream" not in sent:
        open_.append("non-streaming")
    if not any(METRICS[slo.metric].kind == "latency" for slo in plan.slos):
        open_.append("latency (no --slo of a latency)" if plan.slos else "latency (no --slo)")
    return tuple(open_)


def leak_left_open(n_cycles: int, n_alone: int = 0) -> str:
    """Why growth from cycle to cycle is not judged: too few cycles, or no rule for it in the built-in policy.

    n_alone: of these, those of --leak-cycles.
    """
    few = n_cycles < MIN_CYCLES_FOR_LEAK
    alone = f", {n_alone} of the sustained level alone" if n_alone else ""
    return f"{n_cycles} cycle{'' if n_cycles == 1 else 's'}{alone}" + ("" if few else ", floors shown but not judged")
