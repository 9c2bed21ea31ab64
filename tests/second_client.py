"""Somebody else at the gateway, as a process of its own: `second_client.py PORT load|idle`; lives until killed.

load: two threads that ask on kept connections, one request after the other. idle: one connection that says nothing.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from loopback import CHAT, connect

from sweep.children import die_with_parent

BODY = json.dumps({"model": "demo-1", "messages": [{"role": "user", "content": "one " * 60}], "max_tokens": 8})


@contextlib.contextmanager
def second_client(port: int, what: str) -> Iterator[subprocess.Popen]:
    """The process, once it is connected."""
    command = [sys.executable, __file__, str(port), what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=die_with_parent) as client:
        try:
            assert b"connected\n" == client.stdout.readline()
            yield client
        finally:
            client.kill()


def _load(port: int) -> None:
    connection = connect(port)
    while True:
        connection.request("POST", CHAT, BODY, {"Content-Type": "application/json"})
        connection.getresponse().read()


def main() -> None:
    port, what = int(sys.argv[1]), sys.argv[2]
    first = connect(port)
    first.connect()
    for _ in range(2 if what == "load" else 0):
        threading.Thread(target=_load, args=(port,), daemon=True).start()
    print("connected", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
