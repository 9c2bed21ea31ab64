"""Locust's own idiom: FastHttpUser, and for a stream readline, json.loads and a clock reading a token; metered."""

import itertools
import json
import os
import time

import gevent
from locust import FastHttpUser, constant, events, task
from meter import count

STREAM = os.environ["BENCH_MODES"] == "stream"
N_TOKENS, N_USERS = int(os.environ["BENCH_TOKENS"]), int(os.environ["BENCH_USERS"])
SPREAD_S = float(os.environ["BENCH_SPREAD_S"])
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": N_TOKENS, "stream": STREAM}
if STREAM:
    BODY["stream_options"] = {"include_usage": True}
numbers = itertools.count()
seen = []


class Peer(FastHttpUser):
    wait_time = constant(0)

    def on_start(self):
        gevent.sleep(next(numbers) * SPREAD_S / N_USERS)  # those that start together move in lockstep

    @task
    def chat(self):
        if not STREAM:
            answer = self.client.post("/v1/chat/completions", json=BODY).json()
            assert answer["choices"][0]["finish_reason"] == "stop"
            count(answer["usage"]["completion_tokens"])
            return
        request_id, t_start_ns, arrivals_ns = f"peer-{next(numbers)}", time.monotonic_ns(), []
        with self.client.post(
            "/v1/chat/completions", json=BODY, headers={"X-Request-Id": request_id}, stream=True, catch_response=True
        ) as response:
            while line := response.stream.readline(b"\n"):
                if not line.startswith(b"data:") or b"[DONE]" in line:
                    continue
                event = json.loads(line[5:])
                if event["choices"] and event["choices"][0]["delta"].get("content"):
                    arrivals_ns.append(time.monotonic_ns())
        count(len(arrivals_ns))
        if "BENCH_SEEN" in os.environ:
            seen.append((request_id, t_start_ns, arrivals_ns))


@events.quitting.add_listener
def _write_seen(**_):
    if "BENCH_SEEN" in os.environ:
        with open(os.environ["BENCH_SEEN"], "w") as file:
            json.dump(seen, file)
