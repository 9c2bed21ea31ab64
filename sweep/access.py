"""How requests get in: headers, the API key and where it comes from, TLS; and which of our children may know it.

The one place that reads secrets. They reach a child by its environment only.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from sweep.access_refusals import is_printable, is_sendable
from sweep.endpoint import Endpoint
from sweep.errors import PlanError
from sweep.key_command import run_key_command
from sweep.masking import Masked, with_parts
from sweep.plan import SweepPlan
from sweep.probe import Probe
from sweep.secret_names import is_usual_variable
from sweep.step_files import KEY_ENV, OLD_KEYS_ENV
from sweep.tenants import tenants_of
from sweep.tls import shake_hands, tls_context


class Access:
    """One plan's access. key_number: counts the different keys so far, from 1; None without a key."""

    def __init__(self, plan: SweepPlan) -> None:
        """Raises PlanError for a variable that is not set, or a command that gives no key."""
        self._plan = plan
        self._secret_headers = {name: _header_value(name, env_name) for name, env_name in plan.headers.items()}
        self._metrics_key = _key_in("--metrics-key-env", plan.metrics_key_env)
        self._tenants = {
            each.key_env: _secret_in(f"--tenant {each.name}", each.key_env, "key", is_sendable)
            for each in tenants_of(plan)
        }
        if len(set(self._tenants.values())) < len(self._tenants):
            raise PlanError(f"--tenant: {_alike(self._tenants)} hold the same key; each tenant needs one of its own")
        self._keys: list[str] = []
        self._probes: list[Probe] = []
        self._bare: dict[Endpoint, Probe] = {}
        self.renew()

    def renew(self, look: Callable[[], None] = lambda: None) -> None:
        """Asks for the key again, where a command gives it; probes and masks know it from here on. Raises PlanError.

        look: called while the command runs; may raise to end it.
        """
        if self._plan.api_key_cmd is not None:
            key: str | None = run_key_command(self._plan.api_key_cmd, look)
        elif self._keys:
            return
        else:  # what only looks at the target has the first tenant's, if no other
            key = _key_in("--api-key-env", self._plan.api_key_env) or next(iter(self._tenants.values()), None)
        if key is not None and (not self._keys or key != self._keys[-1]):
            self._keys.append(key)
        masked = self.masked
        for probe in self._probes:
            probe.renew(self.key, masked)

    @cached_property
    def _context(self) -> ssl.SSLContext:
        """Made when a target turns out to speak TLS. Raises PlanError for a file that is no PEM."""
        return tls_context(ssl.SSLContext, self._plan)

    @property
    def key(self) -> str | None:
        return self._keys[-1] if self._keys else None

    @property
    def key_number(self) -> int | None:
        return len(self._keys) or None

    @property
    def renews(self) -> bool:
        """Another key may come before the next step."""
        return self._plan.api_key_cmd is not None

    @property
    def sends_secrets(self) -> bool:
        """Something a target could refuse us for."""
        return bool(self._keys or self._secret_headers)

    @property
    def masked(self) -> Masked:
        """Masks every secret seen so far."""
        secrets = {part for value in self._secret_headers.values() for part in with_parts(value)}
        secrets |= {*self._keys, *self._tenants.values()}
        return Masked(secrets if self._metrics_key is None else secrets | {self._metrics_key})

    def shake_hands(self, endpoint: Endpoint) -> None:
        """Over TLS, one handshake. Raises PlanError with what does not fit and what to give."""
        if endpoint.tls:
            shake_hands(endpoint, self._context, self._plan)

    def probe(self, endpoint: Endpoint) -> Probe:
        """One that always has the newest key. It counts what `bare_probe` has sent there too."""
        plan = self._plan
        made = Probe(
            endpoint, self.key, self._metrics_key, self.masked, key_style=plan.key_style,
            headers={**plan.headers_plain, **self._secret_headers}, context=self._context if endpoint.tls else None,
        )  # fmt: skip
        self._probes.append(made)
        if endpoint in self._bare:
            made.count(self._bare[endpoint])
        return made

    def bare_probe(self, endpoint: Endpoint) -> Probe:
        """One that sends no secret: for a port that may be anything."""
        if endpoint not in self._bare:
            self._bare[endpoint] = Probe(
                endpoint, None, None, self.masked, headers=self._plan.headers_plain,
                context=self._context if endpoint.tls else None,
            )  # fmt: skip
        return self._bare[endpoint]

    def order(self) -> dict[str, Any]:
        """Fields of a StepOrder: how to get in. Names of secrets, no secrets."""
        plan = self._plan
        return {
            "api_key_env": KEY_ENV if plan.api_key_cmd is not None else plan.api_key_env,
            "key_style": plan.key_style, "headers": dict(plan.headers), "headers_plain": dict(plan.headers_plain),
            # A load process works in a folder of its own.
            **{name: absolute(getattr(plan, name)) for name in ("ca_file", "cert", "key")},
            "insecure": plan.insecure, "connect_timeout_s": plan.connect_timeout_s,
        }  # fmt: skip

    def environment(self, *, sends: bool) -> dict[str, str]:
        """Our environment for a child of ours, with secrets only if it sends requests: then those it sends."""
        plan = self._plan
        asking = (plan.api_key_env, *plan.headers.values(), *self._tenants)
        needed = {name for name in asking if name is not None and sends}
        others = plan.beside_key_envs.values()
        dropped = {plan.metrics_key_env, *asking, *others, KEY_ENV, OLD_KEYS_ENV} - needed
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        if sends and plan.api_key_cmd is not None and self.key is not None:
            kept |= {KEY_ENV: self.key, OLD_KEYS_ENV: "\n".join(self._keys[:-1])}
        return kept


def masked_before(plan: SweepPlan) -> Masked:
    """Masks what the plan's variables hold, before anything is asked of them: a child of ours inherits them."""
    names = (plan.api_key_env, plan.metrics_key_env, *(tenant.key_env for tenant in tenants_of(plan)))
    keys = {os.environ.get(name, "") for name in names if name is not None}
    return Masked(keys | {part for name in plan.headers.values() for part in with_parts(os.environ.get(name, ""))})


def _key_in(option: str, env_name: str | None) -> str | None:
    """The key in the variable. Raises PlanError when it is not set or cannot be sent in a header."""
    if env_name is None:
        return None
    return _secret_in(option, env_name, "key", is_sendable)


def _header_value(name: str, env_name: str) -> str:
    return _secret_in(f"--header {name}", env_name, "value", is_printable)


def _secret_in(option: str, env_name: str, what: str, fits: Callable[[str], bool]) -> str:
    secret = os.environ.get(env_name)
    if not secret:
        raise PlanError(f"{option}: {_named(env_name)} is not set; export the {what} in it, or name another")
    if not fits(secret):
        raise PlanError(
            f"{option}: the {what} in {env_name} holds characters no header can carry (a line end?); set it again"
        )
    return secret


def _alike(keys: Mapping[str, str]) -> str:
    """The first two variables with one value."""
    values = list(keys.values())
    same = next(value for value in values if values.count(value) > 1)
    return " and ".join([name for name, value in keys.items() if value == same][:2])


def _named(env_name: str) -> str:
    """The variable, unless its name looks less like one than like a key given in its place."""
    return f"environment variable {env_name}" if is_usual_variable(env_name) else "the environment variable it names"


def absolute(path: str | None) -> str | None:
    """A load process works in a folder of its own."""
    return None if path is None else str(Path(path).absolute())
