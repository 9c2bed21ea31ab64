"""LlmUser as `ha-sweep run` uses it: a step order, the driver, records written; metered."""

import os

from locust import task
from meter import count

from sweep.llm_user import LlmUser

MODES = [mode == "stream" for mode in os.environ["BENCH_MODES"].split(",")]


class Ours(LlmUser):
    n_asked = 0

    @task
    def chat(self):
        stream = MODES[self.n_asked % len(MODES)]
        self.n_asked += 1
        count(self.ask(stream=stream).n_out)
