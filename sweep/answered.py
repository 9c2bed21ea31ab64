"""What the target says of its own build when it is asked: a few GETs, never load. A failure is data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import httpx
import msgspec

from sweep import subject
from sweep.masking import Masked
from sweep.probe import Answer, Probe
from sweep.told import printable

MAX_VALUE = 100
# Path, key of the JSON object it answers, and the product that alone answers so (None: several do).
VERSION_PATHS = (
    ("/api/version", "version", None),  # Ollama, Ollaya
    ("/version", "version", None),  # vLLM, SGLang
    ("/health/readiness", "litellm_version", "LiteLLM"),
    ("/props", "build_info", "llama.cpp"),
    ("/info", "version", None),  # text-generation-inference
)
VERSION_HEADERS = {
    "x-litellm-version": "LiteLLM", "x-gateway-version": None, "x-app-version": None, "x-version": None,
}  # fmt: skip
_RUNNING = re.compile(r"\s*([A-Za-z][\w .-]{0,39}?) is running\s*\.?\s*")  # `Ollama is running` at /


class Row(NamedTuple):
    """One thing the target said. what: version, product or Server header; product: whose version, None: not said."""

    what: str
    value: str
    product: str | None
    path: str
    source: str


class Asked(NamedTuple):
    """All rows of one round; why: what stopped the asking, None when every path was asked."""

    rows: tuple[Row, ...]
    why: str | None

    def as_json(self) -> dict[str, Any]:
        return {"rows": [row._asdict() for row in self.rows], "why": self.why}


def ask_build(probe: Probe) -> Asked:
    """Asks `/` and every path of VERSION_PATHS. The first that does not answer at all ends it: no use in waiting."""
    return _ask(probe, ("/", *(path for path, _, _ in VERSION_PATHS)))


def ask_again(probe: Probe, asked: Asked) -> Asked:
    """The same of those paths that told a version."""
    paths = {row.path for row in asked.rows if row.what == "version"}
    if not paths:
        return Asked((), None)
    return _ask(probe, ("/", *sorted(paths - {"/"})))


def doubts(declared: str | None, asked: Asked) -> Iterator[str]:
    """What to say before the load of a --subject that the answers do not confirm."""
    if declared is not None:
        rows = [row for row in asked.rows if row.what == "version"]
        answers = [subject.AnsweredVersion(row.value, row.product, row.source) for row in rows]
        compared = subject.compare(declared, answers, asked.why)
        if compared.how == "differs":
            yield f"{compared.reason}: the gate `subject` will fail"
        elif compared.how != "equal":
            yield f"{compared.reason}: the build is assumed, the verdict is at most READY WITH WARNINGS"


def _ask(probe: Probe, paths: Iterable[str]) -> Asked:
    rows: list[Row] = []
    for path in paths:
        try:
            answer = probe.get(path)
        except httpx.HTTPError as error:
            return Asked(_told(rows), f"GET {path}: {type(error).__name__}")
        rows += _rows(path, answer, probe.masked)
    return Asked(_told(rows), None)


def _told(rows: list[Row]) -> tuple[Row, ...]:
    """Each said once; what /api/version answers is of the product that `/` names."""
    product = next((row.value for row in rows if row.what == "product"), None)
    named = [row._replace(product=product) if row.path == "/api/version" and not row.product else row for row in rows]
    once = {(row.what, row.value, row.product, row.source if row.what == "version" else ""): row for row in named[::-1]}
    return tuple(once.values())[::-1]


def _rows(path: str, answer: Answer, masked: Masked) -> Iterator[Row]:
    def row(what: str, value: object, product: str | None, source: str) -> Iterator[Row]:
        if isinstance(value, str) and value.strip():
            yield Row(what, printable(value, masked)[:MAX_VALUE], product, path, source)

    yield from row("Server header", answer.headers.get("server"), None, f"GET {path}")
    for name, product in VERSION_HEADERS.items():
        yield from row("version", answer.headers.get(name), product, f"header {name}")
    if not answer.is_success:
        return
    running = _RUNNING.fullmatch(answer.content[:200].decode("utf-8", "replace")) if path == "/" else None
    if running is not None:
        yield from row("product", running[1], None, "GET /")
    for each, key, product in VERSION_PATHS:
        if each == path:
            yield from row("version", _member(answer.content, key), product, f"GET {path}")


def _member(content: bytes, key: str) -> object:
    try:
        shape = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return None
    return shape.get(key) if isinstance(shape, dict) else None
