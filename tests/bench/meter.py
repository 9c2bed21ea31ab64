"""CPU of this Locust process per token, between two instants of its run; for both users of the benchmark."""

from __future__ import annotations

import json
import os
import sys
import time

import gevent
from locust import events

SETTLE_S, MEASURE_S = 2.0, float(os.environ.get("BENCH_S", "6"))
counted = {"tokens": 0, "requests": 0}


def count(tokens: int) -> None:
    """One finished request."""
    counted["tokens"] += tokens
    counted["requests"] += 1


@events.test_start.add_listener
def _measure(environment, **_) -> None:
    def run() -> None:
        gevent.sleep(SETTLE_S)
        before, cpu_s, wall_s = dict(counted), time.process_time(), time.monotonic()
        gevent.sleep(MEASURE_S)
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
        made = {name: counted[name] - before[name] for name in counted}
        sys.stdout.write("METER " + json.dumps(made | {"cpu_s": cpu_s, "wall_s": wall_s}) + "\n")
        sys.stdout.flush()
        environment.runner.quit()

    gevent.spawn(run)
