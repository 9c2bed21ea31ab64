"""Who else was there, for the HTML report and the Markdown summary: result.json -> ready text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweep import wording
from sweep.cells import Cell, Table, plain

Json = Mapping[str, Any]


def sentences(result: Json) -> list[str]:
    """What was seen before the load and of what leads to the target; none for a run that did not look."""
    others = result.get("others")
    if others is None:
        return []
    return [f"During the load, {others['text']}.", *_path(others["listener"]), *_before(others)]


def share_table(result: Json) -> Table:
    """Others' share of each step, how it was worked out, or why it is unknown."""
    rows = (result.get("others") or {"during": []})["during"]
    table = Table("Others' share by step", ["step", "others' share", "how it is known"], [], [])
    for row in rows:
        share = plain(row["share"], "ratio", table.notes, row["why"])
        told = row["told"] if row["source"] else wording.MISSING
        table.rows.append([Cell(row["step"], is_number=False), share, Cell(told, is_number=False)])
    return table


def peers(result: Json) -> Sequence[str]:
    """Every connection of others that was seen, before and during the load."""
    others = result.get("others")
    if others is None:
        return []
    before = (others["quiet_check"] or {}).get("connections") or []
    return list(dict.fromkeys([*before, *others["peers"]]))


def _path(listener: Json | None) -> list[str]:
    if listener is None:
        return []
    if listener["pid"] is None:
        return ["Who holds the target's port cannot be seen by this user; whether it is a tunnel is unknown."]
    tunnel = ", a tunnel: times include it" if listener["is_tunnel"] else ""
    return [f"The target's port is held by {listener['comm']} (pid {listener['pid']}){tunnel}."]


def _before(others: Json) -> list[str]:
    check = others["quiet_check"]
    if check is None:
        why = others["quiet_check_why"]
        return [] if why is None else [f"Before the load nobody looked: {why}."]
    rate, share = check["requests_per_s"], check["cpu_share"]
    requests = f"unknown ({check['requests_why']})" if rate is None else f"{wording.number(rate)}/s"
    used = f"unknown ({check['cpu_why']})" if share is None else f"{wording.number(share, 'ratio')} of a core"
    looked = f"Before the load, in {wording.duration(check['seconds'])} of silence: others' requests {requests}; "
    told = [f"{looked}used by the gateway's processes {used}."]
    if check["connections_why"]:
        told.append(f"Connections of others could not be seen: {check['connections_why']}.")
    if check["acknowledged"]:
        told.append(f"Agreed to: {check['acknowledged']}.")
    return told
