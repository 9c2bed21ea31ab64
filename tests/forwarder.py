"""A tunnel for tests: forwards a free port to another one, in a process that is called `socat`."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

from sweep.children import die_with_parent

_PR_SET_NAME = 15


@contextlib.contextmanager
def forwarder(to_port: int) -> Iterator[tuple[int, int]]:
    """(port, pid) while it forwards."""
    command = [sys.executable, "-P", __file__, str(to_port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=die_with_parent) as process:
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"socat", 0, 0, 0)
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    while True:
        near, _ = listening.accept()
        far = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        for pair in ((near, far), (far, near)):
            threading.Thread(target=_pass_on, args=pair, daemon=True).start()


if __name__ == "__main__":
    main()
