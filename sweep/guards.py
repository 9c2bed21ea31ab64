"""What ends exploring, or the run, while it goes on: each guard names what it saw. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ERROR_SHARE = 0.5
ERROR_MIN_N = 20
KEY_REFUSALS_N = 5  # in a row, none answered since: the key is no longer accepted
ALL_FAILED_N = 5  # users pause after failures: one user makes five requests in 10 s
LIMIT_SHARE = 0.9
LOOKS = 3  # a guard trips on the third look in a row that sees it (looks are a second apart)
MIN_FREE_BYTES = 500 * 2**20


class Hysteresis:
    """Trips when the same kind of trouble was seen in LOOKS looks in a row."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def look(self, troubles: Mapping[str, str]) -> str | None:
        """troubles: kind -> words. The words of the first kind that trips, else None."""
        self._seen = {kind: self._seen.get(kind, 0) + 1 for kind in troubles}
        return next((troubles[kind] for kind, n in self._seen.items() if n >= LOOKS), None)


def troubles(recent: tuple[int, int], sample: Mapping[str, Any] | None) -> dict[str, str]:
    """What is wrong at this look. recent: (finished, failed) in 10 s. sample: the sampler's last line."""
    found = {}
    finished, failed = recent
    if failed > ERROR_SHARE * finished and (finished >= ERROR_MIN_N or (failed == finished >= ALL_FAILED_N)):
        found["errors"] = f"error burst: {failed} of the last {finished} requests failed"
    if sample is None:
        return found
    root, cgroup = sample["root"], sample.get("cgroup") or {}
    n_fds, fd_limit = root.get("n_fds"), root.get("fd_soft_limit")
    if n_fds is not None and fd_limit and n_fds > LIMIT_SHARE * fd_limit:
        found["fds"] = f"file descriptors at the limit: {n_fds} of {fd_limit}"
    anon, limit = cgroup.get("memory_anon_bytes"), cgroup.get("memory_limit_bytes")
    if cgroup.get("only_this_tree") and anon is not None and limit and anon > LIMIT_SHARE * limit:
        found["memory"] = f"memory at the limit: {anon} of {limit} bytes are anonymous"
    return found


def key_troubles(n_refused: int) -> dict[str, str]:
    """Whether the key may have expired. n_refused: requests it was refused for since the last that was answered."""
    if n_refused < KEY_REFUSALS_N:
        return {}
    return {"key": f"the API key is refused: {n_refused} requests in a row got 401 or 403"}
