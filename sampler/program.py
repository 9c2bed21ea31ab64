"""What the running program file says of itself: ELF machine, GNU build id, Go build id. Bounded reads, no execution."""

from __future__ import annotations

import os
import re
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, Optional, Tuple

# e_machine of elf.h, in the words of `uname -m`.
MACHINES = {
    3: "i386", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64",
    258: "loongarch64",
}
MAX_HEADERS = 64                 # program headers looked at; a linker writes about a dozen
MAX_NOTE_BYTES = 1 << 16         # of one note segment; a few hundred bytes are usual
MAX_ID_BYTES = 64                # a GNU build id has 8 to 20 bytes
_PT_NOTE, _GNU_BUILD_ID, _GO_BUILD_ID = 4, 3, 4
_CONTAINER = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


class Program:
    """What one ELF file says; None where it says nothing. Machines that are not in MACHINES are `machine N`."""

    def __init__(self, arch: str, build_id: Optional[str], go_build_id: Optional[str]) -> None:
        self.arch = arch
        self.build_id = build_id
        self.go_build_id = go_build_id


def read_program(dir_fd: int) -> Program:
    """Of /proc/PID/exe, also when the file was deleted. Raises OSError; ValueError when it is no sound ELF file."""
    fd = os.open("exe", os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        return parse_program(fd)
    finally:
        os.close(fd)


def parse_program(fd: int) -> Program:
    """The same of an open file. Raises OSError, ValueError."""
    try:
        return _parse(fd)
    except struct.error:
        raise ValueError("an ELF file that ends too early") from None


def container_id(cgroup: bytes) -> Optional[str]:
    """The innermost 64 hex digits in /proc/PID/cgroup, by which Docker, containerd and CRI-O name a container."""
    found = _CONTAINER.findall(cgroup)
    return found[-1].decode() if found else None


def _parse(fd: int) -> Program:
    head = os.pread(fd, 64, 0)
    if head[:4] != b"\x7fELF" or len(head) < 52 or head[4] not in (1, 2) or head[5] not in (1, 2):
        raise ValueError("no ELF file")
    order, is_64 = "<>"[head[5] - 1], head[4] == 2
    machine = struct.unpack_from(order + "H", head, 18)[0]
    ids: Dict[Tuple[bytes, int], bytes] = {}
    for offset, size, align in _note_segments(fd, head, order, is_64):
        for owner, kind, content in _notes(os.pread(fd, min(size, MAX_NOTE_BYTES), offset), order, align):
            ids.setdefault((owner, kind), content)
    gnu, go = ids.get((b"GNU", _GNU_BUILD_ID)), ids.get((b"Go", _GO_BUILD_ID))
    return Program(
        MACHINES.get(machine, f"machine {machine}"),
        gnu.hex() if gnu is not None and 0 < len(gnu) <= MAX_ID_BYTES else None,
        go.decode("ascii", "backslashreplace")[:200] if go else None,
    )


def _note_segments(fd: int, head: bytes, order: str, is_64: bool) -> Iterator[Tuple[int, int, int]]:
    """(offset, size, alignment) of each PT_NOTE segment, in bytes."""
    table = struct.unpack_from(order + ("Q" if is_64 else "I"), head, 32 if is_64 else 28)[0]
    entry_bytes, n = struct.unpack_from(order + "HH", head, 54 if is_64 else 42)
    layout = order + ("IIQQQQQQ" if is_64 else "IIIIIIII")
    if n == 0:
        return
    if entry_bytes < struct.calcsize(layout) or table >= 1 << 62:
        raise ValueError("an ELF file with program headers of an odd size")
    data = os.pread(fd, min(n, MAX_HEADERS) * entry_bytes, table)
    for start in range(0, min(n, MAX_HEADERS) * entry_bytes, entry_bytes):
        entry = struct.unpack_from(layout, data, start)
        kind, offset, size, align = (entry[i] for i in ((0, 2, 5, 7) if is_64 else (0, 1, 4, 7)))
        if kind == _PT_NOTE and offset < 1 << 62:
            yield offset, size, 8 if align == 8 else 4


def _notes(data: bytes, order: str, align: int) -> Iterator[Tuple[bytes, int, bytes]]:
    """(owner, type, content) of each whole note."""
    at = 0
    while at + 12 <= len(data):
        name_bytes, content_bytes, kind = struct.unpack_from(order + "III", data, at)
        begin = at + 12 + name_bytes
        begin += -begin % align
        end = begin + content_bytes
        if end > len(data):
            return
        yield data[at + 12 : at + 12 + name_bytes].rstrip(b"\0"), kind, data[begin:end]
        at = end + -end % align
