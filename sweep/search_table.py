"""Evidence of a run with --levels auto -> the levels it tried, in run.json's shape, and the plan they make. Pure.

run.json was written before the load and holds the first level's steps. Each later step stands in its begin mark, each
level's answer in the idle mark of its last step. The search is run again over those answers (`search`): a step that it
asks for and that is missing, or one that it does not ask for, is damage, and never passes unseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from sweep import search
from sweep.errors import EvidenceError, PlanError
from sweep.evidence import Evidence
from sweep.plan import SweepPlan
from sweep.plan_steps import least_requests
from sweep.records import KEY_REFUSED, PREFLIGHT, Mark
from sweep.search import Answer, Ended, Tried
from sweep.units import Level, parse_level

_DAMAGED = "the file was changed or damaged"


@dataclass(frozen=True, slots=True)
class Search:
    """What a search tried, in order; ended: None when the run ended before it. was_given: by --sustain.

    leak_cycles: that followed; leak_cycles_asked: by --leak-cycles, for not all of which there may have been room.
    """

    tried: tuple[Tried, ...]
    ended: Ended | None
    leak_cycles: int
    was_given: bool
    leak_cycles_asked: int


def completed(ev: Evidence, plan: SweepPlan) -> tuple[Evidence, SweepPlan, Search | None]:
    """(the evidence with every step in run.json's `steps`, the plan with the levels tried, the search).

    Of a plan with given levels all is as it was. Raises EvidenceError when marks and search do not fit together.
    """
    if not plan.is_auto:
        return ev, plan, None
    first = list(ev.run.get("steps", []))
    added = [mark.detail["planned"] for mark in ev.marks if mark.mark == "begin" and "planned" in mark.detail]
    rows = first + added
    found = Search(
        *_answers(ev.marks), was_given=plan.sustain is not None, leak_cycles_asked=plan.leak_cycles
    )  # fmt: skip
    is_whole = any(mark.mark == "finish" for mark in ev.marks) and not any(mark.mark == "abort" for mark in ev.marks)
    _check_rows(plan, found, rows, is_whole=is_whole)
    _check_strangers(ev, rows)
    _check_outside(ev, plan, found)
    tried = found.tried or (Tried(plan.levels[0], "undecided", "the run ended in it"),)
    levels = {each.level for each in tried} | {parse_level(str(row["level"])) for row in rows}
    plan = replace(
        plan, levels=tuple(sorted(levels, key=lambda level: level.value)), sustain=search.found(tried, plan.sustain),
        leak_cycles=found.leak_cycles,
    )  # fmt: skip
    return replace(ev, run={**ev.run, "steps": rows}), plan, found


def _answers(marks: Sequence[Mark]) -> tuple[tuple[Tried, ...], Ended | None, int]:
    """(levels with their answers, why it ended, leak cycles that were to follow), as the run told them."""
    tried: list[Tried] = []
    ended: Ended | None = None
    n_cycles = 0
    for mark in marks:
        told = mark.detail.get("search")
        if mark.mark != "idle" or told is None:
            continue
        try:
            if told["answer"] not in get_args(Answer) or told["ended"] not in (None, *get_args(Ended)) or ended:
                raise ValueError(f"answer {told['answer']!r}, ended {told['ended']!r}")
            tried.append(Tried(parse_level(str(told["level"])), told["answer"], str(told["why"])))
            ended, n_cycles = told["ended"], int(told.get("leak_cycles", 0))
        except (KeyError, TypeError, ValueError, PlanError) as error:
            raise EvidenceError(f"marks.jsonl: the search at {mark.step}: {error!r}; {_DAMAGED}") from error
    return tuple(tried), ended, n_cycles


def _check_rows(plan: SweepPlan, found: Search, rows: Sequence[Mapping[str, Any]], *, is_whole: bool) -> None:
    """Raises EvidenceError unless the steps are those that the search asks for by its answers.

    is_whole: the run came to its end, so that no step may be missing; else the last ones may.
    """
    try:
        there = [(parse_level(str(row["level"])), str(row["mode"]), int(row["cycle"])) for row in rows]
    except (KeyError, TypeError, ValueError, PlanError) as error:
        raise EvidenceError(f"marks.jsonl: a step cannot be read: {error!r}; {_DAMAGED}") from error
    asked = list(_asked(plan, found))
    if there != asked[: len(there)] or (is_whole and (len(there) < len(asked) or found.ended is None)):
        raise EvidenceError(
            "marks.jsonl: its steps are not those that --levels auto asks for by their answers; a step was taken out "
            "or put in"
        )


def _asked(plan: SweepPlan, found: Search) -> Iterator[tuple[Level, str, int]]:
    """(level, mode, cycle) of each step. Raises EvidenceError where an answer is of a level that was not asked for."""
    highest = plan.auto_max or search.HIGHEST
    for n_tried in range(len(found.tried) + 1):
        following = search.following(found.tried[:n_tried], plan.levels[0], highest, plan.auto_steps)
        if n_tried == len(found.tried):
            _check_end(found, following)
        elif following != found.tried[n_tried].level:
            raise EvidenceError(f"marks.jsonl: level {found.tried[n_tried].level} was not the one to try; {_DAMAGED}")
        if isinstance(following, Level) and not (n_tried == len(found.tried) and found.ended):
            yield from ((following, mode, 1) for mode in plan.modes)
    if found.tried:
        level = search.found(found.tried, plan.sustain)
        for cycle in range(2, found.leak_cycles + 2):
            yield from ((level, mode, cycle) for mode in plan.modes)


def _check_end(found: Search, following: Level | Ended) -> None:
    """What ended the search is what its answers say, unless it came from outside them."""
    is_over = not isinstance(following, Level)
    if found.ended is not None and found.ended not in search.OUTSIDE and found.ended != following:
        raise EvidenceError(f"marks.jsonl: the search ended ({found.ended}) before it was over; {_DAMAGED}")
    if found.ended is None and is_over and found.tried:
        raise EvidenceError(f"marks.jsonl: the search was over ({following}) and does not say so; {_DAMAGED}")


def _check_outside(ev: Evidence, plan: SweepPlan, found: Search) -> None:
    """A search that says time, caps or key ended it, by what the evidence shows of them. Raises EvidenceError."""
    highest = plan.auto_max or search.HIGHEST
    following = search.following(found.tried, plan.levels[0], highest, plan.auto_steps)
    if found.ended not in search.OUTSIDE or not isinstance(following, Level):
        return
    sent = ev.requests[(ev.requests["step"] != PREFLIGHT).to_numpy(dtype=bool)]
    if found.ended == "time":
        last = max(mark.t_mono_ns for mark in ev.marks)
        used_s = (last - min(mark.t_mono_ns for mark in ev.marks)) / 1e9
        is_so = used_s + len(plan.modes) * (plan.warmup_s + plan.duration_s + plan.cooldown_s) > plan.max_time_s
    elif found.ended == "caps":
        left = min(plan.max_requests, plan.max_output_tokens // plan.max_tokens) - len(sent)
        is_so = left < least_requests(plan, following)
    else:
        is_so = bool(sent["status"].isin(KEY_REFUSED).any())
    if not is_so:
        raise EvidenceError(f"marks.jsonl: the search did not end by its {found.ended}; {_DAMAGED}")


def _check_strangers(ev: Evidence, rows: Sequence[Mapping[str, Any]]) -> None:
    """Evidence of a step that no mark speaks of: its marks were taken out."""
    known = {str(row.get("step")) for row in rows} | {PREFLIGHT}
    there = {*ev.step_files, *ev.requests["step"].dropna().unique(), *ev.generator["step"].dropna().unique()}
    strangers = sorted(there - known)
    if strangers:
        raise EvidenceError(f"evidence of {strangers[0]}, which no begin mark speaks of; a mark was taken out")
