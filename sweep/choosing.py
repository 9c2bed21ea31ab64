"""What the operator left out, chosen where there is nothing to choose: port, scheme, API, model. Each choice is a guess
with its reason; where there are several, a PlanError lists them with the option to give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import httpx

from sweep.asking import Door, OpenProbe, Spoken, ask, embeds_only, knock
from sweep.dialects import BY_NAME, Dialect
from sweep.endpoint import Endpoint, parse_endpoint
from sweep.errors import PlanError
from sweep.gateway_kinds import kind_of
from sweep.health import Paths, find_paths
from sweep.listeners import Listener
from sweep.plan import SweepPlan
from sweep.preflight import key_advice
from sweep.probe import Probe
from sweep.wording import one_line

_MAX_LISTED = 8


class Guess(NamedTuple):
    """The value of an option that was not given, and how it was found."""

    value: str
    how: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan with what was guessed filled in. listed: names of models the target lists. door: its answer to `/`."""

    plan: SweepPlan
    guesses: dict[str, Guess] = field(default_factory=dict)
    listed: tuple[str, ...] = ()
    door: Door | None = None


def choose_target(chosen: Choice, found: Sequence[Listener], open_probe: OpenProbe | None) -> Choice:
    """Of the ports of the gateway's tree the only one on loopback; of several the only one that speaks an API, those
    that the process itself holds before those of its children. A single one is not asked.

    found: empty when --target was given. open_probe: of probes without secrets, which are closed here; None to ask
    nobody. A port that wants a key may be the one if the plan has one. Raises PlanError.
    """
    if not found:
        return chosen
    plan, near = chosen.plan, [each for each in found if each.is_loopback]
    if len(near) == 1:
        return _with_target(chosen, near[0].url, f"pid {near[0].pid} {near[0].comm} listens on {near[0].bound}")
    if open_probe is None:
        raise PlanError(f"{several(found)}; --dry-run asks none of them: choose with --target, like {near[0].url}")
    spoken = {each: ask(knock(each.url, open_probe, may_switch=True), open_probe) for each in near}
    for url in {each.url for each in spoken.values()}:
        open_probe(url).close()
    speaking = [each for each in near if _may_be_it(plan, spoken[each])]
    own = [each for each in speaking if each.is_own]
    if len(speaking) == 1 or len(own) == 1:
        one = speaking[0] if len(speaking) == 1 else own[0]
        also = "" if all(_speaks(plan, spoken[each]) for each in speaking) else " or asks for the key"
        why = "the only one that speaks an API" if len(speaking) == 1 else "its own of those that speak an API"
        how = f"{one.bound} of pid {one.pid} {one.comm}: {why}{also}, of {_listed([each.bound for each in near])}"
        return _with_target(chosen, spoken[one].url, how)
    if not speaking and any(each.denied for each in spoken.values()):
        raise PlanError(f"{several(found)}; to be asked which speaks an API, {key_advice(plan)}; or give --target")
    what = f"{len(speaking)} of them speak an API or want a key"
    what = what if speaking else "none of them speaks an API known here"
    raise PlanError(f"{several(found)}; {what}: choose with --target, like --target {(speaking or near)[0].url}")


def _may_be_it(plan: SweepPlan, spoken: Spoken) -> bool:
    """It was asked without a key; whether it speaks with one is asked of the one that is chosen."""
    has_secret = plan.api_key_env is not None or plan.api_key_cmd is not None or bool(plan.headers)
    return _speaks(plan, spoken) or (spoken.denied and has_secret)


def _speaks(plan: SweepPlan, spoken: Spoken) -> bool:
    if plan.api is None or not spoken.apis:
        return bool(spoken.apis)
    # APIs that list their models at one place are found by the same list.
    return BY_NAME[plan.api].models in {BY_NAME[name].models for name in spoken.apis}


def guess_lines(guesses: Mapping[str, Guess]) -> list[str]:
    """One visible line an option, as it could have been given; names and reasons are of the target's own words."""
    return [one_line(f"guessed: --{name} {guess.value} ({guess.how})") for name, guess in guesses.items()]


def several(found: Sequence[Listener]) -> str:
    """The ports of a tree, as the beginning of a sentence."""
    return f"no --target, and the gateway listens on {len(found)} ports: {_listed([str(each) for each in found])}"


def choose_scheme(chosen: Choice, open_probe: OpenProbe, shake_hands: Callable[[Endpoint], None]) -> Choice:
    """A guessed target becomes https if its port speaks TLS. Raises PlanError when a given one has the wrong scheme.

    shake_hands: tries TLS with the plan's certificates; raises PlanError with what does not fit.
    """
    plan, guesses = chosen.plan, dict(chosen.guesses)
    endpoint = parse_endpoint(plan.target)
    if endpoint.tls:
        shake_hands(endpoint)
    door = knock(plan.target, open_probe, may_switch="target" in guesses)
    if door.url != plan.target:
        plan = replace(plan, target=door.url)
        guesses["target"] = Guess(door.url, f"{guesses['target'].how}, and speaks TLS")
        shake_hands(parse_endpoint(door.url))
    return replace(chosen, plan=plan, guesses=guesses, door=door)


def choose_api_and_model(chosen: Choice, found: Sequence[Listener], open_probe: OpenProbe) -> Choice:
    """Completes a plan whose target is reachable, by its lists.

    found: what else the gateway listens on, named if the target speaks no API. Raises PlanError: no API or no model
    known, or several models.
    """
    plan, guesses = chosen.plan, dict(chosen.guesses)
    door = chosen.door or Door(plan.target, None)
    if plan.api is None:
        spoken = ask(door, open_probe)
        if not spoken.apis:
            raise PlanError(_no_api(plan, spoken, found))
        plan = replace(plan, api=spoken.apis[0])
        guesses["api"] = Guess(spoken.apis[0], spoken.how)
    model, how, listed = choose_model(plan, open_probe(plan.target))
    if plan.model is None:
        plan = replace(plan, model=model)
        guesses["model"] = Guess(model, how)
    return replace(chosen, plan=plan, guesses=guesses, listed=tuple(listed))


def choose_model(plan: SweepPlan, probe: Probe) -> tuple[str, str, list[str]]:
    """(model, how it was chosen, names the target lists): the one named, else the only one listed that answers with
    text. plan.api must be set. Raises PlanError."""
    dialect = BY_NAME[plan.api or ""]
    try:
        listing = probe.listing(dialect)
    except (httpx.HTTPError, ValueError) as error:
        if plan.model is None and str(error).endswith(("401", "403")):
            raise PlanError(f"{error}; {key_advice(plan)}") from error
        if plan.model is None:
            raise PlanError(f"the target lists no models ({error}); give --model") from error
        return plan.model, "given", []
    listed = [probe.masked(name) for name in dialect.names(listing)]
    if plan.model is not None:
        return plan.model, "given", listed
    embeds = plan.api == "openai-embeddings"
    silent = [name for name, row in zip(listed, _rows(listing, dialect), strict=True) if embeds_only(row) != embeds]
    if embeds and len(silent) == len(listed):
        silent = []  # none says that it is for embeddings: any may be
    left, other = [name for name in listed if name not in silent], "answers in text" if embeds else "embeddings"
    if len(left) != 1:
        also = f", and {_listed(silent)} for {other}" if silent else ""
        raise PlanError(f"the target lists {len(left)} models ({_listed(left)}){also}; choose one with --model")
    if left[0] not in dialect.names(listing) or not left[0].isprintable() or not left[0].strip():
        told = "repeats a secret of ours" if left[0] not in dialect.names(listing) else "is no printable text"
        raise PlanError(f"the name of the only model that {dialect.models} lists {told}; give --model")
    how = f"the only one that {dialect.models} lists"
    return left[0], how + (f" beside {_listed(silent)} for {other}" if silent else ""), listed


def with_kind(plan: SweepPlan) -> Choice:
    """The API of --gateway, if --api is not given. Raises PlanError for an unknown name."""
    if plan.gateway is None:
        return Choice(plan)
    kind = kind_of(plan.gateway)
    if plan.api is not None or kind.api is None:
        return Choice(plan)
    return Choice(replace(plan, api=kind.api), {"api": Guess(kind.api, f"--gateway {kind.name}")})


def find_all_paths(plan: SweepPlan, probe: Probe) -> Paths:
    """The paths given, those of --gateway that the target has, else those found; `why` says what was left out.

    Raises PlanError when one that was given is not there.
    """
    paths = {"health": plan.health_path, "ready": plan.ready_path, "metrics": plan.metrics_path}
    left_out = []
    for what, path in ({} if plan.gateway is None else kind_of(plan.gateway).paths).items():
        if paths[what] is None:
            trouble = _no_such(probe, what, path)
            paths[what] = path if trouble is None else None
            left_out += [] if trouble is None else [f"{path} of --gateway {plan.gateway}: {trouble}"]
    found = find_paths(probe, paths["health"], paths["ready"], paths["metrics"])
    return found._replace(why=(*left_out, *found.why))


def _no_such(probe: Probe, what: str, path: str) -> str | None:
    """Why the target does not have the path; None when it does, be its answer good or bad."""
    try:
        status = probe.get(path).status
    except httpx.HTTPError as error:
        return f"no answer ({type(error).__name__})"
    if status in (401, 403, 404, 405):
        return f"it answers {status}"
    return "no Prometheus text" if what == "metrics" and probe.metrics(path) is None else None


def _with_target(chosen: Choice, url: str, how: str) -> Choice:
    return replace(chosen, plan=replace(chosen.plan, target=url), guesses={"target": Guess(url, how)} | chosen.guesses)


def _no_api(plan: SweepPlan, spoken: Spoken, found: Sequence[Listener]) -> str:
    if spoken.denied:
        return f"{plan.target} does not tell which API it speaks ({spoken.seen}); {key_advice(plan)}"
    others = [str(each) for each in found if not plan.target.endswith(f":{each.port}")]
    also = f"; the gateway also listens on {_listed(others)}" if others else ""
    return f"{plan.target} speaks no API known by its lists ({spoken.seen}){also}; check --target, or give --api"


def _rows(listing: Any, dialect: Dialect) -> list[Any]:
    rows: list[Any] = listing["data" if dialect.models == "/v1/models" and "data" in listing else "models"]
    return rows


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - _MAX_LISTED} more" if len(items) > _MAX_LISTED else ""
    return ", ".join(items[:_MAX_LISTED]) + more if items else "none"
