"""`ha-sweep worker`: a Locust worker for each step of a run that another machine drives, started again and again.

Its load ends with the master's heartbeat (crew_worker.py); the secrets it sends are in its own environment.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from sweep import outdir
from sweep.children import Child
from sweep.crew_messages import AGAIN_EXIT, REFUSED_EXIT
from sweep.errors import PlanError, RunError
from sweep.own_locustfile import locust_environment
from sweep.step_files import ORDER_ENV

_LOOK_S = 0.1
_GRACE_S = 3.0
_PAUSE_S = 1.0  # after a Locust that failed
_MOST_FAILURES = 3  # in a row; the fourth would fail too
_NO_MASTER_EXIT = 255  # Locust has tried to connect for five minutes


def work(
    host: str, port: int, scratch: Path, must_stop: Callable[[], bool], say: Callable[[str], None]
) -> None:
    """Until must_stop. Raises PlanError when a master refuses this worker, RunError when Locust keeps failing."""
    failures = n = 0
    say(f"waits for a run at {host}:{port}; ends with Ctrl-C")
    while not must_stop():
        n += 1
        folder = scratch / f"{n}"  # empty: no locust.conf or pyproject.toml there can take it over
        folder.mkdir()
        code, words = _one_step(host, port, folder, must_stop)
        shutil.rmtree(folder)
        if must_stop():
            return
        if code == REFUSED_EXIT:
            raise PlanError(f"takes no part in the run at {host}:{port}: {words}")
        if code == _NO_MASTER_EXIT:
            continue
        failures = 0 if code in (0, AGAIN_EXIT) else failures + 1
        if failures == _MOST_FAILURES:
            raise RunError(f"Locust ended {failures} times in a row ({code}): {words}")
        say("a step is over" if code == 0 else f"{words or f'Locust ended ({code})'}; waits for the next step")
        if failures:
            time.sleep(_PAUSE_S)


def _one_step(host: str, port: int, folder: Path, must_stop: Callable[[], bool]) -> tuple[int, str]:
    """(exit code, last words). The step's order, which names the user class, comes later: all of ours are there."""
    files = ",".join(str(file) for file in sorted(outdir.data_folder("locustfiles").glob("*.py")))
    arguments = (
        "-m", "locust", "-f", files, "--worker", "--master-host", host, "--master-port", str(port),
    )  # fmt: skip
    environment = locust_environment(os.environ, folder) | {ORDER_ENV: ""}
    locust = Child(arguments, folder / "log", environment, folder)
    try:
        while not locust.has_ended() and not must_stop():
            time.sleep(_LOOK_S)
    finally:
        code = locust.end(_GRACE_S)
    # What was killed said nothing of it: its last line is about something else.
    return code, f"Locust was killed by signal {-code}" if code < 0 else locust.last_words()
