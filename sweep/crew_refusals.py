"""What several load processes must not be: settings that contradict each other, or that workers cannot follow. Pure."""

from __future__ import annotations

import re

from sweep.errors import PlanError
from sweep.plan import SweepPlan

MASTER_PORT = 5557  # Locust's own default
LOOPBACK = "127.0.0.1"
MOST_PROCESSES = 256  # one a core is what gains anything
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+)(?::([0-9]{1,5}))?")


def check_crew(plan: SweepPlan, *, target_is_loopback: bool) -> None:
    """Raises PlanError for processes that could not work together."""
    for option, n, least in (("--processes", plan.processes, 1), ("--expect-workers", plan.expect_workers, 0)):
        if not least <= n <= MOST_PROCESSES:
            raise PlanError(f"{option} {n}: give a number of processes, {least} to {MOST_PROCESSES}")
    if plan.expect_workers == 0:
        if plan.master_bind is not None:
            raise PlanError("--master-bind is where workers connect; say how many with --expect-workers N")
        return
    host, _ = address("--master-bind", plan.master_bind or LOOPBACK)
    if plan.processes > 1:
        raise PlanError(
            "--processes with --expect-workers: the load comes from the workers alone; start one here as well with "
            "`ha-sweep worker --master HOST`, and count it"
        )
    if plan.locustfile is not None:
        raise PlanError("-f with --expect-workers: a locustfile of your own is not sent to workers; use --processes N")
    if plan.api_key_cmd is not None:
        raise PlanError(
            "--api-key-cmd with --expect-workers: the key it prints does not leave this machine; use --api-key-env "
            "NAME, set where the workers run"
        )
    if target_is_loopback and not _is_loopback(host):
        raise PlanError(
            f"--target {plan.target} is another one on each machine; give the address at which the workers of "
            f"--master-bind {host} reach the gateway"
        )


def address(option: str, text: str) -> tuple[str, int]:
    """HOST[:PORT] of a Locust master, an IPv6 host in its brackets. Raises PlanError naming the option."""
    match = _ADDRESS.fullmatch(text)
    port = MASTER_PORT if match is None or match[2] is None else int(match[2])
    if match is None or not 0 < port < 65536:
        raise PlanError(f"{option} {text!r}: write HOST or HOST:PORT, like 10.0.0.5:{MASTER_PORT}")
    return match[1], port


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "[::1]" or host.startswith("127.")
