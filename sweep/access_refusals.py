"""What the access options of a plan must not be: headers, key and certificates that contradict or expose. Pure.

Values of headers, keys and names of variables that may be keys themselves are never repeated.
"""

from __future__ import annotations

import re
import shlex

from sweep.endpoint import is_header_name
from sweep.errors import PlanError
from sweep.plan import SweepPlan
from sweep.secret_names import check_variable, is_key, is_secret_name, without_keys

_ONE_LINE = re.compile(r"[\x20-\x7e\xa0-\xff]*")

# Headers the tool measures by, or that HTTP needs for itself.
_OURS = {
    **dict.fromkeys(("host", "content-length", "content-type", "transfer-encoding", "connection", "keep-alive", "te",
                     "trailer", "upgrade", "expect", "proxy-connection", "range"), "the request itself decides it"),
    "accept": "it says whether an answer streams",
    "accept-encoding": "a compressed answer hides when a token came",
    "user-agent": "it tells the target's operator who loads it",
    "x-request-id": "it finds a request in the gateway's log",
}  # fmt: skip
# What a value of a request body must be to be a secret: `eos_token` holds signs that no key does.
_OPENING = re.compile(r"[A-Za-z0-9._~+/=-]{6,}")


def check_access(plan: SweepPlan) -> None:
    """Nothing, if access is as it may be. Raises PlanError for the first thing that is wrong with it."""
    _check_key(plan)
    _check_headers(plan)
    _check_recorded(plan)
    _check_pairs(plan)


def check_tls(plan: SweepPlan) -> None:
    """Options of TLS need a target that speaks it; to be asked once the target is known. Raises PlanError."""
    given = [
        flag for flag, is_given in (("--ca-file", plan.ca_file), ("--cert", plan.cert), ("--key", plan.key),
                                    ("--insecure", plan.insecure)) if is_given
    ]  # fmt: skip
    if given and all(url.lower().startswith("http:") for url in (plan.target, *plan.beside.values())):
        raise PlanError(f"{given[0]} is about TLS, and the target is http://; write it with https://, or leave it out")


def is_printable(value: str) -> bool:
    """On one line, and of characters that a header can carry."""
    return _ONE_LINE.fullmatch(value) is not None


def is_sendable(key: str) -> bool:
    """A key that every header can carry: ASCII, without spaces."""
    return key.isascii() and key.isprintable() and " " not in key


def _check_key(plan: SweepPlan) -> None:
    for flag, env_name in (("--api-key-env", plan.api_key_env), ("--metrics-key-env", plan.metrics_key_env)):
        if env_name is not None:
            check_variable(flag, env_name, "the key")
    if plan.api_key_cmd is not None:
        if plan.api_key_env is not None:
            raise PlanError("--api-key-cmd and --api-key-env both give the API key; drop one")
        try:
            words = shlex.split(plan.api_key_cmd)
        except ValueError as error:
            raise PlanError(f"--api-key-cmd: {error}; quote it as for a shell, which does not run it") from error
        if not words:
            raise PlanError("--api-key-cmd is empty; give a command that prints the API key")
    style = plan.key_style
    if is_key(style) or (style != "bearer" and not is_header_name(style)):
        raise PlanError("--key-style: write bearer, x-api-key, or the name of the header that holds the key")
    if style.lower() in _OURS:
        raise PlanError(f"--key-style {style}: {_OURS[style.lower()]}; name another header")
    if style != "bearer" and not (plan.api_key_env or plan.api_key_cmd or plan.metrics_key_env):
        raise PlanError(f"--key-style {style}: there is no key; give one with --api-key-env or --api-key-cmd")


def _check_headers(plan: SweepPlan) -> None:
    key_header = "authorization" if plan.key_style == "bearer" else plan.key_style.lower()
    has_key = plan.api_key_env is not None or plan.api_key_cmd is not None
    seen: set[str] = set()
    for flag, name in [*(("--header", n) for n in plan.headers), *(("--header-plain", n) for n in plan.headers_plain)]:
        if not is_header_name(name):
            raise PlanError(f"{flag}: {without_keys(name)[:40]!r} is no name of an HTTP header; write it like X-Team")
        if is_key(name):
            raise PlanError(f"{flag}: the name of its header looks like a key; write it like X-Team")
        lower = name.lower()
        if lower in _OURS:
            raise PlanError(f"{flag} {name}: ha-sweep sets it, because {_OURS[lower]}; leave it out")
        if lower in seen:
            raise PlanError(f"{flag} {name} is given twice; drop one")
        if has_key and lower == key_header:
            raise PlanError(f"{flag} {name}: the API key goes into it; drop one, or see --key-style")
        seen.add(lower)
    for name, env_name in plan.headers.items():
        check_variable(f"--header {name}", env_name, "its value")
    for name, value in plan.headers_plain.items():
        if not is_printable(value):
            raise PlanError(f"--header-plain {name}: its value holds characters no header can carry (a line end?)")
        if is_secret_name(name) or is_key(value):
            raise PlanError(
                f"--header-plain {name} would record a secret; give a key with --api-key-env, or --header {name}=ENV"
            )


def _check_recorded(plan: SweepPlan) -> None:
    """What run.json holds as it was given must be no secret."""
    label = next((key for key, value in plan.labels.items() if is_key(value)), None)
    if label is not None:
        raise PlanError(f"--label {without_keys(label)}: its value looks like a key, and labels are recorded; drop it")
    rest: list[tuple[str, object]] = list(plan.extra_body.items())
    while rest:
        name, value = rest.pop()
        if isinstance(value, dict):
            rest += value.items()
        elif isinstance(value, list):
            rest += ((name, each) for each in value)
        elif isinstance(value, str) and (is_key(value) or _may_open(name, value)):
            raise PlanError(
                f"--extra-body: {without_keys(name)[:40]!r} would record a secret; give a key with --api-key-env, or "
                "--header NAME=ENV"
            )


def _may_open(name: str, value: str) -> bool:
    # The id of a session is no secret in a body: it keeps what belongs together on one backend.
    return is_secret_name(name) and "session" not in name.lower() and _OPENING.fullmatch(value) is not None


def _check_pairs(plan: SweepPlan) -> None:
    if plan.key is not None and plan.cert is None:
        raise PlanError("--key without --cert: give the client certificate that belongs to it")
    if plan.insecure and plan.ca_file is not None:
        raise PlanError("--insecure verifies nothing, so --ca-file does nothing; drop one")
