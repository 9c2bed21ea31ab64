"""How every plot looks, and how a figure becomes SVG: text as text, light and dark, the same bytes each time."""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape

# matplotlib writes its font list to a configuration folder when it is imported; ours is gone right after, so that
# nothing is left outside OUT_DIR and no one's matplotlibrc changes a plot.
with tempfile.TemporaryDirectory(prefix="ha-sweep-") as _folder:
    _before = os.environ.get("MPLCONFIGDIR")
    os.environ["MPLCONFIGDIR"] = str(Path(_folder))
    import matplotlib as mpl
    import matplotlib.backends.backend_svg
    import matplotlib.patches
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if _before is None:
        del os.environ["MPLCONFIGDIR"]
    else:
        os.environ["MPLCONFIGDIR"] = _before

WIDTH_IN = 5.0  # 360 points: on a phone's 358 CSS pixels a 9-point label stays 9 pixels high

# Okabe and Ito's palette, told apart by colour-blind readers; the dark page gets lighter ones of the same hue.
# Each light colour has one role, because the dark one is found by it.
INK, MUTED, GRID = "#30373d", "#5a646d", "#d9dee3"
BLUE, ORANGE, GREEN, PURPLE, SKY, BROWN = "#0068a8", "#c04f00", "#007a58", "#8f3f7a", "#1f7f9f", "#7a5b00"
BAD = "#b3201b"
DARK = {
    INK: "#e4e7ea", MUTED: "#a9b2bb", GRID: "#394048", BLUE: "#63b3ec", ORANGE: "#f29b55", GREEN: "#4fcaa0",
    PURPLE: "#df9fcd", SKY: "#86d3e8", BROWN: "#dcbb5c", BAD: "#ff8f86",
}  # fmt: skip

MODE_COLOUR = {"stream": BLUE, "nonstream": ORANGE, "mixed": GREEN, "user": GREEN}
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, BROWN)
LINES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P")

RC = {
    "svg.fonttype": "none", "svg.hashsalt": "ha-sweep", "text.parse_math": False, "font.size": 9.0,
    "font.family": "DejaVu Sans", "text.color": INK, "axes.edgecolor": MUTED, "axes.labelcolor": INK,
    "axes.titlesize": 9.0, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 8.0,
    "axes.labelsize": 9.0, "axes.linewidth": 0.7, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.6, "xtick.color": MUTED,
    "ytick.color": MUTED, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "lines.linewidth": 1.6,
    "lines.markersize": 5.0, "legend.fontsize": 8.5, "legend.frameon": False, "legend.handlelength": 2.6,
    "legend.borderaxespad": 0.0, "legend.columnspacing": 1.4,
    "hatch.linewidth": 0.6,
}  # fmt: skip
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', 'DejaVu Sans', sans-serif"


def style() -> Any:
    """A context in which figures are made and written; nothing of it stays."""
    mpl.rcdefaults()
    return mpl.rc_context(RC)


def panels(n: int, height_in: float, *, share_x: bool = False) -> tuple[Figure, list[Any]]:
    """A figure of n panels above each other, transparent, with room kept for what it holds."""
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    figure.patch.set_alpha(0.0)
    axes = figure.subplots(n, 1, sharex=share_x, squeeze=False)[:, 0]
    for axis in axes:
        axis.patch.set_alpha(0.0)
    return figure, list(axes)


def legend(figure: Figure, entries: Sequence[tuple[Any, str]]) -> None:
    """A legend below the last panel, where no line can run through it. entries: (artist, label)."""
    if entries:
        figure.legend([artist for artist, _ in entries], [label for _, label in entries],
                      loc="outside lower left", ncols=2)  # fmt: skip


def labelled(axis: Any) -> list[tuple[Any, str]]:
    """The legend entries of a panel's labelled curves."""
    return list(zip(*axis.get_legend_handles_labels(), strict=True))


def swatch(**look: Any) -> Any:
    """A filled legend sample."""
    return mpl.patches.Patch(**look)


def plain_log(axis: Any, which: Literal["x", "y"]) -> None:
    """A log scale with plain numbers, closer together when the drawn span is narrow. Call it when all is drawn."""
    axis.set(**{f"{which}scale": "log"})
    one = axis.xaxis if which == "x" else axis.yaxis
    low, high = one.get_view_interval()
    span = high / low
    steps = (1.0,) if span > 1000 else (1.0, 2.0, 5.0) if span > 8 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    one.set_major_locator(LogLocator(subs=steps, numticks=20) if span > 3 else MaxNLocator(5))
    one.set_minor_locator(NullLocator())
    one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def few_ticks(axis: Any, n: int = 5, *, integer: bool = False) -> None:
    axis.set_major_locator(MaxNLocator(n, integer=integer))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def to_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """The figure as an SVG element with alt text, that reads in light and dark, alone or inside a page.

    name: prefix of every id, so that several drawings share one page. description: the numbers, in words.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "ha-sweep"}, transparent=True)
    text = re.sub(r" <metadata>.*?</metadata>\n", "", buffer.getvalue(), flags=re.DOTALL)  # RDF, unknown to HTML
    text = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"'DejaVu Sans'(, [^;\"]*?sans-serif)?", FONTS, text)
    alt = (
        f' role="img" aria-labelledby="{name}-title {name}-desc">\n'
        f' <title id="{name}-title">{escape(title)}</title>\n <desc id="{name}-desc">{escape(description)}</desc>\n'
        f" <style>{_dark_rules()}</style>"
    )
    return re.sub(r"(<svg\b[^>]*)>", lambda match: match.group(1) + alt, text, count=1)


def _dark_rules() -> str:
    """Light colours stay literal, for viewers without CSS; `svg:root` matches only a drawing opened by itself.

    The selectors name no ancestor: inside what `<use>` repeats (markers) there is none.
    """
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    return f"@media screen and (prefers-color-scheme: dark){{svg:root{{background:#14171a}}{rules}}}"
