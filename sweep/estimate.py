"""What a plan will cost and can decide, before it runs: the words after the preflight. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sweep.plan import ERROR_LIMIT, N_INTEGRITY, WARMUP_FACTOR, Level, Mode, Step, SweepPlan, steps
from sweep.slo import METRICS, STATS, n_needed

MIN_CYCLES_FOR_LEAK = 3  # fewer floors cannot tell a leak from a warm-up (facts §2.1)


@dataclass(frozen=True, slots=True)
class Measured:
    """One preflight request of a warm model, in one mode; None: not known."""

    e2e_s: float | None
    n_in: int | None = None
    n_out: int | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """lines: for people, one level and mode each, then totals. undecidable: gates the plan cannot decide, and why.
    load_s: expected warm-up, window and drain by step id, without steps of a mode that was not measured.

    Totals are expected values over all steps without the preflight, left out when a mode was not measured; tokens are
    output tokens (max_tokens a request if not known).
    """

    lines: tuple[str, ...]
    undecidable: tuple[str, ...]
    load_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What one step is expected to do if answers stay as fast as alone; n_max: requests of its longest window."""

    step: Step
    rate_per_s: float
    window_s: float
    n_window: float
    n_max: float
    n_sent: float
    capped: bool


def estimate(plan: SweepPlan, measured: Mapping[Mode, Measured]) -> Estimate:
    """The plan completed by one measured request a mode. A queue makes every figure worse, never better."""
    if plan.mode == "user":
        return Estimate((*_user_lines(plan, measured), time_line(plan, None)), (), {})
    outlooks = [_outlook(step, plan, measured.get(step.mode)) for step in steps(plan)]
    known = [each for each in outlooks if each is not None]
    complete = len(known) == len(outlooks)
    lines = [_level_line(plan, level, mode, known) for level in plan.levels for mode in plan.modes]
    undecidable = [*_modes_undecidable(plan, known), *_slos_undecidable(plan, known)]
    load_s = {each.step.id: plan.warmup_s + each.window_s + each.step.level.value / each.rate_per_s for each in known}
    expected_s = None
    if complete:
        undecidable += _pools_undecidable(plan, known)
        expected_s = sum(load_s.values()) + plan.n_steps * plan.cooldown_s
        lines.append(_total_line(plan, measured, known))
    lines.append(time_line(plan, expected_s))
    lines.append("all this if answers stay as fast as in the preflight; a queue makes it slower")
    return Estimate(tuple(lines), tuple(undecidable), load_s)


def time_line(plan: SweepPlan, expected_s: float | None) -> str:
    """What the steps take, and what can stretch it. expected_s: by the preflight; None: not known before it."""
    all_steps = steps(plan)
    longest = sum(WARMUP_FACTOR * s.warmup_s + s.max_step_s + s.drain_s + s.cooldown_s for s in all_steps)
    stretch = (
        f"slower answers stretch it, to ~{time_text(longest)} at most: a step waits for the requests its gates need"
    )
    n = f"{len(all_steps)} step{'' if len(all_steps) == 1 else 's'}"
    if expected_s is None:
        plain_s = sum(s.warmup_s + s.duration_s + s.cooldown_s for s in all_steps)
        return f"time: {time_text(plain_s)} for {n} if answers are quick; {stretch}"
    return f"time: ~{time_text(expected_s)} for {n}; {stretch}"


def not_tested(plan: SweepPlan, sent: Collection[str] | None = None) -> tuple[str, ...]:
    """What this plan leaves open whatever comes out, by the names the verdict uses.

    sent: modes that were sent; before the run all that may be.
    """
    sent = plan.sent_modes if sent is None else sent
    open_ = ["restart", "drain", "backend loss", "tenants"]
    open_.append(f"leak ({leak_left_open(plan.cycles)})")
    if plan.gateway_pid is None and not plan.demo:
        open_.append("process evidence (no --gateway-pid)")
    if "stream" not in sent:
        open_ += ["streaming", "stream integrity"]
    if "nonstream" not in sent:
        open_.append("non-streaming")
    if not any(METRICS[slo.metric].kind == "latency" for slo in plan.slos):
        open_.append("latency (no --slo of a latency)" if plan.slos else "latency (no --slo)")
    return tuple(open_)


def leak_left_open(n_cycles: int) -> str:
    """Why growth from cycle to cycle is not judged: too few cycles, or no rule for it in the built-in policy."""
    few = n_cycles < MIN_CYCLES_FOR_LEAK
    return f"{n_cycles} cycle{'' if n_cycles == 1 else 's'}" + ("" if few else ", floors shown but not judged")


def _user_lines(plan: SweepPlan, measured: Mapping[Mode, Measured]) -> Iterator[str]:
    for mode, each in measured.items():
        if each.e2e_s is not None:
            yield f"one {mode} request with the plan's own prompt and --max-tokens, alone: {time_text(each.e2e_s)}"
    yield (
        f"what {', '.join(plan.user_classes)} of {plan.locustfile} send, and how often, is theirs: not estimated; "
        f"at most {plan.max_requests:,} requests, {plan.max_output_tokens:,} output tokens"
    )


def _outlook(step: Step, plan: SweepPlan, measured: Measured | None) -> _Outlook | None:
    if measured is None or measured.e2e_s is None or not measured.e2e_s > 0:
        return None
    rate = step.level.value / measured.e2e_s
    n_cap = min(float(step.max_requests), step.max_output_tokens / _n_out(plan, measured))
    # Requests of the warm-up count against the caps; the window opens when each user has finished two.
    warmup_s = min(max(step.warmup_s, 2 * measured.e2e_s), WARMUP_FACTOR * step.warmup_s)
    cap_s = max(n_cap / rate - warmup_s, 0.0)
    early_s = max(step.n_early / rate, step.min_early_s)
    uncapped_s = min(max(step.duration_s, step.n_wanted / rate), step.max_step_s, early_s)
    window_s = min(uncapped_s, cap_s)
    n_max = rate * min(step.max_step_s, cap_s)
    n_sent = min(rate * (warmup_s + window_s), n_cap)
    return _Outlook(step, rate, window_s, rate * window_s, n_max, n_sent, capped=cap_s < uncapped_s)


def _n_out(plan: SweepPlan, measured: Measured) -> float:
    """Output tokens of one answer; the most it may have when the server did not tell."""
    return max(measured.n_out, 1) if measured.n_out is not None else plan.max_tokens


def _of(known: Sequence[_Outlook], level: Level, mode: Mode) -> list[_Outlook]:
    return [each for each in known if each.step.level == level and each.step.mode == mode]


def _level_line(plan: SweepPlan, level: Level, mode: Mode, known: Sequence[_Outlook]) -> str:
    found = _of(known, level, mode)
    if not found:
        return f"level {level} {mode}: no estimate, the preflight measured no {mode} answer"
    first = found[0]
    asked = {slo.stat for slo in plan.slos if slo.stat and slo.applies(level, mode, plan.sustained)}
    parts = [f"~{_count(first.rate_per_s * 60)} requests a minute"]
    parts += [_stat_words(plan, stat, first) for stat in STATS if stat in asked | {"p95", "p99"}]
    if first.capped:
        parts.append(f"a cap ends the window after ~{time_text(first.window_s)}")
    if plan.is_exploring(level):
        parts.append("exploring")
    return f"level {level} {mode}: {'; '.join(parts)}"


def _stat_words(plan: SweepPlan, stat: str, outlook: _Outlook) -> str:
    n = n_needed(STATS[stat])
    time = time_text(n / outlook.rate_per_s)
    if n <= _whole(outlook.n_window):
        return f"{stat} decided in ~{time}"
    if n <= _whole(outlook.n_max):
        return f"{stat} not waited for (~{time}): {_why_not_asked(plan, stat, outlook.step.mode)}"
    in_time = n <= _whole(outlook.rate_per_s * outlook.step.max_step_s)
    return f"{stat} not within {'the caps' if in_time else '--max-step'}"


def _why_not_asked(plan: SweepPlan, stat: str, mode: Mode) -> str:
    """An SLO without @ asks at the sustained level only, and its reader may take it for all."""
    asked = [slo for slo in plan.slos if slo.stat == stat and mode in slo.modes]
    if not asked:
        return "no SLO asks for it"
    where = ", ".join(dict.fromkeys(f"@{plan.sustained if slo.at is None else slo.at}" for slo in asked))
    whose = "the SLO without @ asks at" if all(slo.at is None for slo in asked) else "the SLO asks up to"
    return f"{whose} level {where.replace('@', '')} only"


def _total_line(plan: SweepPlan, measured: Mapping[Mode, Measured], known: Sequence[_Outlook]) -> str:
    n = sum(each.n_sent for each in known)
    tokens = sum(each.n_sent * _n_out(plan, measured[each.step.mode]) for each in known)
    line = (
        f"in all: ~{round(n):,} requests (at most {plan.max_requests:,}), "
        f"~{round(tokens):,} output tokens (at most {plan.max_output_tokens:,})"
    )
    n_in = {mode: each.n_in for mode, each in measured.items()}
    if all(n_in.get(mode) is not None for mode in plan.modes):
        line += f", ~{round(sum(each.n_sent * (n_in[each.step.mode] or 0) for each in known)):,} prompt tokens"
    return line


def _modes_undecidable(plan: SweepPlan, known: Sequence[_Outlook]) -> Iterator[str]:
    for mode in plan.modes:
        if not any(each.step.mode == mode for each in known):
            yield f"{mode}: the preflight got no {mode} answer, so how many requests fit is unknown"


def _slos_undecidable(plan: SweepPlan, known: Sequence[_Outlook]) -> Iterator[str]:
    for slo in plan.slos:
        for level in plan.levels:
            for mode in plan.modes:
                found = _of(known, level, mode)
                n = _whole(sum(each.n_max for each in found))
                if found and slo.applies(level, mode, plan.sustained) and n < slo.n_wanted:
                    yield f"SLO {slo.text} at level {level} {mode}: {_short(plan, slo.n_wanted, n, found)}"


def _pools_undecidable(plan: SweepPlan, known: Sequence[_Outlook]) -> Iterator[str]:
    pool = [each for each in known if not each.step.exploring]
    streams = [each for each in pool if each.step.mode == "stream"]
    for gate, needed, members in (
        ("errors and shed", n_needed(1 - ERROR_LIMIT), pool),
        ("stream integrity", N_INTEGRITY, streams),
    ):
        n = _whole(sum(each.n_window for each in members))
        if members and n < needed:
            yield f"{gate}, up to level {plan.sustained}: {_short(plan, needed, n, members)}"


def _short(plan: SweepPlan, needed: int, n: int, members: Sequence[_Outlook]) -> str:
    """What is missing, and the option that would give every step its own n_wanted."""
    slow = [each for each in members if each.n_max < each.step.n_wanted]
    if any(each.n_max < _whole(each.rate_per_s * each.step.max_step_s) for each in slow):
        what = "raise --max-requests or --max-output-tokens"
    elif any(each.step.max_step_s < plan.max_step_s for each in slow):
        what = "raise --max-time"
    else:
        minutes = math.ceil(max(each.step.n_wanted / each.rate_per_s for each in members) / 60)
        what = f"raise --max-step to {minutes}m, or lower --max-tokens"
    return f"needs {needed} requests, about {n} fit; {what}"


def _whole(n: float) -> int:
    return math.floor(n + 1e-6)  # 59 / rate * rate may be 58.999…


def _count(n: float) -> str:
    return f"{n:,.0f}" if n >= 10 else f"{n:.2g}"


def time_text(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
