"""Liveness and readiness: finds the paths once before the load, and asks them once a second during it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Literal, NamedTuple

import httpx

from sweep import outdir
from sweep.errors import PlanError
from sweep.probe import Probe
from sweep.records import to_line
from sweep.standstill import Pulse, t_boot_ns

SLOW_MS = 250.0  # a path slower than this when idle may run an inference; it is not polled (design §9)
_JOIN_S = 15.0
NO_SUCH_PATH = "/ha-sweep-asks-for-a-path-that-is-not-there"
# Looked for in this order: liveness, and the readiness path that goes with it.
PAIRS: tuple[tuple[str, str | None], ...] = (
    ("/healthz", "/readyz"), ("/livez", "/readyz"), ("/health/liveliness", "/health/readiness"),
    ("/health", None), ("/", None),
)  # fmt: skip


class Paths(NamedTuple):
    """Paths of the target that may be asked; None: there is none. why: what was found but is not polled."""

    health: str | None
    ready: str | None
    metrics: str | None
    why: tuple[str, ...] = ()

    @property
    def asked(self) -> list[tuple[Literal["live", "ready"], str]]:
        """What is watched, and by which path."""
        pairs: list[tuple[Literal["live", "ready"], str | None]] = [("live", self.health), ("ready", self.ready)]
        return [(what, path) for what, path in pairs if path is not None]


def find_paths(probe: Probe, health: str | None, ready: str | None, metrics: str | None) -> Paths:
    """The paths given, asked once, and those found for the others. Raises PlanError when a given one is not there."""
    for option, path in (("--health-path", health), ("--ready-path", ready), ("--metrics-path", metrics)):
        if path is not None:
            _check_given(probe, option, path)
    why: list[str] = []
    if health is None or ready is None:
        found_health, found_ready = _find_pair(probe, why)
        health = found_health if health is None else health
        ready = found_ready if ready is None else ready
    if metrics is None and probe.metrics("/metrics") is not None:
        metrics = "/metrics"
    return Paths(health, ready, metrics, tuple(why))


def _check_given(probe: Probe, option: str, path: str) -> None:
    try:
        status = probe.get(path).status
    except httpx.HTTPError as error:
        raise PlanError(f"{option} {path} does not answer ({type(error).__name__}); give one that does") from error
    if status in (401, 403, 404, 405):
        raise PlanError(f"{option} {path} answers {status}; give a path the gateway has, or leave it out")


def _find_pair(probe: Probe, why: list[str]) -> tuple[str | None, str | None]:
    """The first pair of which the liveness path may be polled; words of what may not go to `why`."""
    no_such = _status(probe, NO_SUCH_PATH)
    for live, also_ready in PAIRS:
        refusal = _why_not(probe, live, no_such)
        if refusal is None:
            has_ready = also_ready is not None and _why_not(probe, also_ready, no_such) is None
            return live, also_ready if has_ready else None
        if refusal:
            why.append(f"{live}: {refusal}")
    return None, None


def _status(probe: Probe, path: str) -> int | None:
    """None: no whole answer."""
    try:
        return probe.get(path).status
    except httpx.HTTPError:
        return None


def _why_not(probe: Probe, path: str, no_such: int | None) -> str | None:
    """None: may be polled. "": not there. Else why it is not polled. no_such: status of a path that cannot exist."""
    try:
        answer = probe.get(path)
    except httpx.HTTPError:
        return "" if no_such is None else None  # this path alone hangs: it is there, and it fails
    if not answer.is_success:
        return None if answer.status >= 500 and answer.status != no_such else ""
    if answer.ms > SLOW_MS:
        return f"slower than {SLOW_MS:.0f} ms when idle; it may run an inference"
    if b'"model' in answer.content.lower():
        return "its answer names models; it may run an inference for each"
    return None


class HealthWatch(threading.Thread):
    """Asks one path once a second and appends to health.jsonl, until stopped.

    failure: why it ended before that, for the runner: OSError when the disk is full, else a fault of ours.
    """

    def __init__(self, probe: Probe, what: Literal["live", "ready"], path: str, out_dir: Path) -> None:
        super().__init__(name=f"health-{what}", daemon=True)
        self.file = outdir.HEALTH
        self._probe = probe
        self._what: Literal["live", "ready"] = what
        self._path = path
        self._lines = outdir.LineFile(out_dir / outdir.HEALTH)
        self._over = threading.Event()
        self._pulse = Pulse()
        self.failure: Exception | None = None

    def run(self) -> None:
        due = time.monotonic()
        self._pulse.start()
        try:
            while not self._over.wait(max(0.0, due - time.monotonic())):
                sent_ns = t_boot_ns()
                line = self._probe.health(self._what, self._path)
                stood_ms = self._pulse.stood_still_ms(sent_ns)
                # Asked after the answer, so it may be a little longer than the probe itself.
                line.stood_still_ms = stood_ms if stood_ms is None or line.ms is None else min(stood_ms, line.ms)
                self._lines.append(to_line(line))
                due = max(due + 1.0, time.monotonic())
        except Exception as error:  # noqa: BLE001 - in a thread it would be lost, and probes with it
            self.failure = error
        finally:
            self._pulse.stop()

    def stop(self) -> None:
        """Waits for the probe under way, which its own time-out bounds."""
        self._over.set()
        self.join(_JOIN_S)
        self._lines.close()
