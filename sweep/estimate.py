"""What a plan will cost and can decide, before it runs: the words after the preflight. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sweep.plan import BLOCKS, ERROR_LIMIT, N_INTEGRITY, WARMUP_FACTOR, Level, Mode, SweepPlan
from sweep.plan_steps import Step, steps
from sweep.slo import STATS, n_needed
from sweep.tenants import driven
from sweep.units import MODES


@dataclass(frozen=True, slots=True)
class Measured:
    """One preflight request of a warm model, in one mode; None: not known. has_tokens: its API generates some."""

    e2e_s: float | None
    n_in: int | None = None
    n_out: int | None = None
    has_tokens: bool = True


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
    """What one step is expected to do if answers stay as fast as alone; n_max: requests of its longest window.

    in_flight: requests going on at once, by Little's law where the level is a rate.
    """

    step: Step
    rate_per_s: float
    window_s: float
    n_window: float
    n_max: float
    n_sent: float
    capped: bool
    in_flight: float


def estimate(plan: SweepPlan, measured: Mapping[Mode, Measured]) -> Estimate:
    """The plan completed by one measured request a mode. A queue makes every figure worse, never better."""
    if plan.mode == "user":
        return Estimate((*_user_lines(plan, measured), time_line(plan, None)), (), {})
    if plan.mode == "mixed":
        measured = _mixed(plan, measured)
    asking = [step for step in steps(plan) if step.level.value]
    quiet = {step.id: step.duration_s for step in steps(plan) if not step.level.value}
    outlooks = [_outlook(step, plan, measured.get(step.mode)) for step in asking]
    known = [each for each in outlooks if each is not None]
    complete = len(known) == len(outlooks)
    judged = [each for each in known if each.step.target is None]
    lines = [_level_line(plan, level, mode, judged) for level in plan.levels for mode in plan.modes_at(level)]
    undecidable = [*_modes_undecidable(plan, judged), *_slos_undecidable(plan, judged)]
    load_s = {each.step.id: _load_s(each) for each in known} | quiet
    expected_s = None
    if complete:
        undecidable += _pools_undecidable(plan, judged)
        expected_s = sum(load_s.values()) + sum(step.cooldown_s for step in steps(plan))
        lines += [_total_line(plan, measured, known)] if known else []
    lines.append(time_line(plan, expected_s))
    if asking:
        lines.append("all this if answers stay as fast as in the preflight; a queue makes it slower")
    return Estimate(tuple(lines), tuple(undecidable), load_s)


def time_line(plan: SweepPlan, expected_s: float | None) -> str:
    """What the steps take, and what can stretch it. expected_s: by the preflight; None: not known before it."""
    all_steps = steps(plan)
    longest = sum(WARMUP_FACTOR * s.warmup_s + s.max_step_s + s.drain_s + s.cooldown_s for s in all_steps)
    stretch = (
        f"slower answers stretch it, to ~{time_text(longest)} at most: a step waits for the requests its gates need"
    )
    stretch = f"; {stretch}" if plan.asks else ""
    n = f"{len(all_steps)} step{'' if len(all_steps) == 1 else 's'}"
    if plan.is_auto:
        n += f" of the first level; at most {plan.n_steps} in all, within --max-time ({time_text(plan.max_time_s)})"
    if expected_s is None:
        plain_s = sum(s.warmup_s + s.duration_s + s.cooldown_s for s in all_steps)
        return f"time: {time_text(plain_s)} for {n} if answers are quick{stretch}"
    return f"time: ~{time_text(expected_s)} for {n}{stretch}"
def _user_lines(plan: SweepPlan, measured: Mapping[Mode, Measured]) -> Iterator[str]:
    for mode, each in measured.items():
        if each.e2e_s is not None:
            yield f"one {mode} request with the plan's own prompt and --max-tokens, alone: {time_text(each.e2e_s)}"
    yield (
        f"what {', '.join(plan.user_classes)} of {plan.locustfile} send, and how often, is theirs: not estimated; "
        f"at most {plan.max_requests:,} requests, {plan.max_output_tokens:,} output tokens"
    )


def _mixed(plan: SweepPlan, measured: Mapping[Mode, Measured]) -> Mapping[Mode, Measured]:
    """What one request of a mixed step is expected to take; nothing if a mode was not measured."""
    if any(mode not in measured or measured[mode].e2e_s is None for mode in MODES):
        return {}
    parts = [(plan.share_of(mode), measured[mode]) for mode in MODES]

    def mean(values: Sequence[float | None]) -> float | None:
        told = [value for value in values if value is not None]
        return sum(share * x for (share, _), x in zip(parts, told, strict=True)) if len(told) == len(parts) else None

    means = (mean([getattr(each, name) for _, each in parts]) for name in ("n_in", "n_out"))
    n_in, n_out = (None if n is None else round(n) for n in means)
    has_tokens = all(each.has_tokens for _, each in parts)
    return {"mixed": Measured(mean([each.e2e_s for _, each in parts]), n_in, n_out, has_tokens)}


def _outlook(step: Step, plan: SweepPlan, measured: Measured | None) -> _Outlook | None:
    if measured is None or measured.e2e_s is None or not measured.e2e_s > 0:
        return None
    is_rate = step.level.kind == "rate"
    sent = driven(plan, step.level)
    rate = sent if is_rate else sent / (measured.e2e_s + plan.think_time_s)
    n_cap = float(step.max_requests)
    if measured.has_tokens:
        n_cap = min(n_cap, step.max_output_tokens / _n_out(plan, measured))
    # Requests of the warm-up count against the caps; the window opens when each user has finished two.
    two_s = 2 * (measured.e2e_s + plan.think_time_s)
    warmup_s = step.warmup_s if is_rate else min(max(step.warmup_s, two_s), WARMUP_FACTOR * step.warmup_s)
    cap_s = max(n_cap / rate - warmup_s, 0.0)
    early_s = max(step.n_early / rate, step.min_early_s)
    uncapped_s = min(max(step.duration_s, step.n_wanted / rate), step.max_step_s, early_s)
    window_s = min(uncapped_s, cap_s)
    n_max = rate * min(step.max_step_s, cap_s)
    n_sent = min(rate * (warmup_s + window_s), n_cap)
    return _Outlook(
        step, rate, window_s, rate * window_s, n_max, n_sent, cap_s < uncapped_s, in_flight=rate * measured.e2e_s
    )


def _load_s(outlook: _Outlook) -> float:
    return outlook.step.warmup_s + outlook.window_s + outlook.in_flight / outlook.rate_per_s


def _n_out(plan: SweepPlan, measured: Measured) -> float:
    """Output tokens of one answer; the most it may have when the server did not tell."""
    return max(measured.n_out, 1) if measured.n_out is not None else plan.max_tokens


def _of(known: Sequence[_Outlook], level: Level, mode: Mode) -> list[_Outlook]:
    """Outlooks of the steps that send the mode at the level."""
    return [each for each in known if each.step.level == level and each.step.mode in (mode, "mixed")]


def _share(plan: SweepPlan, mode: Mode) -> float:
    """Share of a step's requests whose answers tell of the mode: of both sent, and of clients that stay."""
    return (plan.share_of(mode) if plan.mode == "mixed" else 1.0) * (1 - plan.leaving(mode))


def _level_line(plan: SweepPlan, level: Level, mode: Mode, known: Sequence[_Outlook]) -> str:
    if not level.value:
        return f"level {level}: observes for {time_text(plan.duration_s)}, asks nothing"
    found = _of(known, level, mode)
    if not found:
        return f"level {level} {mode}: no estimate, the preflight measured no {mode} answer"
    share = BLOCKS if plan.beside else 1  # its blocks are judged together
    first = replace(found[0], n_window=share * found[0].n_window, n_max=share * found[0].n_max)
    asked = {slo.stat for slo in plan.slos if slo.stat and slo.applies(level, mode, plan.sustained)}
    parts = [f"~{_count(first.rate_per_s * 60)} requests a minute"]
    parts += [f"~{_count(first.in_flight)} in flight"] if level.kind == "rate" else []
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
    line = f"in all: ~{round(n):,} requests (at most {plan.max_requests:,})"
    if any(each.has_tokens for each in measured.values()):
        tokens = sum(each.n_sent * _n_out(plan, measured[each.step.mode]) for each in known)
        line += f", ~{round(tokens):,} output tokens (at most {plan.max_output_tokens:,})"
    n_in = {mode: each.n_in for mode, each in measured.items()}
    if all(n_in.get(mode) is not None for mode in plan.modes):
        line += f", ~{round(sum(each.n_sent * (n_in[each.step.mode] or 0) for each in known)):,} prompt tokens"
    return line


def _modes_undecidable(plan: SweepPlan, known: Sequence[_Outlook]) -> Iterator[str]:
    for mode in plan.modes if plan.asks else ():
        if not any(each.step.mode == mode for each in known):
            yield f"{mode}: the preflight got no {mode} answer, so how many requests fit is unknown"


def _slos_undecidable(plan: SweepPlan, known: Sequence[_Outlook]) -> Iterator[str]:
    for slo in plan.slos:
        for level in plan.levels:
            for mode in plan.sent_modes:
                found = _of(known, level, mode)
                n = _whole(sum(each.n_max * _share(plan, mode) for each in found))
                if found and slo.applies(level, mode, plan.sustained) and n < slo.n_wanted:
                    yield f"SLO {slo.text} at level {level} {mode}: {_short(plan, slo.n_wanted, n, found)}"


def _pools_undecidable(plan: SweepPlan, known: Sequence[_Outlook]) -> Iterator[str]:
    pool = [each for each in known if not each.step.exploring]
    streams = [each for each in pool if each.step.mode in ("stream", "mixed")]
    for gate, needed, members, share in (
        ("errors and shed", n_needed(1 - ERROR_LIMIT), pool, 1.0),
        ("stream integrity", N_INTEGRITY, streams, _share(plan, "stream")),
    ):
        n = _whole(sum(each.n_window * share for each in members))
        if members and n < needed:
            yield f"{gate}, up to level {plan.sustained}: {_short(plan, needed, n, members)}"


def _short(plan: SweepPlan, needed: int, n: int, members: Sequence[_Outlook]) -> str:
    """What is missing, and the option that would give every step its own n_wanted."""
    share = BLOCKS if plan.beside else 1
    slow = [each for each in members if each.n_max < each.step.n_wanted]
    if any(each.n_max < _whole(each.rate_per_s * each.step.max_step_s) for each in slow):
        what = "raise --max-requests or --max-output-tokens"
    elif any(each.step.max_step_s < plan.max_step_s / share for each in slow):
        what = "raise --max-time"
    else:
        minutes = math.ceil(share * max(each.step.n_wanted / each.rate_per_s for each in members) / 60)
        is_rate = all(each.step.level.kind == "rate" for each in members)
        what = f"raise --max-step to {minutes}m, or {'the rate' if is_rate else 'lower --max-tokens'}"
    return f"needs {needed} requests, about {n} fit; {what}"


def _whole(n: float) -> int:
    return math.floor(n + 1e-6)  # 59 / rate * rate may be 58.999…


def _count(n: float) -> str:
    return f"{n:,.0f}" if n >= 10 else f"{n:.2g}"


def time_text(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
