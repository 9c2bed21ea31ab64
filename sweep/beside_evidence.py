"""The evidence of a run of several targets -> that of one of them alone, as if it had been the only one. Pure.

So every table and gate speaks of one target without knowing that there were others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from sweep.evidence import Evidence
from sweep.records import PREFLIGHT

_OF_THE_RUN = ("abort", "finish")  # marks that are about all targets, whichever had its turn


def part_of_run(run: Mapping[str, Any], target: str | None) -> dict[str, Any]:
    """run.json with the steps and subjects of one target; None: the first."""
    steps = [step for step in run.get("steps") or [] if step.get("target") == target]
    return {**run, "steps": steps, "subjects": subjects_of(run, target)}


def subjects_of(run: Mapping[str, Any], target: str | None) -> list[dict[str, Any]]:
    """The processes behind one target."""
    return [subject for subject in run.get("subjects") or [] if subject.get("target") == target]


def part(ev: Evidence, target: str | None) -> Evidence:
    """What is about one target; None: the first, and whatever is of no step at all. A run of one target is its part.

    Records of its preflight say `preflight`, whichever target it is.
    """
    if not any(step.get("block") for step in ev.run.get("steps") or []):
        return ev
    run = part_of_run(ev.run, target)
    preflight = PREFLIGHT if target is None else f"{PREFLIGHT}.{target}"
    mine = {str(step["step"]) for step in run["steps"]}
    strange = {str(step["step"]) for step in ev.run.get("steps") or []} - mine
    names = {str(subject["name"]) for subject in run["subjects"]}
    others = {str(subject["name"]) for subject in ev.run.get("subjects") or []} - names
    sent = {str(step) for step in ev.requests["step"].dropna().unique()}
    foreign = strange | {step for step in sent if step.startswith(PREFLIGHT) and step != preflight}
    requests = _rows(ev.requests, "step", sent - foreign if target is None else mine | {preflight})
    if target is not None:
        requests = requests.assign(step=requests["step"].replace({preflight: PREFLIGHT}))
        ev = replace(ev, health=ev.health.iloc[:0], connections=ev.connections.iloc[:0])  # nobody looked at it
    return replace(
        ev,
        run=run,
        marks=[mark for mark in ev.marks if mark.step not in strange or mark.mark in _OF_THE_RUN],
        requests=requests,
        generator=_rows(ev.generator, "step", mine),
        sampler_starts=[line for line in ev.sampler_starts if line.get("subject") not in others],
        sampler_ends=[line for line in ev.sampler_ends if line.get("subject") not in others],
        samples=ev.samples[~ev.samples["subject"].isin(others).to_numpy(dtype=bool)],
        processes=ev.processes[~ev.processes["subject"].isin(others).to_numpy(dtype=bool)],
        step_files={step: content for step, content in ev.step_files.items() if step not in strange},
        snapshots={mark: content for mark, content in ev.snapshots.items() if mark.rpartition(".")[0] not in strange},
    )


def _rows(frame: pd.DataFrame, column: str, values: set[str]) -> pd.DataFrame:
    kept: pd.DataFrame = frame[frame[column].isin(values).to_numpy(dtype=bool)].reset_index(drop=True)
    return kept
