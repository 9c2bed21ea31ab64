"""The real client for tests, in a process of its own because it needs gevent: jobs in, records out.

A job is {"url", "api", "modes": ["stream", …], …}: one user, one connection, its requests one after the other; any
other key is a field of StepOrder, `pause_s` a wait between requests. Jobs run `at_once` at a time.
With `kill_after_s` the user is killed in its first request, as at the end of a step, and what is left is told instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORDER = {
    "step": "s01", "worker": "w01", "out_dir": "", "api": "openai-chat", "model": "m", "users": 1, "max_tokens": 9,
    "prompt_words": 5, "seed": 7,
}  # fmt: skip


def ask(
    jobs: Sequence[Mapping], at_once: int = 8, timeout_s: float = 60, env: Mapping | None = None
) -> list[list[dict]]:
    """The records of each job. Fails if the client said a word on standard error: nothing may reach the hub."""
    done = subprocess.run(
        [sys.executable, "-P", __file__],
        input=json.dumps({"jobs": list(jobs), "at_once": at_once}).encode(),
        capture_output=True, timeout=timeout_s, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | dict(env or {}),
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)


def ask_one(url: str, stream: bool = True, **order: object) -> dict:
    """The record of a single request."""
    return ask([{"url": url, "modes": ["stream" if stream else "nonstream"], **order}])[0][0]


def main() -> None:
    import gevent
    import msgspec
    from gevent.pool import Pool

    from sweep.load import Load
    from sweep.step_files import StepOrder

    def run(job: dict) -> list[dict]:
        modes, pause_s, kill_after_s = job.pop("modes"), job.pop("pause_s", 0), job.pop("kill_after_s", None)
        load = Load(msgspec.convert(ORDER | job, StepOrder), write_records=False)
        connection = load.connection()
        records = []
        if kill_after_s is not None:
            user = gevent.spawn(load.ask, connection, 0, modes[0] == "stream")
            gevent.sleep(kill_after_s)
            user.kill()
            return [{"outcomes": load.outcomes, "sent": load.sent, "in_flight": load.in_flight,
                     "is_open": connection.is_open}]  # fmt: skip
        for mode in modes:
            gevent.sleep(pause_s if records else 0)
            records.append(msgspec.to_builtins(load.ask(connection, 0, mode == "stream")))
        connection.close()
        return records

    asked = json.load(sys.stdin)
    print(json.dumps(Pool(asked["at_once"]).map(run, asked["jobs"])))


if __name__ == "__main__":
    main()
