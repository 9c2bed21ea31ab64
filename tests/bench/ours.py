"""LlmUser as anybody would use it, metered."""

from locust import task
from meter import count

from sweep.llm_user import LlmUser


class Ours(LlmUser):
    @task
    def chat(self):
        count(self.ask(stream=True).n_events)
