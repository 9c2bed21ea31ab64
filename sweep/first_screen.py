"""The answer on one screen: result.json -> at most 15 lines of 80 columns, the same words everywhere. Pure.

Terminal, HTML and Markdown open with it. What has no room here stands whole in the report below; what is cut says so
with "…" or "and N more". The verdict is never cut: a long model name gives way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sweep import beside_view, wording
from sweep.errors import PlanError
from sweep.records import OUTCOME_MEANING
from sweep.screen_text import columns, fitted, shortened
from sweep.units import parse_level

Json = Mapping[str, Any]

WIDTH, MOST_LINES = 80, 15
LABEL = 10  # columns of the labels
LONGEST_NAME, LEAST_WORDS = 40, 12  # columns: of the name of a model or a run, and of what an error says
SHOWN_LEVELS = 8  # named by "explored"; more are counted
SHOWN_IDS = 3


class Fact(NamedTuple):
    """One fact of the screen: its label, and its paragraphs of lines, each line at most WIDTH - LABEL columns."""

    label: str
    paragraphs: list[list[str]]

    @property
    def lines(self) -> list[str]:
        return [line for paragraph in self.paragraphs for line in paragraph]

    @property
    def rows(self) -> list[str]:
        """The paragraphs unwrapped, for a page that wraps by itself."""
        return [" ".join(paragraph) for paragraph in self.paragraphs]


class Screen(NamedTuple):
    """verdict: the word and what it means; scope: of what, with the lines that both fill together; then the facts."""

    verdict: str
    scope: str
    head: list[str]
    facts: list[Fact]


class _Item(NamedTuple):
    """What a fact would say: its parts, how they are joined, and the most lines it may take. "\\n": a line each."""

    label: str
    parts: list[str]
    join: str
    most: int


def screen(result: Json) -> Screen:
    """The first screen of any result, also of one that was aborted or whose evidence is invalid."""
    word, scope = _verdict(result)
    (head,) = fitted([f"{word} {scope}"], " ", WIDTH, 3)
    items = [_Item(label, parts, join, most) for label, says, join, most in FACTS if (parts := _clean(says(result)))]
    room = MOST_LINES - len(head)
    sizes = _sizes(items, room)
    facts = [
        Fact(item.label, fitted(item.parts, item.join, WIDTH - LABEL, size))
        for item, size in zip(items, sizes, strict=True)
    ]
    return Screen(word, " ".join(head).removeprefix(word).strip(), head, facts)


def lines(result: Json) -> list[str]:
    """The screen as a terminal shows it: 1 to 15 lines, none wider than 80 columns, none empty."""
    shown = screen(result)
    return [*shown.head, *_labelled(shown.facts)]


def fact_lines(result: Json) -> list[str]:
    """The lines below the verdict."""
    return _labelled(screen(result).facts)


def _labelled(facts: Iterable[Fact]) -> list[str]:
    return [
        f"{fact.label if number == 0 else '':<{LABEL}}{line}"
        for fact in facts for number, line in enumerate(fact.lines)
    ]  # fmt: skip


def _sizes(items: Sequence[_Item], room: int) -> list[int]:
    """Lines for each item: what it wants, less what there is no room for, taken from the first of GIVE_WAY.

    A part that did not fit may leave a line over, which then goes to the last that gave way.
    """
    sizes = [_used(item, item.most) for item in items]
    for label, least in GIVE_WAY:
        for place, item in enumerate(items):
            while item.label == label and sizes[place] > least and sum(sizes) > room:
                sizes[place] -= 1
    for label, _ in reversed(GIVE_WAY):
        for place, item in enumerate(items):
            used = sum(map(_used, items, sizes))
            if item.label == label and used - _used(item, sizes[place]) + _used(item, sizes[place] + 1) <= room:
                sizes[place] = min(item.most, sizes[place] + 1)
    return sizes


def _used(item: _Item, size: int) -> int:
    return sum(map(len, fitted(item.parts, item.join, WIDTH - LABEL, min(size, item.most))))


def _clean(parts: Iterable[str | None]) -> list[str]:
    """Parts with something to say, on one line, with nothing in them that hides or reorders text."""
    shown = (" ".join(wording.visible(part).split()) for part in parts if part)
    return [part for part in shown if part]


def _verdict(result: Json) -> tuple[str, str]:
    word = wording.VERDICT_WORDS[result["verdict"]]
    scope = " ".join(wording.visible(str(result["scope"])).split())
    model = " ".join(wording.visible(str(result["target"]["model"] or "")).split())
    return word, scope.replace(model, shortened(model, LONGEST_NAME)) if model else scope


def _why(result: Json) -> list[str]:
    status, reason = result["run_status"], result["status_reason"]
    if status == "COMPLETE":
        return list(result["why"])
    told = f"{status}: {reason or 'no reason recorded'}"
    lines = [told if line == reason else line for line in result["why"]]
    return lines if told in lines else [told, *lines]


def _holds_to(result: Json) -> list[str | None]:
    above = [str(level) for level in result["target"]["levels"] if _is_above(level, result["sustain"])]
    more = f" and {len(above) - SHOWN_LEVELS} more" if len(above) > SHOWN_LEVELS else ""
    explored = ", ".join(above[:SHOWN_LEVELS]) + more
    default = "" if not result["sustain_default"] else None if result.get("search") else " by default"  # None: found
    knee, is_open = result["knee"], result["capacity"]["text"].startswith("not judged")
    return [
        knee["text"] if knee and is_open else None,  # with a target it stands in the report below
        _capacity(result), None if None in (result["sustain"], default) else f"wanted {result['sustain']}{default}",
        f"explored {explored}" if above else None,
    ]  # fmt: skip


def _capacity(result: Json) -> str:
    """Users who think, and those of an own locustfile, pause: how many are in flight at once is not the level."""
    if result.get("search") is not None:
        return str(result["search"]["text"])
    capacity = result["capacity"]
    held, failed = capacity["level"], capacity.get("failed_at")
    target = result["target"]
    pauses = bool(target.get("locustfile") or target.get("think_time_s")) and not str(held).endswith("/s")
    most = None if held is None else f"{held} users" if pauses else wording.level_name(held)
    if failed is not None:
        return f"{most or 'no level held'}; {failed} failed ({str(capacity['stopped_by']).removeprefix('slo ')})"
    return str(capacity["text"]) if most is None else f"at least {most}; no level above failed"


def _is_above(level: object, sustained: object) -> bool:
    try:
        one, other = parse_level(str(level)), parse_level(str(sustained))
    except PlanError:
        return False
    return one.kind == other.kind and one.value > other.value


def _gateway(result: Json) -> list[str | None]:
    subject, gateway = result["subject"], result["target"]["gateway"]
    build = "build unknown" if not subject or not subject["text"] else str(subject["text"])
    health = [] if _is_invalid(result) else [_answering(result, "live"), _answering(result, "ready")]
    unverified = "certificate not verified" if result["target"].get("insecure") else None
    if gateway is None:
        return [build, "client side only (no --gateway-pid)", unverified, *health]
    n = (result["sampler"] or {}).get("n_processes")
    tree = "" if n is None else f", {n} process{'' if n == 1 else 'es'}"
    return [
        build, f"pid {gateway['pid']} ({gateway['comm'] or 'name unknown'}, {gateway['ownership']}){tree}",
        _restarts(result["survival"]), unverified, *health,
    ]  # fmt: skip


def _is_invalid(result: Json) -> bool:
    return bool(result["run_status"] == "INVALID")


def _restarts(survival: Json) -> str | None:
    if not survival["tested"]:
        return None
    return {True: "0 restarts", False: str(survival["text"]), None: "restarts unknown"}[survival["same_process"]]


def _answering(result: Json, what: str) -> str:
    probes = (result["health"] or {}).get(what)
    if not probes or not probes["n"]:
        return f"{what} not probed"
    share = wording.beside({"v": 1 - probes["missed"] / probes["n"]}, 1, "ratio").v  # one miss is no 100 %
    return f"{what} {'100 %' if not probes['missed'] else share} of {probes['n']}"


def _memory(result: Json) -> list[str | None]:
    floors = [floor for floor in result["floors"] if floor["memory_bytes"] is not None]
    if _is_invalid(result) or (not result["floors"] and result["target"]["gateway"] is None):
        return []
    peaks = [row["memory_anon_bytes"]["max"] for row in result["levels"] if row["memory_anon_bytes"]["max"] is not None]
    idle = " → ".join(wording.number(floor["memory_bytes"], "bytes") for floor in floors[:4])
    limits = [floor["limit_bytes"] for floor in result["floors"] if floor.get("limit_bytes") is not None]
    return [
        f"idle {idle} after cycle {', '.join(str(floor['cycle']) for floor in floors[:4])}" if floors
        else "idle floor unknown",
        f"highest {wording.number(max(peaks), 'bytes')}" if peaks else "highest unknown",
        f"limit {wording.number(min(limits), 'bytes')}" if limits else "no limit known",
    ]  # fmt: skip


def _numbers(result: Json) -> list[str | None]:
    steps = result["steps"]
    if not steps:
        return [wording.NOT_READ if _is_invalid(result) else "no step ran"]
    shares = [row["generator"]["cpu_share_max"] for row in result["levels"] if row["generator"]]
    known = [share for share in shares if share is not None]
    lines, started = sum(step["lines"] for step in steps), [step["started"] for step in steps]
    invalid = [step["step"] for step in steps if not step["valid"]]
    sampler = result["sampler"]
    holes = len(sampler["holes"]) if sampler else 0
    if None in started:
        counts = f"{lines:,} records, requests unknown for {started.count(None)} of {len(steps)} steps"
    else:
        counts = f"{lines:,} records " + ("= requests" if sum(started) == lines else f"≠ {sum(started):,} requests")
    return [
        f"{len(invalid)} of {len(steps)} steps invalid ({_first(invalid)})" if invalid else None,
        f"generator {wording.number(max(known), 'ratio')} of a core" if known else "generator unknown",
        counts,
        (f"{sampler['n_samples']:,} samples" + (f", {holes} hole{'' if holes == 1 else 's'}" if holes else ""))
        if sampler else "no samples",
        None if not result["others"] else result["others"]["text"],
    ]  # fmt: skip


def _first(steps: Sequence[str]) -> str:
    return steps[0] + ("" if len(steps) == 1 else " first")


def _left_out(result: Json) -> list[str]:
    return list(result["not_tested"]) or ["nothing: every gate was exercised"]


def _errors(result: Json) -> list[str]:
    rows = result["errors"]
    if not rows:
        return ["none"] if result["steps"] else []
    ids = [f"id {each}" for each in rows[0]["request_ids"][:SHOWN_IDS]]
    return [_error(rows[0]), *ids, *(_error(row) for row in rows[1:])]


def _error(row: Json) -> str:
    """`7 truncated (the answer ended before its terminal marker)`; the server's own words where it has some."""
    status = "" if row["status"] in (None, 200) else f" {row['status']}"
    told = OUTCOME_MEANING.get(row["outcome"], "") if row["status"] in (None, 200) else row["text"]
    code = f" {row['error_code']}" if row["error_code"] else ""
    what = f"{wording.number(row['count'])} {row['outcome']}{status}{code}"
    # One line with what follows it: the other lines are for request ids.
    room = max(LEAST_WORDS, WIDTH - LABEL - columns(f"{what} () ·"))
    ((words,),) = fitted([" ".join(wording.visible(str(told or "")).split())], " ", room, 1)
    return what + (f" ({words})" if words else "")


def _next(result: Json) -> list[str | None]:
    return [result["next_text"], "(command below)" if result["next"] else None]


def _report(result: Json) -> list[str]:
    run = shortened(" ".join(wording.visible(str(result["run"] or "unknown")).split()), LONGEST_NAME)
    return [f"report.html in the folder of run {run}"]


# label, what it says, how its parts are joined, the most lines; in reading order
FACTS: tuple[tuple[str, Callable[[Json], Sequence[str | None]], str, int], ...] = (
    ("why", _why, "\n", 4),
    ("holds to", _holds_to, " · ", 4),
    ("gateway", _gateway, " · ", 5),
    ("beside", beside_view.lines, " · ", 3),
    ("memory", _memory, " · ", 2),
    ("numbers", _numbers, " · ", 4),
    ("left out", _left_out, ", ", 2),
    ("errors", _errors, " · ", 4),
    ("next", _next, " ", 3),
    ("report", _report, " ", 1),
)
LABELS = tuple(label for label, *_ in FACTS)
# Who gives up lines, and down to how many, while there are too many; the last rows make room for anything.
GIVE_WAY = (
    ("left out", 1), ("errors", 3), ("numbers", 3), ("gateway", 3), ("errors", 2), ("gateway", 2), ("holds to", 2),
    ("beside", 2), ("memory", 1), ("why", 3), ("numbers", 1), ("gateway", 1), ("why", 2), ("errors", 1),
    ("holds to", 1), ("next", 2), ("beside", 1),
)  # fmt: skip
