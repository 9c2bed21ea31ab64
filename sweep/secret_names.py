"""What looks like a secret: names whose values open doors, and texts that are keys by their shape. Pure."""

from __future__ import annotations

import re

from sweep.errors import PlanError

NOT_REPEATED = "(not repeated: it looks like a key)"
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names in lower case, with - for _. A count of tokens, and the time to the first one, are no secrets.
_NAME = re.compile(
    r"cookie|authori[sz]ation|authenticat|secret|passw|passphrase|credential|session|csrf|xsrf|signature"
    r"|(api|auth|access|subscription|account|private|master|functions?|service|client|shared|virtual|license)-?key"
    r"|(auth|access|refresh|bearer|id|security)-?token|(?<!first-)(?<!per-)token$"
    r"|(^|[-.])(jwt|otp|totp|sig|pwd)([-.]|$)"
)
# What the keys of known services and of those who imitate them begin with.
_KEY = re.compile(
    r"(?<![A-Za-z0-9])("
    r"[spr]k[-_](?=[^\s'\",;]*[0-9])[^\s'\",;]{3,}"
    r"|(hf|gh[pousr]|github_pat|glpat|gsk|xai|nvapi|pplx|r8|xox[a-z])[-_][A-Za-z0-9_-]{16,}"
    r"|AIza[A-Za-z0-9_-]{20,}|(AKIA|ASIA)[A-Z0-9]{12,}|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9._-]+)"
)
# Names of environment variables as most are; a longer run of hexadecimal digits is none.
_USUAL = re.compile(r"(?![0-9A-F]{24})[A-Z_][A-Z0-9_]*")


def is_secret_name(name: str) -> bool:
    """A header or a key of a request body whose value opens doors."""
    return _NAME.search(name.lower().replace("_", "-")) is not None


def is_key(text: str) -> bool:
    """Somewhere in it stands a key, known by its shape."""
    return _KEY.search(text) is not None


def without_keys(text: str) -> str:
    """A line about what a user wrote, without what is a key by its shape."""
    return _KEY.sub(NOT_REPEATED, text)


def is_usual_variable(name: str) -> bool:
    """A name that environment variables have, in capitals; any other may be a key written in its place."""
    return _USUAL.fullmatch(name) is not None and not is_key(name)


def check_variable(option: str, name: str, held: str) -> None:
    """held: what the variable holds, like `the key`. Raises PlanError, without the name, for what is none."""
    if not ENV_NAME.fullmatch(name) or is_key(name):
        raise PlanError(f"{option}: give the NAME of an environment variable that holds {held}, not {held} itself")
