"""Streaming requests to an LLM gateway.   locust -f streaming.py --host http://127.0.0.1:8080 --llm-model NAME

Locust's own web UI, --headless, --csv and all else work; the web UI shows the --llm-… options, --help does not.
"""

from locust import task

from sweep.llm_user import LlmUser


class Streaming(LlmUser):
    """Asks for one answer after the other; add tasks, weights and a wait_time as in any locustfile."""

    @task
    def chat(self) -> None:
        self.ask(stream=True)
