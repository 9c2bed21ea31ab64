"""GETs beside the load: health, models, metrics. Bounded in time and bytes; a failure of the target is data."""

from __future__ import annotations

import hashlib
import ssl
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from sweep.deadline import Deadline, Transport
from sweep.dialects import Dialect
from sweep.endpoint import Endpoint
from sweep.masking import Masked
from sweep.records import HealthLine
from sweep.request import authorization

_TIMEOUT_S = 5.0
_KEPT_S = 60.0  # a silent connection: the quiet check reads on one, so that the same worker of the target answers
_MAX_BYTES = 8 * 2**20
_MAX_REDIRECTS = 3


class Answer(NamedTuple):
    """A whole answer. ms: to its last byte, without an earlier request that was refused for want of a key.

    headers: names in lower case.
    """

    status: int
    content: bytes
    ms: float
    headers: Mapping[str, str] = {}

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class Probe:
    """One endpoint, asked with the key only where it wants it. No proxy of the environment, no other host."""

    def __init__(
        self,
        endpoint: Endpoint,
        key: str | None,
        metrics_key: str | None,
        masked: Masked,
        timeout_s: float = _TIMEOUT_S,
        *,
        key_style: str = "bearer",
        headers: Mapping[str, str] | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """masked: applied to what is kept of answers. timeout_s: of a whole exchange, however slow its bytes.

        headers: sent with every request. key_style: as of `request.authorization`. context: of TLS.
        """
        self.masked = masked
        self._endpoint = endpoint
        self._key = key
        self._metrics_key = metrics_key
        self._wants_key: set[str] = set()
        self._key_style = key_style
        self._headers = {"Accept-Encoding": "identity", **(headers or {})}
        self._deadline = Deadline()
        if endpoint.tls and context is None:
            context = httpx.create_ssl_context(trust_env=False)
        transport = Transport(self._deadline, context, _KEPT_S)
        self._client = httpx.Client(timeout=timeout_s, trust_env=False, transport=transport)
        self._timeout_s = timeout_s
        self._sent: list[str] = []  # a path each; appending is atomic, and the health watches ask at the same time

    def renew(self, key: str | None, masked: Masked) -> None:
        """Another key from here on, which masked knows; also while other threads ask."""
        self.masked = masked
        self._key = key

    def get(self, path: str, key: str | None = None) -> Answer:
        """The answer of a path beside the API. key: what to send if it wants one. Raises httpx.HTTPError.

        Which paths want the key is remembered, so that a path is not refused once a second.
        """
        key = key or self._key
        url = self._endpoint.root_path(path)
        answer = self._ask(url, key if path in self._wants_key else None)
        if answer.status in (401, 403) and key is not None and path not in self._wants_key:
            again = self._ask(url, key)
            if again.is_success:
                self._wants_key.add(path)
            return again
        return answer

    def listing(self, dialect: Dialect) -> Any:
        """The models the target lists, each with a name for `dialect.names`.

        Raises httpx.HTTPError, or ValueError when it answers no such list.
        """
        answer = self._ask(self._endpoint.path(dialect.models), self._key)
        if not answer.is_success:
            raise ValueError(f"{dialect.models} answers {answer.status}")
        try:
            listing = msgspec.json.decode(answer.content)
            names = dialect.names(listing)
        except (msgspec.DecodeError, RecursionError, KeyError, TypeError) as error:
            raise ValueError(f"{dialect.models} answers no list of models") from error
        if not all(isinstance(name, str) for name in names):
            raise ValueError(f"{dialect.models} answers models without names")
        return listing

    def metrics(self, path: str) -> dict[str, Any] | None:
        """{text_sha256, samples} of a Prometheus text page; None when it cannot be had or holds no sample."""
        try:
            answer = self.get(path, self._metrics_key)
            families = list(text_string_to_metric_families(answer.content.decode()))
        except (httpx.HTTPError, ValueError, KeyError, IndexError):  # its parser raises these on a page that is no text
            return None
        samples: dict[str, float] = {}
        for sample in (each for family in families for each in family.samples):
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            samples[self.masked(f"{sample.name}{{{labels}}}")] = sample.value
        if not samples or not answer.is_success:
            return None
        return {"text_sha256": hashlib.sha256(answer.content).hexdigest(), "samples": samples}

    def health(self, what: Literal["live", "ready"], path: str) -> HealthLine:
        """One probe; a failure is data."""
        t_ns = time.monotonic_ns()
        try:
            answer = self.get(path)
        except httpx.HTTPError as error:
            return HealthLine(t_mono_ns=t_ns, what=what, status=None, ms=None, error=type(error).__name__)
        return HealthLine(t_mono_ns=t_ns, what=what, status=answer.status, ms=answer.ms, error=None)

    def n_gets(self) -> dict[str, int]:
        """How many GETs were sent so far, by path."""
        return dict(sorted(Counter(self._sent).items()))

    def count(self, other: Probe) -> None:
        """Takes what another has sent to the same endpoint as sent by this one."""
        self._sent += other._sent

    def close(self) -> None:
        self._client.close()

    def _ask(self, path: str, key: str | None) -> Answer:
        """Redirects are followed on the same scheme, host and port only. Raises httpx.HTTPError."""
        began = time.monotonic()
        self._deadline.until_s = began + self._timeout_s
        url = httpx.URL(f"{'https' if self._endpoint.tls else 'http'}://{self._endpoint.authority}{path}")
        given = self._headers | authorization(key, self._key_style)
        headers = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                self._sent.append(url.path)
                with self._client.stream("GET", url, headers=headers) as response:
                    content = _read(response)
                following = response.next_request
                if following is None or _server(following.url) != _server(url):
                    break
                url = following.url
        except (httpx.InvalidURL, ValueError) as error:  # a Location that is no address
            raise httpx.RemoteProtocolError(f"an answer that cannot be read: {error}") from error
        return Answer(response.status_code, content, (time.monotonic() - began) * 1000, dict(response.headers))


def _read(response: httpx.Response) -> bytes:
    content = bytearray()
    for chunk in response.iter_raw():
        content += chunk
        if len(content) > _MAX_BYTES:
            raise httpx.ReadError(f"an answer longer than {_MAX_BYTES} bytes")
    return bytes(content)


def _server(url: httpx.URL) -> tuple[str, bytes]:
    """Whom a request would reach, and whether it can be overheard."""
    return url.scheme, url.netloc
