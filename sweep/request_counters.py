"""Which counters of a Prometheus page count requests, and what they stand at. Pure.

In: the samples of a page as `probe.metrics` keeps them, `name{label=value,...}` -> value. Both halves read them: the
quiet check before the load, and the judgement of each step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

# Counters of inference requests, in the order they are preferred. Sources: the servers' own pages and documents.
KNOWN = (
    "demo_gateway_requests_total",  # the embedded gateway
    "gateway_requests_total",  # ferrogw
    "litellm_proxy_total_requests_metric_total",
    "litellm_requests_metric_total",
    "vllm:request_success_total",
    "sglang:num_requests_total",
    "tgi_request_count",
    "tgi_request_success",
)
_GENERIC = re.compile(r"(?:^|[_:])requests?_total$|^http_(?:server_)?requests?(?:_duration)?_seconds_count$")
# Other requests than those to the target's API: to models behind it, for the page itself, for its own upkeep.
_NOT_OURS = re.compile(r"promhttp|prometheus|scrape|upstream|backend|provider|retr|health|admin|cache|grpc|client")
_PATHS = ("path", "handler", "route", "endpoint", "uri", "http_route", "url")
_STATUSES = ("status", "status_code", "code", "http_status_code", "outcome", "result")
_METHODS = ("method", "http_method", "http_request_method")
_INFERENCE = ("/completions", "/responses", "/messages", "/embeddings", "/chat", "/generate", "/embed", "/systemone")
_SUCCESS = re.compile(r"2[0-9x]{2}|ok|success|succeeded|true", re.IGNORECASE)
_SUCCESS_ONLY = ("vllm:request_success_total", "tgi_request_success")


class Counted(NamedTuple):
    """One counter, its rows summed. counts: good answers alone, inference requests, or every request there is.

    value: NaN when one of the rows is no finite number (a snapshot holds null for it); nothing can be told by it then.
    """

    value: float
    counts: Literal["successes", "inference", "everything"]


def request_counters(samples: Mapping[str, float | None], *, with_failed: bool = False) -> dict[str, Counted]:
    """Counters of a page that count requests, by name, the preferred one first.

    Rows of other paths than an inference API's, of GETs, and of answers that failed are left out where the labels
    tell: health probes are nobody's load, and a gateway that tries again upstream may count the failed try.
    with_failed: those too, for whether anybody asks at all.
    """
    rows: dict[str, list[tuple[dict[str, str], float]]] = {}
    for key, value in samples.items():
        name, _, labels = key.partition("{")
        if name in KNOWN or (_GENERIC.search(name) and not _NOT_OURS.search(name)):
            rows.setdefault(name, []).append((_labels(labels.removesuffix("}")), _finite(value)))
    found = {name: _counted(name, each, with_failed) for name, each in rows.items()}
    return dict(sorted(found.items(), key=lambda item: _rank(*item)))


def _counted(name: str, rows: list[tuple[dict[str, str], float]], with_failed: bool) -> Counted:
    has_path = any("/" in (_of(labels, _PATHS) or "") for labels, _ in rows)  # the name of a route is no path
    has_status = any(_of(labels, _STATUSES) for labels, _ in rows)
    total = 0.0
    for labels, value in rows:
        path, status, method = (_of(labels, names) for names in (_PATHS, _STATUSES, _METHODS))
        if has_path and (path is None or not path.rstrip("/").endswith(_INFERENCE)):
            continue
        if status is not None and not with_failed and not _SUCCESS.fullmatch(status):
            continue
        if method is not None and method.upper() in ("GET", "HEAD", "OPTIONS"):
            continue
        total += value
    if (has_status and not with_failed) or name in _SUCCESS_ONLY:
        return Counted(total, "successes" if has_path or name in KNOWN else "everything")
    return Counted(total, "inference" if has_path or name in KNOWN else "everything")


def _finite(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else math.nan


def _rank(name: str, counted: Counted) -> tuple[int, bool, str]:
    return (KNOWN.index(name) if name in KNOWN else len(KNOWN), counted.counts == "everything", name)


def _labels(text: str) -> dict[str, str]:
    """Values that hold a comma lose what follows it: no path or status has one."""
    pairs = (each.partition("=") for each in text.split(","))
    return {name.lower(): value for name, _, value in pairs}


def _of(labels: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((labels[name] for name in names if name in labels), None)
