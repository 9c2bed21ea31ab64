"""Tables that the HTML report and the Markdown summary both show: result.json -> ready text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sweep import wording
from sweep.records import OUTCOME_MEANING, OUTCOMES

Json = Mapping[str, Any]

METRICS = (
    ("ttft_ms", "Time to first token (TTFT)"),
    ("ttfa_ms", "Time to first answer token (TTFA)"),
    ("tpot_ms", "Time per output token (TPOT)"),
    ("gap_ms", "Gap between reads that carried tokens"),
    ("e2e_ms", "End to end (E2E)"),
)
STATS = ("p50", "p95", "p99")


class Cell(NamedTuple):
    """One table cell: text, a smaller second line, the value as in result.json, and the number of its footnote."""

    text: str
    small: str = ""
    raw: object = None
    note: int | None = None
    is_number: bool = True


class Table(NamedTuple):
    """A table of ready text; a row's first cell names the row; `notes` are footnotes, from 1."""

    title: str
    heads: list[str]
    rows: list[list[Cell]]
    notes: list[str]
    about: str = ""


class Drawing(NamedTuple):
    """One plot of the report: its SVG, or None and what stands in its place. section: the id of its section."""

    name: str
    section: str
    svg: str | None
    absent: str


def absent(result: Json, text: str) -> str:
    """What stands where there is nothing to show; of evidence that cannot be trusted nothing was read."""
    return f"{wording.NOT_READ.capitalize()}." if result["run_status"] == "INVALID" else text


def errors(result: Json) -> list[Json]:
    """What went wrong, most frequent first; each row with the outcome's meaning."""
    return [row | {"meaning": OUTCOME_MEANING.get(row["outcome"], "")} for row in result["errors"]]


def span(error: Json) -> str:
    """`12.3–45.6 s`, since the start of the run."""
    first, last = error["first_at_s"], error["last_at_s"]
    return wording.MISSING if first is None else wording.interval(first, last, "s", places=1)


def hole(each: Json) -> str:
    """`300.0–312.0 s`: a stretch without a sample, since the start of the run."""
    return wording.interval(each["from_s"], each["to_s"], "s", places=1)


def request_table(result: Json) -> Table:
    """Offered, each outcome that occurred, and what share failed, per level and mode."""
    seen = [name for name in OUTCOMES if any(row["outcomes"].get(name) for row in result["levels"])]
    outcomes = [name for name in seen if name not in ("ok", "cut")]
    heads = ["level", "window", "offered", "ok", *outcomes, "cut", "error ratio", "shed ratio"]
    table = Table("Requests", heads, [], [], "Offered: started in the window, less those the step's end cut.")
    for row in result["levels"]:
        table.rows.append([
            _row_head(row, table.notes), plain(row["window_s"], "s", table.notes), _count(row["offered"]),
            _count(row["ok"]), *(_count(row["outcomes"].get(name, 0)) for name in outcomes), _count(row["cut"]),
            judged(row["error_ratio"], "ratio", table.notes), judged(row["shed_ratio"], "ratio", table.notes),
        ])  # fmt: skip
    return table


def rate_table(result: Json) -> Table:
    """Throughput, goodput and the health of the load generator, per level and mode."""
    heads = ["level", "requests", "output tokens", "in flight", "goodput", "generator CPU", "generator lateness",
             "users"]  # fmt: skip
    about = "Completed, or arrived, in the window; in flight: mean over the window; generator: its worst second."
    table = Table("Throughput", heads, [], [], about)
    for row in result["levels"]:
        tokens = judged(row["token_rate_per_s"], "1/s", table.notes)
        source = f"by {row['token_source']}" if row["token_source"] else ""
        generator = row["generator"] or {}
        table.rows.append([
            _row_head(row, table.notes), judged(row["request_rate_per_s"], "1/s", table.notes),
            tokens._replace(small=", ".join(filter(None, [tokens.small, source]))),
            judged(row["in_flight"], "", table.notes),
            judged(row["goodput"] or {"why": "no latency limit was given for this mode"}, "ratio", table.notes),
            *(plain(generator.get(key), unit, table.notes, "no line of the generator lies in the window")
              for key, unit in (("cpu_share_max", "ratio"), ("lag_p99_ms_max", "ms"), ("users_min", ""))),
        ])  # fmt: skip
    return table


def latency_tables(result: Json) -> list[Table]:
    """One table a metric: percentiles over all requests offered, and over successes alone where they differ.

    Two metrics with the same percentiles everywhere (TTFT and TTFA without reasoning) share one table.
    """
    tables: list[Table] = []
    shown: dict[str, list[Json]] = {}
    for key, title in METRICS:
        rows = [row for row in result["levels"] if row.get(key)]
        values: list[Json] = [{suffix: row.get(key + suffix) for suffix in ("", "_ok")} for row in rows]
        if not rows:
            continue
        if values in shown.values():
            tables[-1] = tables[-1]._replace(title=f"{tables[-1].title}; the same: {title}")
            continue
        shown[key] = values
        tables.append(_latency_table(key, title, rows))
    return tables


def _latency_table(key: str, title: str, rows: Sequence[Json]) -> Table:
    has_failures = any(row[key] != row.get(f"{key}_ok") for row in rows)
    heads = ["level", *STATS, *(f"{stat}, ok only" for stat in STATS if has_failures)]
    same = "No request failed or was cut: over successes alone these are the same. Refused ones are in neither."
    about = "" if has_failures else same
    table = Table(title, heads, [], [], about)
    for row in rows:
        cells = [judged(row[key].get(stat), "ms", table.notes) for stat in STATS]
        if has_failures:
            cells += [judged((row.get(f"{key}_ok") or {}).get(stat), "ms", table.notes) for stat in STATS]
        table.rows.append([_row_head(row, table.notes), *cells])
    return table


def process_table(result: Json) -> Table:
    """CPU, memory, descriptors and threads of the gateway's process tree, per level and mode."""
    heads = ["level", "CPU", "CPU per request", "memory (anon)", "file descriptors", "threads", "switches"]
    table = Table("Process tree by level", heads, [], [], "Median over the window, highest sample beneath.")
    for row in result["levels"]:
        table.rows.append([
            _row_head(row, table.notes), judged(row["cpu_cores"], "cores", table.notes),
            judged(row["cpu_ms_per_request"], "ms", table.notes), _peak(row["memory_anon_bytes"], "bytes", table.notes),
            _peak(row["fds"], "", table.notes), _peak(row["threads"], "", table.notes),
            judged(row["ctx_switches_per_s"], "1/s", table.notes),
        ])  # fmt: skip
    return table


def work_table(result: Json) -> Table:
    """Which processes of the tree did the work, per level and mode."""
    table = Table("Which processes did the work", ["level", "processes, by CPU used"], [], [])
    for row in result["levels"]:
        if row["cpu_by_process"]:
            used = "; ".join(
                f"{process['comm']} (pid {process['pid']}) {wording.number(process['cores'], 'cores')}"
                for process in row["cpu_by_process"]
            )
            table.rows.append([_row_head(row, table.notes), Cell(used, is_number=False)])
    return table


def floor_table(result: Json) -> Table:
    """Idle floors after each cycle."""
    heads = ["cycle", "memory", "limit of the cgroup", "file descriptors", "threads"]
    table = Table("Idle floors", heads, [], [], "Median of the last samples of each cycle's last cool-down.")
    for floor in result["floors"]:
        cells = [
            plain(floor[key], unit, table.notes, floor.get("why") or why)
            for key, unit, why in (
                ("memory_bytes", "bytes", None),
                ("limit_bytes", "bytes", "no limit was seen"),
                ("fds", "", None),
                ("threads", "", None),
            )
        ]
        table.rows.append([Cell(str(floor["cycle"])), *cells])
    return table


def step_table(result: Json) -> Table:
    """One row a step: validity, counts, and its instants since the start of the run."""
    heads = ["step", "state", "ended by", "started", "sent", "records", "offered", "ok", "cut", "window",
             "window from", "end"]  # fmt: skip
    table = Table("One row a step", heads, [], [], "Instants: seconds since the start of the run.")
    for step in result["steps"]:
        state = "valid" if step["valid"] else "invalid"
        row = [Cell(step["step"], is_number=False), _noted(state, step["invalid_why"], table.notes),
               Cell(step["closed_by"] or wording.MISSING, is_number=False)]  # fmt: skip
        row += [plain(step[key], "", table.notes) for key in ("started", "sent", "lines", "offered", "ok", "cut")]
        row.append(plain(step["window_s"], "s", table.notes, places=1))
        row += [
            plain(step[key], "s", table.notes, places=1)._replace(small=_instant(name, step[other]))
            for key, name, other in (("t_window_s", "open", "t_open_s"), ("t_end_s", "close", "t_close_s"))
        ]
        table.rows.append(row)
    return table


def _instant(name: str, t_s: float | None) -> str:
    return "" if t_s is None else f"{name} {wording.number(t_s, 's', 1)}"


def judged(value: Json | None, unit: str, notes: list[str]) -> Cell:
    """A judged value as a cell: the value, and its interval and n beneath; a missing one carries its why as a note."""
    if not value or value.get("v") is None:
        return _missing(value.get("why") if value else None, notes)
    lo, hi = value.get("lo"), value.get("hi")
    places = wording.places_of([value["v"], lo, hi], None, unit)
    n = value.get("n")
    small = ", ".join(
        filter(None, [wording.interval(lo, hi, unit, places), "" if n is None else f"n {wording.number(n)}"])
    )
    return Cell(wording.number(value["v"], unit, places), small, value["v"])


def plain(value: object, unit: str, notes: list[str], why: str | None = None, places: int | None = None) -> Cell:
    """A bare value as a cell; a missing one carries its why as a note."""
    return _missing(why, notes) if value is None else Cell(wording.number(value, unit, places), raw=value)


def is_empty(table: Table) -> bool:
    """No cell of the table, row names aside, holds a value."""
    return all(cell.raw is None for row in table.rows for cell in row[1:])


def _row_head(row: Json, notes: list[str]) -> Cell:
    head = _noted(f"{row['level']} {row['mode']}", None if row["valid"] else f"invalid: {row['invalid_why']}", notes)
    remarks = [*(["exploring"] if row["exploring"] else []), *([] if row["valid"] else ["invalid"])]
    remarks += ["one step with the other mode"] if row.get("shares_step") else []
    return head._replace(small=", ".join(remarks))


def _count(value: int | None) -> Cell:
    return Cell(wording.number(value), raw=value)


def _peak(value: Json | None, unit: str, notes: list[str]) -> Cell:
    if not value or value["v"] is None:
        return _missing(value.get("why") if value else None, notes)
    parts = [] if value.get("max") is None else [f"max {wording.number(value['max'], unit)}"]
    if value.get("source"):
        parts.append(str(value["source"]))
    return Cell(wording.number(value["v"], unit), ", ".join(parts), value["v"])


def _missing(why: str | None, notes: list[str]) -> Cell:
    return _noted(wording.MISSING, why or "not recorded", notes)._replace(is_number=True)


def _noted(text: str, why: str | None, notes: list[str]) -> Cell:
    if why is None:
        return Cell(text, is_number=False)
    if why not in notes:
        notes.append(why)
    return Cell(text, note=notes.index(why) + 1, is_number=False)


# Tables of the report that follow "What went wrong", by the name their section asks for.
LEVEL_TABLES: Mapping[str, Callable[[Json], Table]] = {
    "requests": request_table,
    "rates": rate_table,
    "process": process_table,
    "work": work_table,
    "floors": floor_table,
    "steps": step_table,
}
