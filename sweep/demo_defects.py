"""Defects the embedded gateway shows on demand, so that a report can be seen to find them.

In: `--defect` texts. Out: what the next request or probe suffers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

LEAK_BYTES = 256 * 1024  # anonymous memory a request, touched
FLAP_S = 4  # not ready for this long, every twice as long
SLOW_FACTOR = 10
DIE_STATUS = 9

DEFECTS = {
    "leak-fds": "keeps one file descriptor open for each request",
    "leak-memory": "keeps 256 KiB of memory for each request",
    "truncate-streams": "streams end half-way, cleanly, without finish or [DONE]",
    "error-in-200": "an error object half-way through a 200 stream, or as a 200 body",
    "buffer-streams": "sends a whole stream in one write at its end",
    "flap-readiness": "/readyz answers 503 for 4 s in every 8 s",
    "die-after": "the process ends without a word after N requests",
    "slow-after": "time to first token is 10 times as long after N requests",
}
COUNTED = ("die-after", "slow-after")


class Defects:
    """The defects switched on, and what they have taken so far."""

    def __init__(self, texts: Sequence[str]) -> None:
        """texts: `NAME`, or `NAME=N` or `NAME N` for those that count. Raises ValueError on any other text."""
        self._after: dict[str, int] = {}
        self._names = frozenset(self._read(text) for text in texts)
        self._n_requests = 0
        self._fds: list[int] = []
        self._memory: list[bytearray] = []

    def has(self, name: str) -> bool:
        return name in self._names

    def begin_request(self) -> int:
        """The factor on this request's time to first token. To be called once for each request that is let in."""
        if self._is_past("die-after"):
            os._exit(DIE_STATUS)
        if "leak-fds" in self._names:
            self._fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        if "leak-memory" in self._names:
            self._memory.append(bytearray(b"\x01") * LEAK_BYTES)  # written, so that the pages are resident
        factor = SLOW_FACTOR if self._is_past("slow-after") else 1
        self._n_requests += 1
        return factor

    def is_unready(self, up_s: float) -> bool:
        """up_s: time since the gateway began to listen; it starts ready."""
        return "flap-readiness" in self._names and int(up_s / FLAP_S) % 2 == 1

    def _is_past(self, name: str) -> bool:
        return name in self._after and self._n_requests >= self._after[name]

    def _read(self, text: str) -> str:
        name, _, number = re.sub(r"[\s=]+", " ", text.strip()).partition(" ")
        if name not in DEFECTS:
            raise ValueError(f"no defect is called {name!r}; there are {', '.join(DEFECTS)}")
        if (name in COUNTED) != number.isdecimal():
            raise ValueError(f"defect {text!r}: write {name}=N" if name in COUNTED else f"{name} takes no number")
        if number:
            self._after[name] = int(number)
        return name
