"""What is to be seen of a running step, once a second, and how long it and the run still take. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweep.follow import GatewayProgress, StepProgress
from sweep.plan_steps import Step


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a step; None: not known. waits_for: why it goes on past its duration."""

    step: Step
    number: int
    n_steps: int
    stage: str
    n_finished: int
    n_failed: int
    ttft_p50_ms: float | None
    anon_bytes: int | None
    cpu_cores: float | None
    left_s: float | None
    waits_for: str | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """The steps of a run, and how long the load of each is expected to take, by its id; else its planned time is."""

    steps: Sequence[Step]
    load_s: Mapping[str, float]

    def later_s(self, number: int) -> float:
        """All steps after the number-th."""
        return sum(self.step_s(step) + step.cooldown_s for step in self.steps[number:])

    def step_s(self, step: Step) -> float:
        return self.load_s.get(step.id, step.warmup_s + step.duration_s)


def loading(
    outlook: Outlook, number: int, seen: StepProgress, gateway: GatewayProgress, elapsed_s: float, now_ns: int
) -> Progress:
    """While the load of the number-th step runs, elapsed_s after its process was started."""
    step = outlook.steps[number - 1]
    over = elapsed_s > step.warmup_s + step.duration_s
    waits_for = None
    if over:
        missing = seen.n_window < step.n_wanted
        waits_for = f"requests: {seen.n_window} of {step.n_wanted}" if missing else "what is in flight"
    load_s = _load_left_s(step, seen, outlook.step_s(step) - elapsed_s, now_ns)
    left_s = None if load_s is None else load_s + step.cooldown_s + outlook.later_s(number)
    return _look(outlook.steps, number, "load", seen, gateway, left_s, waits_for)


def cooling(
    outlook: Outlook, number: int, seen: StepProgress, gateway: GatewayProgress, idle_left_s: float
) -> Progress:
    """While the number-th step cools down, for idle_left_s more."""
    left_s = max(idle_left_s, 0.0) + outlook.later_s(number)
    return _look(outlook.steps, number, "cool-down", seen, gateway, left_s, None)


def _look(
    steps: Sequence[Step], number: int, stage: str, seen: StepProgress, gateway: GatewayProgress,
    left_s: float | None, waits_for: str | None,
) -> Progress:  # fmt: skip
    return Progress(
        step=steps[number - 1], number=number, n_steps=len(steps), stage=stage, n_finished=seen.n_finished,
        n_failed=seen.n_failed, ttft_p50_ms=seen.ttft_p50_ms, anon_bytes=gateway.anon_bytes,
        cpu_cores=gateway.cpu_cores, left_s=left_s, waits_for=waits_for,
    )  # fmt: skip


def _load_left_s(step: Step, seen: StepProgress, expected_s: float, now_ns: int) -> float | None:
    """Until the window closes, by the requests a second of the window so far; without any as expected, then None."""
    if seen.window_from_ns is None:
        return expected_s if expected_s > 0 else None
    window_s = max((now_ns - seen.window_from_ns) / 1e9, 0.1)
    rate_per_s = seen.n_window / window_s
    wanted_s = (step.n_wanted - seen.n_window) / rate_per_s
    early_s = max((step.n_early - seen.n_window) / rate_per_s, step.min_early_s - window_s)
    return max(0.0, min(max(step.duration_s - window_s, wanted_s), early_s, step.max_step_s - window_s))
