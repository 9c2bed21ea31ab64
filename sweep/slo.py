"""The SLO language of `--slo`: one line of text in, one frozen value out, and back to a sentence. Pure.

slo = [mode "."] metric ["." stat] op number [unit] ["@" level], for example stream.ttft_ms.p95<=500@8 (design §8).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sweep.errors import PlanError
from sweep.units import MODES, Level, Mode, parse_level

Kind = Literal["latency", "ratio", "rate"]
Op = Literal["<=", ">="]

STATS = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
CONFIDENCE = 0.95  # one-sided, of every bound a gate uses (design §8)

# Factor from what was written to what is stored: ms, ratio, per s. The bare number comes first.
_UNITS: dict[Kind, dict[str, float]] = {
    "latency": {"": 1.0, "ms": 1.0, "s": 1000.0, "us": 0.001},
    "ratio": {"": 1.0, "%": 0.01},
    "rate": {"": 1.0, "per s": 1.0, "/s": 1.0},
}
_UNIT_WORDS: dict[Kind, str] = {"latency": "ms, s or us", "ratio": "% or none (0..1)", "rate": "per s"}
_EXAMPLE = "stream.ttft_ms.p95<=500@8"
_RIGHT = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*([^@0-9]*?)\s*(?:@(.*))?")


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the metric table. `says`: the sentence, with {share}, {who} and {limit} to fill in."""

    name: str
    kind: Kind
    op: Op  # the only direction in which the metric can be promised
    modes: tuple[Mode, ...]
    says: str


@dataclass(frozen=True, slots=True)
class Slo:
    """One promise. limit is in ms (latencies), a ratio 0..1, or per second; mode None is every mode of the metric.

    at: holds at this level and every lower one of the same kind; None: at the sustained level only.
    """

    text: str
    mode: Mode | None
    metric: str
    stat: str | None
    op: Op
    limit: float
    at: Level | None

    @property
    def kind(self) -> Kind:
        return METRICS[self.metric].kind

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Modes it speaks of; the plan may drive fewer."""
        return METRICS[self.metric].modes if self.mode is None else (self.mode,)

    def applies(self, level: Level, mode: Mode, sustained: Level) -> bool:
        """Whether it must hold at this level in this mode."""
        in_reach = level == sustained if self.at is None else self.at.reaches(level)
        return in_reach and mode in self.modes

    @property
    def n_wanted(self) -> int:
        """Requests below which no result of one level and mode can meet it.

        A percentile needs its rank bound to exist; a ratio needs a run without one bad request to have its bound
        at the limit. A rate has no such number: 1.
        """
        if self.stat is not None:
            return n_needed(STATS[self.stat])
        if self.kind == "ratio":
            return n_needed(1 - self.limit if self.op == "<=" else self.limit)
        return 1


def n_needed(q: float) -> int:
    """Smallest n for which the largest of n values is a one-sided 95 % upper bound of the quantile q, 0 < q < 1.

    q**n <= 0.05; 5, 29, 59, 299 for .5, .9, .95, .99. Also the smallest n without one failure that puts the
    one-sided Clopper-Pearson bound of a ratio at 1 - q.
    """
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(q))


def parse_slo(text: str) -> Slo:
    """Raises PlanError, in one line: what is wrong, where, and what to write instead."""
    text = " ".join(text.split())
    left, op, right = _split(text)
    mode, metric, stat = _parse_left(text, left)
    if op != metric.op:
        raise PlanError(f"SLO {text!r}: {metric.name} is promised with {metric.op}, not {op}")
    match = _RIGHT.fullmatch(right)
    if match is None:
        raise PlanError(f"SLO {text!r}: {right!r} is no limit; write a number after {op}, like {_EXAMPLE}")
    limit = _limit(text, metric, match[1], match[2])
    at = None
    if match[3] is not None:
        try:
            at = parse_level(match[3])
        except PlanError as error:
            raise PlanError(f"SLO {text!r}: after @, {error}") from error
    return Slo(text, mode, metric.name, stat, op, limit, at)


def sentence(slo: Slo) -> str:
    """The promise in words: `95 % of streaming requests at level 8 and below get their first token within 500 ms`."""
    metric = METRICS[slo.metric]
    kind_of = {"stream": "streaming requests", "nonstream": "non-streaming requests"}
    modes = slo.modes
    who = kind_of[modes[0]] if len(modes) == 1 else "requests of each mode"
    where = "at the sustained level" if slo.at is None else f"at level {slo.at} and below"
    limit = {"latency": f"{slo.limit:.12g} ms", "ratio": f"{slo.limit * 100:.10g} %", "rate": f"{slo.limit:.12g}"}
    share = "" if slo.stat is None else f"{STATS[slo.stat] * 100:.0f} %"
    return metric.says.format(share=share, who=f"{who} {where}", limit=limit[metric.kind])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean X?)` when a known name is near, else nothing; to end a message with."""
    import difflib  # only on the way to an error: 8 ms

    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _split(text: str) -> tuple[str, Op, str]:
    op: Op
    for op in ("<=", ">="):
        left, found, right = text.partition(op)
        if found:
            return left.strip(), op, right.strip()
    if not text:
        raise PlanError(f"empty SLO; write one like {_EXAMPLE}")
    raise PlanError(f"SLO {text!r}: neither <= nor >= in it; write one like {_EXAMPLE}")


def _parse_left(text: str, left: str) -> tuple[Mode | None, Metric, str | None]:
    parts = [part.strip() for part in left.split(".")]
    mode: Mode | None = next((known for known in MODES if known == parts[0]), None)
    if mode is not None:
        del parts[0]
    name = parts[0] if parts else ""
    if name not in METRICS:
        if mode is None and len(parts) > 1 and parts[1] in METRICS:
            raise PlanError(f"SLO {text!r}: unknown mode {name!r}; it is stream or nonstream")
        near = did_you_mean(name, METRICS)
        raise PlanError(f"SLO {text!r}: unknown metric {name!r}{near}; known: {', '.join(METRICS)}")
    metric = METRICS[name]
    if mode is not None and mode not in metric.modes:
        raise PlanError(f"SLO {text!r}: {name} exists only in {metric.modes[0]}; drop {mode!r}")
    return mode, metric, _stat(text, metric, parts[1:])


def _stat(text: str, metric: Metric, rest: list[str]) -> str | None:
    if metric.kind != "latency":
        if rest:
            raise PlanError(f"SLO {text!r}: {metric.name} has no {'.'.join(rest)!r}; write {metric.name}{metric.op}…")
        return None
    if len(rest) == 1 and rest[0] in STATS:
        return rest[0]
    said = f"unknown percentile {'.'.join(rest)!r}" if rest else "a latency needs a percentile"
    raise PlanError(f"SLO {text!r}: {said}; write {metric.name}.p95<=… ({', '.join(STATS)})")


def _limit(text: str, metric: Metric, number: str, unit: str) -> float:
    units = _UNITS[metric.kind]
    if unit not in units:
        raise PlanError(f"SLO {text!r}: {unit!r} is no unit of {metric.name}; use {_UNIT_WORDS[metric.kind]}")
    # Dividing keeps 1% at 0.01 and 300us at 0.3 to the last bit.
    limit = float(number) * units[unit] if units[unit] >= 1 else float(number) / round(1 / units[unit])
    if not math.isfinite(limit):
        raise PlanError(f"SLO {text[:40]!r}…: the limit is too large to be one")
    if metric.kind != "ratio":
        if limit == 0:
            raise PlanError(f"SLO {text!r}: a limit of 0 says nothing; give a number above 0")
        return limit
    if 0 < limit < 1:
        return limit
    if limit == (0 if metric.op == "<=" else 1):
        instead = f"{metric.name}<=0.1%" if metric.op == "<=" else f"{metric.name}>=99.9%"
        raise PlanError(f"SLO {text!r}: no number of requests can show exactly {limit:.0f}; write {instead}")
    instead = f"{metric.name}<=1% or <=0.01" if metric.op == "<=" else f"{metric.name}>=99% or >=0.99"
    raise PlanError(f"SLO {text!r}: a ratio lies between 0 and 1; write {instead}")


_STREAM: tuple[Mode, ...] = ("stream",)
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("ttft_ms", "latency", "<=", _STREAM, "{share} of {who} get their first token within {limit}"),
        Metric("ttfa_ms", "latency", "<=", _STREAM, "{share} of {who} get their first answer token within {limit}"),
        Metric("tpot_ms", "latency", "<=", _STREAM, "{share} of {who} take at most {limit} a token after the first"),
        Metric("gap_ms", "latency", "<=", _STREAM, "{share} of the gaps between tokens of {who} are at most {limit}"),
        Metric("e2e_ms", "latency", "<=", MODES, "{share} of {who} are answered completely within {limit}"),
        Metric("error_ratio", "ratio", "<=", MODES, "at most {limit} of {who} fail"),
        Metric("shed_ratio", "ratio", "<=", MODES, "at most {limit} of {who} are refused because the server is full"),
        Metric("goodput", "ratio", ">=", MODES, "at least {limit} of {who} succeed and meet every latency limit"),
        Metric("request_rate_per_s", "rate", ">=", MODES, "{who} are completed at {limit} a second or more"),
        Metric("token_rate_per_s", "rate", ">=", MODES, "{who} get {limit} or more output tokens a second in all"),
    )
}
