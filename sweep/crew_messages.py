"""What the Locust processes of one step tell each other over Locust's channel, and how a step is shared out. Pure.

Worker: HELLO, then PROGRESS ten times a second, the last one with `counts.ended`; from another machine LINES of its
evidence too. Master: ORDER (its share of the step), PHASE. REFUSED ends the step for the other side, which says it.
No message holds a secret.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from sweep.draws import shared_out
from sweep.step_files import ProcessReport, StepOrder

HELLO, ORDER, REFUSED, PHASE, PROGRESS, LINES = (
    "ha-hello", "ha-order", "ha-refused", "ha-phase", "ha-progress", "ha-lines",
)  # fmt: skip
PhaseMessage = Literal["window", "drain", "stop"]
PROGRESS_S = 0.1
GATHER_S = 30.0  # for every worker to come
REFUSED_EXIT, AGAIN_EXIT = 78, 75  # of a Locust worker: not wanted; not in this step any more, but in the next one


class Hello(msgspec.Struct, kw_only=True):
    """A worker that waits for its order. is_local: it writes its evidence into OUT_DIR itself, on the same clocks."""

    version: str
    host: str
    pid: int
    is_local: bool


class Progress(msgspec.Struct, kw_only=True):
    """One process of a step so far.

    n_warm: users that finished their warm-up requests; counted in the warm-up only. is_drained: nothing in flight any
    more, or its drain is over.
    """

    counts: ProcessReport
    has_begun: bool
    n_users: int
    users_min: int | None
    n_warm: int
    started_in_window: dict[str, int]
    is_spent: bool
    is_drained: bool
    fault: str | None
    user_fault: str | None


def share_of(order: StepOrder, worker: str, index: int) -> StepOrder:
    """The order of one of n_processes: its users (as Locust deals them out, one each in turn), its part of every cap.

    Together the shares are the caps. Each has a seed of its own: two with one seed would send equal prompts.
    """
    n = order.n_processes
    users = [len(range(each, order.users, n)) for each in range(n)]
    weights = users if order.users else [1] * n
    return msgspec.structs.replace(
        order,
        worker=worker, index=index, users=users[index], seed=(order.seed + index * 0x9E3779B1) % 2**32,
        max_requests=shared_out(order.max_requests, weights)[index],
        max_output_tokens=shared_out(order.max_output_tokens, weights)[index],
        rate_per_s=None if order.rate_per_s is None else order.rate_per_s / n,
    )  # fmt: skip
