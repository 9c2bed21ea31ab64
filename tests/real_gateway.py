"""A real model behind a real gateway, swept by `ha-sweep`; run in a network namespace of its own.

`unshare --net python real_gateway.py BIN FOLDER`: BIN holds ferrogw, llama-server-vulkan and dev-double, FOLDER the
model; it gets one OUT_DIR a run, what each run printed, and the counters of the servers before and after. ferrogw
listens on every interface, hence the namespace: nothing outside can reach it, and the ports are always free.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from command import ha_sweep

from sweep.children import die_with_parent

MODEL = "gemma-270m"
MODEL_FILE = "model.gguf"
MODEL_PORT, GATEWAY_PORT, DECISION_PORT = 18080, 18801, 18877
KEY = "fgw_0123456789abcdef0123456789abcdef"
KEY_ENV = "HA_SWEEP_TEST_KEY"
START_S = 60.0
# Two at once and two waiting: what is above is refused with 429 and Retry-After.
GATEWAY = f"""
strategy: {{mode: fallback}}
targets:
  - virtual_key: openai
    models: [{MODEL}]
    retry: {{attempts: 1}}
    concurrency: {{max_concurrency: 2, queue_size: 2}}
"""
GATEWAY_ENVIRONMENT = {
    "MASTER_KEY": KEY, "OPENAI_API_KEY": "sk-none", "OPENAI_BASE_URL": f"http://127.0.0.1:{MODEL_PORT}/v1",
    "PORT": str(GATEWAY_PORT), "RATE_LIMIT_RPS": "0", "FERRO_MODEL_CATALOG_TIMEOUT": "1s",
}  # fmt: skip
QUICK = (
    "--duration", "4s", "--max-step", "5s", "--warmup", "1s", "--cooldown", "1s", "--max-tokens", "16",
    "--prompt-tokens", "32", "--extra-body", '{"ignore_eos": true}', "--quiet-check", "2s",
)  # fmt: skip
RUNS = {
    "levels": (*QUICK, "--levels", "1,2", "--slo", "stream.ttft_ms.p95<=5000"),
    "full": (*QUICK, "--levels", "8", "--mode", "stream"),
}  # fmt: skip
N_OUT = 8
SHORT = (
    "--levels", "1", "--duration", "2s", "--max-step", "3s", "--warmup", "0s", "--cooldown", "0s",
    "--prompt-tokens", "32", "--quiet-check", "1s",
)  # fmt: skip
SPOKEN = (*SHORT, "--max-tokens", str(N_OUT), "--extra-body", '{"ignore_eos": true}', "--model", MODEL)
# The model server's other APIs, and a server of decisions whose API is found. At once: only the time differs.
DIRECT = {
    "openai-completions": (MODEL_PORT, (*SPOKEN, "--api", "openai-completions")),
    "openai-responses": (MODEL_PORT, (*SPOKEN, "--api", "openai-responses")),
    "anthropic-messages": (MODEL_PORT, (*SPOKEN, "--api", "anthropic-messages")),
    "systemone": (DECISION_PORT, (*SHORT, "--model", "mock", "--max-requests", "200")),
}  # fmt: skip


def main(tools: Path, folder: Path) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    (folder / "gateway.yaml").write_text(GATEWAY)
    model = [
        "nice", tools / "llama-server-vulkan", "-m", folder / MODEL_FILE, "-a", MODEL, "--host", "127.0.0.1",
        "--port", str(MODEL_PORT), "-t", "1", "-tb", "1", "-c", "2048", "-np", "2", "--no-webui", "--metrics",
    ]  # fmt: skip
    environment = GATEWAY_ENVIRONMENT | {"GATEWAY_CONFIG": str(folder / "gateway.yaml"), "HOME": str(folder)}
    gateway = [tools / "ferrogw", "serve"]
    decisions = [tools / "dev-double", "serve", "--engine", "mock", "--host", "127.0.0.1", "--port", str(DECISION_PORT)]
    with (
        server(model, {}, folder / "model.log") as model_pid,
        server(gateway, environment, folder / "gateway.log") as pid,
        server(decisions, {"HOME": str(folder)}, folder / "decisions.log") as decisions_pid,
    ):
        for port, path in ((MODEL_PORT, "health"), (GATEWAY_PORT, "livez"), (DECISION_PORT, "health")):
            wait_until_ready(f"http://127.0.0.1:{port}/{path}")
        for name, options in RUNS.items():
            (folder / f"{name}.json").write_text(json.dumps(sweep(pid, folder, name, options)))
        before = counters()
        with ThreadPoolExecutor(len(DIRECT)) as pool:
            done = {
                name: pool.submit(
                    ha_sweep, "run", "--target", f"http://127.0.0.1:{port}", "--gateway-pid",
                    str(decisions_pid if port == DECISION_PORT else model_pid), *options, "--out-dir", name, cwd=folder,
                )
                for name, (port, options) in DIRECT.items()
            }  # fmt: skip
        after = counters()
        for name, run in done.items():
            told = {"code": run.result().returncode, "stdout": run.result().stdout, "stderr": run.result().stderr}
            (folder / f"{name}.json").write_text(json.dumps(told | {"before": before, "after": after}))


def sweep(pid: int, folder: Path, name: str, options: tuple[str, ...]) -> dict:
    before = counters()
    started = time.monotonic()
    done = ha_sweep(
        "run", "--target", f"http://127.0.0.1:{GATEWAY_PORT}", "--gateway-pid", str(pid), "--api-key-env", KEY_ENV,
        "--model", MODEL, *options, "--out-dir", name, cwd=folder, **{KEY_ENV: KEY},
    )  # fmt: skip
    return {
        "code": done.returncode, "stdout": done.stdout, "stderr": done.stderr, "pid": pid,
        "took_s": time.monotonic() - started, "before": before, "after": counters(),
    }  # fmt: skip


@contextlib.contextmanager
def server(command: list, environment: dict, log: Path) -> Iterator[int]:
    """Its pid while it runs; killed with us, whatever ends us."""
    with log.open("wb") as output, subprocess.Popen(
        command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        preexec_fn=die_with_parent,
    ) as process:  # fmt: skip
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until_ready(url: str) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert time.monotonic() < end, f"{url} does not answer within {START_S:.0f} s"
            time.sleep(0.05)


def counters() -> dict[str, float]:
    """Every counter and gauge of both servers, by its name with labels."""
    found = {}
    for port, key in ((MODEL_PORT, None), (GATEWAY_PORT, KEY)):
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=10) as page:
            lines = page.read().decode().splitlines()
        found |= {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
