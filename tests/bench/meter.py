"""What this Locust process used between two instants of its run: CPU, memory, requests, tokens; for every user here."""

from __future__ import annotations

import json
import os
import sys
import time

import gevent
from locust import events

from sweep.step_files import ORDER_ENV

SETTLE_S, MEASURE_S = float(os.environ["BENCH_SETTLE_S"]), float(os.environ["BENCH_MEASURE_S"])
# Memory is read when so many requests are finished, besides; empty: not at all.
MARKS = [int(each) for each in os.environ.get("BENCH_MARKS", "").split(",") if each]
counted = {"tokens": 0, "requests": 0}
rss_at: dict[int, int] = {}


def count(tokens: int) -> None:
    """One finished request."""
    counted["tokens"] += tokens
    counted["requests"] += 1
    if MARKS and counted["requests"] == MARKS[0]:
        rss_at[MARKS.pop(0)] = rss_bytes()


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@events.test_start.add_listener
def _measure(environment, **_) -> None:
    def run() -> None:
        gevent.sleep(SETTLE_S)
        before, cpu_s, t_ns = dict(counted), time.process_time(), time.monotonic_ns()
        gevent.sleep(MEASURE_S)
        while MARKS:
            gevent.sleep(0.1)
        used = {"cpu_s": time.process_time() - cpu_s, "from_ns": t_ns, "to_ns": time.monotonic_ns()}
        made = {name: counted[name] - before[name] for name in counted}
        told = {"rss_bytes": rss_bytes(), "rss_at": rss_at, "users": environment.runner.user_count}
        sys.stdout.write("METER " + json.dumps(made | used | told) + "\n")
        sys.stdout.flush()
        if ORDER_ENV not in os.environ:
            environment.runner.quit()

    gevent.spawn(run)
