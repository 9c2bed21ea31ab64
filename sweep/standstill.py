"""Whether our own process stood still (stopped, suspended, kept from a CPU) while it timed something."""

from __future__ import annotations

import threading
import time

_BEAT_S = 0.05
# A beat later than this: we did not run. A busy machine delays a beat by tens of milliseconds.
_LIMIT_NS = 250_000_000


def t_boot_ns() -> int:
    """CLOCK_BOOTTIME: it goes on while the machine is suspended, which CLOCK_MONOTONIC does not."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Pulse(threading.Thread):
    """Beats twenty times a second; beats that are missing tell when we stood still."""

    def __init__(self) -> None:
        super().__init__(name="pulse", daemon=True)
        self._beat_ns = t_boot_ns()
        self._stood: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(_BEAT_S):
            with self._lock:
                now_ns = t_boot_ns()
                if now_ns - self._beat_ns > _LIMIT_NS:
                    self._stood.append((self._beat_ns, now_ns))
                self._beat_ns = now_ns

    def stood_still_ms(self, since_ns: int) -> float | None:
        """How long we did not run from since_ns (CLOCK_BOOTTIME) to now.

        None: never for longer than a busy machine may delay us.
        """
        # The beat that is due now is asked too: the thread that asks may run again before this one does.
        with self._lock:
            spans = [*self._stood, (self._beat_ns, t_boot_ns())]
        stood_ns = [end - max(begin, since_ns) for begin, end in spans if end > since_ns and end - begin > _LIMIT_NS]
        return sum(stood_ns) / 1e6 if stood_ns else None

    def stop(self) -> None:
        self._over.set()
        self.join()
