"""The search of `--levels auto`: which level is tried next, from what the levels before gave. Pure.

Doubling from the first level up to the highest allowed one; from the first level that is not met on, halving between
the highest that was met and the lowest that was not, until they lie within a tenth of each other.
A level that could not be decided counts as not met: it was not shown to hold. A level whose step was invalid (the
generator late, counts that disagree) says nothing about the target, and ends the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from sweep.units import Level

FIRST = Level(1)
HIGHEST = Level(256)
CLOSE = 0.1  # of the lower end of a bracket: nearer levels cannot be told apart by a few hundred requests

Answer = Literal["met", "not met", "undecided", "invalid"]
# bracketed: met below, not met above · highest: --auto-max was met · levels: --auto-steps are used up · invalid: see
# above · time, caps, api_key: --max-time, --max-requests or --max-output-tokens, or a key that expired, left no room.
Ended = Literal["bracketed", "highest", "levels", "invalid", "time", "caps", "api_key"]
OUTSIDE: tuple[Ended, ...] = ("time", "caps", "api_key")  # what the answers alone do not tell


class Tried(NamedTuple):
    """One level, and whether every SLO was met there; why: what decided that."""

    level: Level
    answer: Answer
    why: str


def following(tried: Sequence[Tried], first: Level, highest: Level, n_levels: int) -> Level | Ended:
    """The level to try after these, or why there is none. n_levels: that may be tried in all."""
    if not tried:
        return first
    if tried[-1].answer == "invalid":
        return "invalid"
    good, bad = met(tried), not_met(tried)
    low = 0 if good is None else int(good.value)
    if bad is None and low >= highest.value:
        return "highest"
    if bad is not None and bad.value - low <= max(1, low * CLOSE):
        return "bracketed"
    if len(tried) >= n_levels:
        return "levels"
    return Level(min(low * 2, int(highest.value)) if bad is None else (low + int(bad.value)) // 2)


def met(tried: Sequence[Tried]) -> Level | None:
    """The highest level that met every SLO."""
    return max((each.level for each in tried if each.answer == "met"), key=lambda level: level.value, default=None)


def not_met(tried: Sequence[Tried]) -> Level | None:
    """The lowest level that was not shown to."""
    levels = (each.level for each in tried if each.answer in ("not met", "undecided"))
    return min(levels, key=lambda level: level.value, default=None)


def found(tried: Sequence[Tried], wanted: Level | None) -> Level:
    """The sustained level of a search: the one production needs, else the highest that was met, else the lowest tried.

    tried: at least one.
    """
    lowest = min((each.level for each in tried), key=lambda level: level.value)
    return wanted or met(tried) or lowest
