"""Workers on other machines: their records arrive, are judged by their own clocks, and end with the master."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import other_machines
import pandas as pd
import pytest
from build import BuiltRun, S, make_record
from require import need

from sweep import evidence, outdir, windows
from sweep.crew_refusals import address
from sweep.errors import PlanError
from sweep.other_clocks import ahead_ns
from sweep.plan import SweepPlan
from sweep.records import Record, from_lines
from sweep.refusals import check
from sweep.units import parse_levels


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict:
    """What `other_machines.py` saw, with the folder of its runs."""
    need("root", os.getuid() == 0, "sudo make test; machines are made of namespaces")
    helped = subprocess.run(["unshare", "--help"], capture_output=True, text=True) if shutil.which("unshare") else None
    need("netns", helped is not None and "--monotonic" in helped.stdout, "apt-get install util-linux")
    need("netns", shutil.which("ip") is not None, "apt-get install iproute2")
    folder = tmp_path_factory.mktemp("machines")
    done = subprocess.run(
        ["unshare", "--net", sys.executable, other_machines.__file__, folder],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(Path(other_machines.__file__).parent.parent)},
    )  # fmt: skip
    logs = "".join(f"\n{path.name}:\n{path.read_text(errors='replace')[-2000:]}" for path in folder.glob("*.log"))
    assert 0 == done.returncode, done.stderr + logs
    return json.loads(done.stdout) | {"folder": folder}


def raw_records(seen: dict, worker: str) -> list[Record]:
    lines, torn = outdir.read_lines(seen["folder"] / "run" / outdir.requests_file("s01-c3-stream-k1", worker))
    assert not torn
    return from_lines(Record, lines, worker)


@pytest.mark.slow
def test_their_records_and_health_are_in_the_masters_folder(seen):
    """One file a worker, each request that the server received in one of them, and counts that agree."""
    out_dir = seen["folder"] / "run"
    records = [record.request_id for worker in ("w01", "w02") for record in raw_records(seen, worker)]
    step = seen["whole"]["result"]["steps"][0]

    assert (set(seen["whole"]["received"]), len(records)) == (set(records), len(set(records)))
    assert (True, None, len(records)) == (step["valid"], step["invalid_why"], step["started"]), seen["whole"]["said"]
    assert {"w01": "machine1", "w02": "machine2"} == json.loads((out_dir / outdir.RUN).read_bytes())["hosts"]
    assert all((out_dir / outdir.generator_file(step["step"], worker)).stat().st_size for worker in ("w01", "w02"))


@pytest.mark.slow
def test_their_instants_are_judged_by_their_own_clocks(seen):
    """Raw, they are a day and more from the master's; read, each was sent when the server received it."""
    received = seen["whole"]["received"]
    for n, worker in ((1, "w01"), (2, "w02")):
        apart_s = [(r.t_sent_ns - received[r.request_id]) / 1e9 for r in raw_records(seen, worker)]
        assert all(abs(s - n * other_machines.CLOCKS_APART_S) < 2 for s in apart_s)
    ev = evidence.read(seen["folder"] / "run")
    steps = windows.step_times(ev)
    mine = ev.requests["step"] == steps[0].step
    sent = zip(ev.requests["request_id"][mine], ev.requests["t_sent_ns"][mine], strict=True)
    late_ms = [(received[request_id] - t_ns) / 1e6 for request_id, t_ns in sent]
    sets = windows.sets(ev, steps)
    in_window = ev.requests["phase"] == "window"

    assert all(-50 < late < 250 for late in late_ms) and abs(sorted(late_ms)[len(late_ms) // 2]) < 50
    assert (sets.offered | sets.cut).tolist() == (in_window & mine).tolist()


@pytest.mark.slow
def test_their_load_ends_when_the_master_is_killed(seen):
    """Within 5 s, where Locust's own workers go on for a minute; the worker itself waits for the next run."""
    after_s = [(t - seen["killed"]["t_kill_ns"]) / 1e9 for t in seen["killed"]["received"].values()]

    assert 0.5 < max(after_s) < 5.0, "it went on for a while, which shows that only the lease can have ended it"
    assert Counter(after > -0.5 for after in after_s)[True] > 10
    assert [True, True] == seen["alive"]


def test_a_clock_is_compared_both_ways():
    """A line is on its way here, the word of the window on its way there: the middle is off by half of the two."""
    lines = pd.DataFrame(
        {"step": ["s"] * 3, "worker": ["w01", "w02", "w02"], "t_mono_ns": [5, 100, 200],
         "t_master_ns": pd.array([None, 1105, 1230], dtype="Int64")}
    )  # fmt: skip
    told = {"s": {"t_window_ns": 1150, "processes": [{"worker": "w01"}, {"worker": "w02", "t_window_ns": 151}]}}

    assert {("s", "w02"): (1005 + 999) // 2} == ahead_ns(lines, told)
    assert {("s", "w02"): 1005} == ahead_ns(lines, {})
    assert {("s", "w02"): 999} == ahead_ns(lines[:1], told)


def test_records_count_by_the_instants_of_their_own_worker(tmp_path):
    """The word to close took 1 s to it: what it still started then is of its window."""
    run = BuiltRun("1")
    step = run.steps[0]
    step.process = {"host": "elsewhere", "t_window_ns": step.t_window_ns, "t_close_ns": step.t_close_ns + S}
    late = make_record(
        request_id=step.records[-1].request_id, step=step.id, t_start_ns=step.t_close_ns + S // 2, stream=True
    )
    step.records[-1] = late
    run.write(tmp_path)
    ev = evidence.read(tmp_path)

    assert len(step.records) == int(windows.sets(ev, windows.step_times(ev)).offered.sum())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"processes": 0}, "--processes 0: give a number of processes, 1 to 256"),
        ({"processes": 1000}, "--processes 1000: give a number"),
        ({"expect_workers": -1}, "--expect-workers -1: give a number"),
        ({"master_bind": "10.0.0.5"}, "say how many with --expect-workers N"),
        ({"expect_workers": 2, "processes": 2}, "start one here as well with `ha-sweep worker --master HOST`"),
        ({"expect_workers": 2, "master_bind": "a b"}, "--master-bind 'a b': write HOST or HOST:PORT"),
        ({"expect_workers": 2, "locustfile": "x.py"}, "-f with --expect-workers"),
        ({"expect_workers": 2, "api_key_cmd": "cat key"}, "use --api-key-env NAME, set where the workers run"),
        ({"expect_workers": 2, "master_bind": "10.0.0.5"}, "--target http://127.0.0.1:8080 is another one on each"),
    ],
)
def test_processes_that_could_not_work_together_are_refused(given, says):
    """One line before any load."""
    with pytest.raises(PlanError) as refused:
        check(SweepPlan(target="http://127.0.0.1:8080", levels=parse_levels("2"), **given))

    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_workers_here_may_use_a_target_here():
    """The loopback of the one machine is the same for all."""
    check(SweepPlan(target="http://127.0.0.1:8080", levels=parse_levels("2"), expect_workers=2))
    check(SweepPlan(target="http://127.0.0.1:8080", levels=parse_levels("2"), expect_workers=2, master_bind="[::1]:7"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10.0.0.5", ("10.0.0.5", 5557)), ("b:99", ("b", 99)), ("[::1]:7", ("[::1]", 7)), ("a:b", None), ("x:0", None)],
)
def test_where_a_master_is(text, expected):
    """HOST or HOST:PORT, Locust's own port if none is given."""
    if expected is not None:
        assert expected == address("--master", text)
        return
    with pytest.raises(PlanError, match="--master"):
        address("--master", text)
