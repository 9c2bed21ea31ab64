"""Whether the sockets of the gateway's port stand still after a cycle, so that idle floors can be taken (design §8)."""

from __future__ import annotations

import time

from sweep.ownership import tcp_sockets

_LOOK_S = 1.0
_STILL_S, _SETTLE_S = 5.0, 90.0  # keep-alive pools empty after 5 to 75 s; floors are taken when the sockets rest


class Settling:
    """Looked at once a second. pid: None when nothing can be seen or no floor is needed."""

    def __init__(self, pid: int | None, port: int) -> None:
        self._pid = pid
        self._port = port
        self._seen: frozenset[tuple[str, int]] | None = None
        self._changed_s = self._looked_s = time.monotonic()

    def is_over(self, over_ns: int) -> bool:
        """Unchanged for 5 s, or 90 s past the cool-down's end, over_ns; at once without a pid."""
        if self._pid is None:
            return True
        now = time.monotonic()
        if now - self._looked_s >= _LOOK_S:
            self._looked_s = now
            sockets = tcp_sockets(self._pid)
            if sockets is None:
                return True
            seen = frozenset((each.state, each.inode) for each in sockets if each.port == self._port)
            if seen != self._seen:
                self._seen, self._changed_s = seen, now
        return now - self._changed_s >= _STILL_S or time.monotonic_ns() > over_ns + _SETTLE_S * 1e9
