"""`ha-sweep worker`: this machine sends a share of the load of a run that another machine drives."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import click

from sweep.stdout import say


@click.command(short_help="Send a share of the load of a run on another machine.")
@click.option(
    "--master",
    required=True,
    metavar="HOST[:PORT]",
    help="Where `ha-sweep run --expect-workers N --master-bind HOST` waits.  [default port: 5557]",
)
def worker(master: str) -> int:
    """Send a share of the load of each step of `ha-sweep run --expect-workers N --master-bind HOST`, until Ctrl-C.

    It needs the same version of ha-sweep and, in its own environment, the variables that --api-key-env and --header
    name: secrets do not travel. Records do, unencrypted: use a network that you trust. When the master is not heard
    for 4 s, its load ends.

    \b
    ha-sweep worker --master 10.0.0.5
    """
    from sweep.crew_refusals import address
    from sweep.worker_loop import work

    host, port = address("--master", master)
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: stopped.append(number))
    with tempfile.TemporaryDirectory(prefix="ha-sweep-") as scratch:
        work(host, port, Path(scratch), lambda: bool(stopped), lambda line: say(f"worker: {line}"))
    return 0
