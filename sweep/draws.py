"""Seeded draws whose shares are exact in the long run: which of several kinds the n-th request is of. Pure.

Which kind the n-th request gets depends on the seed and on n alone, never on how fast answers come.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_BLOCK = 20  # requests whose kinds are settled at once, then shuffled


class Draw:
    """Indices into `weights`. After any number of draws each count is within two of a block's size of its share."""

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        """weights: not negative, one of them above 0."""
        total = sum(weights)
        self._shares = [weight / total for weight in weights]
        self._owed = [0.0] * len(weights)
        self._random = random.Random(seed)
        self._left: list[int] = []

    def next(self) -> int:
        if not self._left:
            self._left = self._block()
            self._random.shuffle(self._left)
        return self._left.pop()

    def _block(self) -> list[int]:
        """What a block is short of its shares is owed to the next one."""
        self._owed = [owed + share * _BLOCK for owed, share in zip(self._owed, self._shares, strict=True)]
        counts = [max(0, int(owed)) for owed in self._owed]
        while sum(counts) != _BLOCK:
            rest = [owed - count for owed, count in zip(self._owed, counts, strict=True)]
            if sum(counts) < _BLOCK:
                counts[rest.index(max(rest))] += 1
            else:
                given = [(each, kind) for kind, each in enumerate(rest) if counts[kind]]
                counts[min(given)[1]] -= 1
        self._owed = [owed - count for owed, count in zip(self._owed, counts, strict=True)]
        return [kind for kind, count in enumerate(counts) for _ in range(count)]


def shared_out(number: int, weights: Sequence[float]) -> list[int]:
    """`number` things shared in proportion to the weights, by largest remainder; of equal ones the first gets more."""
    total = sum(weights)
    exact = [number * weight / total for weight in weights]
    parts = [int(each + 1e-9) for each in exact]
    by_rest = sorted(range(len(weights)), key=lambda kind: (parts[kind] - exact[kind], kind))
    for kind in by_rest[: number - sum(parts)]:
        parts[kind] += 1
    return parts
