"""Evidence and result -> SVG text, one function a plot. A plot without data is left out, never an empty axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sweep import plot_style
from sweep.evidence import Evidence
from sweep.plot_levels import latency, throughput
from sweep.plot_process import process
from sweep.plot_ttft import ttft_distribution
from sweep.view import Drawing


class Plot(NamedTuple):
    """One drawing: `draw` gives its SVG, or None when the evidence holds nothing to draw.

    section: of the report, where it stands. title, nothing: what the page says instead of it, and why.
    of_tokens: left out for an API that generates none.
    """

    name: str
    draw: Callable[[Evidence, Mapping[str, Any]], str | None]
    section: str
    title: str
    nothing: str
    of_tokens: bool = False


def draw(ev: Evidence, result: Mapping[str, Any]) -> list[Drawing]:
    """Every plot, in the order of the report, drawn or with the reason why not. The same evidence, the same bytes."""
    with plot_style.style():
        return [_drawing(plot, plot.draw(ev, result)) for plot in _possible(result)]


def draw_or_say_why(ev: Evidence | None, result: Mapping[str, Any]) -> list[Drawing]:
    """As `draw`, of evidence that may be None: damaged. A plot that fails is left out, and the page says so."""
    if ev is None:
        return [_drawing(plot, None, "the evidence is invalid") for plot in PLOTS]
    drawn = []
    for plot in _possible(result):
        try:
            with plot_style.style():
                drawn.append(_drawing(plot, plot.draw(ev, result)))
        except Exception as error:  # noqa: BLE001 - an operator whose run was long would lose the whole report
            drawn.append(_drawing(plot, None, f"a fault of ours, {error!r}"))
    return drawn


def _possible(result: Mapping[str, Any]) -> list[Plot]:
    has_tokens = result["target"].get("dialect", {}).get("has_tokens", True)
    return [plot for plot in PLOTS if has_tokens or not plot.of_tokens]


def _drawing(plot: Plot, svg: str | None, why: str | None = None) -> Drawing:
    absent = "" if svg is not None else f"{plot.title} is not drawn: {why or plot.nothing}."
    return Drawing(plot.name, plot.section, svg, absent)


PLOTS = (
    Plot("latency", latency, "levels", "Latency by level", "no level has a percentile"),
    Plot("ttft_dist", ttft_distribution, "levels", "The TTFT distribution",
         "no streaming request of a window produced a token", of_tokens=True),
    Plot("throughput", throughput, "levels", "Throughput by level", "no level completed a request"),
    Plot("process", process, "process", "The gateway over time", "no sample of its process lies in the run"),
)  # fmt: skip
