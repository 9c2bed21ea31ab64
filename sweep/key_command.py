"""Runs the command that prints the API key: no shell, no input, bounded; what it prints is the key and kept nowhere."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable

from sweep.access_refusals import is_sendable
from sweep.errors import PlanError

TIMEOUT_S = 30.0
_LOOK_S = 0.1
_MAX_BYTES = 64 * 2**10
_BY_HAND = "run it by hand to see why, its output is kept nowhere"


def run_key_command(command: str, look: Callable[[], None], timeout_s: float = TIMEOUT_S) -> str:
    """The key it prints. look: called ten times a second while it runs; what it raises ends the command.

    Raises PlanError, without a word of the command or of what it printed: whoever mistakes the option gives the key.
    """
    try:
        process = subprocess.Popen(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        told = error.strerror if isinstance(error, OSError) else "no command"
        raise PlanError(f"--api-key-cmd cannot be run: {told}; give a program and its arguments, no shell") from error
    until_s = time.monotonic() + timeout_s
    try:
        output = _output(process, look, until_s)
        _await_end(process, look, until_s)
    except TimeoutError as error:
        raise PlanError(_late(timeout_s)) from error
    finally:
        code = _end(process)
    if code != 0:
        raise PlanError(f"--api-key-cmd ended with {_code(code)}; {_BY_HAND}")
    return _key(output, command)


def _output(process: subprocess.Popen[bytes], look: Callable[[], None], until_s: float) -> bytes:
    """All it prints. Raises TimeoutError; one that prints far too much is heard no further."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    output = b""
    while len(output) <= _MAX_BYTES:
        if select.select([fd], [], [], _LOOK_S)[0]:
            data = os.read(fd, _MAX_BYTES)
            if not data:
                return output
            output += data
        look()
        if time.monotonic() > until_s:
            raise TimeoutError
    raise PlanError(f"--api-key-cmd prints more than a key; {_BY_HAND}")


def _await_end(process: subprocess.Popen[bytes], look: Callable[[], None], until_s: float) -> None:
    """Leaves it unreaped: its number is then still that of its session. Raises TimeoutError."""
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        time.sleep(_LOOK_S / 10)
        look()
        if time.monotonic() > until_s:
            raise TimeoutError


def _end(process: subprocess.Popen[bytes]) -> int:
    """Its exit code. Whatever it has started, and left behind, goes with it: they are a session of their own."""
    if process.stdout is not None:
        process.stdout.close()
    os.killpg(process.pid, signal.SIGKILL)  # a zombie takes it without harm
    return process.wait()


def _key(output: bytes, command: str) -> str:
    try:
        key = output.decode().strip()
    except UnicodeDecodeError as error:
        raise PlanError(f"--api-key-cmd prints bytes no header can carry; {_BY_HAND}") from error
    if not key:
        raise PlanError(f"--api-key-cmd prints nothing; {_BY_HAND}")
    if len(key.splitlines()) > 1:
        raise PlanError("--api-key-cmd prints several lines; let it print the key alone")
    if not is_sendable(key):
        raise PlanError("--api-key-cmd prints characters no header can carry; let it print the key alone")
    if key in command:
        raise PlanError("--api-key-cmd holds the key itself, and is recorded; let it read the key from elsewhere")
    return key


def _late(timeout_s: float) -> str:
    return f"--api-key-cmd has not ended within {timeout_s:g} s; {_BY_HAND}"


def _code(code: int) -> str:
    names = {each.value: each.name for each in signal.Signals}  # real-time signals have none
    return f"exit code {code}" if code > 0 else f"signal {names.get(-code, -code)}"
