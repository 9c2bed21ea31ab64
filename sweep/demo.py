"""Starts the embedded gateway as a process of its own and says where it is."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sweep.children import Child
from sweep.errors import RunError

MODEL = "demo-1"
_LISTENING = re.compile(r"listening on (http://\S+) pid (\d+)")
_START_S = 20.0


@contextmanager
def demo_gateway(scratch: Path, options: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
    """(url, pid) while it runs; asked to end by SIGTERM, like a real one. Raises RunError when it does not start."""
    log = scratch / "demo-gateway.log"
    arguments = ("-m", "sweep.demo_gateway", "--port", "0", "--model", MODEL, "--parent-fd", "{fd}", *options)
    child = Child(arguments, log, os.environ, scratch)
    try:
        until = time.monotonic() + _START_S
        while (found := _LISTENING.search(log.read_text())) is None:
            if child.has_ended() or time.monotonic() > until:
                raise RunError(f"the demo gateway does not start: {child.last_words() or 'no word'}")
            time.sleep(0.02)
        yield found[1], int(found[2])
    finally:
        child.end(grace_s=10.0)
