"""How many Locust processes a step has, and the options that make Locust start them or wait for them."""

from __future__ import annotations

import socket

from sweep.crew_refusals import LOOPBACK, address
from sweep.errors import PlanError
from sweep.plan import SweepPlan
from sweep.units import Level


def n_processes(plan: SweepPlan, level: Level) -> int:
    """On all machines. On this one, in the closed loop, no more than there are users."""
    if plan.expect_workers:
        return plan.expect_workers
    return plan.processes if level.kind == "rate" else max(1, min(plan.processes, int(level.value)))


def names(n: int) -> tuple[str, ...]:
    """The processes of a step as its files name them."""
    return tuple(f"w{number:02d}" for number in range(1, n + 1))


def arguments(plan: SweepPlan, n: int) -> tuple[str, ...]:
    """Locust's, for a step of n processes. On this machine they talk over a free port of loopback."""
    if plan.expect_workers:
        host, port = address("--master-bind", plan.master_bind or LOOPBACK)
        return "--master", "--master-bind-host", host, "--master-bind-port", str(port), "--expect-workers", str(n)
    return local_arguments(n) if n > 1 else ()


def check_bind(plan: SweepPlan) -> None:
    """Nothing, if workers can connect where the plan says. Raises PlanError, before the first step would fail."""
    if not plan.expect_workers:
        return
    host, port = address("--master-bind", plan.master_bind or LOOPBACK)
    try:
        family, *_, there = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Locust's master does
            taken.bind(there)
    except OSError as error:
        raise PlanError(
            f"--master-bind {host}:{port}: {error.strerror}; give an address of this machine, with a free port"
        ) from error


def local_arguments(n: int) -> tuple[str, ...]:
    port = str(_free_port())
    return (
        "--processes", str(n), "--master-bind-host", LOOPBACK, "--master-bind-port", port, "--master-host", LOOPBACK,
        "--master-port", port,
    )  # fmt: skip


def _free_port() -> int:
    """One that nobody listened on a moment ago: the workers are told it before the master has it."""
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        port: int = taken.getsockname()[1]
        return port
