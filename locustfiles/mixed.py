"""Two kinds of users, streaming and not.   locust -f mixed.py --host http://127.0.0.1:8080 --llm-model NAME

Also `ha-sweep run -f mixed.py --target http://127.0.0.1:8080 --levels 4,8`. Copy it and write your own tasks.
"""

from locust import between, task

from sweep.llm_user import LlmUser


class Reader(LlmUser):
    """Reads along and pauses before the next question; three of four users."""

    weight = 3
    wait_time = between(0.5, 2)

    @task(3)
    def chat(self) -> None:
        self.ask(stream=True)

    @task
    def chat_briefly(self) -> None:
        self.ask(stream=True, messages=[{"role": "user", "content": "Name three rivers."}], max_tokens=16)


class Indexer(LlmUser):
    """Works through a pile of texts without a pause."""

    @task
    def summarize(self) -> None:
        self.ask(stream=False)
