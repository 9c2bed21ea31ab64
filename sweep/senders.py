"""Whose key each request of a load process carries, and what it asks: tenants, drawn modes, prompts of a file.

Values in, values out, but for the keys, which come from the environment, and the file of prompts.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from sweep.dialects import Ask
from sweep.draws import Draw
from sweep.prompts import Shuffled, read_prompts
from sweep.request import access_headers
from sweep.step_files import StepOrder

_STREAMS, _TENANTS, _PROMPTS, LEAVING = 1, 2, 3, 4  # so that one seed gives draws that know nothing of each other


def seed_of(order: StepOrder, draw: int) -> int:
    """Seed of one kind of draw in this process of this step."""
    return (order.seed * 1_000_003 + zlib.crc32(order.worker.encode()) * 31 + draw) % 2**63


class Senders:
    """Shared by all users of one process. headers: tenant -> headers that let its requests in; None: without tenants.

    secrets: every key and header value to mask. Raises PlanError for a file of prompts that cannot be read.
    """

    def __init__(self, order: StepOrder, environment: Mapping[str, str]) -> None:
        headers, self.secrets = access_headers(order, environment)
        self.headers: dict[str | None, dict[str, str]] = {None: headers}
        for tenant in order.tenants:
            self.headers[tenant.name], secrets = access_headers(order, environment, tenant.key_env)
            self.secrets |= secrets
        self._names = [tenant.name for tenant in order.tenants]
        self._of_user = [tenant.name for tenant in order.tenants for _ in range(tenant.users)]
        weights = [tenant.weight for tenant in order.tenants]
        self._tenants = Draw(weights, seed_of(order, _TENANTS)) if any(weights) else None
        share = order.stream_share
        self._streams = None if share is None else Draw((share, 1 - share), seed_of(order, _STREAMS))
        self._order = order
        self._prompts: Shuffled | None = None
        if order.prompts_file is not None:
            prompts = read_prompts(order.prompts_file)[0]
            place = int(order.worker[1:]) if order.worker[1:].isdecimal() else 0  # w01, w02, … share the prompts
            mine = prompts[place % order.n_processes :: order.n_processes]
            self._prompts = Shuffled(mine or prompts, seed_of(order, _PROMPTS))

    def tenant_of(self, user: int) -> str | None:
        """Whose a request of the n-th user, from 0, is; None without tenants.

        In a closed loop each user is one tenant's for ever; in an open loop each arrival is drawn by weight.
        """
        if self._of_user:
            return self._of_user[user % len(self._of_user)]
        return None if self._tenants is None else self._names[self._tenants.next()]

    def draw_stream(self) -> bool:
        """Whether the next request of a mixed step streams. Without a share, as plain Locust asks for none: half do."""
        if self._streams is None:
            self._streams = Draw((1, 1), seed_of(self._order, _STREAMS))
        return self._streams.next() == 0

    def next_ask(self, stream: bool) -> Ask | None:
        """The next prompt of the file; None without one."""
        if self._prompts is None:
            return None
        order, each = self._order, self._prompts.next()
        limit = order.max_tokens if each.max_tokens is None else each.max_tokens
        return Ask(order.model, each.prompt or "", limit, stream, order.extra_body, each.messages)
