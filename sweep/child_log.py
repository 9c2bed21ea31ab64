"""What a child prints, from a pipe to its log: masked on the way, and of much only the first and the last part."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

HEAD_BYTES = TAIL_BYTES = 2**20
_READ_BYTES = 65536
_MARGIN = 8192  # longer than any secret: what lies at a cut may be half of one
_LOOK_MS, _LAST_S = 50, 1.0


class ChildLog:
    """`write_end` is for the child. Whole lines are in the file at once; the last part of a long log at `finish`.

    A log that is being written when we are killed ends with its last whole line, or without its last part.
    """

    def __init__(self, path: Path, masked: Callable[[str], str]) -> None:
        """masked: makes a text safe to keep."""
        self._masked = masked
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._pending = ""  # no whole line yet
        self._n_head = self._n_left_out = 0
        self._tail = bytearray()  # raw
        self._file = path.open("ab", buffering=0)
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log {path.name}", daemon=True)
        self._thread.start()

    def close_write_end(self) -> None:
        """The child has its own."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def finish(self) -> None:
        """The child has ended: takes what it still said. Whoever else holds its pipe is heard no further."""
        self.close_write_end()
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._read_end, select.POLLIN)
        until_s = None
        try:
            while True:
                if self._over.is_set():
                    until_s = until_s or time.monotonic() + _LAST_S
                    if time.monotonic() > until_s:
                        break
                if not poll.poll(_LOOK_MS):
                    if until_s is not None:
                        break
                    continue
                data = os.read(self._read_end, _READ_BYTES)
                if not data:
                    break
                self._take(data)
            self._write_tail()
        finally:
            os.close(self._read_end)
            self._file.close()

    def _take(self, data: bytes) -> None:
        if self._n_head >= HEAD_BYTES:
            self._tail += data
            if len(self._tail) > 2 * (TAIL_BYTES + _MARGIN):
                n_left_out = len(self._tail) - TAIL_BYTES - _MARGIN
                self._n_left_out += n_left_out
                del self._tail[:n_left_out]
            return
        lines, newline, self._pending = (self._pending + self._decode(data)).rpartition("\n")
        self._write(self._masked(lines + newline))
        if len(self._pending) > _READ_BYTES:
            safe = self._masked(self._pending)
            self._write(safe[:-_MARGIN])
            self._pending = safe[-_MARGIN:]

    def _write_tail(self) -> None:
        text = self._pending + self._decode(bytes(self._tail), True)
        if self._n_left_out:
            before = self._masked(self._pending)[:-_MARGIN]  # its end may be half a secret
            text = f"{before}\n[{self._n_left_out + _MARGIN} bytes left out]\n{self._last_part()}"
        self._write(self._masked(text))

    def _last_part(self) -> str:
        """Without its first bytes, which may be half a secret."""
        return self._masked(self._tail.decode("utf-8", "replace"))[_MARGIN:]

    def _write(self, text: str) -> None:
        data = text.encode()
        self._n_head += len(data)
        if data:
            with contextlib.suppress(OSError):  # no room, which the runner sees; the child must not meet a closed pipe
                self._file.write(data)
