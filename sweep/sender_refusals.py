"""What the options on who sends what must not be: shares, clients that leave, tenants, prompts. Pure."""

from __future__ import annotations

from sweep.errors import PlanError
from sweep.plan import SweepPlan
from sweep.tenants import check_tenants
from sweep.units import PHASES

_DEFAULT_SHARE = 0.5


def check_senders(plan: SweepPlan) -> None:
    """Nothing, if they are as they may be. Raises PlanError for the first thing that is wrong with them."""
    _check_share(plan)
    _check_leaving(plan)
    check_tenants(plan)
    _check_prompts(plan)


def _check_share(plan: SweepPlan) -> None:
    if plan.mode != "mixed" and plan.stream_share != _DEFAULT_SHARE:
        raise PlanError(f"--stream-share {plan.stream_share:g} says nothing without --mode mixed; add it")
    if not 0 < plan.stream_share < 1:
        raise PlanError(
            f"--stream-share {plan.stream_share:g}: give a share between 0 and 1, or --mode stream or nonstream"
        )


def _check_leaving(plan: SweepPlan) -> None:
    if not 0 <= plan.cancel_ratio < 1:
        raise PlanError(
            f"--cancel-ratio {plan.cancel_ratio:g}: give 0 or more and less than 1; if all leave, nothing is answered"
        )
    if plan.cancel_at and not plan.cancel_ratio:
        raise PlanError("--cancel-at says when clients leave, and none does; add --cancel-ratio 0.1")
    known = {phase for mode in plan.sent_modes for phase in PHASES[mode]}
    strange = next((phase for phase in plan.cancel_at if phase not in known), None)
    if strange is not None:
        raise PlanError(f"--cancel-at {strange}: --mode {plan.mode} sends no request that has it; drop one")
    if len(set(plan.cancel_at)) < len(plan.cancel_at):
        raise PlanError("--cancel-at: a phase is given twice; drop one")
    for slo in plan.slos:
        # metrics.md: those that were left are offered, and not good.
        most = 1 - max((plan.leaving(mode) for mode in slo.modes if mode in plan.sent_modes), default=0.0)
        if slo.metric == "goodput" and slo.limit > most:
            raise PlanError(
                f"SLO {slo.text!r}: goodput counts all requests offered, and {plan.cancel_ratio:.0%} of the clients "
                f"leave, so it cannot be met; lower it or --cancel-ratio"
            )


def _check_prompts(plan: SweepPlan) -> None:
    if plan.shared_prefix < 0:
        raise PlanError(f"--shared-prefix {plan.shared_prefix}: give a number of tokens, 0 for none")
    if plan.shared_prefix >= plan.prompt_tokens:
        raise PlanError(
            f"--shared-prefix {plan.shared_prefix} leaves nothing of --prompt-tokens {plan.prompt_tokens} to differ; "
            "lower it or raise that"
        )
    if plan.prompts is None:
        return
    for flag, given in (("-f", plan.locustfile is not None), ("--shared-prefix", plan.shared_prefix > 0)):
        if given:
            raise PlanError(f"--prompts and {flag} both say what is sent; drop one")
    if plan.expect_workers:
        raise PlanError("--prompts: workers on other machines do not have the file; leave out --expect-workers")
