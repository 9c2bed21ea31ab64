"""What answer headers tell of the way a request went: attempts, fallbacks, backend, headers asked to be kept. Pure.

Only headers of this table, and those named by --keep-header, are ever kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from sweep.masking import Masked
from sweep.outcomes import one_line

_MAX_DIGITS = 4
_WORD = re.compile(r"\S+")
_QUERY = re.compile(r"[?#]")
# `user:password@` as it should be, with a slash in the password, and without a scheme; of all, the last @ ends it.
_USERS = (
    (re.compile(r"//[^/?#]*@"), "//"),
    (re.compile(r"//[^/?#@:\[]+:(?!\d{1,5}[/?#])((?![A-Za-z][A-Za-z0-9+.-]{0,9}://).)*@"), "//"),
    (re.compile(r"[^/@:=,;<>\"'(\[]+:[^/]*@"), ""),
)
_USER_ALONE = ((re.compile(r"[^@:=,;<>\"'(\[]+:.*@"), ""),)
_MAX_ADDRESS = 1024  # characters; what is longer costs time to read


class AnswerHeader(NamedTuple):
    """One header: what it gives, and what to add to its number so that the first try counts as one attempt."""

    name: str
    gives: Literal["attempts", "fallbacks", "backend"]
    add: int
    meaning: str


def attempts(headers: Mapping[str, str]) -> int | None:
    """Upstream attempts behind this answer, the first included; None when no header tells. Names in lower case."""
    if _NAMES.isdisjoint(headers):  # nearly every answer
        return None
    return next((n + row.add for row in _rows("attempts") if (n := _count(headers.get(row.name))) is not None), None)


def is_fallback(headers: Mapping[str, str]) -> bool:
    """A header tells that another model or provider than the first choice was tried."""
    if _NAMES.isdisjoint(headers):
        return False
    return any((_count(headers.get(row.name)) or 0) > 0 for row in _rows("fallbacks"))


def backend(headers: Mapping[str, str], masked: Masked) -> str | None:
    """The upstream that answered, on one line; of an address neither user, password nor query. None: not told."""
    if _NAMES.isdisjoint(headers):
        return None
    value = next((headers[row.name] for row in _rows("backend") if row.name in headers), None)
    return None if value is None else printable(_without_credentials(value, masked), masked)


def kept(headers: Mapping[str, str], names: Sequence[str], masked: Masked) -> dict[str, str] | None:
    """Values of the headers named, on one line; one that did not come is left out. None when none was named."""
    if not names:
        return None
    wanted = [name.lower() for name in names]
    return {name: printable(_without_credentials(headers[name], masked), masked) for name in wanted if name in headers}


def printable(value: str, masked: Masked) -> str:
    """At most 200 printable characters on one line, every known secret masked."""
    line = one_line(value, masked) or ""
    return line if line.isprintable() else "".join(each if each.isprintable() else "?" for each in line)


def _rows(gives: str) -> tuple[AnswerHeader, ...]:
    return _BY_KIND[gives]


def _count(told: str | None) -> int | None:
    # isdigit() takes "²", which int() does not
    return int(told) if told is not None and told.isdecimal() and len(told) <= _MAX_DIGITS else None


def _without_credentials(value: str, masked: Masked) -> str:
    """Of every address in it neither user, password, query nor fragment."""
    if not any(sign in value for sign in ("@", "?", "#", "://")):
        return value
    if len(value) > _MAX_ADDRESS:
        return "an address too long to keep"
    try:
        urlsplit(value)
    except ValueError:
        return "an address that cannot be read"
    # A secret is masked before parts are taken away, which may be parts of it.
    return _WORD.sub(lambda word: _bare(word[0]), masked(value))


def _bare(word: str) -> str:
    for pattern, instead in _USERS if "//" in word else _USER_ALONE:
        word = pattern.sub(instead, word)
    address, sign, rest = word.partition(found[0]) if (found := _QUERY.search(word)) else (word, "", "")
    return address if sign and ("/" in address or "=" in rest) else word


HEADERS = (
    AnswerHeader("x-gateway-attempts", "attempts", 0, "ferrogw: upstream attempts"),
    AnswerHeader("x-rlcd-attempts", "attempts", 0, "rlcd-gateway: upstream attempts"),
    AnswerHeader("x-envoy-attempt-count", "attempts", 0, "Envoy: upstream attempts, where it is set to say so"),
    AnswerHeader("x-litellm-attempted-retries", "attempts", 1, "LiteLLM: retries after the first attempt"),
    AnswerHeader("x-litellm-attempted-fallbacks", "fallbacks", 0, "LiteLLM: other models tried in its place"),
    AnswerHeader("x-gateway-target", "backend", 0, "ferrogw: target"),
    AnswerHeader("x-rlcd-route", "backend", 0, "rlcd-gateway: route"),
    AnswerHeader("x-litellm-model-api-base", "backend", 0, "LiteLLM: address of the deployment"),
    AnswerHeader("x-litellm-model-id", "backend", 0, "LiteLLM: id of the deployment"),
    AnswerHeader("x-backend-server", "backend", 0, "haproxy, by convention: server"),
    AnswerHeader("x-upstream", "backend", 0, "nginx, by convention: address of the upstream"),
)  # fmt: skip
_BY_KIND = {kind: tuple(row for row in HEADERS if row.gives == kind) for kind in ("attempts", "fallbacks", "backend")}
_NAMES = frozenset(row.name for row in HEADERS)
