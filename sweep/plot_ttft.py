"""The distribution of TTFT, one curve a level: the share of requests whose first token came within t."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sweep import wording
from sweep.evidence import Evidence
from sweep.latency import one_each, timed
from sweep.plot_style import INK, LINES, MARKERS, SERIES, labelled, legend, panels, plain_log, to_svg
from sweep.slo import parse_slo
from sweep.windows import Floats, sets, step_times

Json = Mapping[str, Any]

POINTS = 300  # of one curve; more are not seen at the width drawn
TICKS = (0, 25, 50, 75, 95, 100)


class _Curve(NamedTuple):
    """came: TTFT in ms of the requests whose first token came, sorted; n: of all that count, failed and cut too."""

    came: Floats
    n: int
    n_failed: int
    n_cut: int


def ttft_distribution(evidence: Evidence, result: Json) -> str | None:
    """ECDF on a log axis. A failed request never gets its token: with failures a curve ends below 100 %.

    A cut one that had none yet is at least as long as it took: it counts in n and is never reached either.
    """
    curves = _curves(evidence, result)
    if not curves:
        return None
    figure, (axis,) = panels(1, 3.2)
    axis.set_xscale("log")
    words = []
    for number, (level, curve) in enumerate(curves.items()):
        values, n = curve.came, curve.n
        share = np.arange(1, len(values) + 1) / n * 100
        keep = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(int))
        style = {"color": SERIES[number % len(SERIES)], "linestyle": LINES[number % len(LINES)]}
        counts = ((curve.n_failed, "failed"), (curve.n_cut, "cut"))
        label = ", ".join([f"level {level}, n {n:,}", *(f"{count:,} {word}" for count, word in counts if count)])
        axis.plot(values[keep], share[keep], drawstyle="steps-post", marker=MARKERS[number % len(MARKERS)],
                  markevery=(0.04 + 0.02 * number, 0.2), markerfacecolor="none", label=label, **style)  # fmt: skip
        middle = wording.number(float(np.quantile(values, 0.5, method="inverted_cdf")))
        words.append(f"Level {level}: median of the {len(values)} that got one {middle} ms, "
                     f"{wording.number(float(share[-1]))} % of {n} got a first token.")  # fmt: skip
    axis.set_title("Share of streaming requests with a first token within t, %")
    axis.set_yticks(TICKS)
    axis.set_ylim(0, 102)
    axis.set_xlabel("time to first token t, ms")
    for slo in (parse_slo(text) for text in evidence.run["plan"].get("slo", ())):
        if slo.metric == "ttft_ms":
            axis.axvline(slo.limit, color=INK, linestyle=(0, (4, 2, 1, 2)), linewidth=1.1)
            axis.annotate(f"SLO {slo.stat} ≤ {wording.number(slo.limit, 'ms')}", (slo.limit, 2), xytext=(-3, 0),
                          textcoords="offset points", rotation=90, ha="right", va="bottom", color=INK,
                          fontsize=8.5)  # fmt: skip
    plain_log(axis, "x")
    legend(figure, labelled(axis))
    return to_svg(figure, "ttft_dist", "Distribution of TTFT by level", " ".join(words))


def _curves(evidence: Evidence, result: Json) -> dict[str, _Curve]:
    """One curve a streaming level, of the requests its percentiles are of: those of its valid steps."""
    times = step_times(evidence)
    in_sets = sets(evidence, times)
    codes = {each.step: code for code, each in enumerate(times)}
    valid = {step["step"] for step in result["steps"] if step["valid"]}
    curves = {}
    for row in result["levels"]:
        mine = [codes[step] for step in row["steps"] if step in valid and step in codes]
        if row["mode"] == "nonstream" or not mine:
            continue
        mask = in_sets.of(mine) & evidence.requests["stream"].to_numpy(dtype=bool)
        values, censored = one_each(timed(evidence.requests, in_sets, mask, stream=True), "ttft_ms")
        came = np.sort(values[~censored & np.isfinite(values)])
        if len(came):
            curves[str(row["level"])] = _Curve(came, len(values), int(np.isinf(values).sum()), int(censored.sum()))
    return curves
