"""Evidence of several targets driven in turns -> what each of the others did, and how the first one compares. Pure.

Gives result.json's `beside`. It compares and gates nothing: the verdict is about the first target alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sweep import beside_evidence, run_table
from sweep.beside_plan import plan_beside
from sweep.errors import EvidenceError
from sweep.evidence import Evidence
from sweep.finding import Facts, level_json
from sweep.left_behind import left_beside
from sweep.level_table import LevelRow, level_rows
from sweep.paired import MIN_PAIRS, Compared, compare, few_pairs
from sweep.plan import SweepPlan
from sweep.plan_steps import steps
from sweep.process_table import Amount, subject_of
from sweep.step_table import StepRow, step_rows, step_table
from sweep.units import Level
from sweep.windows import Ints, ints, planned_modes, planned_steps, sets, step_times

LENGTH_TOLERANCE = 0.05  # medians of output tokens further apart: answers of another length take another time


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a block that is compared. by_length: it also depends on how long the answers are."""

    name: str
    title: str
    unit: str
    of: Callable[[LevelRow], Any]
    by_length: bool = False


class _Block(NamedTuple):
    """One block of one target: its numbers, and the server's token counts of its good answers."""

    row: LevelRow
    n_out: Ints
    sources: frozenset[str]


_Key = tuple[Level, str, int, int]  # level, mode, cycle, block


def check_steps(ev: Evidence, plan: SweepPlan) -> None:
    """Raises EvidenceError when run.json's blocks are not those of its plan: one left out would not be missed."""
    planned = {str(each.get("step")) for each in ev.run.get("steps") or []}
    if plan.beside and planned != {step.id for step in steps(plan)}:
        raise EvidenceError("run.json: its steps are not those of its plan; the file was changed or damaged")


def beside_json(ev: Evidence, plan: SweepPlan, facts: Facts) -> list[dict[str, Any]] | None:
    """One entry a target beside the first one, in the plan's order; None for a run of one target.

    ev: of all targets. facts: of the first.
    """
    if not plan.beside:
        return None
    first = _blocks(beside_evidence.part(ev, None), plan, facts.steps)
    return [_target(ev, plan, name, first, facts) for name in plan.beside]


def _target(
    ev: Evidence, plan: SweepPlan, name: str, first: Mapping[_Key, _Block], facts: Facts
) -> dict[str, Any]:
    its, its_plan = beside_evidence.part(ev, name), plan_beside(plan, name)
    times = step_times(its)
    in_sets = sets(its, times)
    rows = step_rows(its, times, in_sets)
    planned = tuple((each["step"], each["level"], each["mode"]) for each in planned_steps(its))
    blocks = _blocks(its, its_plan, rows)
    told = (ev.run.get("beside") or {}).get(name) or {}
    subject = subject_of(its)
    modes = planned_modes(its, planned)
    entry = {
        "name": name, "url": its_plan.target, "api": its_plan.api, "model": told.get("model") or its_plan.model,
        "gateway": None if subject is None else {"pid": subject["pid"], "ownership": subject.get("ownership")},
        "survival": run_table.survival(its, times).as_json(),
        "guards": [trip.reason for trip in run_table.guard_trips(its, times)],
        "not_run": [step for step, *_ in planned if step not in {each.step for each in times}],
        "levels": [row.as_json() for row in level_rows(its, its_plan, rows, in_sets, modes)],
        "steps": step_table(its, rows),
        "pairs": [_pairs(level, mode, first, blocks) for level, mode in modes],
        "left_behind": left_beside(its, its_plan, name),
    }  # fmt: skip
    return entry | {"text": _text(entry, facts)}


def _blocks(ev: Evidence, plan: SweepPlan, rows: Sequence[StepRow]) -> dict[_Key, _Block]:
    """Each block that began, by what it has in common with its partner."""
    block_of = {each["step"]: int(each["block"]) for each in planned_steps(ev)}
    found = {}
    for row in rows:
        times = row.times
        alone = replace(ev, requests=ev.requests[(ev.requests["step"] == times.step).to_numpy(dtype=bool)])
        in_sets = sets(alone, (times,))
        modes = planned_modes(alone, ((times.step, times.level, times.mode),))
        for each in level_rows(alone, plan, (row,), in_sets, modes):
            good = in_sets.offered & (in_sets.outcome == "ok")
            good &= alone.requests["stream"].to_numpy(dtype=bool) == (each.mode == "stream")
            n_out, known = ints(alone.requests["n_out"])
            sources = frozenset(map(str, alone.requests["token_source"][good].dropna().unique()))
            key = (times.level, each.mode, times.cycle, block_of[times.step])
            found[key] = _Block(each, n_out[good & known], sources)
    return found


def _pairs(level: Level, mode: str, first: Mapping[_Key, _Block], other: Mapping[_Key, _Block]) -> dict[str, Any]:
    """One level and mode, paired over its blocks."""
    keys = sorted({key for key in (*first, *other) if key[:2] == (level, mode)}, key=lambda key: key[2:])
    dropped, kept = [], []
    for key in keys:
        why = _dropped_why(first.get(key), other.get(key))
        if why is None:
            kept.append((first[key], other[key]))
        else:
            dropped.append({"cycle": key[2], "block": key[3], "why": why})
    length = _length(kept)
    return {
        "level": level_json(level), "mode": mode, "n_pairs": len(kept), "n_needed": MIN_PAIRS, "dropped": dropped,
        "output_tokens": length,
        "measures": [row for measure in MEASURES if (row := _measured(measure, kept, length["why"])) is not None],
    }  # fmt: skip


def _dropped_why(first: _Block | None, other: _Block | None) -> str | None:
    for whose, block in (("of the first target", first), ("of this one", other)):
        if block is None:
            return f"the block {whose} was not run"
        if not block.row.valid:
            return f"the block {whose} is invalid: {block.row.invalid_why}"
    return None


def _length(pairs: Sequence[tuple[_Block, _Block]]) -> dict[str, Any]:
    """Median output tokens of the good answers of each; why: what makes times of whole answers not comparable."""
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    medians = [_median([block.n_out for block in side]) for side in sides]
    sources = [frozenset[str]().union(*(block.sources for block in side)) for side in sides]
    first, other = medians
    why = None
    if first is None or other is None:
        why = "how long the answers are is not known"
    elif sources[0] != sources[1] or len(sources[0]) != 1:
        told = " against ".join(" and ".join(sorted(each)) for each in sources)
        why = f"output tokens are not counted alike: by {told}"
    elif abs(first - other) > LENGTH_TOLERANCE * max(first, other):
        why = f"answers are of another length: median {first:.0f} output tokens against {other:.0f}"
    return {"first": first, "other": other, "why": why}


def _median(parts: Sequence[Ints]) -> float | None:
    values = np.concatenate(parts) if parts else np.empty(0)
    return float(np.median(values)) if len(values) else None


def _measured(
    measure: Measure, pairs: Sequence[tuple[_Block, _Block]], length_why: str | None
) -> dict[str, Any] | None:
    """One row; None where neither target has such a number (TTFT without a stream)."""
    values = [(measure.of(first.row), measure.of(other.row)) for first, other in pairs]
    if values and all(value is None for pair in values for value in pair):
        return None
    compared = _compared(measure, values, length_why)
    return {
        "measure": measure.name, "title": measure.title, "unit": measure.unit, "ratio": compared.ratio.as_json(),
        "difference": compared.difference.as_json(), "shown": compared.shown,
    }  # fmt: skip


def _compared(measure: Measure, values: Sequence[tuple[Any, Any]], length_why: str | None) -> Compared:
    if len(values) < MIN_PAIRS:
        return Compared.unknown(few_pairs(len(values)), len(values))
    if measure.by_length and length_why is not None:
        return Compared.unknown(length_why, len(values))
    if len({value.source for pair in values for value in pair if isinstance(value, Amount) and value.source}) > 1:
        return Compared.unknown("memory was read in two ways (cgroup, sum of processes)", len(values))
    usable = [(first.v, other.v) for first, other in values if _is_known(first) and _is_known(other)]
    if len(usable) < MIN_PAIRS:
        whys = (value.why for pair in values for value in pair if value is not None and value.why is not None)
        why = next(whys, "in a block half of the requests failed or were cut")
        return Compared.unknown(f"{few_pairs(len(usable))}: {why}", len(usable))
    return compare(usable)


def _is_known(value: Any) -> bool:
    """A finite number; not one that is only known to be so large or larger."""
    known = value is not None and value.v is not None and math.isfinite(value.v)
    return known and not getattr(value, "at_least", False)


def _text(entry: Mapping[str, Any], facts: Facts) -> str:
    """The line of the first screen: of the sustained level, streamed if anything is."""
    name, survival = entry["name"], entry["survival"]
    if survival["same_process"] is False:
        return f"{name}: {survival['text']}"
    pairs = next((each for each in entry["pairs"] if each["level"] == level_json(facts.plan.sustained)), None)
    if pairs is None:
        return f"{name}: no block at level {facts.plan.sustained}"
    rows = {row["measure"]: row for row in pairs["measures"]}
    row = rows.get("ttft_ms") or rows.get("e2e_ms")
    where = f"at level {facts.plan.sustained} ({pairs['mode']})"
    if row is None or row["ratio"]["v"] is None:
        why = few_pairs(pairs["n_pairs"]) if row is None else row["ratio"]["why"]
        return f"{name}: not compared {where}: {why}"
    return f"{', '.join(_said(name, row, rows.get('request_rate_per_s')))} {where}"


def _said(name: str, row: Mapping[str, Any], rate: Mapping[str, Any] | None) -> Iterator[str]:
    title = str(row["title"]).removesuffix(" p50")
    if name == "direct":
        difference = row["difference"]
        yield f"direct: gateway overhead {title} {_signed(difference['v'])} ms {_range(difference, _signed)}"
        return
    yield f"against {name}: {title} ×{row['ratio']['v']:.3f} {_range(row['ratio'], '{:.3f}'.format)}"
    if rate is not None and rate["ratio"]["v"] is not None:
        yield f"requests/s ×{rate['ratio']['v']:.3f} {_range(rate['ratio'], '{:.3f}'.format)}"


def _signed(value: float) -> str:
    return f"{value:+.1f}" if abs(value) >= 1 else f"{value:+.2f}"


def _range(value: Mapping[str, Any], text: Callable[[float], str]) -> str:
    return f"[{text(value['lo'])}, {text(value['hi'])}]"


def _p50(metric: str) -> Callable[[LevelRow], Any]:
    return lambda row: (row.latencies.get(metric) or {}).get("p50")


# Medians: a p95 of one block's few requests is no number to compare; those of all blocks stand in the level tables.
MEASURES = (
    Measure("ttft_ms", "TTFT p50", "ms", _p50("ttft_ms")),
    Measure("tpot_ms", "TPOT p50", "ms", _p50("tpot_ms")),
    Measure("e2e_ms", "E2E p50", "ms", _p50("e2e_ms"), by_length=True),
    Measure("request_rate_per_s", "requests", "1/s", lambda row: row.request_rate, by_length=True),
    Measure("goodput", "goodput", "ratio", lambda row: row.goodput, by_length=True),
    Measure("cpu_ms_per_request", "CPU per request", "ms", lambda row: row.process.cpu_ms_per_request, by_length=True),
    Measure("memory_anon_bytes", "memory (anon)", "bytes", lambda row: row.process.memory_anon_bytes),
)
