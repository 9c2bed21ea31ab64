"""Texts from outside made safe to keep: every spelling of every known secret masked, whole or a long piece. Pure."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from urllib.parse import quote, quote_plus

import msgspec

MASK = "***"
PIECE = 12  # characters; a run of a secret so long is masked wherever it stands
_SEED = PIECE // 2
_MIN_PART = 8  # a shorter word of a header's value may be any word
_MIN_ODD_PART = 5  # unless it holds a digit
_BETWEEN = re.compile(r"[\s;,=]+")
_SCHEMES = ("bearer", "token", "apikey", "api-key", "key")
_IN_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"}
_IN_SCRIPT = {each: f"\\u{ord(each):04x}" for each in "&<>'"}


class Masked:
    """Masks secrets as they are, escaped for JSON, URLs and HTML, in hex, reversed, in base64 at any alignment.

    Blanks within a secret do not hide it, nor does its case. It runs for every answer: what holds no block of six
    characters of any spelling, which is nearly every text, costs one look at each character.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        spellings = {each for secret in secrets if secret for each in _spellings(secret)}
        short = sorted((each for each in spellings if len(_folded(each)) < PIECE), key=len, reverse=True)
        self._short = re.compile("|".join(map(re.escape, short)), re.IGNORECASE) if short else None
        self._long = {each for spelling in spellings if len(each := _folded(spelling)) >= PIECE}
        # A run of PIECE characters holds one of these blocks whole, however it is aligned.
        self._seeds = {each[i : i + _SEED] for each in self._long for i in range(0, len(each) - _SEED + 1, _SEED)}

    def __call__(self, text: str) -> str:
        if self._seeds:
            folded = _folded(text)
            blocks = (folded[i : i + _SEED] for i in range(len(folded) - _SEED + 1))
            if not self._seeds.isdisjoint(blocks):
                text = self._without_pieces(text, folded)
        return text if self._short is None else self._short.sub(MASK, text)

    @cached_property
    def _pieces(self) -> set[str]:
        """Made when a text is suspect for the first time: of a long token they are many."""
        return {each[i : i + PIECE] for each in self._long for i in range(len(each) - PIECE + 1)}

    def _without_pieces(self, text: str, folded: str) -> str:
        runs: list[list[int]] = []
        for start in range(len(folded) - PIECE + 1):
            if folded[start : start + PIECE] in self._pieces:
                if runs and start < runs[-1][1]:
                    runs[-1][1] = start + PIECE
                else:
                    runs.append([start, start + PIECE])
        where = [i for i, each in enumerate(text) if not each.isspace()]
        kept, done = [], 0
        for start, end in runs:
            kept += [text[done : where[start]], MASK]
            done = where[end - 1] + 1
        return "".join([*kept, text[done:]])


def with_parts(value: str) -> set[str]:
    """A secret header value and what a server may repeat of it alone: its longer words, and the password of `Basic`."""
    parts = {value, *filter(_is_telling, _BETWEEN.split(value))}
    scheme, _, coded = value.partition(" ")
    if scheme.lower() in _SCHEMES:
        parts.add(coded.strip())
    if scheme.lower() == "basic":
        try:
            parts.add(base64.b64decode(coded, validate=True).decode().partition(":")[2])
        except ValueError:  # no Basic credentials; the whole value is masked all the same
            pass
    return parts


def _is_telling(word: str) -> bool:
    return len(word) >= (_MIN_ODD_PART if any(map(str.isdigit, word)) else _MIN_PART)


def _folded(text: str) -> str:
    """In lower case and without blanks; as many characters as the text has besides them."""
    joined = "".join(text.split())
    folded = joined.lower()
    return folded if len(folded) == len(joined) else "".join(x if len(x.lower()) > 1 else x.lower() for x in joined)


def _spellings(secret: str) -> Iterator[str]:
    escaped = msgspec.json.encode(secret).decode()[1:-1]
    ascii_only = json.dumps(secret)[1:-1]
    yield from (secret, secret[::-1], secret.encode().hex())
    for each in (escaped, ascii_only):
        yield from (each, each.replace("/", "\\/"), _replaced(each, _IN_SCRIPT))
        yield json.dumps(each)[1:-1]
    quoted = quote(secret, safe="")
    yield from (quoted, quote(secret, safe="/"), quote_plus(secret), quote(quoted, safe=""))
    yield from (html.escape(secret), _replaced(secret, _IN_HTML))
    for once in _base64(secret):
        yield once
        yield from _base64(once)


def _replaced(text: str, table: Mapping[str, str]) -> str:
    return text.translate({ord(each): spelled for each, spelled in table.items()})


def _base64(secret: str) -> Iterator[str]:
    """Of the base64 of `xx…secret…`, the part that no neighbour of the secret can change."""
    raw = secret.encode()
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        inner = coded[(before * 8 + 5) // 6 : (before + len(raw)) * 8 // 6]
        if len(inner) >= 6:
            yield from (inner, inner.replace("+", "-").replace("/", "_"))
