"""The sampling loop: absolute monotonic schedule, one line a tick, and an end line that says why it ended."""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal
import time

from sampler import __version__, host
from sampler.attach import REAL_PROCFS, attach, identity, is_dead, visibility
from sampler.cgroup import Cgroup
from sampler.output import Unwritten
from sampler.procfs import GONE, Descriptors, parse_stat, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

    from sampler.output import SampleFile

    Line = Dict[str, Any]

FORMAT = 1
LATE_SHARE = 0.1                 # of the interval: a sample later than this is counted in `n_late`
SPARE_DESCRIPTORS = 256          # left for the folders of descendants; the rest keep hot files open
NS = 1_000_000_000


def clocks() -> Dict[str, int]:
    """The three clocks, read one after the other. Rates use t_mono_ns; the others show steps and suspends."""
    return {
        "t_mono_ns": time.monotonic_ns(),
        "t_boot_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        "t_wall_ns": time.time_ns(),
    }


def encode(line: Line) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


class Sampler:
    """One held process and everything around it that is read at a tick. Raises Refused when it may not be sampled."""

    def __init__(
        self, pid: int, procfs: str = REAL_PROCFS, cgroupfs: Optional[str] = None, subject: str = "gateway"
    ) -> None:
        self.procfs = procfs
        self.subject = subject
        held = Descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_DESCRIPTORS)
        self.tree, self.pidfd = attach(pid, procfs, held)
        self.cgroup = Cgroup(procfs, cgroupfs, lambda: self.tree.root.read("cgroup"), self.tree.pids, held)
        self._net = host.net(self.tree.root.dir_fd, held)
        self._host = host.host(procfs, held)
        self.n_samples = 0

    def sample(self, seq: int, due_ns: Optional[int] = None) -> Optional[Line]:
        """One sample line; None when the root is gone. `lag_ns` is below 0 when it was taken before it was due."""
        now = clocks()
        why: Dict[str, str] = {}
        root, tree, born, gone = self.tree.sample(self.n_samples + 1, why)
        if root is None:
            return None
        self.n_samples += 1
        line: Line = {"kind": "sample", "subject": self.subject, "incarnation": 1, "seq": seq, **now}
        line["lag_ns"] = 0 if due_ns is None else now["t_mono_ns"] - due_ns
        line["cost_ns"] = line["cpu_ns"] = None      # keeps their place in the line; set when all is read
        line.update(root=root, tree=tree, born=born, gone=gone)
        line["cgroup"] = self.cgroup.sample(self.n_samples, why)
        line["net"] = self._net.sample(why)
        line["host"] = self._host.sample(why)
        line["why"] = why
        line["cost_ns"] = time.monotonic_ns() - now["t_mono_ns"]
        line["cpu_ns"] = time.process_time_ns()
        return line

    def close(self) -> None:
        for part in (self.cgroup, self._net, self._host, self.tree):
            part.close()
        if self.pidfd is not None:
            os.close(self.pidfd)

    def gone_how(self) -> Optional[str]:
        """How the root's end shows, None while it lives."""
        if self.pidfd is not None and _is_readable(self.pidfd):
            return "pidfd"
        try:
            stat = parse_stat(self.tree.root.read("stat"))
            if int(stat[21]) != self.tree.root.start_ticks:
                return "start_ticks"
            return "zombie" if is_dead(stat) else None
        except OSError as error:
            return "esrch" if reason(error) in GONE else None

    def describe(self, first: Line) -> Line:
        """Identity, visibility and the reasons of both; `first` is a sample just taken."""
        facts, why = identity(self.tree, self.procfs, self.cgroup)
        seen = visibility(self.tree, self.procfs, {**first["why"], **why})
        return {"identity": facts, "visibility": seen, "why": why}


def start_line(sampler: Sampler, now: Dict[str, int], interval_s: float, description: Line) -> Line:
    return {
        "kind": "start", "format": FORMAT, "subject": sampler.subject, "incarnation": 1, **now,
        "interval_s": interval_s,
        "clk_tck": os.sysconf("SC_CLK_TCK"), "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "n_cpus": os.cpu_count(),
        "identity": description["identity"], "visibility": description["visibility"],
        "sampler": {
            "pid": os.getpid(), "version": __version__, "uid": os.geteuid(),
            "pidfd": sampler.pidfd is not None,
            "fd_method": "size" if sampler.tree.by_size else "list",
            "children_method": "children" if sampler.tree.has_children_file else "scan",
        },
        "why": description["why"],
    }


class Loop:
    """Samples until a signal, the time's end, the parent's end or the process's end."""

    def __init__(
        self, sampler: Sampler, file: SampleFile, interval_s: float, for_s: Optional[float], parent_fd: Optional[int]
    ) -> None:
        self._sampler = sampler
        self._file = file
        self._interval_s = interval_s
        self._interval_ns = int(interval_s * NS)
        self._for_ns = None if for_s is None else int(for_s * NS)
        self._parent_fd = parent_fd
        self._n_late = 0
        self._n_missed = 0
        self._poll = select.poll()
        self._signal_fd = _catch_signals()
        for fd in (self._signal_fd, sampler.pidfd, parent_fd):
            if fd is not None:
                self._poll.register(fd, select.POLLIN)

    def run(self) -> Optional[OSError]:
        """Runs to the end; returns the error when the file could no longer be written."""
        begin = clocks()
        origin = begin["t_mono_ns"]
        try:
            first = self._sampler.sample(1, origin)
            if first is None:
                first_why, detail = "target_gone", self._how_gone()
                self._file.append(encode(self._start(begin, None)))
            else:
                self._file.append(encode(self._start(begin, first)))
                self._file.append(encode(first))
                first_why, detail = self._ticks(origin)
        except Unwritten as failed:
            full = failed.error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            self._try_end("disk_full" if full else "io_error", {"errno": reason(failed.error)})
            return failed.error
        return self._try_end(first_why, detail)

    def _start(self, begin: Dict[str, int], first: Optional[Line]) -> Line:
        empty: Line = {"identity": {}, "visibility": [], "why": {"identity": "gone"}}
        description = empty
        if first is not None:
            try:
                description = self._sampler.describe(first)
            except OSError as error:         # it ended while it was being described
                description = {**empty, "why": {"identity": reason(error)}}
        return start_line(self._sampler, begin, self._interval_s, description)

    def _ticks(self, origin: int) -> Tuple[str, Line]:
        """Every tick after the first. Returns the end's reason and detail. Raises Unwritten."""
        seq = 1
        while True:
            tick = seq + 1
            due = origin + (tick - 1) * self._interval_ns
            now = time.monotonic_ns()
            if now > due:        # ticks went by: skipped, not caught up with; `seq` shows the hole
                n_missed = (now - due) // self._interval_ns + 1
                self._n_missed += n_missed
                tick += n_missed
                due += n_missed * self._interval_ns
            end = None if self._for_ns is None else origin + self._for_ns
            why = self._wait(due if end is None else min(due, end))
            if why is None and end is not None and time.monotonic_ns() >= end:
                why = "for"
            gone = self._sampler.gone_how()
            line = None if gone else self._sampler.sample(tick, due)
            if line is None:
                return "target_gone", self._how_gone(gone)
            self._n_late += line["lag_ns"] > LATE_SHARE * self._interval_ns
            self._file.append(encode(line))
            if why is not None:
                return why, {}
            seq = tick

    def _wait(self, until_ns: int) -> Optional[str]:
        """Sleeps until the deadline or until something happens; gives the end's reason, if one came."""
        while True:
            left_ms = (until_ns - time.monotonic_ns()) / 1e6
            # poll rounds up to whole milliseconds; the last one is slept, so that a tick is not late by it.
            events = self._poll.poll(int(left_ms) if left_ms > 0 else 0)
            for fd, _ in events:
                if fd == self._signal_fd:
                    return "signal"
                if fd == self._parent_fd:
                    if not os.read(fd, 4096):
                        return "parent_gone"
                else:
                    return "target_gone"
            if not events:
                time.sleep(max(0, until_ns - time.monotonic_ns()) / NS)
                return None

    def _how_gone(self, how: Optional[str] = None) -> Line:
        return {"how": how or self._sampler.gone_how() or "esrch", "exit_seen_t_mono_ns": time.monotonic_ns()}

    def _try_end(self, why: str, detail: Line) -> Optional[OSError]:
        line: Line = {"kind": "end", "subject": self._sampler.subject, "incarnation": 1, **clocks(), "reason": why}
        line.update(detail)
        line.update(
            n_samples=self._sampler.n_samples, n_late=self._n_late, n_missed=self._n_missed,
            cpu_ns=time.process_time_ns(), rss_kb=_own_rss_kb(),
        )
        try:
            self._file.append(encode(line))
        except Unwritten as failed:
            return failed.error
        return None


def _catch_signals() -> int:
    """A descriptor that is readable once SIGTERM, SIGINT or SIGHUP came. SIGHUP stays ignored under nohup."""
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    return receiver


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _own_rss_kb() -> Optional[int]:
    """Resident memory of this sampler. Its own file, not the target's."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    except (OSError, ValueError, IndexError):
        return None
