"""Files of /proc, /sys/fs/cgroup and their text: read bytes, parse them exactly, name what went wrong.

Reading opens O_RDONLY and nothing else. Parsers are pure: bytes in, values out; a malformed file raises ValueError,
a missing key is absent from what they return. Process names are hostile text: they may hold `)`, spaces, newlines
(in stat) and whole `Key:\\tvalue` lines (in status), so stat is cut at its last `)` and keys count at line starts only.
"""

# ruff: noqa: B905 - zip(strict=) needs Python 3.10
from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
GONE = ("ESRCH", "ENOENT")       # what a held folder answers once its process or thread is gone
PF_KTHREAD = 0x00200000          # include/linux/sched.h
NO_LIMIT_V1 = 1 << 62            # cgroup v1 writes "no limit" as the largest page-rounded 63-bit number


class Descriptors:
    """How many files may stay open at once; shared by all readers of one sampler."""

    def __init__(self, n: int) -> None:
        self.n_left = n


class Source:
    """One file, absolute or below a folder's descriptor. Kept open while `held` has descriptors left: then a read is
    one pread. Without `held` it is opened for each read."""

    __slots__ = ("_dir_fd", "_fd", "_held", "_path", "_size")

    def __init__(
        self, path: str, dir_fd: Optional[int] = None, held: Optional[Descriptors] = None, size: int = 4096
    ) -> None:
        self._path = path
        self._dir_fd = dir_fd
        self._held = held
        self._size = size
        self._fd = -1

    def read(self) -> bytes:
        """The whole file as of now. Raises OSError."""
        if self._fd >= 0:
            return self._read(self._fd)
        fd = os.open(self._path, FLAGS, dir_fd=self._dir_fd)
        if self._held is not None and self._held.n_left > 0:
            self._held.n_left -= 1
            self._fd = fd
            return self._read(fd)
        try:
            return self._read(fd)
        finally:
            os.close(fd)

    def _read(self, fd: int) -> bytes:
        data = os.pread(fd, self._size, 0)
        while len(data) == self._size:      # a second read at an offset would mix two moments: take it again, whole
            self._size *= 2
            data = os.pread(fd, self._size, 0)
        return data

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if self._held is not None:
                self._held.n_left += 1


def read_at(path: str, dir_fd: Optional[int] = None) -> bytes:
    """A file read once. Raises OSError."""
    return Source(path, dir_fd).read()


def reason(error: Exception) -> str:
    """The code stored in `why`: the errno's name, `short` for a file that lacks what it should hold, `parse`."""
    if isinstance(error, OSError):
        return errno.errorcode.get(error.errno or 0, "EIO")
    return "short" if isinstance(error, (KeyError, IndexError)) else "parse"


def text(raw: bytes) -> str:
    """Foreign bytes as text any JSON reader takes: what is not UTF-8 becomes \\xNN (lone surrogates are refused)."""
    return raw.decode("utf-8", "backslashreplace")


def parse_stat(data: bytes) -> list[bytes]:
    """/proc/PID/stat as its fields; field n of proc_pid_stat(5) is at n - 1. Raises ValueError."""
    head, bracket, tail = data.rpartition(b")")
    pid, opening, comm = head.partition(b" (")
    if not bracket or not opening:
        raise ValueError("stat without a name in brackets")
    return [pid, comm, *tail.split()]


def parse_keys(data: bytes) -> dict[bytes, bytes]:
    """`Key: value` or `key value` lines; the key is what stands at the line start. The first of two equal keys wins."""
    values: dict[bytes, bytes] = {}
    for line in data.split(b"\n"):
        key, _, value = line.partition(b":" if b":" in line else b" ")
        if value:
            values.setdefault(key, value)
    return values


def number(value: bytes) -> int:
    """A number that may have a unit behind it. Raises ValueError, IndexError."""
    return int(value.split(None, 1)[0])


def parse_limits(data: bytes) -> dict[str, tuple[bytes, bytes]]:
    """/proc/PID/limits: soft and hard of each, as text. The columns start where the heading's words do."""
    heading, *lines = data.split(b"\n")
    soft, hard, units = heading.index(b"Soft Limit"), heading.index(b"Hard Limit"), heading.index(b"Units")
    return {
        text(line[:soft].strip()): (line[soft:hard].strip(), line[hard:units].strip()) for line in lines if line.strip()
    }


def parse_pressure(data: bytes) -> dict[bytes, int]:
    """A pressure file: `some` and `full`, microseconds since boot."""
    return {
        line.split(None, 1)[0]: int(line.rpartition(b"total=")[2]) for line in data.split(b"\n") if b"total=" in line
    }


def parse_sockstat(data: bytes) -> dict[str, int]:
    """/proc/net/sockstat as `Section:key` to value."""
    values: dict[str, int] = {}
    for line in data.split(b"\n"):
        section, _, rest = line.partition(b":")
        words = rest.split()
        for key, value in zip(words[::2], words[1::2]):
            values[f"{section.decode()}:{key.decode()}"] = int(value)
    return values


class Columns:
    """/proc/net/netstat and snmp: a line of names, then a line of values, for each section. Columns vary by kernel."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys
        self._section = keys[0].partition(":")[0].encode() + b":"
        self._names = b""
        self._at: list[int | None] = []

    def parse(self, data: bytes) -> list[int | None]:
        """One value a key, None for a column this kernel lacks. Raises ValueError."""
        names = values = b""
        for line in data.split(b"\n"):
            if line.startswith(self._section):
                if names:
                    values = line
                    break
                names = line
        if names != self._names:
            columns = names.split()
            wanted = [key.partition(":")[2].encode() for key in self._keys]
            self._at = [columns.index(name) if name in columns else None for name in wanted]
            self._names = names
        row = values.split()
        if not row or any(at is not None and at >= len(row) for at in self._at):
            raise ValueError("a section without values")
        return [None if at is None else int(row[at]) for at in self._at]


def fd_size_is_count(procfs: str) -> bool:
    """Whether the size of a fd folder is the number of descriptors in it (kernel 6.2 and later): tried on our own."""
    try:
        path = f"{procfs}/self/fd"
        before = os.stat(path).st_size
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.stat(path).st_size == before + 1
        finally:
            os.close(fd)
    except OSError:
        return False


def count_fds(dir_fd: int, by_size: bool) -> int:
    """Open descriptors of the process whose folder is `dir_fd`. Raises OSError.

    By size it costs 5 us whatever the count and works for other users' processes; by listing it needs their rights.
    """
    if by_size:
        return os.stat("fd", dir_fd=dir_fd).st_size
    fd = os.open("fd", FLAGS | os.O_DIRECTORY, dir_fd=dir_fd)
    try:
        return len(os.listdir(fd))
    finally:
        os.close(fd)
