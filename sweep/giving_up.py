"""Targets beside the first one whose turns are no longer run."""

from __future__ import annotations

from collections.abc import Mapping

from sweep.beside_target import Beside
from sweep.plan_steps import Step


class GivingUp:
    """Starts with nothing given up. Levels that production needs, at the first target, never are."""

    def __init__(self, beside: Mapping[str, Beside]) -> None:
        self._beside = beside
        self._over: set[str] = set()

    def skips(self, step: Step) -> bool:
        """Whether the step is of a target that is over: `give_up` was called in a block of it, or its process ended."""
        if step.target is None:
            return False
        if self._beside[step.target].is_gone():
            self._over.add(step.target)
        return step.target in self._over

    def give_up(self, step: Step) -> bool:
        """Ends the turns of a target beside the first one; False for a step of the first that nothing may end early."""
        if step.target is not None:
            self._over.add(step.target)
        return step.target is not None or step.exploring
