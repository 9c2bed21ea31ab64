"""Reads evidence files while they grow, for the progress line and the guards; keeps counts, not rows."""

from __future__ import annotations

import bisect
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sweep.records import FAILED, KEY_REFUSED, Record

T = TypeVar("T")
RECENT_S = 10.0


class Tail:
    """New whole lines of a file since the last look; a file that is not there yet has none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def lines(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(new)
        lines = (self._rest + new).split(b"\n")
        self._rest = lines.pop()
        return lines


class StepProgress:
    """Counts of one step so far: finished, failed, TTFT median, and the share that failed in the last 10 s.

    n_refused: requests that the key was refused for since the last one that was answered; they are not among the
    recent failures, because they may be our key's. Stays 0 for a plan that sends no key.
    """

    def __init__(self, paths: Sequence[Path], *, sends_key: bool = False, other_clocks: bool = False) -> None:
        """paths: the records of every process of the step. other_clocks: they are of other machines."""
        self._tails = [Tail(path) for path in paths]
        self._other_clocks = other_clocks
        self._ahead_ns: dict[Tail, int] = {}  # our clock less theirs, as of the first record: good to a second or so
        self._decode = msgspec.json.Decoder(Record).decode
        self._ttft_ns: list[int] = []
        self._recent: deque[tuple[int, bool]] = deque()
        self._refused_ns: deque[int] = deque()
        self._sends_key = sends_key
        self.n_refused = 0
        self.outcomes: Counter[str] = Counter()
        self.n_window = 0  # finished ones that started in the measured window
        self.window_from_ns: int | None = None  # start of the first of them

    def look(self, now_ns: int) -> None:
        for tail, line in [(each, line) for each in self._tails for line in each.lines()]:
            record = self._decode(line)
            ahead_ns = self._ahead_ns.setdefault(tail, now_ns - record.t_over_ns) if self._other_clocks else 0
            self.outcomes[record.outcome] += 1
            self._note(record, record.t_over_ns + ahead_ns)
            if record.outcome == "ok" and record.t_first_ns is not None:
                bisect.insort(self._ttft_ns, record.t_first_ns - record.t_start_ns)
            if record.phase == "window":
                self.n_window += 1
                t_start_ns = record.t_start_ns + ahead_ns
                if self.window_from_ns is None or t_start_ns < self.window_from_ns:
                    self.window_from_ns = t_start_ns
        while self._recent and now_ns - self._recent[0][0] > RECENT_S * 1e9:
            self._recent.popleft()

    def _note(self, record: Record, t_over_ns: int) -> None:
        if record.outcome == "left":  # tells nothing of the target
            return
        failed = record.outcome in FAILED
        if failed and self._sends_key and record.status in KEY_REFUSED:
            self.n_refused += 1
            self._refused_ns.append(t_over_ns)
            return
        if record.outcome == "ok":  # the key is good: what was refused is the target's failure
            self._recent.extend((t_ns, True) for t_ns in self._refused_ns)
            self._refused_ns.clear()
            self.n_refused = 0
        self._recent.append((t_over_ns, failed))

    @property
    def n_finished(self) -> int:
        return self.outcomes.total()

    @property
    def n_failed(self) -> int:
        return sum(self.outcomes[name] for name in FAILED)

    @property
    def ttft_p50_ms(self) -> float | None:
        return self._ttft_ns[(len(self._ttft_ns) - 1) // 2] / 1e6 if self._ttft_ns else None

    @property
    def recent(self) -> tuple[int, int]:
        """(finished, failed) in the last 10 s."""
        return len(self._recent), sum(failed for _, failed in self._recent)


class GatewayProgress:
    """The last sample: memory, CPU since the sample before, descriptors and limits."""

    def __init__(self, path: Path, clk_tck: int) -> None:
        self._tail = Tail(path)
        self._clk_tck = clk_tck
        self._before: tuple[int, int] | None = None
        self.sample: dict[str, Any] | None = None
        self.cpu_cores: float | None = None

    def look(self) -> None:
        for line in self._tail.lines():
            row = msgspec.json.decode(line)
            if row["kind"] != "sample":
                continue
            self.sample = row
            ticks = [_ticks(process) for process in (row["root"], *row["tree"])]
            known = [each for each in ticks if each is not None]
            now = (row["t_mono_ns"], sum(known))
            if self._before is not None and now[1] >= self._before[1]:
                self.cpu_cores = (now[1] - self._before[1]) / self._clk_tck / ((now[0] - self._before[0]) / 1e9)
            self._before = now

    @property
    def anon_bytes(self) -> int | None:
        """Memory as the report leads with it: the cgroup's anon when it holds only this tree, else the RssAnon sum."""
        if self.sample is None:
            return None
        cgroup = self.sample.get("cgroup") or {}
        if cgroup.get("only_this_tree") and cgroup.get("memory_anon_bytes") is not None:
            return int(cgroup["memory_anon_bytes"])
        parts = [process.get("rss_anon_kb") for process in (self.sample["root"], *self.sample["tree"])]
        known = [part for part in parts if part is not None]
        return sum(known) * 1024 if known else None


def _ticks(process: dict[str, Any]) -> int | None:
    user, system = process.get("utime_ticks"), process.get("stime_ticks")
    return None if user is None or system is None else user + system
