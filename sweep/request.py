"""Request bytes, built once and filled in per request: its id, and a nonce that no prefix cache has seen. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from sweep import __version__
from sweep.dialects import Ask, Dialect
from sweep.endpoint import Endpoint
from sweep.masking import with_parts
from sweep.negotiation import with_agreed
from sweep.step_files import OLD_KEYS_ENV, StepOrder

_NONCE = "0" * 16
_ID = "@request-id@"
# Odd, so that n -> n * factor is one to one modulo 2**32: neighbours share no leading digits.
_SCATTER = 2654435761
# fmt: off
_WORDS = (
    "river", "copper", "window", "garden", "signal", "paper", "market", "stone", "winter", "engine", "letter", "valley",
    "silver", "bridge", "candle", "harbor", "island", "kitchen", "ladder", "meadow", "number", "orange", "pencil",
    "quarter", "rocket", "school", "ticket", "village", "weather", "yellow", "answer", "basket", "circle", "dinner",
    "escape", "family", "glass", "hammer", "inside", "jacket", "linen", "mirror", "night", "ocean", "planet", "record",
    "salt", "table", "uncle", "velvet", "water", "yard", "apple", "button", "cloud", "desert", "evening", "field",
    "ground", "house", "iron", "journey", "lemon", "music",
)
# fmt: on


def prompt_text(n_words: int, seed: int, n_prefix: int = 0, prefix_seed: int = 0) -> str:
    """A prompt of n_words common words, the same for the same seeds, asking for a long answer.

    n_prefix: of these words, so many stand before the nonce, the same in every step with this prefix_seed.
    """
    draw, shared = random.Random(seed), random.Random(prefix_seed)
    prefix = "".join(f"{shared.choice(_WORDS)} " for _ in range(n_prefix))
    rest = " ".join(draw.choice(_WORDS) for _ in range(n_words - n_prefix))
    return f"{prefix}{_NONCE} Continue this list of words: {rest}"


class RequestTemplate:
    """HTTP/1.1 request bytes for one dialect and mode. `fill` gives (request id, bytes) of the n-th request.

    asked: the JSON body as it is before the nonce is in.
    """

    def __init__(
        self, endpoint: Endpoint, dialect: Dialect, ask: Ask, headers: Mapping[str, str], prefix: str, seed: int,
        *, varies: bool = True, agreed: Mapping[str, str | None] | None = None,
    ) -> None:  # fmt: skip
        """prefix: start of the request ids, unique to a process of the run.

        agreed: changes of the body, as of `negotiation`.

        varies: ask.prompt comes from `prompt_text`, and each request gets a nonce; else the body stays as it is.
        """
        self.asked = with_agreed(dialect.body(ask), agreed or {})
        body = msgspec.json.encode(self.asked)
        given = {name.lower() for name in headers}
        lines = [
            f"POST {endpoint.path(dialect.path)} HTTP/1.1",
            f"Host: {endpoint.authority}",
            f"User-Agent: ha-sweep/{__version__}",
            "Content-Type: application/json",
            f"Accept: {dialect.stream_type if ask.stream and dialect.streams else 'application/json'}",
            "Accept-Encoding: identity",
            f"Content-Length: {len(body)}",
            f"X-Request-Id: {_ID}",
            *(f"{name}: {value}" for name, value in dialect.headers.items() if name.lower() not in given),
            *(f"{name}: {value}" for name, value in headers.items()),  # last: a value may look like our place holder
        ]
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        self._before_id, _, after_id = head.partition(_ID.encode())
        before_nonce, _, self._after_nonce = body.partition(_NONCE.encode()) if varies else (body, b"", b"")
        self._between = after_id + before_nonce
        self._prefix = prefix
        self._varies = varies
        self._seed = seed & 0xFFFFFFFF

    def fill(self, n: int) -> tuple[str, bytes]:
        request_id = f"{self._prefix}-{n:06d}"
        nonce = f"{(n * _SCATTER + self._seed) & 0xFFFFFFFF:08x}{self._seed:08x}" if self._varies else ""
        return request_id, b"".join(
            (self._before_id, request_id.encode(), self._between, nonce.encode(), self._after_nonce)
        )


def authorization(key: str | None, style: str = "bearer") -> dict[str, str]:
    """Headers that carry the key. style: `bearer`, or the name of a header that holds nothing but the key."""
    if key is None:
        return {}
    return {"Authorization": f"Bearer {key}"} if style == "bearer" else {style: key}


def access_headers(
    order: StepOrder, environment: Mapping[str, str], key_env: str | None = None
) -> tuple[dict[str, str], set[str]]:
    """(headers that let a load process in, every secret to mask in what is kept of the answers).

    key_env: the variable with the key, a tenant's; None: the order's own.
    """
    key_env = order.api_key_env if key_env is None else key_env
    key = None if key_env is None else environment.get(key_env)
    secret = {name: environment[variable] for name, variable in order.headers.items() if variable in environment}
    secrets = {part for value in secret.values() for part in with_parts(value)}
    secrets |= {*environment.get(OLD_KEYS_ENV, "").splitlines(), *([key] if key else [])}
    return order.headers_plain | secret | authorization(key, order.key_style), secrets
