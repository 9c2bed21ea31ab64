"""What a streamed token costs the generator: LlmUser beside Locust's own idiom, same server, same run, interleaved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median

import pytest
from fake_gateway import FakeGateway

HERE = Path(__file__).parent
N_STREAMS, N_TOKENS, GAP_S, ROUNDS = 64, 64, 0.02, 3


def measure(user: str, url: str) -> dict:
    command = [
        sys.executable, "-m", "locust", "-f", str(HERE / f"{user}.py"), "--host", url, "--headless", "--only-summary",
        "-u", str(N_STREAMS), "-r", "100",
    ]  # fmt: skip
    command += ["--llm-model", "m", "--llm-max-tokens", str(N_TOKENS)] if user == "ours" else []
    env = dict(os.environ) | {"BENCH_TOKENS": str(N_TOKENS), "PYTHONPATH": str(HERE.parent.parent)}
    done = subprocess.run(command, env=env, cwd=HERE, capture_output=True, text=True, timeout=120)
    line = next(line for line in done.stdout.splitlines() if line.startswith("METER "))
    return json.loads(line.removeprefix("METER "))


@pytest.mark.bench
def test_a_streamed_token_costs_less_than_locusts_own_idiom(capsys):
    """Tokens per CPU-second of the generator process; the ratio is the result, the machine's speed is not."""
    speed = {"ours": [], "peer": []}
    with FakeGateway({"ttft_s": 0.1, "gap_s": GAP_S, "n_tokens": N_TOKENS}) as fake:
        for _ in range(ROUNDS):
            for user, found in speed.items():
                run = measure(user, fake.url)
                found.append(run["tokens"] / run["cpu_s"])
    ours, peer = median(speed["ours"]), median(speed["peer"])
    with capsys.disabled():
        print(f"\n{N_STREAMS} streams, {N_TOKENS} tokens, one each {GAP_S * 1000:.0f} ms; Locust {version('locust')}")
        print(f"  LlmUser                          {ours:10,.0f} tokens per CPU-second")
        print(f"  FastHttpUser, readline, json     {peer:10,.0f} tokens per CPU-second")
        print(f"  CPU per token: {peer / ours:.2f} x the peer's")
    assert peer < ours
