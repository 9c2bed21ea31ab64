"""Is someone else there? Before the first request the tool only looks; and it says what leads to the target.

Gives run.json's `others`. What counts is requests: counters of the metrics page that rise, or processor time of the
gateway's tree, while we are silent. A connection alone may be a kept one, and is only told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from sweep.connections import Place, listener, look, peer_texts, place_of
from sweep.endpoint import parse_endpoint
from sweep.errors import PlanError
from sweep.ownership import comm, descendants
from sweep.plan import SweepPlan
from sweep.probe import Probe
from sweep.request_counters import Counted, request_counters
from sweep.units import duration_text

BUSY_PER_S = 0.5  # requests while we are silent (design §9); below it are health probes and scrapes
BUSY_CPU = 0.05  # of a core, by the gateway and its descendants (design §9)
_LOOK_S = 0.5
_SHOWN = 5

# Programs that listen here and pass on to elsewhere, as /proc/PID/comm cuts them (15 bytes).
TUNNELS = (
    "ssh", "sshd", "sshd-session", "autossh", "dropbear", "kubectl", "oc", "k9s", "kubefwd", "telepresence", "socat",
    "ncat", "nc", "netcat", "cloudflared", "ngrok", "chisel", "frpc", "frps", "gost", "stunnel", "stunnel4", "tsh",
    "session-manager", "rinetd", "redir", "simpleproxy", "flyctl",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What was seen before the first request. warnings: for the person; check: None when nobody looked, see why."""

    place: Place | str
    listener: Mapping[str, Any] | None
    check: Mapping[str, Any] | None
    why: str | None
    warnings: tuple[str, ...] = ()
    counted: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """run.json's `others`; `counted` says what each request counter did while the preflight was sent."""
        unseen = self.place if isinstance(self.place, str) else None
        return {
            "listener": self.listener, "quiet_check": self.check, "quiet_check_why": self.why,
            "connections_why": unseen, "counted": self.counted,
        }  # fmt: skip


class _Moment(NamedTuple):
    """What the gateway's tree has used by now: (pid, start ticks) -> ticks."""

    t_s: float
    cpu_ticks: Mapping[tuple[int, int], int]


class _Reading(NamedTuple):
    """The metrics page at one instant. n_gets: our own so far, this one's with it."""

    t_s: float
    n_gets: int
    counters: Mapping[str, Counted] | None


def look_first(plan: SweepPlan, probe: Probe) -> FirstLook:
    """Looks, for --quiet-check seconds. Raises PlanError when someone uses the target, or a tunnel leads to it, and
    nobody has agreed to the load."""
    target = parse_endpoint(plan.target)
    listen = None if plan.gateway_listen is None else parse_endpoint(f"http://{plan.gateway_listen}")
    place = place_of(target, plan.gateway_pid, listen)
    if plan.demo:
        return FirstLook(place, None, None, "the embedded gateway is nobody else's")
    holder = _listener(plan, Place(target.host, target.port, None))
    warnings = [] if holder is None or not holder["is_tunnel"] else [_tunnel_text(holder, target.port)]
    if plan.quiet_check_s == 0:
        return FirstLook(place, holder, None, "turned off by --quiet-check 0", tuple(warnings))
    check = _quiet_check(plan, probe, place)
    if check["busy"] and plan.acknowledge_load is None:
        peers = f"; connections: {_few(check['connections'])}" if check["connections"] else ""
        raise PlanError(
            f"someone else uses {plan.target}: {' and '.join(check['busy'])}{peers}; stop that, or agree to loading it "
            'with --acknowledge-load "who: why"'
        )
    warnings += [f"someone else uses the target, as acknowledged: {each}" for each in check["busy"]]
    if check["connections"]:
        warnings.append(f"connections of others to the target: {_few(check['connections'])}")
    return FirstLook(place, holder, check, None, tuple(warnings))


def counters_now(probe: Probe, path: str | None, *, with_failed: bool = False) -> dict[str, Counted] | None:
    """Request counters of the metrics page, some of which appear with their first request; None without a page."""
    page = None if path is None else probe.metrics(path)
    return None if page is None else request_counters(page["samples"], with_failed=with_failed)


def risen(
    before: Mapping[str, Counted] | None, after: Mapping[str, Counted] | None, n_sent: int
) -> dict[str, Any]:
    """What each counter rose by while so many requests of ours were sent; those that fell are left out."""
    if before is None or after is None:
        return {"sent": n_sent, "rose": {}}
    rose = {name: each.value - before[name].value if name in before else each.value for name, each in after.items()}
    return {"sent": n_sent, "rose": {name: value for name, value in rose.items() if value >= 0}}


def _listener(plan: SweepPlan, here: Place) -> dict[str, Any] | None:
    """Who holds the target's port on this machine, None for nobody; its values are None for one that is not to be seen.

    Raises PlanError for a tunnel nobody has agreed to load.
    """
    is_there, pid = listener(here)
    if not is_there:
        return None
    name = None if pid is None else comm(pid)
    if pid is None or name is None:
        return {"pid": None, "comm": None, "is_tunnel": None}
    holder = {"pid": pid, "comm": name, "is_tunnel": name in TUNNELS}
    missing = []
    if here.host not in [allowed.strip("[]").lower() for allowed in plan.allow_hosts]:
        missing.append(f"--allow-host {here.host}")
    if plan.acknowledge_load is None:
        missing.append('--acknowledge-load "who: why"')
    if holder["is_tunnel"] and missing:
        raise PlanError(
            f"--target {plan.target}: {name} (pid {pid}) listens there, a tunnel to elsewhere, so its load needs "
            f"consent; add {' and '.join(missing)}"
        )
    return holder


def _tunnel_text(holder: Mapping[str, Any], port: int) -> str:
    return f"times include a tunnel: {holder['comm']} (pid {holder['pid']}) listens on port {port}"


def _quiet_check(plan: SweepPlan, probe: Probe, place: Place | str) -> dict[str, Any]:
    """What moved while we were silent. `busy`: sentences of what needs consent."""
    readings, spans = [_reading(plan, probe)], []
    seen: dict[str, None] = {}
    for _ in (1, 2):
        begin = _moment(plan)
        seen |= dict.fromkeys(_connections(place, until_s=begin.t_s + plan.quiet_check_s / 2))
        spans.append((begin, _moment(plan)))  # without what it cost to read the page
        readings.append(_reading(plan, probe))
    seconds = spans[-1][1].t_s - spans[0][0].t_s
    rate, counter, rate_why = _rate(readings)
    # The quieter half: a gateway that has only just started is nobody's load.
    shares = [_cpu_share(begin, end) for begin, end in spans]
    share = min((each for each in shares if each is not None), default=None)
    busy = []
    if rate is not None and rate > BUSY_PER_S:
        busy.append(f"{rate:.1f} requests/s by its own counter {counter}")
    if share is not None and share > BUSY_CPU:
        spent = duration_text(plan.quiet_check_s)
        busy.append(f"its processes used {share * 100:.0f} % of a core for {spent} in which we asked nothing of it")
    return {
        "seconds": seconds, "connections": list(seen), "connections_why": place if isinstance(place, str) else None,
        "requests_per_s": rate, "counter": counter, "requests_why": rate_why, "cpu_share": share,
        "cpu_why": None if share is not None else "no --gateway-pid" if plan.gateway_pid is None else "not readable",
        "busy": busy, "acknowledged": plan.acknowledge_load if busy else None,
    }  # fmt: skip


def _connections(place: Place | str, until_s: float) -> list[str]:
    """Every connection of others seen until then, by its client end and process."""
    found: dict[str, None] = {}
    known: set[object] = set()
    while (left_s := until_s - time.monotonic()) > 0:
        seen = None if isinstance(place, str) else look(place)
        if seen is not None and set(seen.others) - known:
            known |= set(seen.others)
            found |= dict.fromkeys(peer_texts(seen))
        time.sleep(min(_LOOK_S, left_s))
    return list(found)


def _moment(plan: SweepPlan) -> _Moment:
    return _Moment(time.monotonic(), {} if plan.gateway_pid is None else _tree_ticks(plan.gateway_pid))


def _reading(plan: SweepPlan, probe: Probe) -> _Reading:
    counters = counters_now(probe, plan.metrics_path or "/metrics", with_failed=True)
    return _Reading(time.monotonic(), sum(probe.n_gets().values()), counters)


def _rate(readings: Sequence[_Reading]) -> tuple[float | None, str | None, str | None]:
    """(requests/s, by which counter, why unknown): the fastest of those that count inference, else of the others.

    Of each counter the quieter half: where each worker of a gateway counts for itself, the value leaps once when the
    next reading reaches another of them, and somebody's load lasts. One that falls is such a worker's, or restarted.
    """
    pages = [each.counters for each in readings]
    if None in pages:
        return None, None, "no metrics page"
    if not pages[-1]:
        return None, None, "its metrics count no requests yet"
    rates: dict[bool, list[tuple[float, str]]] = {}
    for name, last in pages[-1].items():
        is_all = last.counts == "everything" or last.value == 0  # one that has counted nothing may count nothing ever
        halves = [_per_s(begin, end, name) for begin, end in pairwise(readings)]
        known = [each for each in halves if each is not None]
        if len(known) == len(halves):
            rates.setdefault(is_all, []).append((min(known), name))
    if not rates:
        return None, None, "its counters of requests fell meanwhile, or are no numbers"
    rate, name = max(rates[min(rates)])
    return rate, name, None


def _per_s(begin: _Reading, end: _Reading, name: str) -> float | None:
    """What a counter rose by a second, without our own GETs where it counts them; None when it fell or is no number."""
    nothing = Counted(0.0, "everything")
    now = (end.counters or {}).get(name, nothing)
    rise = now.value - (begin.counters or {}).get(name, nothing).value
    ours = end.n_gets - begin.n_gets if now.counts == "everything" else 0
    return max(0.0, rise - ours) / (end.t_s - begin.t_s) if rise >= 0 else None


def _cpu_share(begin: _Moment, end: _Moment) -> float | None:
    """Cores used by the gateway's tree between the two moments; what a process used that ended meanwhile is lost."""
    if not begin.cpu_ticks or not end.cpu_ticks:
        return None
    ticks = sum(used - begin.cpu_ticks.get(who, 0) for who, used in end.cpu_ticks.items())
    return ticks / os.sysconf("SC_CLK_TCK") / (end.t_s - begin.t_s)


def _tree_ticks(pid: int) -> dict[tuple[int, int], int]:
    """utime + stime of the process and its descendants. Source: proc_pid_stat(5), fields 14, 15 and 22."""
    found = {}
    for each in (pid, *descendants(pid)):
        try:
            fields = Path(f"/proc/{each}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        found[each, int(fields[19])] = int(fields[11]) + int(fields[12])
    return found


def _few(texts: list[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
