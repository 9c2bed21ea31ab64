"""What a person sees of a run: the plan, one live line a step, the verdict. Text comes from others; this prints it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sweep.choosing import Guess, guess_lines
from sweep.plan import SweepPlan
from sweep.progress import Progress
from sweep.wording import one_line

_PLAIN_EVERY_S = 30.0


class Terminal:
    """Progress goes to stderr: on a terminal one live line a step, elsewhere a plain line now and then.

    What belongs on stdout is given back as lines.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._printed_at = float("-inf")
        self._step = ""
        self.stop: tuple[str, str] | None = None

    def stop_reason(self) -> tuple[str, str] | None:
        return self.stop

    def preparing(self, plan: SweepPlan, *, target_is_given: bool) -> None:
        """Said to a person before the first request: a cold model may keep it waiting for minutes.

        target_is_given: else it may yet become another port, or https.
        """
        if not self._quiet and self._console.is_terminal:
            where = "the embedded gateway" if plan.demo else plan.target if target_is_given else "the gateway"
            if plan.quiet_check_s and not plan.demo:
                self._console.print(f"looking for {plan.quiet_check_s:g} s who else is there …", markup=False)
            self._console.print(f"preflight: one request of each mode to {where} …", markup=False)

    def planned(self, lines: Sequence[str], warnings: Sequence[str], guesses: Mapping[str, Guess]) -> Iterator[str]:
        """Lines: what was guessed, the completed plan, what it cannot decide."""
        if self._quiet:
            return
        yield from guess_lines(guesses)
        yield from lines
        for line in warnings:
            yield one_line(f"warning: {line}")

    def progress(self, progress: Progress) -> None:
        if self._quiet:
            return
        line = progress_line(progress)
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(console=self._console, refresh_per_second=4, transient=False)
                self._live.start()
            if progress.step.id != self._step and self._step:
                self._live.stop()  # the finished step's line stays above
                self._live = Live(console=self._console, refresh_per_second=4, transient=False)
                self._live.start()
            self._live.update(Text(line, overflow="ellipsis", no_wrap=True))
        elif time.monotonic() - self._printed_at >= _PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            complain(line)
        self._step = progress.step.id

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def verdict(self, result: Mapping[str, Any], screen: Sequence[str]) -> Iterator[str]:
        """Lines: the first screen and below it the whole next command; the report's path comes after them.

        With --quiet only the verdict's sentence and why. screen: the first screen's lines.
        """
        if self._quiet:
            yield one_line(result["sentence"])
            yield from (one_line(f"why: {line}") for line in result["why"])
            return
        yield from screen
        if result["next"]:
            yield ""
            yield result["next"]
        yield ""


def complain(line: str) -> None:
    """A line on stderr; one that nobody can read any more changes nothing."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def progress_line(progress: Progress) -> str:
    """One step as it runs; what is not known is left out."""
    step = progress.step
    parts = [
        f"step {progress.number}/{progress.n_steps}",
        f"level {step.level} {step.mode}" + ("" if step.target is None else f" {step.target}")
        + (f" {progress.stage}" if progress.stage != "load" else ""),
        f"{progress.n_finished} requests",
        f"{progress.n_failed} errors",
    ]
    if progress.ttft_p50_ms is not None:
        parts.append(f"TTFT p50 {progress.ttft_p50_ms:.0f} ms")
    if progress.anon_bytes is not None:
        parts.append(f"anon memory {progress.anon_bytes / 2**20:.0f} MiB")
    if progress.cpu_cores is not None:
        parts.append(f"CPU {progress.cpu_cores:.2f} cores")
    if progress.waits_for is not None:
        parts.append(f"waiting for {progress.waits_for}")
    if progress.left_s is not None:
        minutes, seconds = divmod(round(progress.left_s), 60)
        parts.append(f"~{minutes}:{seconds:02d} left")
    return " · ".join(parts)
