"""Locust's own idiom for a stream: FastHttpUser, readline, json.loads; metered."""

import json
import os

from locust import FastHttpUser, constant, task
from meter import count

N_TOKENS = int(os.environ["BENCH_TOKENS"])
BODY = {
    "model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": N_TOKENS, "stream": True,
    "stream_options": {"include_usage": True},
}  # fmt: skip


class Peer(FastHttpUser):
    wait_time = constant(0)

    @task
    def chat(self):
        n_tokens = 0
        with self.client.post("/v1/chat/completions", json=BODY, stream=True, catch_response=True) as response:
            while line := response.stream.readline(b"\n"):
                if not line.startswith(b"data:") or b"[DONE]" in line:
                    continue
                event = json.loads(line[5:])
                if event["choices"] and event["choices"][0]["delta"].get("content"):
                    n_tokens += 1
        count(n_tokens)
