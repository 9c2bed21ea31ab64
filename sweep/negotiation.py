"""Parameters of a request that a target does not know: found by its refusal before the load, and changed once. Pure.

What was agreed holds for every request of the run; nothing is negotiated under load.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Key of the body -> its other name, None: it is left out. The length of answers is never left unlimited: caps and time
# of the run count on it.
_INSTEAD: Mapping[str, str | None] = {"stream_options": None, "max_tokens": "max_completion_tokens"}
_REFUSALS = (400, 422)
# A limit that is only too high ("max_tokens 128: this model gives 64") is not meant.
_UNKNOWN = re.compile(
    r"unsupported|not (supported|permitted|allowed|accepted|recogni[sz]ed)|un(known|recogni[sz]ed|expected)|extra"
    r"|max_completion_tokens",
    re.I,
)

CONSEQUENCE = {
    "stream_options": "the target refuses stream_options, so streams are asked without: their token counts come from "
    "events, unless the target counts unasked",
    "max_tokens": "the target refuses max_tokens; max_completion_tokens is sent instead",
}


def refused_parameter(
    status: int | None, said: str, body: Mapping[str, Any], agreed: Mapping[str, str | None]
) -> dict[str, str | None]:
    """What to change of the body after a refusal; empty when it was about something else, or was changed before.

    said: code and text of the error. agreed: what was changed already, as this returns it.
    """
    if status not in _REFUSALS or not _UNKNOWN.search(said):
        return {}
    for key, instead in _INSTEAD.items():
        if key in body and key not in agreed and re.search(rf"\b{key}\b", said):
            return {key: instead}
    return {}


def with_agreed(body: Mapping[str, Any], agreed: Mapping[str, str | None]) -> dict[str, Any]:
    """The body as it was agreed; the order of its keys stays."""
    renamed = ((agreed.get(key, key), value) for key, value in body.items())
    return {key: value for key, value in renamed if key is not None}
