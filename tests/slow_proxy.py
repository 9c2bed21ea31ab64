"""A gateway that does nothing but wait: passes a free port on to another one, each request so many seconds later.

A process of its own: `with slow_proxy(port, 0.02) as (its_port, pid)`. A request that comes in two reads waits twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator

from sweep.children import die_with_parent


@contextlib.contextmanager
def slow_proxy(to_port: int, delay_s: float) -> Iterator[tuple[int, int]]:
    """(port, pid) while it passes on."""
    command = [sys.executable, "-P", __file__, str(to_port), str(delay_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=die_with_parent) as process:
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()


async def _serve(near: asyncio.StreamReader, to_near: asyncio.StreamWriter, to_port: int, delay_s: float) -> None:
    far, to_far = await asyncio.open_connection("127.0.0.1", to_port)
    await asyncio.gather(_pass_on(near, to_far, delay_s), _pass_on(far, to_near, 0.0))


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay_s: float) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            if delay_s:
                await asyncio.sleep(delay_s)
            sink.write(data)
    sink.close()


async def main() -> None:
    to_port, delay_s = int(sys.argv[1]), float(sys.argv[2])
    server = await asyncio.start_server(lambda r, w: _serve(r, w, to_port, delay_s), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
