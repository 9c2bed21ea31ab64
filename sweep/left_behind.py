"""Evidence -> what stays at the target and on this machine because of the run, in sentences. Pure.

Requests, tokens and whose key paid for them; GETs beside the load; models in memory; files and processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pandas as pd

from sweep.evidence import Evidence
from sweep.plan import SweepPlan
from sweep.records import PREFLIGHT, Mark, MarkName
from sweep.tenants import tenants_of
from sweep.windows import ints

# Ollama writes "never" as a date in the 24th century, Ollaya as null (contracts.md §1.5, §3.3).
_FOR_EVER = timedelta(days=3650)
_SHOWN_MODELS, _NAME_LENGTH = 10, 60

Model = Mapping[str, Any]


def left_behind(ev: Evidence, plan: SweepPlan) -> list[str]:
    """Sentences for a reader; what is not known is said so."""
    start, finish = _mark(ev, "start"), _mark(ev, "finish")
    return [
        *_requests(ev.requests, plan, _has_tokens(ev)),
        _gets(ev, finish),
        *_models(start, finish),
        *_asked_to_keep(plan, ev.run.get("preflight", {}).get("kept", {}), start),
        *_on_this_machine(plan, finish is not None or _mark(ev, "abort") is not None),
    ]


def left_beside(ev: Evidence, plan: SweepPlan, name: str) -> list[str]:
    """The sentences about a target beside the first one. ev, plan: its part."""
    start, finish = _mark(ev, "start"), _mark(ev, "finish")
    told = (ev.run.get("beside") or {}).get(name) or {}
    if start is not None:
        start = msgspec.structs.replace(start, detail=told)
    if finish is not None:
        finish = msgspec.structs.replace(finish, detail=(finish.detail.get("beside") or {}).get(name) or {})
    return [*_requests(ev.requests, plan, _has_tokens(ev)), _gets(ev, finish), *_models(start, finish)]


def _mark(ev: Evidence, name: MarkName) -> Mark | None:
    return next((mark for mark in ev.marks if mark.mark == name), None)


def _key(plan: SweepPlan) -> str:
    """Whose account paid, by the name of the secret."""
    headers = ", ".join(f"{name} from {variable}" for name, variable in sorted(plan.headers.items()))
    with_headers = f", sent with header {headers}" if headers else ""
    if plan.api_key_cmd is not None:
        return f"the keys that --api-key-cmd gave{with_headers}"
    if plan.api_key_env is not None:
        return f"the key in {plan.api_key_env}{with_headers}"
    return f"no key{with_headers}" if headers else "no key (none was sent)"


def _has_tokens(ev: Evidence) -> bool:
    return bool((ev.run.get("dialect") or {}).get("has_tokens", True))


def _requests(requests: pd.DataFrame, plan: SweepPlan, has_tokens: bool) -> Iterator[str]:
    """Those of each tenant by the name of its key, then those of none."""
    tenants = tenants_of(plan)
    for tenant in tenants:
        mine = requests[(requests["tenant"] == tenant.name).to_numpy(dtype=bool, na_value=False)]
        yield from _of_key(mine, f"the key in {tenant.key_env} of tenant {tenant.name}", has_tokens)
    rest = requests[requests["tenant"].isna().to_numpy()] if tenants else requests
    if not tenants or len(rest):
        yield from _of_key(rest, _key(plan), has_tokens)


def _of_key(requests: pd.DataFrame, key: str, has_tokens: bool) -> Iterator[str]:
    """One sentence an API, of the requests that reached the wire; those before the first level are counted in."""
    sent = requests[requests["t_sent_ns"].notna()]
    if sent.empty:
        yield f"no request was sent with {key}" if "tenant" in key else "no request was sent"
    for api, group in sent.groupby("api", sort=True):
        early = int((group["step"] == PREFLIGHT).sum())
        prompt = "unknown" if group["n_in"].isna().all() else f"{_sum(group['n_in']):,}"
        by_source = {source: _sum(part["n_out"]) for source, part in group.groupby("token_source", sort=True)}
        output = f"{by_source['usage']:,}" if "usage" in by_source else "unknown"
        text = f"{len(group):,} {api} requests" + (f" ({early:,} before the first level)" if early else "")
        text += f", {prompt} prompt and {output} output tokens" if has_tokens else f", {prompt} prompt tokens"
        if "events" in by_source:
            more = "more " if "usage" in by_source else ""
            text += f", {by_source['events']:,} {more}output tokens by counted events"
        untold = int(group["n_out" if has_tokens else "n_in"].isna().sum())
        if untold:
            text += f", and those of {untold:,} requests that gave no count"
        yield f"{text}, charged to {key}"


def _sum(column: pd.Series[Any]) -> int:
    values, known = ints(column)
    return int(values[known].sum())


def _gets(ev: Evidence, finish: Mark | None) -> str:
    counted = None if finish is None else finish.detail.get("gets")
    if not counted:
        return f"beside the load at least {len(ev.health):,} health probes (GET), the rest is not known"
    parts = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{n:,} of {path}" for path, n in parts)
    return f"beside the load {sum(counted.values()):,} GETs: {listed}"


def _models(start: Mark | None, finish: Mark | None) -> Iterator[str]:
    """What the target held before the first request against what it holds now."""
    before, why_before = _loaded(start, "it was not asked before the run")
    after, why_after = _loaded(finish, "the run ended before it was asked again")
    if before is None and after is None:
        yield f"models: which are loaded is not known ({why_before})"
    elif after is None:
        yield f"models: {_names(before or {})} loaded before; now not known ({why_after}): may not be restored"
    elif before is None:
        yield f"models: {_names(after)} loaded now; before not known ({why_before}): may not be restored"
    elif not before and not after:
        yield "models: none was loaded before this run, none is now: as found"
    else:
        assert finish is not None
        now = datetime.fromtimestamp(finish.t_wall_ns / 1e9, UTC)
        names = sorted({*before, *after})
        for name in names[:_SHOWN_MODELS]:
            yield f"model {_short(name)} {_change(before.get(name), after.get(name), now)}"
        if len(names) > _SHOWN_MODELS:
            yield f"and {len(names) - _SHOWN_MODELS} more models; see the start and finish marks"


def _loaded(mark: Mark | None, not_asked: str) -> tuple[dict[str, Model] | None, str]:
    """Entries by name, or None and why."""
    told = None if mark is None else mark.detail.get("loaded")
    if told is None:
        return None, not_asked
    if told["models"] is None:
        return None, str(told["why"])
    return {str(entry["name"]): entry for entry in told["models"]}, ""


def _change(before: Model | None, after: Model | None, now: datetime) -> str:
    if after is None:
        assert before is not None
        return (
            f"was loaded before ({_until(before, now)}) and is not now, unloaded by its timer or to make room: "
            "not restored"
        )
    if before is None:
        return f"was not loaded before; it is now ({_until(after, now)}), and was left loaded: others may use it"
    for key, what in (("digest", "other bytes under its name"), ("context_length", "another context length")):
        if key in before and key in after and before[key] != after[key]:
            return f"was loaded before and is now with {what} ({_until(after, now)}): not restored"
    was, is_ = _is_pinned(before, now), _is_pinned(after, now)
    if was and is_ is False:
        return f"lost its pin: it was pinned for ever before and is now loaded ({_until(after, now)}): not restored"
    if was is not None and is_ is not None and was != is_:
        return f"was loaded before ({_until(before, now)}) and is now ({_until(after, now)}): not restored"
    return f"was loaded before and is now ({_until(after, now)}): as found"


def _until(entry: Model, now: datetime) -> str:
    pinned, expires = _is_pinned(entry, now), _expires(entry)
    if pinned:
        return "pinned for ever"
    return f"until {expires:%Y-%m-%dT%H:%M:%SZ}" if expires is not None else "until when is not told"


def _is_pinned(entry: Model, now: datetime) -> bool | None:
    """None: the server does not say when it unloads the model."""
    if "expires_at" in entry and entry["expires_at"] is None:
        return True
    expires = _expires(entry)
    return None if expires is None else expires - now > _FOR_EVER


def _expires(entry: Model) -> datetime | None:
    try:
        expires = datetime.fromisoformat(entry["expires_at"])
        return expires.astimezone(UTC) if expires.tzinfo is not None else expires.replace(tzinfo=UTC)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _names(entries: Mapping[str, Model]) -> str:
    shown = ", ".join(_short(name) for name in sorted(entries)[:_SHOWN_MODELS]) or "none"
    return shown + (f" and {len(entries) - _SHOWN_MODELS} more" if len(entries) > _SHOWN_MODELS else "")


def _short(name: str) -> str:
    return " ".join(name.split())[:_NAME_LENGTH]


def _asked_to_keep(plan: SweepPlan, kept: Mapping[str, Any], start: Mark | None) -> Iterator[str]:
    """kept: what the run added to each body to keep the model as it was found; --extra-body wins over it."""
    found, _ = _loaded(start, "")
    why = "as the model was found" if found else "for nothing was loaded"
    if found is None:
        why = "for how long the model was to stay is not known"
    for key, value in kept.items():
        if key not in plan.extra_body:
            yield f"each request carried {key} {value}, {why}"
    for key, what in (("keep_alive", "which sets how long the model stays"), ("store", "which the server may obey")):
        if plan.extra_body.get(key) not in (None, False) or (key == "keep_alive" and key in plan.extra_body):
            value = msgspec.json.encode(plan.extra_body[key]).decode()[:_NAME_LENGTH]
            yield f"each request carried {key} {value} (--extra-body), {what}"


def _on_this_machine(plan: SweepPlan, is_ended: bool) -> Iterator[str]:
    if not is_ended:
        yield "files: scratch files (ha-sweep-*) may still stand in the temporary folder: the run was killed"
        if plan.locustfile is not None:
            yield "processes: what the own locustfile started may still run: the run was killed"
        return
    own = "; what the own locustfile writes is not known" if plan.locustfile is not None else ""
    yield f"files: none outside OUT_DIR (scratch files in the temporary folder are removed at the end){own}"
    if plan.locustfile is None:
        yield "processes and connections: none"
    else:
        yield (
            "processes and connections: none of ours, nor what the own locustfile started beside it; what it put into "
            "a session of its own (setsid) was not looked for"
        )
