"""Which step comes next, told how each one ended: the fixed steps of a plan, or the search of `--levels auto`.

A sequence is asked for steps one by one (`following`) and told of each when its cool-down is over (`took`), before its
idle mark; what `took` gives stands in that mark.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sweep import search
from sweep.plan import SweepPlan
from sweep.plan_steps import Step, least_requests, probe_caps, probe_steps
from sweep.probing import answer_of
from sweep.search import Answer, Ended, Tried
from sweep.step_files import StepReport
from sweep.units import Level


class StepEnd(NamedTuple):
    """How a step ended. guard: words of one that closed it early. key_is_over: refused, and there will be no other."""

    report: StepReport
    guard: str | None = None
    key_is_over: bool = False


class Steps(Protocol):
    """known: all steps that are known so far, in their order; it may grow."""

    known: list[Step]

    def following(self) -> Step | None: ...
    def took(self, step: Step, end: StepEnd) -> dict[str, Any]: ...


def sequence_of(plan: SweepPlan, steps: tuple[Step, ...], out_dir: Path) -> Steps:
    """steps: those of run.json. The time of --max-time runs from here."""
    return AutoSteps(plan, steps, out_dir) if plan.is_auto else FixedSteps(steps)


class FixedSteps:
    """Every step of the plan; exploring ones not after a guard has tripped while exploring."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.known = list(steps)
        self._left = deque(steps)
        self._exploring_over = False

    def following(self) -> Step | None:
        while self._left and self._left[0].exploring and self._exploring_over:
            self._left.popleft()
        return self._left.popleft() if self._left else None

    def took(self, step: Step, end: StepEnd) -> dict[str, Any]:
        if step.target is None:  # one beside the first target is given up alone (`giving_up`)
            self._exploring_over |= end.key_is_over or (end.guard is not None and step.exploring)
        return {}


class AutoSteps:
    """The levels that `search` asks for, in every mode; then --leak-cycles of the level it found."""

    def __init__(self, plan: SweepPlan, first: tuple[Step, ...], out_dir: Path) -> None:
        self.known = list(first)
        self._plan = plan
        self._out_dir = out_dir
        self._left = deque(first)
        self._tried: list[Tried] = []
        self._ends: list[tuple[Step, StepEnd]] = []  # of the level under way
        self._is_over = False
        self._n_requests, self._n_tokens = plan.max_requests, plan.max_output_tokens
        self._until_s = time.monotonic() + plan.max_time_s

    def following(self) -> Step | None:
        return self._left.popleft() if self._left else None

    def took(self, step: Step, end: StepEnd) -> dict[str, Any]:
        """Of a level's last step: its answer, and if the search is over why and how many leak cycles follow."""
        n_started = sum(process.started for process in end.report.processes)
        self._n_requests -= n_started
        self._n_tokens -= n_started * self._plan.max_tokens
        self._ends.append((step, end))
        if self._left or self._is_over:
            return {}
        tried = self._tried_now()
        self._tried.append(tried)
        told: dict[str, Any] = {"level": str(tried.level), "answer": tried.answer, "why": tried.why, "ended": None}
        following = self._choose(end)
        if isinstance(following, Level):
            self._add(following, cycle=1)
        else:
            self._is_over = True
            told |= {"ended": following, "leak_cycles": self._add_leak_cycles(following)}
        return {"search": told}

    def _tried_now(self) -> Tried:
        """The level as its worst step answered."""
        level = self._ends[0][0].level
        answers = [self._answer(step, end) for step, end in self._ends]
        self._ends = []
        for wanted in ("invalid", "not met", "undecided"):
            for answer, why in answers:
                if answer == wanted:
                    return Tried(level, answer, why)
        return Tried(level, *answers[-1])

    def _answer(self, step: Step, end: StepEnd) -> tuple[Answer, str]:
        if end.key_is_over:
            return "invalid", f"{step.mode}: the API key was refused"
        return answer_of(self._plan, step, end.report, end.guard, self._out_dir)

    def _choose(self, end: StepEnd) -> Level | Ended:
        plan = self._plan
        following = search.following(self._tried, plan.levels[0], plan.auto_max or search.HIGHEST, plan.auto_steps)
        if not isinstance(following, Level):
            return following
        if end.key_is_over:
            return "api_key"
        return self._no_room(following) or following

    def _no_room(self, level: Level) -> Ended | None:
        plan = self._plan
        if self._until_s - time.monotonic() < len(plan.modes) * (plan.warmup_s + plan.duration_s + plan.cooldown_s):
            return "time"
        needed = least_requests(plan, level)
        return "caps" if min(self._n_requests, self._n_tokens // plan.max_tokens) < needed else None

    def _add(self, level: Level, cycle: int, n_left: int | None = None) -> None:
        left = self._plan.auto_steps - len(self._tried) if n_left is None else n_left
        requests, tokens = probe_caps(self._plan, level, self._n_requests, self._n_tokens, left)
        made = probe_steps(
            self._plan, level, number=len(self.known) + 1, cycle=cycle, max_requests=requests, max_output_tokens=tokens
        )
        self.known += made
        self._left += made

    def _add_leak_cycles(self, ended: Ended) -> int:
        """How many were added: none where nothing was met, or nothing more may be sent."""
        level = search.found(self._tried, self._plan.sustain)
        if ended == "api_key" or search.met(self._tried) is None:
            return 0
        n_cycles = 0
        for cycle in range(2, self._plan.leak_cycles + 2):
            if self._no_room(level) is not None:
                break
            self._add(level, cycle, n_left=0)
            n_cycles += 1
        return n_cycles
