"""samples.jsonl: append-only JSON Lines, one write() a line, so that a kill tears at most the last one."""

from __future__ import annotations

import os

from sampler.attach import Refused

SAMPLES = "samples.jsonl"


class Unwritten(Exception):
    """A line could not be written; `error` says why."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class SampleFile:
    """The one file this program writes, created new in OUT_DIR. Raises Refused when that cannot be."""

    def __init__(self, out_dir: str, name: str = SAMPLES) -> None:
        path = os.path.join(out_dir, name)
        try:
            os.makedirs(out_dir, mode=0o700, exist_ok=True)
            folder = os.open(out_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                self._fd = os.open(name, flags, 0o600, dir_fd=folder)
                owner = os.fstat(folder)
            finally:
                os.close(folder)
        except FileExistsError:
            raise Refused(f"{path} is there already and is never overwritten; give --out-dir a new folder") from None
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}; give --out-dir a folder that can be written") from None
        if os.geteuid() == 0 and owner.st_uid != 0:
            os.fchown(self._fd, owner.st_uid, owner.st_gid)
        self._n_bytes = 0

    def append(self, line: bytes) -> None:
        """Writes one line. Raises Unwritten; what was written of it is then taken back, the lines before it stand."""
        try:
            n = os.write(self._fd, line)
            while n < len(line):
                n += os.write(self._fd, line[n:])
        except OSError as error:
            os.ftruncate(self._fd, self._n_bytes)
            raise Unwritten(error) from error
        self._n_bytes += n

    def close(self) -> None:
        os.close(self._fd)
