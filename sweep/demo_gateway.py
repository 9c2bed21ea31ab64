"""The embedded gateway for `--demo` and for tests: a small LLM gateway with a known capacity and known defects.

In: command line. Out: a process that answers OpenAI chat and Ollama requests on a fixed schedule until it is told to
stop. Imported only by the process that is the gateway: `python -P -m sweep.demo_gateway --port 0`.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click
import gevent
from gevent import pywsgi
from gevent.event import Event

from sweep.demo_app import Gateway, Settings
from sweep.demo_defects import DEFECTS, Defects

BACKLOG = 1024  # a level's users may all connect in one instant
UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}


class _Handler(pywsgi.WSGIHandler):
    """Hands the client's socket to the application, and knows which answers have left completely."""

    def get_environ(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environ()
        environ["demo.socket"] = self.socket
        return environ

    def handle_one_response(self) -> None:
        self.server.application.n_open += 1
        try:
            super().handle_one_response()
        finally:
            self.server.application.n_open -= 1


def _time_option(flag: str, default: str, meaning: str) -> Callable[[Any], Any]:
    def seconds(_: click.Context, __: click.Parameter, text: str) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|)", text.strip())
        if found is None:
            raise click.BadParameter(f"{text!r} is no duration; write 20ms, 1.5s or 3 (seconds)")
        return float(found[1]) * UNIT_S[found[2]]

    name = flag.lstrip("-").replace("-", "_") + "_s"
    return click.option(flag, name, callback=seconds, metavar="TIME", default=default, help=meaning)


def _defects(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> Defects:
    try:
        return Defects(texts)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _api_key(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise click.BadParameter(f"the environment variable {name} is not set")
    return key


DEFECT_HELP = "Misbehave, repeatable: " + "; ".join(f"{name}: {text}" for name, text in DEFECTS.items())


@click.command(context_settings={"show_default": True, "max_content_width": 110})
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port; 0 takes a free one.")
@click.option("--model", default="demo-1", help="The one model served.")
@click.option("--slots", type=click.IntRange(1), default=6, help="Requests served at once.")
@click.option("--queue", type=click.IntRange(0), default=32, help="Requests that may wait; more are refused.")
@click.option("--full-status", type=click.Choice(["429", "503"]), default="429", help="HTTP status of such a refusal.")
@_time_option("--ttft", "20ms", "From a slot to the first token.")
@_time_option("--per-token", "3ms", "From one token to the next.")
@click.option("--max-output", type=click.IntRange(1), default=4096, help="Most tokens an answer may have.")
@click.option("--stop-after", type=click.IntRange(1), help="The model stops by itself after so many tokens.")
@click.option("--api-key-env", "api_key", callback=_api_key, metavar="NAME", help="Ask for the key in this variable.")
@click.option("--defect", "defects", multiple=True, callback=_defects, metavar="NAME[=N]", help=DEFECT_HELP)
@_time_option("--drain", "30s", "Time that open answers have after SIGTERM.")
@click.option("--parent-fd", type=int, metavar="FD", help="Read end of a pipe; at its end the gateway exits at once.")
def command(host: str, port: int, defects: Defects, parent_fd: int | None, **settings: Any) -> None:
    """A small LLM gateway with a known capacity: every API that `run --api` speaks.

    Prints one line once it accepts connections. SIGTERM or SIGINT: takes no new requests, finishes the open ones,
    exits 0; a second one: exits at once.
    """
    full_status = int(settings.pop("full_status"))
    serve(host, port, Gateway(Settings(full_status=full_status, **settings), defects), parent_fd)


def serve(host: str, port: int, gateway: Gateway, parent_fd: int | None) -> None:
    """Serves until a signal ends it. Raises click.UsageError when the address cannot be had."""
    server = pywsgi.WSGIServer((host, port), gateway, backlog=BACKLOG, handler_class=_Handler, log=None)
    try:
        server.init_socket()
    except OSError as error:
        raise click.UsageError(f"{host}:{port}: {os.strerror(error.errno or 0)}; give another --port") from error
    # Accepted sockets inherit the option: without it Nagle holds a token back until the last one is acknowledged.
    server.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, _on_signal, gateway, stop)
    if parent_fd is not None:
        watcher = gevent.get_hub().loop.io(parent_fd, 1)
        watcher.start(lambda: os.read(parent_fd, 1) or os._exit(1))
    server.start()
    click.echo(f"demo gateway listening on http://{host}:{server.server_port} pid {os.getpid()}")
    stop.wait()
    with gevent.Timeout(gateway.settings.drain_s, False):
        while gateway.n_open:
            gevent.sleep(0.005)
    server.close()
    if gateway.n_open:
        click.echo(f"{gateway.n_open} requests cut at the end of the drain", err=True)
    click.echo("gateway stopped", err=True)


def _on_signal(gateway: Gateway, stop: Event) -> None:
    if gateway.is_draining:
        os._exit(1)
    gateway.is_draining = True
    stop.set()


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the gateway in this process and exits."""
    command.main(args=argv, prog_name="ha-sweep demo-gateway")


if __name__ == "__main__":
    main(sys.argv[1:])
