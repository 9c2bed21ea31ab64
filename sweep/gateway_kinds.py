"""What is known of gateways by name, for `--gateway`: their API, and paths of health, readiness and metrics. Pure."""

from __future__ import annotations

from typing import NamedTuple

from sweep.errors import PlanError
from sweep.slo import did_you_mean


class Kind(NamedTuple):
    """api: None when it depends on the target, which is asked then. A path is None when there is none that is known
    to be cheap."""

    name: str
    api: str | None
    health: str | None
    ready: str | None
    metrics: str | None

    @property
    def paths(self) -> dict[str, str]:
        """What fills in --health-path, --ready-path and --metrics-path."""
        rows = (("health", self.health), ("ready", self.ready), ("metrics", self.metrics))
        return {what: path for what, path in rows if path is not None}


def kind_of(name: str) -> Kind:
    """The row of a name. Raises PlanError with the near name."""
    for kind in KINDS:
        if kind.name == name:
            return kind
    known = [kind.name for kind in KINDS]
    raise PlanError(
        f"--gateway {name!r} is unknown{did_you_mean(name, known)}; known: {', '.join(known)}; "
        "leave it out for any other: its API and paths are looked for"
    )


# fmt: off
KINDS = (
    Kind("fair-gateway", None, "/healthz", "/readyz", "/metrics"),
    # Always 200 on /, with or without a key; no metrics. It decides, and answers 404 on every chat path.
    Kind("ollaya", "ollaya-decide", "/", None, None),
    Kind("ollama", "ollama-chat", "/", None, None),
    # Its /health sends a request to every model; these two ask no model.
    Kind("litellm", "openai-chat", "/health/liveliness", "/health/readiness", "/metrics"),
    Kind("vllm", "openai-chat", "/health", None, "/metrics"),
    # /health is 503 while the model loads; metrics only when it was started with --metrics.
    Kind("llama-server", "openai-chat", "/health", None, "/metrics"),
)
# fmt: on
