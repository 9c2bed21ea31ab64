"""result.json -> report.html, summary.md, junit.xml. Renderings only: nothing here judges.

The same result gives the same bytes: no clock, no host, no random identifier goes in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from sweep import (
    beside_view,
    first_screen,
    gate_view,
    glossary,
    others_view,
    outdir,
    tenant_view,
    tested_view,
    view,
    who_view,
    wording,
)
from sweep.arrivals_view import arrivals_table
from sweep.cells import is_empty
from sweep.junit import junit

Json = Mapping[str, Any]

SUMMARY_BYTES = 64 * 1024  # a CI drops a larger job summary whole
# Rows of a summary's table, tried in turn until the summary fits.
ROWS = (1000, 200, 80, 40, 20, 10, 5, 2, 1)
TEXT_LENGTH = 400
EVIDENCE_LINK = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)*/?")


def render(result: Json, plots: Sequence[view.Drawing] = ()) -> dict[str, str]:
    """File name -> text of the three renderings. plots: as `plots.draw` gives them, their SVG inlined as it is."""
    return {
        outdir.REPORT_HTML: _html(result, plots),
        outdir.SUMMARY_MD: _markdown(result),
        outdir.JUNIT_XML: junit(result),
    }


def write_report(out_dir: Path) -> dict[str, Any]:
    """Judges OUT_DIR, writes result.json first, then plots and renderings; gives the result. Also for a killed run.

    Evidence that cannot be trusted is reported as INVALID, without plots; a plot that fails is left out and said.
    Raises EvidenceError when run.json itself cannot be read, OSError when OUT_DIR cannot be written.
    """
    from sweep import judge, plots  # pandas and matplotlib: `render` alone needs neither

    result, ev = judge.read_and_judge(out_dir)
    outdir.write_atomic(out_dir / outdir.RESULT, to_json(result))
    drawn = plots.draw_or_say_why(ev, result)
    folder = out_dir / outdir.PLOTS
    folder.mkdir(mode=0o700, exist_ok=True)
    for plot in drawn:
        path = folder / f"{plot.name}.svg"
        if plot.svg is not None:
            outdir.write_atomic(path, plot.svg.encode())
        else:
            path.unlink(missing_ok=True)
    for name, text in render(result, drawn).items():
        outdir.write_atomic(out_dir / name, text.encode())
    return result


def to_json(result: Json) -> bytes:
    """result.json, indented. Raises ValueError for NaN; an infinity becomes "inf", which JSON would turn into null."""
    return msgspec.json.format(msgspec.json.encode(_without_infinity(result)), indent=1) + b"\n"


def _without_infinity(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_infinity(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinity(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            raise ValueError("a result holds NaN; a missing value is null with its why")
        return "inf" if value > 0 else "-inf"
    return value


def _html(result: Json, plots: Sequence[view.Drawing]) -> str:
    environment = _environment(_html_text)
    tables = {**view.LEVEL_TABLES, "arrivals": arrivals_table}
    css = (outdir.data_folder("templates") / "style.css").read_text()
    return environment.get_template("report.html.j2").render(
        result=result,
        css=Markup(css),  # ours, and the page's only style
        plots=[plot._replace(svg=None if plot.svg is None else Markup(_inline(plot.svg))) for plot in plots],
        tables={name: table(result) for name, table in tables.items()},
        latency=view.latency_tables(result),
        glossary=glossary,
    )


def _markdown(result: Json) -> str:
    template = _environment(_markdown_text).get_template("summary.md.j2")
    tables = [
        view.request_table(result),
        view.rate_table(result),
        view.generator_table(result),
        arrivals_table(result),
        *view.latency_tables(result),
        view.process_table(result),
        view.floor_table(result),
        *beside_view.tables(result),
    ]
    text = ""
    for rows in ROWS:
        text = template.render(result=result, rows=rows, tables=[t for t in tables if not is_empty(t)])
        if len(text.encode()) <= SUMMARY_BYTES:
            return text
    return text.encode()[: SUMMARY_BYTES - 80].decode(errors="ignore") + "\n\n(cut here: the rest is in report.html)\n"


def _environment(finalize: Any) -> jinja2.Environment:
    """finalize: what every printed expression goes through, so that no text reaches a page untreated."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(outdir.data_folder("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(number=wording.number, duration=wording.duration, is_file=_is_file)
    environment.filters.update(code=_code, verbatim=_verbatim)
    environment.globals.update(view=view, gate_view=gate_view, first_screen=first_screen)
    environment.globals.update(tested_view=tested_view, who_view=who_view, wording=wording, others_view=others_view)
    environment.globals.update(is_empty=is_empty, tenant_view=tenant_view, beside_view=beside_view)
    return environment


def _html_text(value: object) -> object:
    """Before autoescape: missing is "–", and what would hide or reorder text is shown."""
    if value is None:
        return wording.MISSING
    return value if isinstance(value, Markup) else wording.visible(str(value))


def _markdown_text(value: object) -> object:
    if value is None:
        return wording.MISSING
    return value if isinstance(value, Markup) else Markup(wording.markdown(str(value)[:TEXT_LENGTH]))


def _code(value: object) -> Markup:
    """One line for an indented code block of Markdown, where nothing is markup."""
    return Markup(" ".join(wording.visible(str(value)).split()))


def _verbatim(line: str) -> Markup:
    """A line of ready text for an indented code block, its columns kept."""
    return Markup(wording.visible(line))


def _is_file(name: str) -> bool:
    """A relative path inside OUT_DIR, safe as a link."""
    return EVIDENCE_LINK.fullmatch(name) is not None


def _inline(svg: str) -> str:
    """An SVG element, whose text matplotlib has escaped, without the XML prologue that HTML does not know."""
    return svg[svg.index("<svg") :]
