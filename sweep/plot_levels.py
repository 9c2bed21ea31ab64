"""Plots with one point a level: latency with SLO lines, throughput and goodput. Drawn from the level table alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sweep import wording
from sweep.evidence import Evidence
from sweep.plot_style import BAD, INK, LINES, MODE_COLOUR, few_ticks, labelled, legend, panels, plain_log, to_svg
from sweep.records import FAILED
from sweep.slo import Slo, parse_slo

Json = Mapping[str, Any]

STATS = (("p50", LINES[0], "o"), ("p95", LINES[1], "s"))
MODE_MARKER = {"stream": "o", "nonstream": "s", "mixed": "^", "user": "^"}
LATENCIES = (("ttft_ms", "Time to first token"), ("e2e_ms", "End to end"))


def latency(evidence: Evidence, result: Json) -> str | None:
    """TTFT and E2E, p50 and p95 by level and mode, bounds as bands; a percentile that is a failed request is ✕ ∞."""
    shown = [
        (key, title) for key, title in LATENCIES if any(_known(row, key, "p50") is not None for row in result["levels"])
    ]
    if not shown:
        return None
    figure, axes = panels(len(shown), 3.1 * len(shown))
    slos = [parse_slo(text) for text in evidence.run["plan"].get("slo", ())]
    words = []
    for axis, (key, title) in zip(axes, shown, strict=True):
        rows = [row for row in result["levels"] if row.get(key)]
        axis.set_title(f"{title}, ms")
        axis.set_yscale("log")
        axis.margins(y=0.12)
        infinite = []
        for mode in _modes(rows):
            for stat, line, marker in STATS:
                infinite += _curve(axis, rows, mode, key, stat, line, marker)
                words.append(f"{title} {stat} {mode}: {_said(rows, mode, key, stat)}.")
        _slo_lines(axis, [slo for slo in slos if slo.metric == key])
        _levels_axis(axis, rows, key)
        plain_log(axis, "y")
        _mark_infinite(axis, infinite)
    legend(figure, labelled(axes[-1]))
    return to_svg(figure, "latency", "Latency by level", " ".join(words))


def throughput(evidence: Evidence, result: Json) -> str | None:
    """Requests a second, output tokens a second and goodput by level and mode; failed requests are counted beside ✕."""
    rows = result["levels"]
    titles = (
        ("request_rate_per_s", "Requests completed, per s", 1.0), ("token_rate_per_s", "Output tokens, per s", 1.0),
        ("goodput", "Goodput: share of offered requests that met every SLO, %", 100.0),
    )  # fmt: skip
    shown = [panel for panel in titles if any(_known(row, panel[0]) is not None for row in rows)]
    if not shown:
        return None
    figure, axes = panels(len(shown), 2.2 * len(shown) + 0.5)
    words = []
    for axis, (key, title, factor) in zip(axes, shown, strict=True):
        axis.set_title(title)
        for mode in _modes(rows):
            points = _points(rows, mode, key, None)
            xs, ys = [x for x, _ in points], [_number(value.get("v")) * factor for _, value in points]
            _band(axis, xs, [value for _, value in points], MODE_COLOUR[mode], factor)
            axis.plot(xs, ys, color=MODE_COLOUR[mode], marker=MODE_MARKER[mode], label=mode,
                      linestyle=LINES[0] if mode == "stream" else LINES[1])  # fmt: skip
            words.append(f"{title}, {mode}: {_said(rows, mode, key, None, factor)}.")
        if key == "request_rate_per_s":
            _mark_failed(axis, rows)
        axis.set_ylim(0, 105 if key == "goodput" else None)
        few_ticks(axis.yaxis)
        _levels_axis(axis, rows, key if key == shown[-1][0] else None)
    legend(figure, labelled(axes[-1]))
    return to_svg(figure, "throughput", "Throughput and goodput by level", " ".join(words))


def _modes(rows: Sequence[Json]) -> list[str]:
    return [mode for mode in MODE_COLOUR if any(row["mode"] == mode for row in rows)]


def _known(row: Json, key: str, stat: str | None = None) -> Any:
    """The value of a judged number, None when it is missing."""
    value = row.get(key) or {}
    return ((value.get(stat) or {}) if stat else value).get("v")


def _number(value: Any) -> float:
    """A value as it is drawn: at least t is drawn at t, a failed request's is infinite."""
    if isinstance(value, Mapping):
        value = value["ge"]
    return math.nan if value is None else math.inf if value == "inf" else float(value)


def _place(rows: Sequence[Json], row: Json) -> int:
    return list(dict.fromkeys(each["level"] for each in rows)).index(row["level"])


def _curve(axis: Any, rows: Sequence[Json], mode: str, key: str, stat: str, line: Any, marker: str) -> list[int]:
    """Draws one percentile of one mode; returns the places where it is infinite."""
    points = _points(rows, mode, key, stat)
    xs, ys = [x for x, _ in points], [_number(value.get("v")) for _, value in points]
    finite = [y if math.isfinite(y) else math.nan for y in ys]
    axis.plot(xs, finite, color=MODE_COLOUR[mode], linestyle=line, marker=marker, label=f"{mode} {stat}",
              markerfacecolor=MODE_COLOUR[mode] if stat == "p50" else "none")  # fmt: skip
    _band(axis, xs, [value for _, value in points], MODE_COLOUR[mode])
    return [int(x) for x, y in zip(xs, ys, strict=True) if math.isinf(y)]


def _points(rows: Sequence[Json], mode: str, key: str, stat: str | None) -> list[tuple[float, Json]]:
    """(place, value) of a curve. Between requests in flight and rates it is broken, by a value without a number."""
    points: list[tuple[float, Json]] = []
    kind = None
    for row in rows:
        value = row.get(key) if stat is None else (row.get(key) or {}).get(stat)
        if row["mode"] != mode or not value or (stat is None and value.get("v") is None):
            continue
        if kind not in (None, row["kind"]):
            points.append((_place(rows, row) - 0.5, {}))
        kind = row["kind"]
        points.append((_place(rows, row), value))
    return points


def _band(axis: Any, xs: Sequence[float], values: Sequence[Json], colour: str, factor: float = 1.0) -> None:
    """The bounds of each value as a band; one that is unknown or infinite ends the band."""
    lo = [_number(value.get("lo")) * factor for value in values]
    hi = [_number(value.get("hi")) * factor for value in values]
    both = [math.isfinite(low) and math.isfinite(high) for low, high in zip(lo, hi, strict=True)]
    axis.fill_between(xs, lo, hi, where=both, color=colour, alpha=0.18, linewidth=0)


def _mark_infinite(axis: Any, places: Sequence[int]) -> None:
    """✕ ∞ at the upper edge, where a percentile lands on a request that failed."""
    for place in sorted(set(places)):
        axis.plot([place], [0.97], transform=axis.get_xaxis_transform(), marker="x", color=BAD, markersize=6,
                  markeredgewidth=1.8, linestyle="none", clip_on=False)  # fmt: skip
        axis.annotate("∞ failed", (place, 0.97), xycoords=axis.get_xaxis_transform(), xytext=(-6, 0),
                      textcoords="offset points", ha="right", va="center", color=BAD, fontsize=8.5)  # fmt: skip


def _mark_failed(axis: Any, rows: Sequence[Json]) -> None:
    """✕ and the number of failed requests, of all modes, above the level they happened at."""
    failed: Counter[int] = Counter()
    for row in rows:
        failed[_place(rows, row)] += sum(row["outcomes"].get(outcome, 0) for outcome in FAILED)
    for place, count in failed.items():
        if count:
            axis.annotate(f"✕ {count:,} failed", (place, 0.04), xycoords=axis.get_xaxis_transform(), ha="center",
                          va="bottom", color=BAD, fontsize=8.5)  # fmt: skip


def _slo_lines(axis: Any, slos: Sequence[Slo]) -> None:
    for slo in slos:
        where = "" if slo.at is None else f" at ≤ {slo.at}"
        text = f"SLO {slo.stat} ≤ {wording.number(slo.limit, 'ms')}{where}"
        axis.axhline(slo.limit, color=INK, linestyle=(0, (4, 2, 1, 2)), linewidth=1.1)
        axis.annotate(text, (0, slo.limit), xycoords=("axes fraction", "data"), xytext=(3, 2.5),
                      textcoords="offset points", color=INK, fontsize=8.5)  # fmt: skip


def _levels_axis(axis: Any, rows: Sequence[Json], key: str | None) -> None:
    """One place a level, evenly spaced; beneath each the n it rests on, by mode (none when key is None)."""
    names = list(dict.fromkeys(row["level"] for row in rows))
    labels = []
    for name in names:
        at = [row for row in rows if row["level"] == name]
        counts = [f"{_n(row[key]):,}" for row in at if key and row.get(key) and _n(row[key]) is not None]
        remarks = [word for word in ("exploring", "invalid") if any(_is(row, word) for row in at)]
        labels.append("\n".join([name, *(["n " + " · ".join(counts)] if counts else []), *(remarks if key else [])]))
    every = max(1, math.ceil(len(names) / 8))
    axis.set_xticks(range(len(names))[::every], labels[::every])
    axis.set_xlim(-0.35, len(names) - 0.65)
    axis.grid(visible=False, axis="x")
    if key:
        names_of = {"concurrency": "requests in flight", "rate": "arrivals per s"}
        kind = " or ".join(name for each, name in names_of.items() if any(row["kind"] == each for row in rows))
        modes = " · ".join(_modes(rows))
        axis.set_xlabel(f"level, {kind} (n: {modes})")


def _is(row: Json, word: str) -> bool:
    return bool(row["exploring"]) if word == "exploring" else not row["valid"]


def _n(value: Json) -> Any:
    return value["n"] if "n" in value else value["p50"].get("n")


def _said(rows: Sequence[Json], mode: str, key: str, stat: str | None, factor: float = 1.0) -> str:
    """`412 at level 8 (n 320), …`: a curve's numbers in words."""
    said = []
    for row in rows:
        value = _known(row, key, stat)
        if row["mode"] != mode or value is None:
            continue
        drawn = _number(value) * factor
        text = "infinite, a failed request," if math.isinf(drawn) else wording.number(drawn)
        said.append(f"{text} at level {row['level']} (n {_n(row[key])})")
    return ", ".join(said) or "unknown"
