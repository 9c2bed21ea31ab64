"""What a plan must not be: settings that contradict each other, and targets nobody agreed to load. Pure, no DNS.

Every refusal is one PlanError of one line that names the option and what to write instead; user names, passwords and
keys are never repeated in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from urllib.parse import urlsplit

from sweep.access_refusals import check_access, check_tls
from sweep.beside_refusals import check_beside
from sweep.crew_refusals import check_crew
from sweep.errors import PlanError
from sweep.plan import APIS, SINGULAR, SweepPlan, duration_text
from sweep.plan_steps import steps
from sweep.search_refusals import check_search
from sweep.sender_refusals import check_senders
from sweep.slo import Slo, did_you_mean
from sweep.subject import check_kept_headers, check_subject
from sweep.tenants import driven

# Same as outdir.NAME, which would bring tempfile and its 10 ms into `--help`; a test compares them.
NAME = re.compile(r"[A-Za-z0-9._-]+")
_LISTEN = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_LABEL = 200
_MAX_DEPTH = 100  # of a body: what reads and writes it recurses
_MAX_NAME = 100  # a file name holds 255 bytes, and the archive's adds time and suffix

# Body keys the tool measures by or bounds the load with, and what to use for them.
RESERVED_BODY = {
    "stream": "use --mode",
    "stream_options": "the tool asks for the usage itself",
    "model": "use --model",
    "messages": "use --prompt-tokens",
    "prompt": "use --prompt-tokens",
    "input": "use --prompt-tokens",
    "state": "use --prompt-tokens",
    "max_tokens": "use --max-tokens",
    "max_output_tokens": "use --max-tokens",
    "store": "the tool asks no server to keep anything",
}

_POSITIVE = (
    "duration_s", "max_step_s", "timeout_s", "connect_timeout_s", "first_byte_timeout_s", "idle_timeout_s",
    "load_timeout_s", "max_time_s", "cycles", "max_tokens", "prompt_tokens", "max_requests", "max_output_tokens",
)  # fmt: skip
_NOT_NEGATIVE = (
    "warmup_s", "drain_s", "cooldown_s", "quiet_check_s", "think_time_s", "ramp_s", "leak_cycles",
)  # fmt: skip


def check(plan: SweepPlan, *, target_is_given: bool = True) -> None:
    """Nothing, if the plan may be run. Raises PlanError for the first thing that is wrong with it.

    target_is_given: else it may yet become https.
    """
    _check_texts(plan)
    _check_numbers(plan)
    _check_levels(plan)
    check_search(plan)
    _check_labels(plan)
    _check_words(plan)
    _check_target(plan)
    check_beside(plan)
    for name, url in plan.beside.items():
        _check_url(plan, f"--beside {name}", url)
    hosts = [urlsplit(url).hostname or "" for url in (plan.target, *plan.beside.values())]
    check_crew(plan, target_is_loopback=any(map(is_loopback, hosts)) and not plan.demo)
    check_access(plan)
    if target_is_given:
        check_tls(plan)
    _check_body(plan)
    check_subject(plan.subject, plan.subject_digest)
    check_kept_headers(plan.keep_headers)
    check_senders(plan)
    for slo in plan.slos:
        _check_slo(plan, slo)
    _check_bounds(plan)


def is_loopback(host: str) -> bool:
    """True for `localhost`, 127.0.0.0/8 and ::1 as written; every other name, whatever it resolves to, is not."""
    host = host.strip("[]").lower()
    if host in ("localhost", "::1"):
        return True
    parts = host.split(".")
    return len(parts) == 4 and parts[0] == "127" and all(re.fullmatch("[0-9]{1,3}", p) and int(p) < 256 for p in parts)


def _flag(field_name: str) -> str:
    return "--" + field_name.removesuffix("_s").removesuffix("_given").replace("_", "-")


def _check_texts(plan: SweepPlan) -> None:
    """What no file name, header or JSON can carry: a zero byte, and bytes that are no UTF-8. Their text is not told."""
    for each in fields(plan):
        if each.name != "extra_body" and not _is_text(getattr(plan, each.name)):
            flag = _flag(SINGULAR.get(each.name, each.name))
            raise PlanError(f"{flag} holds a zero byte, or bytes that are no UTF-8; write it without them")


def _is_text(value: object) -> bool:
    if isinstance(value, str):
        return "\0" not in value and not _LONE_SURROGATE.search(value)
    parts = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
    return not isinstance(parts, (list, tuple)) or all(map(_is_text, parts))


def _check_numbers(plan: SweepPlan) -> None:
    for name in _POSITIVE:
        value = getattr(plan, name)
        if not value > 0:
            raise PlanError(f"{_flag(name)} {value:g}: give a number above 0")
    for name in _NOT_NEGATIVE:
        value = getattr(plan, name)
        if value is not None and not value >= 0:
            raise PlanError(f"{_flag(name)} {value:g}: give 0 or more")
    if plan.gateway_pid is not None and plan.gateway_pid <= 0:
        raise PlanError(f"--gateway-pid {plan.gateway_pid}: give the number of a process")
    longest = duration_text(plan.max_step_s)
    if plan.duration_s > plan.max_step_s:
        raise PlanError(f"--duration {duration_text(plan.duration_s)} is longer than --max-step {longest}; raise it")
    if plan.warmup_s > plan.max_step_s:
        raise PlanError(f"--warmup {duration_text(plan.warmup_s)} is longer than --max-step {longest}; shorten it")
    if plan.lead_s > plan.max_step_s:
        raise PlanError(f"--ramp {duration_text(plan.lead_s)} is longer than --max-step {longest}; shorten it")


def _check_levels(plan: SweepPlan) -> None:
    tested = ",".join(map(str, plan.levels))
    if not plan.levels:
        raise PlanError("no level given; write them with commas: --levels 1,2,4,8")
    if plan.sustain is not None and plan.sustain not in plan.levels:
        raise PlanError(f"--sustain {plan.sustain} is not among --levels {tested}; add it there or choose one of them")
    if plan.sustain is not None and plan.sustain.value == 0 and plan.asks:
        raise PlanError("--sustain 0: level 0 asks nothing; name a level with load")
    rate = next((level for level in plan.levels if level.kind == "rate"), None)
    if rate is not None and plan.locustfile is not None:
        raise PlanError(f"level {rate}: the tasks of -f {plan.locustfile} set their own pace; give numbers of users")
    if plan.think_time_s and not any(level.kind == "concurrency" and level.value for level in plan.levels):
        raise PlanError("--think-time: arrivals do not wait for anybody; give levels of requests in flight, or drop it")
    if plan.slos and not plan.asks:
        raise PlanError(f"SLO {plan.slos[0].text!r}: level 0 asks nothing; add a level with load, or drop the SLO")


def _check_words(plan: SweepPlan) -> None:
    if plan.api is not None and plan.api not in APIS:
        raise PlanError(f"--api {plan.api!r} is unknown{did_you_mean(plan.api, APIS)}; known: {', '.join(APIS)}")
    if not NAME.fullmatch(plan.name) or len(plan.name) > _MAX_NAME:
        raise PlanError(
            f"--name {plan.name[:_MAX_NAME]!r}: it becomes a file name; use at most {_MAX_NAME} of A-Z a-z 0-9 . _ -"
        )
    if plan.model is not None and not plan.model.strip():
        raise PlanError("--model is empty; name one, or leave it out to take the only one the target lists")
    for flag, path in (
        ("--health-path", plan.health_path),
        ("--ready-path", plan.ready_path),
        ("--metrics-path", plan.metrics_path),
    ):
        if path is not None and not re.fullmatch(r"/\S*", path):
            raise PlanError(f"{flag} {path!r}: give a path of the target that starts with /, like /healthz")


def _check_labels(plan: SweepPlan) -> None:
    for key, value in plan.labels.items():
        if not NAME.fullmatch(key):
            raise PlanError(f"--label {key[:_MAX_NAME]!r}: its key is no word; use A-Z a-z 0-9 . _ -, like team=search")
        if len(value) > _MAX_LABEL or not value.isprintable():
            raise PlanError(f"--label {key}: its value must be one printable line of at most {_MAX_LABEL} characters")


def _check_target(plan: SweepPlan) -> None:
    if plan.gateway_listen is not None:
        match = _LISTEN.fullmatch(plan.gateway_listen)
        if match is None or not 0 < int(match[2]) < 65536:
            raise PlanError(f"--gateway-listen {plan.gateway_listen!r}: write HOST:PORT, like 127.0.0.1:8080")
    agreed = plan.acknowledge_load
    if agreed is not None and not re.fullmatch(r"\s*[^\s:][^:]*:.*\S.*", agreed):
        raise PlanError('--acknowledge-load: write who agreed to the load and why, like "ops on call: release 1.4"')
    _check_url(plan, "--target", plan.target)


def _check_url(plan: SweepPlan, option: str, target: str) -> None:
    """Where load is to be sent, and that somebody agreed to it."""
    host, port = _host_and_port(target, option)
    if port == 0 and not (plan.demo and target == plan.target):
        raise PlanError(f"{option} {target}: port 0 is none; give the port the gateway listens on")
    missing = []
    if host not in [allowed.strip("[]").lower() for allowed in plan.allow_hosts]:
        missing.append(f"--allow-host {host}")
    if plan.acknowledge_load is None:
        missing.append('--acknowledge-load "who: why"')
    if missing and not is_loopback(host):
        raise PlanError(f"{option} {host} is not this machine, so its load needs consent; add {' and '.join(missing)}")


def _host_and_port(target: str, option: str) -> tuple[str, int | None]:
    key = "--api-key-env" if option == "--target" else "--beside-key-env"
    if "@" in target:
        raise PlanError(f"{option} holds a user name or password (an @); remove it and use {key} NAME")
    if "?" in target or "#" in target:
        raise PlanError(f"{option} holds a query or fragment (? or #); remove it, and give keys by {key} NAME")
    try:
        url = urlsplit(target)
        host, port = url.hostname, url.port
    except ValueError as error:
        raise PlanError(f"{option} {target!r}: {error}; write it like http://127.0.0.1:8080") from error
    # urlsplit drops tabs and newlines without a word.
    if url.scheme not in ("http", "https") or not host or re.search(r"[\s\x00-\x1f\x7f]", target):
        raise PlanError(f"{option} {target!r} is no http or https URL; write it like http://127.0.0.1:8080")
    return host, port


def _check_body(plan: SweepPlan) -> None:
    trouble = _no_json(plan.extra_body)
    if trouble is not None:
        raise PlanError(f"--extra-body holds {trouble}; write what JSON can say")
    for key in plan.extra_body:
        if key in RESERVED_BODY:
            raise PlanError(f"--extra-body: {key!r} would change what is measured; {RESERVED_BODY[key]}")
    options = plan.extra_body.get("options")
    if isinstance(options, dict) and "num_predict" in options:
        raise PlanError("--extra-body: 'options.num_predict' would change what is measured; use --max-tokens")


def _no_json(value: object, depth: int = 0) -> str | None:
    """What of a body could not be sent, or would come back as something else."""
    if depth > _MAX_DEPTH:
        return f"more than {_MAX_DEPTH} levels"
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is not finite (NaN, or one as large as 1e400)"
    if isinstance(value, str):
        return "a character that is none (half of a pair like \\ud800)" if _LONE_SURROGATE.search(value) else None
    parts = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
    if not isinstance(parts, (list, tuple)):
        return None
    return next((trouble for part in parts if (trouble := _no_json(part, depth + 1)) is not None), None)


def _check_slo(plan: SweepPlan, slo: Slo) -> None:
    if slo.at is not None and slo.at.value == 0:
        raise PlanError(f"SLO {slo.text!r}: level 0 asks nothing, so nothing can hold there; change the @")
    if slo.at is not None and slo.at not in plan.levels and not plan.is_auto:
        tested = ",".join(map(str, plan.levels))
        raise PlanError(f"SLO {slo.text!r}: level {slo.at} is not among --levels {tested}; add it or change the @")
    if not set(slo.modes) & set(plan.sent_modes):
        raise PlanError(f"SLO {slo.text!r} is about {slo.modes[0]} requests, and --mode {plan.mode} sends none")
    if slo.metric in ("tpot_ms", "gap_ms") and plan.max_tokens < 2:
        raise PlanError(f"SLO {slo.text!r} needs two tokens an answer; raise --max-tokens {plan.max_tokens}")
    if plan.slos.count(slo) > 1:
        raise PlanError(f"SLO {slo.text!r} is given twice; drop one")


def _check_bounds(plan: SweepPlan) -> None:
    """Caps that leave no step room for one request a user, and a plan longer than --max-time even at its shortest."""
    if plan.is_auto:
        return  # bounds end the search where they are used up
    swept = sum(driven(plan, level) for level in plan.levels) * plan.cycles
    one_each = math.ceil(swept + driven(plan, plan.sustained) * plan.leak_cycles) * len(plan.modes) * plan.n_blocks
    if plan.max_requests < one_each:
        raise PlanError(
            f"--max-requests {plan.max_requests}: the {plan.n_steps} steps need {one_each} for one a user, or a second "
            "of a rate; raise it or drop levels"
        )
    if plan.max_output_tokens < one_each * plan.max_tokens:
        raise PlanError(
            f"--max-output-tokens {plan.max_output_tokens}: the {plan.n_steps} steps need "
            f"{one_each * plan.max_tokens} for one answer a user, or a second of a rate; raise it or lower --max-tokens"
        )
    shortest = sum(step.warmup_s + step.duration_s + step.cooldown_s for step in steps(plan))
    if shortest > plan.max_time_s:
        raise PlanError(
            f"{plan.n_steps} steps of warm-up, duration and cool-down take {shortest / 60:.1f} min, over --max-time "
            f"{duration_text(plan.max_time_s)}; raise it, or lower --duration, --cycles, --leak-cycles or the levels"
        )
