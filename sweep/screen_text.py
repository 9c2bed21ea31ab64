"""Text that fits a screen: columns of a terminal, words wrapped, what has no room said so. Pure.

A column is what a terminal gives one narrow character; East Asian wide ones take two, combining ones none.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

MORE = "…"


def columns(text: str) -> int:
    """Columns that a terminal gives the text."""
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken between words; a word that is longer is broken where the line ends."""
    lines = [""]
    for word in _words(text, width):
        if lines[-1] and columns(lines[-1]) + 1 + columns(word) <= width:
            lines[-1] += f" {word}"
            continue
        if lines[-1]:
            lines.append("")
        while columns(word) > width:
            head = _head(word, width)
            lines[-1], word = head, word[len(head) :]
            lines.append("")
        lines[-1] = word
    return lines if lines[-1] or len(lines) == 1 else lines[:-1]


def _words(text: str, width: int) -> list[str]:
    """Words; an option of a command line stays with its value where a line holds both."""
    words: list[str] = []
    for word in text.split(" "):
        is_value = bool(words) and words[-1].startswith("--") and " " not in words[-1] and not word.startswith("--")
        if is_value and columns(words[-1]) + 1 + columns(word) <= width:
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def fitted(parts: Sequence[str], join: str, width: int, most: int) -> list[list[str]]:
    """The parts joined and wrapped to at most `most` lines in all, as paragraphs of lines.

    Parts without room are counted, a first one that is too long is cut. join "\\n": each part is a paragraph.
    """
    best = _paragraphs(parts, len(parts), join, width)
    if sum(map(len, best)) <= most:
        return best
    best = []
    for kept in range(1, len(parts)):
        paragraphs = _paragraphs(parts, kept, join, width)
        if sum(map(len, paragraphs)) > most:
            break
        best = paragraphs
    return best or [_cut(parts[0], f" (and {len(parts) - 1} more)" if len(parts) > 1 else "", width, most)]


def _paragraphs(parts: Sequence[str], kept: int, join: str, width: int) -> list[list[str]]:
    """The first `kept` parts, and how many are left."""
    left = len(parts) - kept
    if join == "\n":
        shown = [*parts[: kept - 1], parts[kept - 1] + (f" (and {left} more)" if left else "")]
        return [wrapped(each, width) for each in shown]
    return [_flowed([*parts[:kept], *([f"and {left} more"] if left else [])], join, width)]


def _flowed(parts: Sequence[str], join: str, width: int) -> list[str]:
    """The parts one after the other; one that does not fit into the rest of a line begins the next."""
    end, lines = join.rstrip(), [""]
    for number, part in enumerate(parts):
        text = part + (end if number < len(parts) - 1 else "")
        beside = f"{lines[-1]} {text}" if lines[-1] else text
        if columns(beside) <= width:
            lines[-1] = beside
        else:
            lines = [line for line in lines if line] + wrapped(text, width)
    return lines


def _cut(text: str, more: str, width: int, most: int) -> list[str]:
    """The beginning of a text, with `more` behind it, in at most `most` lines."""
    lines = wrapped(text, width)
    cut = f" {MORE}" if len(lines) > most else ""
    last, room = lines[:most][-1], width - columns(cut + more)
    if columns(last) > room:
        head = _head(last, room)
        last, cut = head.rpartition(" ")[0] or head, f" {MORE}"
        last = _head(last, width - columns(cut + more))
    return [*lines[: most - 1], last + cut + more] if len(lines) >= most else [*lines[:-1], last + cut + more]


def shortened(text: str, width: int) -> str:
    """A name with its middle left out when it is wider than `width` columns: both ends tell it apart."""
    if columns(text) <= width:
        return text
    tail = _head(text[::-1], (width - 1) // 2)[::-1]
    return _head(text, width - 1 - columns(tail)) + MORE + tail


def _head(text: str, width: int) -> str:
    """As much of the text as `width` columns hold."""
    used = 0
    for place, character in enumerate(text):
        used += _columns_of(character)
        if used > width:
            return text[:place]
    return text


def _columns_of(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
