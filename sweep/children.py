"""Child processes that end with us: in a session of their own, asked to end by a pipe, killed by the kernel.

A session is ended whole: what a program of the user's started there does not outlive it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from sweep.child_log import ChildLog

PARENT_FD_ENV = "HA_SWEEP_PARENT_FD"
_PARENT_PID_ENV = "HA_SWEEP_PARENT_PID"
_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.02
_ROUNDS = 50
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int | None = None) -> None:
    """Called first thing by a child: the kernel kills it when the thread that forked it ends; if it has, we end now.

    parent: its pid; None: the one that Child names.
    Source: prctl(2), PR_SET_PDEATHSIG. Here and not between fork and exec, where Python must not run beside threads.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    expected = os.environ.get(_PARENT_PID_ENV, str(os.getppid())) if parent is None else str(parent)
    if str(os.getppid()) != expected:
        os._exit(1)


def run_child(
    arguments: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """A short program of ours, run to its end with the same precautions as Child. Raises subprocess.TimeoutExpired.

    environment: None gives it ours.
    """
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        env=environment,
        start_new_session=True,
        check=False,
    )


class Child:
    """A program of ours, run by this Python. Its standard input is /dev/null, so only we hear the terminal.

    The variable HA_SWEEP_PARENT_FD (and `{fd}` among its arguments) is the read end of a pipe: a byte asks it to end,
    the pipe's end says that we are gone. When it has ended, all that it started in its session is ended with it.
    """

    def __init__(
        self, arguments: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path,
        masked: Callable[[str], str] = str,
    ) -> None:  # fmt: skip
        """arguments: after `python -P`; `{fd}` in one of them is replaced by the pipe's read end.

        masked: makes what the program prints safe to keep.
        """
        read_end, self._write_end = os.pipe()
        try:
            self._output = ChildLog(log, masked)
            try:
                self.process = subprocess.Popen(
                    # -P: a folder named `sampler` or `locust` in the working folder must not be imported.
                    [sys.executable, "-P", *(part.replace("{fd}", str(read_end)) for part in arguments)],
                    stdin=subprocess.DEVNULL,
                    stdout=self._output.write_end,
                    stderr=subprocess.STDOUT,
                    env=dict(environment) | {PARENT_FD_ENV: str(read_end), _PARENT_PID_ENV: str(os.getpid())},
                    cwd=folder,
                    pass_fds=(read_end,),
                    start_new_session=True,
                )
            except BaseException:
                self._output.finish()
                raise
            self._output.close_write_end()
        except BaseException:
            os.close(self._write_end)
            raise
        finally:
            os.close(read_end)
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_ended(self) -> bool:
        if self.process.returncode is None and self._is_over():
            self._end_all()
        return self.process.returncode is not None

    def ask_to_end(self) -> None:
        """Asks by the pipe; harmless when the child is gone."""
        try:
            os.write(self._write_end, b"e")
        except BrokenPipeError:
            pass

    def end(self, grace_s: float) -> int:
        """SIGTERM, then SIGKILL after grace_s. Returns its exit code (negative: by signal)."""
        if not self.has_ended():
            os.kill(self.pid, signal.SIGTERM)  # not yet reaped: the number is its own
        return self.wait(grace_s)

    def wait(self, grace_s: float) -> int:
        """Waits at most grace_s, then kills. Returns its exit code (negative: by signal)."""
        until_s = time.monotonic() + grace_s
        while not self.has_ended():
            if time.monotonic() >= until_s:
                self._end_all()
                break
            time.sleep(_LOOK_S)
        self.close()
        return self.process.wait()

    def close(self) -> None:
        """Closes our end of the pipe; a child that still runs takes it as our death."""
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1

    def last_words(self) -> str:
        """The last line of its log, for a message; empty when it said nothing."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1][:300] if lines else ""

    def _is_over(self) -> bool:
        """Without reaping it: its number stays that of its session."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _end_all(self) -> None:
        end_session(self.pid)
        self.process.wait()
        self._output.finish()


def end_session(leader: int) -> None:
    """SIGKILL for every process of a session of ours, its leader too, which must not be reaped yet."""
    for _ in range(_ROUNDS):  # one may start another meanwhile
        others = [pid for pid in _running_in(leader) if pid != leader]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)  # a zombie takes it without harm
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not others:
            return
        time.sleep(_LOOK_S)


def _running_in(session: int) -> Iterator[int]:
    """Source: proc(5), /proc/PID/stat: after the name state, ppid, pgrp, session."""
    for process in [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
        try:
            fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X") and int(fields[3]) == session:
            yield int(process.name)
