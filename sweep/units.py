"""Durations, levels and modes as an operator writes them. Pure: text in, values out."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sweep.errors import PlanError

# `user`: of a step driven by an own locustfile, whose tasks send requests of either mode, or of both; `mixed`: of one
# that sends both by --stream-share; `observe`: of level 0, which sends none.
Mode = Literal["stream", "nonstream", "mixed", "user", "observe"]
MODES: tuple[Mode, ...] = ("stream", "nonstream")  # of requests; the order of steps within a level
EITHER: tuple[Mode, ...] = ("mixed", "user")  # of steps whose requests may be of either
# When the client of --cancel-ratio leaves a request of either mode.
PHASES: dict[Mode, tuple[str, ...]] = {"stream": ("before_first", "mid_stream"), "nonstream": ("nonstream",)}

_DURATION = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_CONCURRENCY = re.compile(r"[0-9]{1,9}")
_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*/\s*s")
# One descriptor a request in flight, and beside them the interpreter's, Locust's and the evidence files' own.
SPARE_FDS = 64
_EXAMPLE = "write them like --levels 1,2,4,8, or 5/s for arrivals a second"


@dataclass(frozen=True, slots=True)
class Level:
    """How hard a step drives: requests in flight, or arrivals a second; 0 only observes. `str()` gives `8` or `5/s`."""

    value: float
    kind: Literal["concurrency", "rate"] = "concurrency"

    @property
    def code(self) -> str:
        """As a step id spells it: `c8`, `r5`."""
        return f"{'c' if self.kind == 'concurrency' else 'r'}{self.value:.12g}"

    def reaches(self, other: Level) -> bool:
        """Whether `other` is this level or a lower one of the same kind; no load at all is below either kind."""
        return other.value == 0 or (self.kind == other.kind and other.value <= self.value)

    def __str__(self) -> str:
        return f"{self.value:.12g}" if self.kind == "concurrency" else f"{self.value:.12g}/s"


def parse_duration(text: str) -> float:
    """Seconds of `5`, `5s`, `1.5m`, `2h` or `300ms`; a bare number is seconds, zero is allowed. Raises PlanError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise PlanError(f"duration {text!r}: write a number and a unit: 300ms, 5s, 1.5m or 2h (a bare 5 is 5s)")
    number, unit = float(match[1]), match[2] or "s"
    seconds = number / 1000 if unit == "ms" else number * _SECONDS[unit]  # 300ms is 0.3, not 0.30000000000000004
    if not math.isfinite(seconds):
        raise PlanError(f"duration {text[:20]!r}…: too large; the longest useful one is some hours, like 2h")
    return seconds


def duration_text(seconds: float) -> str:
    """As `parse_duration` reads it: `2h`, `5m`, `90s`, `300ms`; exact to the millisecond."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.10g}ms"
    for unit in ("h", "m"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:.12g}s"


def parse_level(text: str) -> Level:
    """A level of either kind. Raises PlanError."""
    text = text.strip()
    if _CONCURRENCY.fullmatch(text):
        return Level(int(text))
    match = _RATE.fullmatch(text)
    if match is not None:
        value = float(match[1])
        return Level(int(value) if value.is_integer() else value, "rate")
    raise PlanError(f"level {text!r}: give a whole number of requests in flight like 8, or a rate of arrivals like 5/s")


def parse_levels(text: str, fd_limit: int | None = None) -> tuple[Level, ...]:
    """Levels of `1,2,4,8`, of `5/s,10/s`, or of both: requests in flight first, then rates, each kind ascending.

    fd_limit: open files one process may have at most (`ulimit -Hn`); None: not checked.
    Raises PlanError for a level twice, 0/s, one that cannot be held open, or anything else.
    """
    if not text.strip():
        raise PlanError(f"no level given; {_EXAMPLE}")
    levels = [_drivable(part, fd_limit) for part in text.split(",")]
    _refuse_twice(levels)
    return tuple(sorted(levels, key=lambda level: (level.kind, level.value)))


def _drivable(text: str, fd_limit: int | None) -> Level:
    if not text.strip():
        raise PlanError(f"an empty level between commas; {_EXAMPLE}")
    level = parse_level(text)
    if level.kind == "rate" and level.value == 0:
        raise PlanError("level 0/s: no arrivals are no load; to observe without load give level 0")
    if level.kind == "concurrency" and fd_limit is not None and level.value > fd_limit - SPARE_FDS:
        raise PlanError(
            f"level {level}: one process may open {fd_limit} files here (ulimit -Hn), and each request in flight "
            f"needs one; give at most {max(fd_limit - SPARE_FDS, 0)} or raise the limit"
        )
    return level


def _refuse_twice(levels: Sequence[Level]) -> None:
    for level in levels:
        if levels.count(level) > 1:
            raise PlanError(f"level {level} is given twice; to repeat the whole sweep use --cycles")
