"""A target URL taken apart, and an API path under it; what a header may be called. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from sweep.errors import PlanError

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go. base: path of the target URL without its last slash, often empty."""

    host: str
    port: int
    tls: bool
    base: str = ""

    @property
    def authority(self) -> str:
        """host:port as in a Host header; an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.base}"

    def path(self, api_path: str) -> str:
        """`api_path` below the base; a target given as `…/v1` does not get /v1 twice."""
        if self.base.endswith("/v1") and api_path.startswith("/v1/"):
            return self.base + api_path.removeprefix("/v1")
        return self.base + api_path

    def root_path(self, path: str) -> str:
        """A health or metrics path: beside the API, so a base that ends with /v1 is left out."""
        return self.base.removesuffix("/v1") + path


def parse_endpoint(url: str) -> Endpoint:
    """The endpoint of an http(s) URL. Raises PlanError; the message never repeats a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise PlanError(f"target: {error}; write it like http://127.0.0.1:8080") from error
    # Others would have to be quoted, and a server may see another path than the one that was typed.
    is_plain = url.isascii() and not any(character.isspace() for character in url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise PlanError(f"target {url.rpartition('@')[2]!r} is no URL; write it like http://127.0.0.1:8080")
    tls = parts.scheme == "https"
    return Endpoint(parts.hostname, port if port is not None else 443 if tls else 80, tls, parts.path.rstrip("/"))


def is_header_name(name: str) -> bool:
    return _TOKEN.fullmatch(name) is not None
