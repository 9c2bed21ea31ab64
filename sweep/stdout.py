"""Lines of a command's result and of its refusal, on streams that may be closed: a pager or `head` has seen enough."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def say(text: str) -> None:
    """A line of the result on standard output."""
    _print(text, sys.stdout)


def refuse(message: str) -> None:
    """One visible line on standard error, whatever was put into the message."""
    from sweep.wording import one_line

    _print(one_line(f"ha-sweep: {message}"), sys.stderr)


def _print(text: str, stream: TextIO) -> None:
    """A reader that went away changes no exit code: 1 is about the target only."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
