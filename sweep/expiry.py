"""Evidence -> steps in which our key stopped being accepted: their failures are not the target's. Pure.

401 or 403 says so only as the last word on that key: no request that started later with the same key got any other
answer. A gateway of which one backend refuses the key fails some requests between good ones, and those stay failures.
Nor does an expiry excuse what failed before it: a step whose other requests alone fail it stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from sweep import stats
from sweep.evidence import Evidence
from sweep.plan import ERROR_LIMIT, SweepPlan
from sweep.records import FAILED, KEY_REFUSED, PREFLIGHT
from sweep.slo_decision import INTEGRITY, INTEGRITY_LIMIT
from sweep.tenants import tenants_of
from sweep.windows import Bools, Ints, Sets, StepTimes, ints, plan_of

_KEY_HEADER = re.compile(r"auth|token|key|secret|cookie|session|credential|passw|jwt|signature", re.IGNORECASE)


def expired(ev: Evidence, steps: Sequence[StepTimes], sets: Sets) -> dict[int, str]:
    """Index of each step that the key did not outlast -> why it is invalid, with the hour of the first refusal.

    Steps with the same key are told by their begin marks (`key`); without that, one key served the whole run.
    """
    plan = plan_of(ev.run)
    if not _has_key(plan):
        return {}
    key_of = {mark.step: mark.detail.get("key") for mark in ev.marks if mark.mark == "begin"}
    status, has_status = ints(ev.requests["status"])
    refused = has_status & np.isin(status, KEY_REFUSED)
    answered = (has_status & ~refused) | (sets.outcome == "ok")
    t_start_ns = ev.requests["t_start_ns"].to_numpy(dtype=np.int64)
    t_over_ns = ev.requests["t_over_ns"].to_numpy(dtype=np.int64)
    is_preflight = (ev.requests["step"] == PREFLIGHT).to_numpy(dtype=bool)
    whys = {}
    for code, times in enumerate(steps):
        key = key_of.get(times.step)
        same = sets.of([other for other, each in enumerate(steps) if key_of.get(each.step) == key])
        same |= is_preflight if key in (None, 1) else False
        late = np.zeros(len(t_start_ns), dtype=bool)
        for of_key in _by_key(ev, plan):
            mine = same & of_key
            late |= mine & refused & (t_start_ns > _latest(t_start_ns[mine & answered]))
        late_here = late & (sets.code == code)
        if late_here.any() and not _fails_anyway(sets, code, late):
            told = "/".join(str(each) for each in np.unique(status[late_here]))
            at = _at(ev, times, int(t_over_ns[late_here].min()))
            worked = bool((same & (sets.outcome == "ok")).any())
            whys[code] = _why(int(late_here.sum()), told, at, worked=worked)
    return whys


def without_refused_probes(ev: Evidence, steps: Sequence[StepTimes]) -> Evidence:
    """The evidence without health probes that these steps' expired key was refused for."""
    t_ns = ev.health["t_mono_ns"].to_numpy(dtype=np.int64)
    status, has_status = ints(ev.health["status"])
    dropped = np.zeros(len(t_ns), dtype=bool)
    for times in steps:
        end_ns = times.t_idle_ns if times.t_idle_ns is not None else times.t_end_ns
        after = t_ns >= (0 if times.t_begin_ns is None else times.t_begin_ns)
        dropped |= after & ((t_ns <= end_ns) if end_ns is not None else True)
    dropped &= has_status & np.isin(status, KEY_REFUSED)
    return replace(ev, health=ev.health[~dropped]) if dropped.any() else ev


def _has_key(plan: SweepPlan) -> bool:
    """Whether anything we send can expire: a header that only has its value in the environment cannot."""
    has_header = any(_KEY_HEADER.search(name) for name in plan.headers)
    return bool(plan.api_key_env or plan.api_key_cmd or plan.tenants) or has_header


def _by_key(ev: Evidence, plan: SweepPlan) -> list[Bools]:
    """Requests that went out with the same key: those of each tenant, and the others."""
    tenant = ev.requests["tenant"].to_numpy(dtype=object)
    masks = [np.asarray(tenant == each.name, dtype=bool) for each in tenants_of(plan)]
    return [*masks, ~np.logical_or.reduce(masks)] if masks else [np.ones(len(tenant), dtype=bool)]


def _fails_anyway(sets: Sets, code: int, late: Bools) -> bool:
    """Whether the step fails by its other requests alone, as the gates of errors, refusals and streams would say."""
    rest = sets.offered & ~late
    here = rest & (sets.code == code)
    for names in (FAILED, ("shed",)):
        lo = stats.share(int((here & np.isin(sets.outcome, names)).sum()), int(here.sum())).lo
        if lo is not None and lo > ERROR_LIMIT:
            return True
    broken = np.isin(sets.outcome, INTEGRITY)
    lo = stats.share(int((rest & broken).sum()), int((rest & (broken | (sets.outcome == "ok"))).sum())).lo
    return lo is not None and lo > INTEGRITY_LIMIT and bool((here & broken).any())


def _latest(t_ns: Ints) -> int:
    return int(t_ns.max()) if len(t_ns) else -1


def _why(n: int, status: str, at: str, *, worked: bool) -> str:
    requests = "1 request was" if n == 1 else f"{n} requests were"
    if worked:
        what = f"token expired at {at}" if status == "401" else f"the key was refused from {at} on"
        return f"{what}: {requests} refused with {status}, and none was answered since"
    return f"the key was never accepted: {requests} refused with {status}, from {at} on"


def _at(ev: Evidence, times: StepTimes, t_ns: int) -> str:
    """Wall time for people, by the clocks of the step's own mark, or the first one's."""
    mark = next((each for each in ev.marks if each.step == times.step), None) or next(iter(ev.marks), None)
    if mark is None:
        return "an unknown hour"
    wall_s = (t_ns + mark.t_wall_ns - mark.t_mono_ns) // 1_000_000_000
    return datetime.fromtimestamp(wall_s, UTC).strftime("%H:%M UTC")
