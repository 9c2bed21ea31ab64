"""Level table -> where throughput stopped growing, and latency targets that this run's own numbers propose. Pure.

Growth from one level to the next is measured in what the step up could have given: from 4 to 8 requests in flight,
100 % more. Throughput has stopped where the 95 % bounds of both rates leave less than a quarter of that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sweep.finding import Facts
from sweep.latency import LATENCIES
from sweep.level_table import LevelRow, latency_slos
from sweep.stats import Value
from sweep.wording import number

# Of what a step up could give. A gateway with free slots gives nearly all of it, one without gives none; between them
# rates of a few hundred requests, known to some 7 %, still tell a quarter of a doubling from nothing.
STALLED = 0.25
HEADROOM = 1.25  # between what was measured and a proposed limit
_SHOWN = (("stream", LATENCIES[0]), ("nonstream", "e2e_ms"), ("user", LATENCIES[0]))
_NAMES = {LATENCIES[0]: "TTFT", "e2e_ms": "E2E"}


def knee(facts: Facts) -> dict[str, Any] | None:
    """result.json's `knee`; None when no level has a rate.

    text: what the first level that stopped growing gave over the one below it ("level 8 gives 3 % more tokens/s than
    4 for 1.9 × the TTFT"), or that it was still growing; None with fewer than two levels to compare. proposed_slo:
    `proposed_slos` as options of a shell, or None.
    """
    text, proposed = _text(facts), " ".join(f"--slo '{slo}'" for slo in proposed_slos(facts))
    return {"text": text, "proposed_slo": proposed or None} if text or proposed else None


def proposed_slos(facts: Facts) -> list[str]:
    """What --slo could be given, from the sustained level's own p95 with a quarter of headroom; none when one was."""
    if latency_slos(facts.plan):
        return []
    level = facts.plan.sustained
    proposed = []
    for mode, metric in _SHOWN[:2]:
        row = facts.usable(level, mode)
        value = None if row is None else row.latencies.get(metric, {}).get("p95")
        if value is None:
            continue
        edge = value.hi if value.hi is not None else value.v
        if edge is not None and math.isfinite(edge) and edge > 0 and not value.at_least:
            proposed.append(f"{mode}.{metric}.p95<={_round_up(edge * HEADROOM):.12g}@{level}")
    return proposed


def _text(facts: Facts) -> str | None:
    for mode, metric in _SHOWN:
        rows = _rows(facts, mode)
        if len(rows) < 2:
            continue
        rates, unit = _rates(rows)
        for place in range(1, len(rows)):
            if _has_stalled(rows[place - 1 : place + 1], rates[place - 1 : place + 1]):
                return _step_up(rows[place - 1 : place + 1], rates[place - 1 : place + 1], unit, metric)
        last = _step_up(rows[-2:], rates[-2:], unit, metric)
        return f"throughput still grew at the highest level tried: {last}" if _grew(rows[-2:], rates[-2:]) else (
            f"where throughput stops growing is not clear: {last}"
        )  # fmt: skip
    return None


def _rows(facts: Facts, mode: str) -> list[LevelRow]:
    """Levels of the sustained level's kind whose rate is known, ascending, up to the first that cannot be judged."""
    kind = facts.plan.sustained.kind
    levels = sorted({level for level, at in facts.planned if level.kind == kind and level.value > 0 and at == mode},
                    key=lambda level: level.value)  # fmt: skip
    rows: list[LevelRow] = []
    for level in levels:
        row = facts.usable(level, mode)
        if row is None or not row.request_rate.v:
            break
        rows.append(row)
    return rows


def _rates(rows: Sequence[LevelRow]) -> tuple[list[Value], str]:
    """Tokens per second where every level has them, else requests per second; never one beside the other."""
    if all(row.tokens.value.v for row in rows) and len({row.tokens.source for row in rows}) == 1:
        return [row.tokens.value for row in rows], "tokens/s"
    return [row.request_rate for row in rows], "requests/s"


def _has_stalled(rows: Sequence[LevelRow], rates: Sequence[Value]) -> bool:
    """Whether the most that the bounds allow is still less than STALLED of what the step up could give."""
    before, after = rates
    if before.lo is None or after.hi is None or not before.lo > 0:
        return False
    return after.hi / before.lo - 1 < STALLED * _could_give(rows)


def _grew(rows: Sequence[LevelRow], rates: Sequence[Value]) -> bool:
    """Whether the least that the bounds allow is still more than that."""
    before, after = rates
    if before.hi is None or after.lo is None or not before.hi > 0:
        return False
    return after.lo / before.hi - 1 > STALLED * _could_give(rows)


def _could_give(rows: Sequence[LevelRow]) -> float:
    return float(rows[1].level.value) / float(rows[0].level.value) - 1


def _step_up(rows: Sequence[LevelRow], rates: Sequence[Value], unit: str, metric: str) -> str:
    before, after = (rate.v for rate in rates)
    assert before and after  # rows without a rate were left out
    change = after / before - 1
    more = f"{number(abs(change), 'ratio', 0)} {'more' if change >= 0 else 'fewer'}"
    longer = [row.latencies.get(metric, {}).get("p95") for row in rows]
    cost = ""
    v = [None if value is None or value.at_least else value.v for value in longer]
    if v[0] and v[1] and math.isfinite(v[0]) and math.isfinite(v[1]):
        cost = f" for {v[1] / v[0]:.1f} × the {_NAMES[metric]} (p95)"
    return f"level {rows[1].level} gives {more} {unit} than {rows[0].level}{cost}"


def _round_up(value: float) -> float:
    """Up to two significant digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(math.ceil(value / step) * step, 6)
