"""What targets beside the first one must not be: names that clash, and plans that cannot take turns. Pure.

Their addresses are checked like the first one's, in `refusals`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sweep.beside_plan import RESERVED
from sweep.errors import PlanError
from sweep.plan import BLOCKS, SweepPlan, duration_text
from sweep.secret_names import check_variable, without_keys

_MOST = 4  # a step's time is shared by all, and each block costs seconds of its own
_LEAST_BLOCK_S = 0.75  # the generator tells of itself once a second; a shorter window would hold no line of it
# It becomes part of file names, between a dash and a dot.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


def check_beside(plan: SweepPlan) -> None:
    """Nothing, if every --beside has a name of its own and the plan can be run in turns. Raises PlanError."""
    lower = [name.lower() for name in plan.beside]
    for name in plan.beside:
        if not _NAME.fullmatch(name):
            raise PlanError(
                f"--beside {without_keys(name)[:40]!r}: its name becomes part of file names; use at most 32 of "
                "A-Z a-z 0-9 _ -, like direct"
            )
        if name.lower() in RESERVED:
            raise PlanError(f"--beside {name}: that is what the first target is called; give it another name")
        if lower.count(name.lower()) > 1:
            raise PlanError(f"--beside {name} is given twice, but for capitals; give one another name")
    if len(plan.beside) > _MOST:
        raise PlanError(f"--beside: {len(plan.beside)} targets; at most {_MOST} take turns with the first, drop some")
    parts: tuple[tuple[str, Mapping[str, str]], ...] = (
        ("--gateway-pid", plan.beside_pids), ("--beside-model", plan.beside_models),
        ("--beside-key-env", plan.beside_key_envs),
    )  # fmt: skip
    for option, given in parts:
        for name, value in given.items():
            if name not in plan.beside:
                raise PlanError(_nobody(option, name, plan))
            if not value.strip():
                raise PlanError(f"{option} {name}= is empty; write its value behind the =")
    for name, variable in plan.beside_key_envs.items():
        check_variable(f"--beside-key-env {name}", variable, "the key")
    carries = "authorization" if plan.key_style == "bearer" else plan.key_style.lower()
    twice = next((each for each in (*plan.headers, *plan.headers_plain) if each.lower() == carries), None)
    if plan.beside_key_envs and twice is not None:
        raise PlanError(
            f"--beside-key-env: that key goes into {twice}, which --header gives to all targets; give the first "
            "target's key with --api-key-env"
        )
    if plan.beside:
        _check_turns(plan)


def _nobody(option: str, name: str, plan: SweepPlan) -> str:
    shown = without_keys(name)[:40]
    if name.lower() in RESERVED and option == "--gateway-pid":
        return f"{option} {shown}=…: the first target's process is given without a name; leave out {shown}="
    known = f"known: {', '.join(plan.beside)}" if plan.beside else f"add --beside {shown}=URL"
    return f"{option} {shown}=…: no --beside has that name; {known}"


def _check_turns(plan: SweepPlan) -> None:
    """What runs several targets in turns cannot do yet, or what cannot be compared."""
    for given, what, why in (
        (plan.locustfile is not None, "-f", "its tasks know one host"),
        (bool(plan.tenants), "--tenant", "tenants have keys of one target only"),
        (plan.leak_cycles > 0, "--leak-cycles", "idle floors need a target that is left alone"),
        (any(level.value == 0 for level in plan.levels), "level 0", "without load there is nothing to compare"),
    ):
        if given:
            raise PlanError(f"--beside and {what} do not go together: {why}; drop one")
    if plan.duration_s < BLOCKS * _LEAST_BLOCK_S:
        raise PlanError(
            f"--duration {duration_text(plan.duration_s)} is {duration_text(plan.duration_s / BLOCKS)} for each of the "
            f"{BLOCKS} blocks that --beside makes of it; give at least {duration_text(BLOCKS * _LEAST_BLOCK_S)}"
        )
