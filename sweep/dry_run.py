"""The plan told to a person before anything is sent: every setting, SLO, step and bound; for --dry-run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping

from sweep.dialects import BY_NAME
from sweep.estimate import time_line, time_text
from sweep.left_open import not_tested
from sweep.plan import SweepPlan, duration_text
from sweep.plan_steps import steps
from sweep.secret_names import NOT_REPEATED, is_usual_variable
from sweep.sending import prefix_caches
from sweep.slo import sentence
from sweep.tenants import tenants_of, told
from sweep.wording import visible

_FOUND = "found before the load"
_ONE_LINE = str.maketrans({"\n": "\\n", "\t": "\\t"})


def describe(plan: SweepPlan) -> list[str]:
    """Lines: every setting with its unit, each SLO as a sentence, the steps, the bounds, what stays untested.

    Secrets are told by the name of what holds them. The command of --api-key-cmd is shown as it was given.
    """
    settings = (*_target(plan), *_access(plan), *_load(plan), *_shape(plan), *_limits(plan), *_evidence(plan))
    return [
        *(f"{name}: {visible(value).translate(_ONE_LINE)}" for name, value in settings),
        *_slo_lines(plan),
        *_step_lines(plan),
        time_line(plan, None),
        f"not tested by this plan: {', '.join(not_tested(plan, streams=_streams(plan)))}",
    ]


def _target(plan: SweepPlan) -> Iterable[tuple[str, str]]:
    pid = "the demo gateway's" if plan.demo else "none: client side only"
    yield "target", "the demo gateway, on a free port" if plan.demo else _or(plan.target, _FOUND)
    yield "gateway listens on", _or(plan.gateway_listen, "as the target")
    form = "" if plan.gateway_pid_given is None else f" ({plan.gateway_pid_given})"
    yield "gateway pid", _or(plan.gateway_pid, pid) + form
    yield "kind of gateway", _or(plan.gateway, "not told")
    yield "subject", _or(plan.subject, "not declared")
    yield "subject digest", _or(plan.subject_digest, "not declared")
    yield "api", _or(plan.api, _FOUND)
    yield "model", _or(plan.model, "the only one the target lists")
    yield "health path", _or(plan.health_path, _FOUND)
    yield "ready path", _or(plan.ready_path, _FOUND)
    yield "metrics path", _or(plan.metrics_path, _FOUND)
    yield "allowed hosts", ", ".join(plan.allow_hosts) or "this machine only"
    yield "load acknowledged", _or(plan.acknowledge_load, "by nobody")


def _access(plan: SweepPlan) -> Iterable[tuple[str, str]]:
    yield "api key", _key(plan.api_key_env)
    yield "api key command", _or(plan.api_key_cmd, "none")
    yield "api key goes as", plan.key_style
    yield "metrics key", _key(plan.metrics_key_env)
    yield "headers", _pairs({name: _variable(env) for name, env in plan.headers.items()}, " ")
    yield "headers, plain", _pairs(plan.headers_plain, ": ")
    yield "trusted certificates", "the system's" + ("" if plan.ca_file is None else f" and {plan.ca_file}")
    yield "client certificate", _or(plan.cert, "none")
    yield "client key", _or(plan.key, "none")
    yield "target's certificate", "NOT VERIFIED (--insecure)" if plan.insecure else "verified, if it has one"


def _load(plan: SweepPlan) -> Iterable[tuple[str, str]]:
    default = " (default: the highest)" if plan.sustain is None else ""
    if plan.is_auto:
        unit = "requests in flight" if plan.locustfile is None else "users"
        yield "levels", f"{plan.levels[0]} {unit} first, then searched for"
        yield "sustained level", _or(plan.sustain, "the highest that meets every SLO (default)")
    else:
        yield "levels", "; ".join(_levels(plan))
        yield "sustained level", f"{plan.sustained}{default}"
    yield "modes", ", ".join(plan.modes) if plan.locustfile is None else f"as the tasks of {plan.locustfile} say"
    yield "own locustfile", _or(plan.locustfile, "none")
    yield "its user classes", ", ".join(plan.user_classes) or "all it has"
    yield "cycles", str(plan.cycles)
    yield "a step", f"at least {duration_text(plan.duration_s)}, at most {duration_text(plan.max_step_s)}"
    yield "warm-up", f"{duration_text(plan.warmup_s)} and two requests a user"
    yield "drain", f"at most {duration_text(plan.drain_or_default_s)}"
    yield "cool-down", duration_text(plan.cooldown_s)
    yield "look for others' traffic first", duration_text(plan.quiet_check_s)
    yield "prompt", f"~{plan.prompt_tokens} tokens" if plan.prompts is None else "of the file of --prompts"
    yield "answer", f"at most {plan.max_tokens} tokens"
    yield "extra body", json.dumps(plan.extra_body, ensure_ascii=False) if plan.extra_body else "none"
    yield "seed", _or(plan.seed, "drawn by the run")


def _levels(plan: SweepPlan) -> Iterable[str]:
    unit = "requests in flight" if plan.locustfile is None else "users"
    held = [str(level) for level in plan.levels if level.kind == "concurrency" and level.value]
    rates = [f"{level.value:.12g}" for level in plan.levels if level.kind == "rate"]
    yield from ["0 (observes, sends nothing)"] if any(level.value == 0 for level in plan.levels) else []
    yield from [f"{', '.join(held)} {unit}"] if held else []
    yield from [f"{', '.join(rates)} arrivals a second"] if rates else []


def _shape(plan: SweepPlan) -> Iterable[tuple[str, str]]:
    yield "arrivals of levels like 5/s", plan.arrivals
    yield "streaming share of mode mixed", f"{plan.stream_share:g}"
    yield "think time", duration_text(plan.think_time_s)
    yield "ramp", "half of the warm-up" if plan.ramp_s is None else duration_text(plan.ramp_s)
    at = ", ".join(plan.cancel_at) or "wherever the mode allows"
    yield "clients that leave", f"{plan.cancel_ratio:g} of the requests, {at}"
    yield "connections", "a new one for each request" if plan.no_keepalive else "kept alive"
    highest = _or(plan.auto_max, "none, for they are given")
    yield "levels searched for", f"up to {highest}, at most {plan.auto_steps} of them"
    yield "further cycles of the sustained level", str(plan.leak_cycles)
    yield "tenants", _tenants(plan)
    yield "prompts", _or(plan.prompts, "made of common words")
    yield "prefix caches", prefix_caches(plan)
    yield "beside", _pairs(plan.beside, " = ")
    yield "its processes", _pairs(plan.beside_pids, " = ")
    yield "its models", _pairs(plan.beside_models, " = ")
    yield "its keys", _pairs({name: _variable(env) for name, env in plan.beside_key_envs.items()}, " ")
    there = "" if plan.master_bind is None else f", which connect to {plan.master_bind}"
    where = f"{plan.expect_workers} on other machines" if plan.expect_workers else f"{plan.processes} here"
    yield "load processes", f"{where}{there}"


def _tenants(plan: SweepPlan) -> str:
    keys = ", ".join(f"{each.name}'s key {_variable(each.key_env)}" for each in tenants_of(plan))
    return f"{told(plan)}; {keys}" if keys else told(plan)


def _limits(plan: SweepPlan) -> Iterable[tuple[str, str]]:
    yield "time-out, total", duration_text(plan.timeout_s)
    yield "time-out, connect", duration_text(plan.connect_timeout_s)
    yield "time-out, first byte", duration_text(plan.first_byte_timeout_s)
    yield "time-out, idle", duration_text(plan.idle_timeout_s)
    yield "time-out, model load", duration_text(plan.load_timeout_s)
    yield (
        "caps",
        f"{plan.max_requests:,} requests, {plan.max_output_tokens:,} output tokens, {duration_text(plan.max_time_s)}",
    )


def _evidence(plan: SweepPlan) -> Iterable[tuple[str, str]]:
    yield "name", plan.name
    yield "labels", _pairs(plan.labels, "=")
    yield "evidence goes to", _or(plan.out_dir, f"out/<UTC time>-{plan.name}")
    yield "response headers kept", ", ".join(plan.keep_headers) or "those that are always kept"
    yield "warnings", "exit 1" if plan.strict else "exit 0"
    yield "progress", "quiet" if plan.quiet else "shown"


def _slo_lines(plan: SweepPlan) -> list[str]:
    if not plan.slos:
        return ["SLO: none; capacity is not judged and the verdict is at most READY WITH WARNINGS"]
    return [f"SLO {slo.text}: {sentence(slo)}" for slo in plan.slos]


def _step_lines(plan: SweepPlan) -> list[str]:
    return [
        f"step {step.id}: {step.n_wanted} requests wanted, closes early at {step.n_early}, "
        f"{time_text(step.duration_s)} to {time_text(step.max_step_s)}, at most {step.max_requests:,} requests and "
        f"{step.max_output_tokens:,} output tokens{'; exploring' if step.exploring else ''}"
        for step in steps(plan)
    ]


def _streams(plan: SweepPlan) -> bool:
    dialect = BY_NAME.get(plan.api or "")
    return dialect is None or dialect.streams


def _or(value: object, otherwise: str) -> str:
    return otherwise if value is None else str(value)


def _key(env_name: str | None) -> str:
    return "none" if env_name is None else _variable(env_name)


def _variable(name: str) -> str:
    """Its name, unless it is not set and may be a key written in its place."""
    shown = name if is_usual_variable(name) or name in os.environ else NOT_REPEATED
    return f"from environment variable {shown}"


def _pairs(pairs: Mapping[str, str], between: str) -> str:
    return ", ".join(f"{name}{between}{value}" for name, value in pairs.items()) or "none"
