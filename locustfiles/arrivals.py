"""Requests that arrive at a rate, not one by one.   locust -f arrivals.py --host http://127.0.0.1:8080 --llm-rate 5

One user (-u 1, the default) schedules them: --llm-arrivals poisson or constant. Times count from when each was due.
"""

from locust import task

from sweep.open_loop import OpenLoopUser


class Arrivals(OpenLoopUser):
    """Each arrival runs one task; it waits for no other, so a slow target has more and more of them in flight."""

    @task
    def chat(self) -> None:
        self.ask(stream=self.is_next_streamed())
