"""Streaming or not, by a share.   locust -f by_share.py --host http://127.0.0.1:8080 --llm-model NAME

What `ha-sweep run --mode mixed --stream-share 0.7` runs; plain Locust asks for half of each.
"""

from locust import task

from sweep.llm_user import LlmUser


class ByShare(LlmUser):
    """Asks for one answer after the other, streaming or not by a seeded draw."""

    @task
    def chat(self) -> None:
        self.ask(stream=self.draw_stream())
