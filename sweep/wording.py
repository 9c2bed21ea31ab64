"""How a value is printed: unit, digits, what is missing, and a value beside its limit. Pure: values in, text out.

A value of result.json is a number, `"inf"`, `{"ge": x}` (at least x) or None; `{"v","n","lo","hi","why"}` carries one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

MISSING = "–"
NOT_READ = "not read: the evidence is invalid"
INFINITE = "∞"
LEGEND = (
    "Bounds are one-sided 95 %, n is what a value rests on; – not known (the note says why), ? a bound that is not "
    "known, ∞ longer than any number: a failed request never got its answer."
)
SIGNIFICANT = 3  # digits printed of a measured value; what rank intervals of a few hundred requests support
MOST_CHARACTERS = 500  # of a line on a terminal
MOST_PLACES = 15  # a float has no more digits to tell two values apart
MIB = Decimal(1024 * 1024)

VERDICT_WORDS: Mapping[str, str] = {
    "PASS": "READY",
    "WARN": "READY WITH WARNINGS",
    "FAIL": "NOT READY",
    "INCONCLUSIVE": "INCONCLUSIVE",
}

# unit in result.json: factor to the unit printed, and how that is written behind the number
UNITS: Mapping[str, tuple[Decimal, str]] = {
    "": (Decimal(1), ""),
    "ratio": (Decimal(100), " %"),
    "bytes": (1 / MIB, " MiB"),
    "1/s": (Decimal(1), "/s"),
    "per_s": (Decimal(1), "/s"),
    "per s": (Decimal(1), "/s"),
    "/s": (Decimal(1), "/s"),
}


class Printed(NamedTuple):
    """One judged value as text: `v` and `limit` have the same number of decimals; `interval` is "" when unknown."""

    v: str
    interval: str
    limit: str


def number(value: object, unit: str = "", places: int | None = None) -> str:
    """One value with its unit: at least three significant digits, integers whole, "–" when missing."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return f"≥ {number(value['ge'], unit, places)}"
    if isinstance(value, str) and value != "inf":
        return value
    _, suffix = _unit(unit)
    finite = _scaled(value, unit)
    if finite is None:
        return INFINITE + suffix
    return _digits(finite, _enough(finite, value, unit) if places is None else places) + suffix


def beside(observed: Mapping[str, Any], limit: object, unit: str) -> Printed:
    """A judged value, its interval and the limit, with digits enough that each printed relation is the real one.

    0.9951 against 1 prints "0.995" and "1.000"; 0.99996 prints "0.99996" and "1.00000".
    """
    v, lo, hi = (observed.get(key) for key in ("v", "lo", "hi"))
    places = places_of([v, lo, hi], limit, unit)
    return Printed(number(v, unit, places), interval(lo, hi, unit, places), number(limit, unit, places))


def interval(lo: object, hi: object, unit: str = "", places: int | None = None) -> str:
    """`398–455 ms`; an end that is unknown prints as "?"; "" when both are."""
    if lo is None and hi is None:
        return ""
    suffix = _unit(unit)[1]
    if places is None:
        places = places_of([lo, hi], None, unit)
    ends = ["?" if end is None else number(end, unit, places).removesuffix(suffix) for end in (lo, hi)]
    return f"{ends[0]}–{ends[1]}{suffix}"


def places_of(values: Sequence[object], limit: object, unit: str = "") -> int:
    """Fewest decimals that show every value to three digits, the limit exactly, and each value on its side of it."""
    known = [(scaled, value) for value in values if (scaled := _scaled(value, unit)) is not None]
    places = max((_enough(scaled, value, unit) for scaled, value in known), default=0)
    edge = _scaled(limit, unit)
    if edge is None:
        return places
    exponent = edge.normalize().as_tuple().exponent
    places = max(places, min(-exponent, 6) if isinstance(exponent, int) else 0)
    while places < MOST_PLACES and any(not _same_side(scaled, edge, places) for scaled, _ in known):
        places += 1
    return places


def duration(seconds: float | None) -> str:
    """`45.2 s`, `4 min 12 s`, `2 h 05 min`."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{number(float(seconds))} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def level_name(level: object) -> str:
    """`8 concurrent` or `5/s`."""
    text = str(level)
    return text if text.endswith("/s") else f"{text} concurrent"


def visible(text: str) -> str:
    """Text without anything that hides or reorders it: control, format and unassigned characters print as escapes."""
    return text if text.isprintable() else "".join(map(_escape, text))


def one_line(text: str, most: int = MOST_CHARACTERS) -> str:
    """Text of others for a terminal or a CI log: one visible line. Of a longer one the middle is left out: what
    happened stands first, what to do last."""
    line = visible(" ".join(text.split()))
    if len(line) <= most:
        return line
    tail = most // 3
    return f"{line[: most - tail - 3]} … {line[-tail:]}"


def markdown(text: object) -> str:
    """Text that GitHub-flavoured Markdown prints as it is, on one line, also inside a table cell."""
    line = " ".join(visible(str(text).replace("\n", " ").replace("\r", " ")).split())
    line = re.sub(r"([\\`*\[\]{}<>#~!|$@])", r"\\\1", line.replace("&", "&amp;"))
    line = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", line)
    # An autolink starts at "://" or "www."; an entity prints the same and starts none.
    return line.replace("://", "&#58;//").replace("www.", "www&#46;")


def _unit(unit: str) -> tuple[Decimal, str]:
    return UNITS.get(unit, (Decimal(1), f" {unit}"))


def _scaled(value: object, unit: str) -> Decimal | None:
    """The finite number inside a value, in the unit printed; None when there is none."""
    if isinstance(value, Mapping):
        value = value.get("ge")
    if value is None or isinstance(value, (str, bool)):
        return None
    exact = Decimal(repr(value) if isinstance(value, float) else str(value))
    return exact * _unit(unit)[0] if exact.is_finite() else None


def _enough(scaled: Decimal, value: object, unit: str) -> int:
    """Decimals for three significant digits; none for a whole number that counts something."""
    is_count = isinstance(value, int) or unit == ""
    if not scaled or (is_count and scaled == scaled.to_integral_value()):
        return 0
    return max(0, SIGNIFICANT - 1 - scaled.adjusted())


def _digits(scaled: Decimal, places: int) -> str:
    rounded = scaled.quantize(Decimal(1).scaleb(-places))
    return f"{rounded + 0:,f}" if rounded else f"{abs(rounded):,f}"  # no "-0"


def _same_side(scaled: Decimal, edge: Decimal, places: int) -> bool:
    step = Decimal(1).scaleb(-places)
    return scaled.compare(edge) == scaled.quantize(step).compare(edge.quantize(step))


def _escape(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character)[0] != "C":
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"
