"""Tables that the HTML report and the Markdown summary both show: result.json -> ready text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sweep import wording
from sweep.cells import Cell, Json, Table, count, judged, noted, peak, plain, row_head
from sweep.records import OUTCOME_MEANING, OUTCOMES

METRICS = (
    ("ttft_ms", "Time to first token (TTFT)"),
    ("ttfa_ms", "Time to first answer token (TTFA)"),
    ("tpot_ms", "Time per output token (TPOT)"),
    ("gap_ms", "Gap between reads that carried tokens"),
    ("e2e_ms", "End to end (E2E)"),
)
STATS = ("p50", "p95", "p99")


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
            row_head(row, table.notes), plain(row["window_s"], "s", table.notes), count(row["offered"]),
            count(row["ok"]), *(_outcome(row, name) for name in outcomes), count(row["cut"]),
            judged(row["error_ratio"], "ratio", table.notes), judged(row["shed_ratio"], "ratio", table.notes),
        ])  # fmt: skip
    return table


def rate_table(result: Json) -> Table:
    """Throughput and goodput, per level and mode."""
    has_tokens = result["target"].get("dialect", {}).get("has_tokens", True)
    heads = ["level", "requests", *(["output tokens", "token source"] if has_tokens else []), "in flight", "goodput",
             "users"]  # fmt: skip
    about = "Completed, or arrived, in the window; in flight: mean over the window; users: the fewest alive in it."
    about += " Tokens are counted by the server (usage), or are the events that carried some." if has_tokens else ""
    table = Table("Throughput", heads, [], [], about)
    for row in result["levels"]:
        tokens = judged(row["token_rate_per_s"], "1/s", table.notes)
        source = Cell(row["token_source"] or wording.MISSING, raw=row["token_source"], is_number=False)
        generator = row["generator"] or {}
        table.rows.append([
            row_head(row, table.notes), judged(row["request_rate_per_s"], "1/s", table.notes),
            *([tokens, source] if has_tokens else []),
            judged(row["in_flight"], "", table.notes),
            judged(row["goodput"] or {"why": "no latency limit was given for this mode"}, "ratio", table.notes),
            plain(generator.get("users_min"), "", table.notes, _no_generator_why(row, "users_min")),
        ])  # fmt: skip
    return table


def generator_table(result: Json) -> Table:
    """Health of the load generator beside each level: what it delivered, and whether its numbers may be judged."""
    heads = ["level", "CPU", "lateness p99", "delivered", "connections", "ports left", "valid"]
    about = "The worst second of any load process in the window; delivered: users alive / level, or started / due."
    table = Table("Load generator", heads, [], [], about)
    for row in result["levels"]:
        generator = row["generator"] or {}
        valid = noted("yes" if row["valid"] else "no", generator.get("why") or row["invalid_why"], table.notes)
        table.rows.append([
            row_head(row, table.notes),
            *(plain(generator.get(key), unit, table.notes, why or _no_generator_why(row, key)) for key, unit, why in (
                ("cpu_share_max", "ratio", None), ("lag_p99_ms_max", "ms", None), ("achieved_ratio_min", "ratio", None),
                ("connections_max", "", None), ("ports_left_min", "", generator.get("ports_why")),
            )),
            valid,
        ])  # fmt: skip
    return table


def _no_generator_why(row: Json, key: str) -> str:
    if row["mode"] == "observe":
        return "level 0 asks nothing"
    is_rate = key == "users_min" and row["kind"] == "rate"
    return "arrivals are of no user" if is_rate else "no line of the generator lies in the window"


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
        table.rows.append([row_head(row, table.notes), *cells])
    return table


def process_table(result: Json) -> Table:
    """CPU, memory, descriptors and threads of the gateway's process tree, per level and mode."""
    heads = ["level", "CPU", "CPU per request", "memory (anon)", "file descriptors", "threads", "switches"]
    table = Table("Process tree by level", heads, [], [], "Median over the window, highest sample beneath.")
    for row in result["levels"]:
        table.rows.append([
            row_head(row, table.notes), judged(row["cpu_cores"], "cores", table.notes),
            judged(row["cpu_ms_per_request"], "ms", table.notes), peak(row["memory_anon_bytes"], "bytes", table.notes),
            peak(row["fds"], "", table.notes), peak(row["threads"], "", table.notes),
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
            table.rows.append([row_head(row, table.notes), Cell(used, is_number=False)])
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
        row = [Cell(step["step"], is_number=False), noted(state, step["invalid_why"], table.notes),
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


def _outcome(row: Json, name: str) -> Cell:
    """Beside the clients that left, when they did."""
    phases = ", ".join(f"{at} {n}" for at, n in (row.get("left_at") or {}).items()) if name == "left" else ""
    return count(row["outcomes"].get(name, 0))._replace(small=phases)


# Tables of the report that follow "What went wrong", by the name their section asks for.
LEVEL_TABLES: Mapping[str, Callable[[Json], Table]] = {
    "requests": request_table,
    "rates": rate_table,
    "generator": generator_table,
    "process": process_table,
    "work": work_table,
    "floors": floor_table,
    "steps": step_table,
}
