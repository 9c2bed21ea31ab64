"""The watched process, from the runner's side: its sampler, snapshots at marks, and whether it is still there."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from sweep import outdir
from sweep.answered import Asked, ask_again
from sweep.children import Child, run_child
from sweep.clocks import read_clocks
from sweep.endpoint import parse_endpoint
from sweep.errors import PlanError, RunError
from sweep.health import Paths
from sweep.ownership import Ownership, descendants, judge_ownership
from sweep.plan import SweepPlan
from sweep.probe import Probe

_ONCE_TIMEOUT_S = 30.0
_SAMPLER_START_S = 10.0
_RSS_TOLERANCE = 0.05  # two readers of a busy process differ by what it allocates between them


class Gateway:
    """One process under observation. A pidfd is held from the start, so that a recycled PID is never taken for it."""

    def __init__(self, pid: int, environment: Mapping[str, str] | None = None) -> None:
        """environment: of the samplers it starts; None gives them ours.

        Raises PlanError when there is no such process, or it is a zombie.
        """
        self.pid = pid
        self._environment = environment
        try:
            self._pidfd = os.pidfd_open(pid)
        except (OSError, OverflowError) as error:
            raise PlanError(f"--gateway-pid {pid}: no such process; give the PID of the running gateway") from error
        if self.is_gone():
            raise PlanError(f"--gateway-pid {pid}: the process has ended (zombie); give the PID of the running gateway")
        self._sampler: Child | None = None

    def is_gone(self) -> bool:
        """It has ended, zombies included. Source: pidfd_open(2), readable on exit."""
        return bool(select.select([self._pidfd], [], [], 0)[0])

    def start_sampler(self, out_dir: Path, log: Path, target: str | None = None) -> None:
        """Gives back when its file is there. target: beside the first one, then it has a file of its own.

        Raises PlanError when it refuses the process, RunError when it does not start.
        """
        name = outdir.samples_file(target)
        own = () if target is None else ("--subject", target, "--file", name)
        self._sampler = Child(
            ("-m", "sampler", "run", "--pid", str(self.pid), "--out-dir", str(out_dir), "--parent-fd", "{fd}", *own),
            log, dict(os.environ) if self._environment is None else self._environment, folder=log.parent,
        )  # fmt: skip
        until = time.monotonic() + _SAMPLER_START_S
        while not (out_dir / name).exists():
            failure = self.sampler_failure()
            if failure is not None and self._sampler.process.returncode == 2:
                raise PlanError(failure)
            if failure is not None:
                raise RunError(f"the sampler does not start: {failure}")
            if time.monotonic() > until:
                raise RunError(f"the sampler has not started within {_SAMPLER_START_S:.0f} s")
            time.sleep(0.02)

    def sampler_failure(self) -> str | None:
        """What the sampler said, if it has ended before it was asked to and the process is alive."""
        if self._sampler is None or not self._sampler.has_ended() or self.is_gone():
            return None
        return self._sampler.last_words() or f"exit code {self._sampler.process.returncode}"

    def stop_sampler(self) -> None:
        """Raises RunError when it ended with a fault of its own."""
        if self._sampler is None:
            return
        code = self._sampler.end(grace_s=5.0)
        if code != 0:
            raise RunError(f"the sampler failed ({code}): {self._sampler.last_words()}; process evidence is incomplete")

    def look(self) -> dict[str, Any]:
        """The sampler's one-shot answer: sample, identity, visibility, ps. Raises PlanError with its words."""
        done = run_child(("-m", "sampler", "once", "--pid", str(self.pid), "--ps"), _ONCE_TIMEOUT_S, self._environment)
        if done.returncode != 0:
            words = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise PlanError(words[-1] if words else f"the sampler cannot read pid {self.pid}")
        look: dict[str, Any] = msgspec.json.decode(done.stdout)
        return look


class Watched(NamedTuple):
    """The process behind a target; all None without a PID. look: what the sampler saw of it first."""

    gateway: Gateway | None = None
    ownership: Ownership | None = None
    look: dict[str, Any] | None = None


def find_gateway(plan: SweepPlan, environment: Mapping[str, str]) -> Watched:
    """Looks at the plan's process once, and whether it is the one that listens. Raises PlanError.

    environment: of the samplers it starts.
    """
    if plan.gateway_pid is None:
        return Watched()
    gateway = Gateway(plan.gateway_pid, environment)
    if os.getpid() in descendants(plan.gateway_pid):
        raise PlanError(f"--gateway-pid {plan.gateway_pid} is a parent of ha-sweep itself; give the gateway's PID")
    look = gateway.look()
    target = parse_endpoint(plan.target)
    listen = target if plan.gateway_listen is None else parse_endpoint(f"http://{plan.gateway_listen}")
    proxied = (listen.host, listen.port) != (target.host, target.port)
    ownership = judge_ownership(plan.gateway_pid, listen.host, listen.port, proxied=proxied)
    if ownership.verdict == "contradicted":
        raise PlanError(
            f"--gateway-pid {plan.gateway_pid}: {ownership.why}; give the PID of the gateway itself, or where it "
            "listens with --gateway-listen HOST:PORT"
        )
    return Watched(gateway, ownership, look)


def take_snapshot(out_dir: Path, mark: str, gateway: Gateway | None, probe: Probe, paths: Paths,
                  asked: Asked | None = None) -> None:  # fmt: skip
    """snapshots/<mark>.json: sampler once, ps, probe answers, metrics, and psutil's second opinion.

    asked: what told a version before; it is asked again, None: not.
    """
    snapshot: dict[str, Any] = {"mark": mark, **read_clocks(), "sample": None, "ps": None, "psutil": None}
    snapshot["problems"] = []
    if gateway is not None and not gateway.is_gone():
        try:
            look = gateway.look()
        except (PlanError, subprocess.TimeoutExpired) as error:
            snapshot["problems"].append(str(error))
        else:
            snapshot |= {"sample": look["sample"], "ps": look["ps"], "identity": look["identity"]}
            snapshot["psutil"] = _second_reading(gateway.pid)
            snapshot["problems"] += disagreements(look["sample"]["root"], look["identity"], snapshot["psutil"])
    elif gateway is not None:
        snapshot["problems"].append(f"pid {gateway.pid} has ended")
    snapshot["probes"] = {what: msgspec.to_builtins(probe.health(what, path)) for what, path in paths.asked}
    snapshot["metrics"] = None if paths.metrics is None else probe.metrics(paths.metrics)
    snapshot["answered"] = None if asked is None else ask_again(probe, asked).as_json()
    outdir.write_atomic(out_dir / outdir.snapshot_file(mark), msgspec.json.encode(snapshot))


def disagreements(root: dict[str, Any], identity: dict[str, Any], second: dict[str, Any] | None) -> list[str]:
    """Where two readers of the same idle process differ: parent, user and program exactly, RSS by over 5 %."""
    if second is None:
        return []
    found = []
    pairs = (("ppid", root.get("ppid")), ("uid", identity.get("uid")), ("exe", identity.get("exe")))
    for name, first in pairs:
        if first is not None and second.get(name) is not None and first != second[name]:
            found.append(f"{name}: the sampler read {first}, psutil {second[name]}")
    pages, rss = root.get("rss_pages"), second.get("rss_bytes")
    if pages is not None and rss and abs(pages * os.sysconf("SC_PAGE_SIZE") - rss) > _RSS_TOLERANCE * rss:
        found.append(f"RSS: the sampler read {pages * os.sysconf('SC_PAGE_SIZE')} bytes, psutil {rss}")
    return found


def _second_reading(pid: int) -> dict[str, Any] | None:
    """The same facts by another code path; None when the process is gone or hidden."""
    reading: dict[str, Any] = {"create_time_s": None, "ppid": None, "uid": None, "rss_bytes": None, "exe": None}
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            reading |= {
                "create_time_s": process.create_time(),
                "ppid": process.ppid(),
                "uid": process.uids().effective,
                "rss_bytes": process.memory_info().rss,
            }
        reading["exe"] = process.exe()
    except psutil.AccessDenied:
        return reading
    except psutil.NoSuchProcess:
        return None
    return reading
