"""How long the embedded gateway's one model stays in memory, as requests ask for it (contracts.md §1.4, §1.5).

Pinned at the start. It is loaded again, at once, by the next request after its time is over.
"""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime, timedelta

DEFAULT_KEEP_S = 300.0
PINNED_S = math.inf
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SPAN = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(sorted(_UNITS_S, key=len, reverse=True))})")
_MOST_S = 1e9  # past any calendar of a client's


def keep_s(said: str | float | None) -> float:
    """Seconds of a request's keep_alive: a number, or text like 10m or 1h30m; a negative one is PINNED_S.

    None, not said: DEFAULT_KEEP_S. Raises ValueError.
    """
    if said is None:
        return DEFAULT_KEEP_S
    seconds = _seconds(said) if isinstance(said, str) else float(said)
    return PINNED_S if seconds < 0 or seconds > _MOST_S else seconds


def _seconds(text: str) -> float:
    number, is_negative = text.removeprefix("-"), text.startswith("-")
    if re.fullmatch(r"\d+(\.\d+)?", number):
        seconds = float(number)
    elif re.fullmatch(f"(?:{_SPAN.pattern})+", number):
        seconds = sum(float(found[1]) * _UNITS_S[found[2]] for found in _SPAN.finditer(number))
    else:
        raise ValueError(f"keep_alive {text!r} is no duration; write 300, 10m or -1")
    return -seconds if is_negative else seconds


class Memory:
    """Whether the model is loaded, and until when. Each request that ends begins its time anew."""

    def __init__(self) -> None:
        self._keep_s, self._t_used_s = PINNED_S, time.monotonic()
        self.n_open = 0

    def begin(self) -> None:
        if not self._is_loaded():
            self._keep_s = DEFAULT_KEEP_S
        self.n_open += 1

    def end(self, keep_s: float | None) -> None:
        """keep_s: what the request asks for; None: it says nothing, and the time set before it stays."""
        self.n_open -= 1
        self._t_used_s = time.monotonic()
        if keep_s is not None:
            self._keep_s = keep_s

    def expires_at(self) -> str | None:
        """RFC 3339; None: pinned. Raises LookupError when it is not loaded."""
        if not self._is_loaded():
            raise LookupError
        if self._keep_s == PINNED_S:
            return None
        left_s = 0.0 if self.n_open else self._t_used_s + self._keep_s - time.monotonic()
        return (datetime.now(UTC) + timedelta(seconds=left_s)).isoformat().replace("+00:00", "Z")

    def _is_loaded(self) -> bool:
        return self.n_open > 0 or time.monotonic() < self._t_used_s + self._keep_s
