"""The file of --prompts: whether the plan can send it, its hash for run.json, and whether it is still the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweep.dialects import BY_NAME, Ask
from sweep.errors import PlanError, RunError
from sweep.plan import SweepPlan
from sweep.prompts import read_prompts


def check_prompts(plan: SweepPlan) -> None:
    """Nothing, if the plan's file can be sent, as far as its API is known. Raises PlanError."""
    if plan.prompts is None:
        return
    prompts, _ = read_prompts(plan.prompts)
    longest = max(prompts, key=lambda each: each.max_tokens or 0)
    if longest.max_tokens is not None and longest.max_tokens > plan.max_tokens:
        raise PlanError(
            f"--prompts {plan.prompts}:{longest.line}: its max_tokens {longest.max_tokens} is above --max-tokens "
            f"{plan.max_tokens}, by which the caps are reckoned; raise that"
        )
    dialect = None if plan.api is None else BY_NAME.get(plan.api)
    for each in prompts if dialect is not None else ():
        if each.messages is None:
            continue
        try:
            dialect.body(Ask("", "", 1, False, {}, each.messages))  # type: ignore[union-attr]  # not None: see above
        except ValueError as error:
            raise PlanError(f"--prompts {plan.prompts}:{each.line}: {error}") from error
        break  # an API takes messages or not, whatever is in them


def evidence_of(plan: SweepPlan) -> dict[str, Any] | None:
    """run.json's `prompts`: the file by its hash. Raises RunError when it cannot be read any more."""
    if plan.prompts is None:
        return None
    try:
        prompts, sha256 = read_prompts(plan.prompts)
    except PlanError as error:
        raise RunError(f"{error}, after it was checked") from error
    return {"path": plan.prompts, "sha256": sha256, "count": len(prompts)}


def changed_why(plan: SweepPlan, sent: Mapping[str, Any] | None) -> str | None:
    """Why the file is no longer the one that evidence_of told."""
    if sent is None or plan.prompts is None:
        return None
    try:
        now = hashlib.sha256(Path(plan.prompts).read_bytes()).hexdigest()
    except OSError as error:
        return f"--prompts {plan.prompts}: {error.strerror}, during the run"
    return None if now == sent["sha256"] else f"{plan.prompts} was changed while its prompts were sent"
