"""Which models the target holds in memory, asked once before the first request and once after the last.

Only Ollama and what speaks like it can be asked (`GET /api/ps`). Nothing is loaded or unloaded here: an unload could
take a model away from somebody else.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec

from sweep.dialects import BY_NAME
from sweep.plan import SweepPlan
from sweep.probe import Probe

PATH = "/api/ps"
# What is kept of an entry, as told: a null `expires_at` means pinned, one that is not there means not told.
_KEPT = ("digest", "context_length", "expires_at")
_MAX_MODELS, _MAX_TEXT = 100, 200


class _Answer(msgspec.Struct):
    models: list[dict[str, Any]]


def ask_loaded(probe: Probe) -> dict[str, Any]:
    """{models, why}: a row of name, digest, context_length, expires_at a model, or null and why it is not known."""
    try:
        answer = probe.get(PATH)
    except httpx.HTTPError as error:
        return _unknown(f"{PATH}: {type(error).__name__}")
    if not answer.is_success:
        return _unknown(f"{PATH} answers {answer.status}")
    try:
        listed = msgspec.json.decode(answer.content, type=_Answer).models
        rows = [_row(probe, entry) for entry in listed[:_MAX_MODELS]]
    except (msgspec.DecodeError, RecursionError, KeyError):
        return _unknown(f"{PATH} answers no list of models")
    return {"models": rows, "why": None}


def kept_as_found(plan: SweepPlan, loaded: dict[str, Any]) -> dict[str, Any]:
    """Of the request's body, what keeps the model in memory as `ask_loaded` found it; empty when the API has no word
    for that."""
    keep = BY_NAME[plan.api or ""].as_found
    if keep is None:
        return {}
    try:
        return keep(loaded, plan.model or "", datetime.now(UTC))
    except (TypeError, ValueError):  # a time that is none
        return keep({"models": None}, plan.model or "", datetime.now(UTC))


def last_look(probe: Probe) -> dict[str, Any]:
    """What the mark at a run's end tells of the target's models, and of our GETs beside the load, by path."""
    return {"loaded": ask_loaded(probe), "gets": probe.n_gets()}


def _row(probe: Probe, entry: dict[str, Any]) -> dict[str, Any]:
    """Raises KeyError for an entry without a name."""
    row: dict[str, Any] = {"name": _text(probe, str(entry["name"]))}
    for key in _KEPT:
        value = entry.get(key)
        if isinstance(value, str):
            row[key] = _text(probe, value)
        elif key in entry and (value is None or isinstance(value, int)):
            row[key] = value
    return row


def _text(probe: Probe, text: str) -> str:
    return probe.masked(text)[:_MAX_TEXT]


def _unknown(why: str) -> dict[str, Any]:
    return {"models": None, "why": why}
