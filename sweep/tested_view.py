"""What was run, in full: result.json -> the facts of the report that the first screen shortens. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sweep import wording

Json = Mapping[str, Any]


class Fact(NamedTuple):
    """What it answers, and the answer in one or more sentences."""

    label: str
    lines: list[str]


def facts(result: Json) -> list[Fact]:
    """In reading order. Never empty lines."""
    knee = result["knee"]
    found = [
        Fact("Verdict", [result["sentence"]]),
        Fact("Holds to", _holds_to(result)),
        Fact("Growth", [knee["text"]] if knee and knee["text"] else []),
        Fact("Proposed", [f"{knee['proposed_slo']} (computed from this run: the upper bound of p95, and a quarter)"]
             if knee and knee["proposed_slo"] else []),
        Fact("Tested", _tested(result)),
        Fact("Survived", [_survived(result["survival"])]),
        Fact("Trust", _trust(result)),
    ]  # fmt: skip
    return [fact for fact in found if fact.lines]


def _holds_to(result: Json) -> list[str]:
    lines = [result["capacity"]["text"].removeprefix("capacity: ")]
    search = result.get("search")
    if search is not None:
        lines.insert(0, f"Search (--levels auto): {search['text']}.")
    if result["sustain"] is not None:
        default = "the default, the highest level" if search is None else "found by the search"
        why = default if result["sustain_default"] else "asked for"
        lines.append(f"Sustained level: {wording.level_name(result['sustain'])} ({why}).")
    return lines


def _tested(result: Json) -> list[str]:
    target = result["target"]
    levels = ", ".join(str(level) for level in target["levels"])
    lines = [
        f"{target['api']}, model {target['model'] or 'unknown'}, at {target['url']}" if target["api"] else
        f"no API was asked at {target['url']}",
        f"levels {levels}; {', '.join(target['modes'])}; "
        f"from {target['started_at'] or 'unknown'} for {wording.duration(target['duration_s'])}",
    ]
    gateway = target["gateway"]
    if target.get("prefix_caches"):
        lines.append(f"prefix caches: {target['prefix_caches']}")
    if target.get("prompts"):
        sent = target["prompts"]
        lines.append(f"{sent['count']:,} prompts of {sent['path']}, sha256 {sent['sha256']}")
    if target.get("insecure"):
        lines.append("its certificate was not verified (--insecure)")
    if gateway is None:
        lines.append("client side only: no gateway process was watched")
    else:
        lines.append(f"gateway pid {gateway['pid']} ({gateway['comm']}), ownership {gateway['ownership']}")
        if gateway["declared"]:
            lines.append(f"declared build: {gateway['declared']}")
    subject = result["subject"]
    if subject and subject["text"]:
        lines.append(subject["text"])
    lines += [f"{name}: {value}" for name, value in result["labels"].items()]
    if target["acknowledged"]:
        lines.append(f"load acknowledged by {target['acknowledged']}")
    return lines


def _survived(survival: Json) -> str:
    word = {True: "yes: ", False: "no: ", None: ""}[survival["same_process"]]
    return word + str(survival["text"])


def _trust(result: Json) -> list[str]:
    if result["run_status"] == "INVALID":
        return [wording.NOT_READ]
    return [_counts_line(result["steps"]), _generator_line(result["levels"]), _sampler_line(result["sampler"])]


def _counts_line(steps: Sequence[Json]) -> str:
    if not steps:
        return "no step ran"
    invalid = [step["step"] for step in steps if not step["valid"]]
    unequal = [step["step"] for step in steps if step["started"] is not None and step["started"] != step["lines"]]
    untold = [step["step"] for step in steps if step["started"] is None]
    total = sum(step["lines"] for step in steps)
    if unequal:
        line = f"records ≠ requests started in {_names(unequal)}"
    elif untold:
        line = f"{total:,} records; whether any is missing is unknown for {_names(untold)}"
    else:
        line = f"{total:,} records = {total:,} requests started, over {len(steps)} steps"
    return line + (f"; invalid: {_names(invalid)}" if invalid else "")


def _names(steps: Sequence[str]) -> str:
    return ", ".join(steps[:4]) + (f" and {len(steps) - 4} more" if len(steps) > 4 else "")


def _generator_line(levels: Iterable[Json]) -> str:
    generators = [row["generator"] for row in levels if row["generator"]]
    shares = [g["cpu_share_max"] for g in generators if g["cpu_share_max"] is not None]
    lags = [g["lag_p99_ms_max"] for g in generators if g["lag_p99_ms_max"] is not None]
    if not shares:
        return "load generator: unknown, it left no lines"
    lag = wording.number(max(lags), "ms") if lags else "unknown"
    share = wording.number(max(shares), "ratio")
    return f"load generator: in its worst second {share} of a core, timer p99 late by {lag}"


def _sampler_line(sampler: Json | None) -> str:
    if sampler is None:
        return "sampler: none, so nothing is known of the gateway's process"
    holes = len(sampler["holes"])
    return f"sampler: {sampler['n_samples']:,} samples, {holes or 'no'} hole{'' if holes == 1 else 's'}"
