"""Evidence -> how much of each step's traffic was somebody else's, and what was seen before the run. Pure.

By the target's own counters, read before and after each step. A counter that counts otherwise than we do would make a
clean step look foul, so one is believed only when all of this holds:
- while the preflight was sent, and nothing else of ours, it rose by no more than the requests sent, and it rose;
- it did not fall; its rise less our requests is above what we may have caused: requests of the step before that it
  had not counted by then and, where it counts every request there is, our probes and 0.5/s;
- upstream attempts beyond the first, of which answers tell, and requests of ours that failed make no difference where
  it may count them or not;
- when looks at the connections were possible, one of others' was new or carried something, or one may have been too
  short to be seen: without, it counts something else.
Else by the connections: the smaller of the others' shares of the bytes to and from the target. An idle connection has
none, a health probe hardly any of the answers, a scrape hardly any of the requests. Connections that live for less than
a second are not seen, so a small share is believed only when the machine accepted hardly any connection but those seen
and ours. What can be told by neither is unknown, with the reason, and no fault of the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import pandas as pd

from sweep import outdir
from sweep.evidence import Evidence
from sweep.request_counters import request_counters
from sweep.step_table import StepRow
from sweep.windows import StepTimes, ints

SHARE_LIMIT = 0.05  # of the step's requests; above it the numbers are not about our load (design §9)
_MIN_OTHERS = 2  # one request too many may be one that was counted late
_MIN_LOOKS = 3
_LOOKED_SHARE = 0.5  # of the step's seconds that need a look
_COVERED = 0.5  # of the bytes our records say we received, that the looks must have seen too
_TOLERATED_PER_S = 0.5  # health probes and scrapes of others; the quiet check lets them pass too
_PROBES_OF_A_SNAPSHOT = 2  # each path once, perhaps first without the key
_UNFINISHED = ("cut", "cancelled", "left", "timeout", "stalled")


@dataclass(frozen=True, slots=True)
class Share:
    """Others' share of one step's requests; None: unknown, why says so. told: what it was worked out from.

    is_removed: unknown because evidence is missing that the run did take.
    """

    step: str
    share: float | None
    source: Literal["counters", "connections"] | None = None
    told: str | None = None
    why: str | None = None
    is_removed: bool = False

    @property
    def invalid_why(self) -> str | None:
        """Why the step's numbers are not about our load alone, or None."""
        if self.share is None or self.share <= SHARE_LIMIT:
            return None
        what = "requests" if self.source == "counters" else "bytes"
        return f"others' traffic: {self.share * 100:.0f} % of {what}, {self.told}"

    def as_json(self) -> dict[str, Any]:
        return {"step": self.step, "share": self.share, "source": self.source, "told": self.told, "why": self.why}


@dataclass(frozen=True, slots=True)
class Others:
    """What is known of others. check, listener: as run.json has them, None when nobody looked."""

    check: Mapping[str, Any] | None
    check_why: str | None
    listener: Mapping[str, Any] | None
    during: tuple[Share, ...]
    peers: tuple[str, ...] = ()

    def of(self, step: str) -> Share | None:
        return next((share for share in self.during if share.step == step), None)

    @property
    def text(self) -> str:
        """One line of at most 60 columns."""
        known = [share for share in self.during if share.share is not None]
        foul = [share for share in known if share.invalid_why is not None]
        if foul:
            worst = max(share.share for share in foul if share.share is not None)
            where = "the one invalid step" if len(foul) == 1 else f"the worst of {len(foul)} invalid steps"
            return f"others: {worst * 100:.0f} % in {where}"
        if not known:
            return "others: unknown, neither counters nor connections tell"
        most = max(share.share for share in known if share.share is not None)
        by = "by " + " and ".join(sorted({f"{share.source}" for share in known}))
        where = by if len(known) == len(self.during) else f"in {len(known)} of {len(self.during)} steps"
        return f"others: {'none seen' if most == 0 else f'at most {most * 100:.1f} %'}, {where}"

    def as_json(self) -> dict[str, Any]:
        """result.json's `others`."""
        return {
            "quiet_check": self.check, "quiet_check_why": self.check_why, "listener": self.listener,
            "during": [share.as_json() for share in self.during], "peers": list(self.peers), "text": self.text,
        }  # fmt: skip


def others_of(ev: Evidence, rows: Sequence[StepRow]) -> Others:
    """All of it, for the steps that began."""
    told = ev.run.get("others") or {}
    late = 0
    during = []
    for row in rows:
        records = ev.requests[ev.requests["step"] == row.times.step]
        read = _read_counter(ev, told, row.times, records)
        during.append(_share(ev, told, row.times, records, read, late))
        # Once, in the next step: what was still unfinished, and not yet counted.
        unfinished = int(records["outcome"].isin(_UNFINISHED).sum())
        late = unfinished if isinstance(read, str) else int(min(unfinished, max(0.0, late - read.excess)))
    peers = dict.fromkeys(str(peer) for line in ev.connections["peers"] for peer in line)
    return Others(
        told.get("quiet_check"), told.get("quiet_check_why"), told.get("listener"), tuple(during), tuple(peers)
    )


def marked(rows: Sequence[StepRow], others: Others) -> tuple[StepRow, ...]:
    """The rows, invalid where others' traffic makes them so; all traffic of a step that only observes is others'."""
    shares = {share.step: share.invalid_why for share in others.during}
    return tuple(replace(row, others_why=shares.get(row.times.step)) if row.times.level.value else row for row in rows)


class _Read(NamedTuple):
    """A counter's rise over a step, and what of it we caused.

    maybe: upstream attempts beyond the first and, where it counts good answers alone, requests we saw refused or
    failed, which it may have counted before somebody on the way failed them.
    """

    name: str
    rise: float
    ours: int
    maybe: int
    own_gets: float

    @property
    def excess(self) -> float:
        """What it rose by beyond our requests; below 0 for those it has not counted."""
        return self.rise - self.ours - self.own_gets


def _share(
    ev: Evidence, told: Mapping[str, Any], times: StepTimes, records: pd.DataFrame, read: _Read | str, late: int
) -> Share:
    if f"{outdir.CONNECTIONS} is missing" in ev.problems:
        return Share(times.step, None, why=f"{outdir.CONNECTIONS} is missing, and the run did look", is_removed=True)
    looks = _looks(ev, times)
    by_counters = _by_counter(times.step, read, late)
    if by_counters.invalid_why is not None and _were_alone(looks, times, records):
        why = f"{by_counters.told}, yet no connection but ours was new or carried anything: it counts something else"
        by_counters = Share(times.step, None, why=why)
    if by_counters.share is not None:
        return by_counters
    by_bytes = _by_connections(told, times, records, looks)
    if by_bytes.share is not None:
        return by_bytes
    return replace(by_bytes, why=f"counters: {by_counters.why}; connections: {by_bytes.why}")


def _by_counter(step: str, read: _Read | str, late: int) -> Share:
    """A counter may count more of ours than it should, or not: what holds for both is known."""
    if isinstance(read, str):
        return Share(step, None, why=read)
    shares = []
    for maybe in (read.maybe, 0):
        others = read.excess - late - maybe
        shares.append(others / (others + read.ours) if others >= _MIN_OTHERS else 0.0)
    by = f"by the target's own counter {read.name} ({read.rise:.0f} counted, {read.ours} ours)"
    fewest, most = (Share(step, share, "counters", by) for share in shares)
    if fewest.invalid_why is None and most.invalid_why is not None:
        return Share(step, None, why=f"{read.name} may count {read.maybe} attempts or failed requests of ours")
    return fewest if fewest.invalid_why is not None else most


def _read_counter(ev: Evidence, told: Mapping[str, Any], times: StepTimes, records: pd.DataFrame) -> _Read | str:
    """The first usable counter of the snapshots around the step, or why there is none."""
    pages = [ev.snapshots.get(f"{times.step}.{when}") or {} for when in ("before", "after")]
    before, after = (request_counters((page.get("metrics") or {}).get("samples") or {}) for page in pages)
    if not after or not pages[0].get("metrics"):
        return "no counter of requests was read before and after it"
    calibrated = told.get("counted") or {}
    why = "none of them"
    for name, now in after.items():
        why = f"{name} did not count the preflight as we do"
        rose = (calibrated.get("rose") or {}).get(name)
        if rose is None or not 0 < rose <= calibrated.get("sent", 0):
            continue
        rise = now.value - (before[name].value if name in before else 0.0)
        if rise >= 0:
            own_gets = _gets(ev, pages) if now.counts == "everything" else 0.0
            if own_gets is None:
                return f"{name} counts probes too, and it is not known when its pages were read"
            ours = _ours(records, now.counts)
            return _Read(name, rise, ours, _ours(records, "everything") - ours + _again(records), own_gets)
        why = f"{name} is no number" if math.isnan(rise) else f"{name} fell: it was restarted"
    return why


def _ours(records: pd.DataFrame, counts: str) -> int:
    """Requests of ours that such a counter may have counted, those sent again with them."""
    sent = records["t_sent_ns"].notna()
    if counts == "successes":
        sent &= (records["status"].fillna(200) < 400).astype(bool)
    return int(sent.sum()) + sum("retried_stale" in flags for flags in records["flags"])


def _again(records: pd.DataFrame) -> int:
    attempts, known = ints(records["attempts"])
    return int((attempts[known] - 1).clip(min=0).sum()) if known.any() else 0


def _gets(ev: Evidence, pages: Sequence[Mapping[str, Any]]) -> float | None:
    """Requests beside the load that may have been counted between the two pages: our probes, and others' few.

    None when a page does not say when it was read.
    """
    begin, end = (page.get("t_mono_ns") for page in pages)
    if begin is None or end is None:
        return None
    t_ns = ev.health["t_mono_ns"]
    probes = int(((t_ns >= begin) & (t_ns <= end)).sum())
    paths = sum(path is not None for path in (ev.run.get("paths") or {}).values())
    return probes + 2 * _PROBES_OF_A_SNAPSHOT * (paths + 1) + _TOLERATED_PER_S * int(end - begin) / 1e9


def _looks(ev: Evidence, times: StepTimes) -> pd.DataFrame:
    """Looks of the step, the one after its end included: it tells the last second's bytes."""
    t_ns = ev.connections["t_mono_ns"]
    if times.t_open_ns is None or times.t_end_ns is None:
        return ev.connections.iloc[:0]
    return ev.connections[(t_ns > times.t_open_ns) & (t_ns < times.t_end_ns + 1_000_000_000)]


def _by_connections(
    told: Mapping[str, Any], times: StepTimes, records: pd.DataFrame, looks: pd.DataFrame
) -> Share:
    """By the bytes that went through the connections during the step."""
    step = times.step
    if looks.empty or times.t_open_ns is None or times.t_end_ns is None:
        return Share(step, None, why=told.get("connections_why") or "nobody looked during the step")
    lasted_s = (times.t_end_ns - times.t_open_ns) / 1e9
    if len(looks) < max(_MIN_LOOKS, _LOOKED_SHARE * lasted_s):
        return Share(step, None, why=f"{len(looks)} looks in {lasted_s:.0f} s are too few")
    names = ("ours_in_bytes", "ours_out_bytes", "others_in_bytes", "others_out_bytes")
    if looks[list(names)].isna().any(axis=None):
        return Share(step, None, why="the kernel does not tell what went through them")
    ours_in, ours_out, others_in, others_out = (int(looks[name].sum()) for name in names)
    received = int(records["bytes_in"].sum())
    if ours_out < _COVERED * received:
        why = f"of {received} bytes we received the looks saw {ours_out}: connections are too short to be seen"
        return Share(step, None, why=why)
    short_why = _short_why(looks, int(records["t_sent_ns"].notna().sum()), lasted_s)
    share = min(_part(others_in, ours_in), _part(others_out, ours_out))
    if share <= SHARE_LIMIT and short_why is not None:
        return Share(step, None, why=short_why)
    by = f"by its connections ({others_in} bytes asked and {others_out} answered on others')"
    return Share(step, share, "connections", by)


def _were_alone(looks: pd.DataFrame, times: StepTimes, records: pd.DataFrame) -> bool:
    """Whether no connection but ours was new or carried anything, and none was too short to be seen."""
    if times.t_open_ns is None or times.t_end_ns is None or len(looks) < _MIN_LOOKS or looks["n_active"].any():
        return False
    lasted_s = (times.t_end_ns - times.t_open_ns) / 1e9
    return _short_why(looks, int(records["t_sent_ns"].notna().sum()), lasted_s) is None


def _short_why(looks: pd.DataFrame, sent: int, lasted_s: float) -> str | None:
    """Why others may have opened a connection for each request, which no look sees; None: too few were accepted.

    The kernel counts those of every port, so that many do not show who it was, but few show that it was nobody.
    """
    if looks[["n_opened", "n_ours_new"]].isna().any(axis=None):
        return "the kernel does not tell how many connections were accepted, so short ones of others cannot be seen"
    opened, ours = int(looks["n_opened"].sum()), int(looks["n_ours_new"].sum())
    if opened < ours:
        return f"the kernel counted {opened} accepted connections, fewer than the {ours} new ones of ours"
    strange = opened - ours - _TOLERATED_PER_S * lasted_s
    if strange < _MIN_OTHERS or strange <= SHARE_LIMIT * (strange + sent):
        return None
    return f"this machine accepted {opened - ours} connections beside our {ours}, too short to be seen: maybe others'"


def _part(others: int, ours: int) -> float:
    return others / (others + ours) if others else 0.0


def evidence_files(share: Share) -> tuple[str, ...]:
    """Where the share comes from."""
    if share.source == "counters":
        return tuple(outdir.snapshot_file(f"{share.step}.{when}") for when in ("before", "after"))
    return () if share.source is None else (outdir.CONNECTIONS,)
