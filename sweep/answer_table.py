"""Evidence -> who answered: models named, attempts, fallbacks, backends, kept headers, counted by value. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from sweep.evidence import Evidence
from sweep.windows import Bools, Sets, ints

SHOWN_VALUES = 8  # of one header; the rest is summed up, for some hold another value in every answer


@dataclass(frozen=True, slots=True)
class Told:
    """What the answers of one level tell of themselves. Requests that started in the window, cut ones left out.

    models: name -> good answers that name it. answers: those that came with a status, good or not. n_attempts: of
    these, those with a header that tells attempts; retried: of these, those with more than one. fallbacks: answers that
    tell of one. backends, headers: value -> answers.
    """

    models: Mapping[str, int] = field(default_factory=dict)
    answers: int = 0
    n_attempts: int = 0
    retried: int = 0
    fallbacks: int = 0
    retried_or_fallback: int = 0
    backends: Mapping[str, int] = field(default_factory=dict)
    headers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """A level row's `told`."""
        return {
            "models": dict(self.models), "answers": self.answers, "attempts_told": self.n_attempts,
            "retried": self.retried, "fallbacks": self.fallbacks, "backends": _values(self.backends, self.answers),
            "headers": {name: _values(counts, self.answers) for name, counts in self.headers.items()},
        }  # fmt: skip


def told(ev: Evidence, sets: Sets, mask: Bools, kept: Sequence[str]) -> Told:
    """Of the requests in the mask. kept: the headers that were asked for."""
    requests = ev.requests
    answered = mask & sets.offered & requests["status"].notna().to_numpy(dtype=bool)
    good = requests["model_served"][answered & (sets.outcome == "ok")]
    attempts, known = ints(requests["attempts"])
    retried = answered & known & (attempts > 1)
    fallback = answered & requests["flags"].map(lambda flags: "fallback" in flags).to_numpy(dtype=bool)
    headers = [each for each in requests["headers"][answered] if isinstance(each, dict)]
    counted = {name: Counter(each[name] for each in headers if name in each) for name in map(str.lower, kept)}
    return Told(
        models=_counts(good), answers=int(answered.sum()), n_attempts=int((answered & known).sum()),
        retried=int(retried.sum()), fallbacks=int(fallback.sum()), retried_or_fallback=int((retried | fallback).sum()),
        backends=_counts(requests["backend"][answered]),
        headers={name: _sorted(counts) for name, counts in counted.items()},
    )  # fmt: skip


def _counts(values: pd.Series[Any]) -> dict[str, int]:
    return _sorted(Counter(str(value) for value in values.dropna()))


def _sorted(counts: Counter[str]) -> dict[str, int]:
    """Most frequent first; equal ones by name, so that the same evidence gives the same result."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _values(counts: Mapping[str, int], answers: int) -> dict[str, Any]:
    """{values: [[value, answers], …], others: values that are not listed, absent: answers without one}."""
    return {
        "values": [[value, n] for value, n in list(counts.items())[:SHOWN_VALUES]],
        "others": max(0, len(counts) - SHOWN_VALUES),
        "absent": answers - sum(counts.values()),
    }
