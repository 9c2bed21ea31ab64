"""Answers of real servers, recorded by `curl -sS -N -i`, which prints bodies without their chunks."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "data" / "streams"


class Recorded(NamedTuple):
    status: int
    headers: dict[str, str]  # names in lower case
    head: bytes
    body: bytes

    def wire(self) -> bytes:
        """The answer as a server may have sent it: one chunk where it was chunked."""
        if "transfer-encoding" not in self.headers:
            return self.head + b"\r\n\r\n" + self.body
        return b"%b\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (self.head, len(self.body), self.body)


def recorded(name: str) -> Recorded:
    """`llmock/stream` and the like."""
    head, _, body = (FOLDER / f"{name}.txt").read_bytes().partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Recorded(int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}, head, body)
