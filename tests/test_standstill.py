"""While ha-sweep itself stands still a probe looks slow: it is marked, and says nothing about the target."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from build import S, write_run
from fake_gateway import FakeGateway
from loopback import wait_for

from sweep import evidence, judge, outdir
from sweep.records import HealthLine, from_lines
from sweep.standstill import Pulse, t_boot_ns
from sweep.windows import plan_of

# Watches one path until its standard input ends.
WATCH = """
import sys
from pathlib import Path
from sweep.endpoint import parse_endpoint
from sweep.health import HealthWatch
from sweep.masking import Masked
from sweep.probe import Probe
watch = HealthWatch(Probe(parse_endpoint(sys.argv[1]), None, None, Masked([])), "live", "/healthz", Path(sys.argv[2]))
watch.start()
sys.stdin.read()
watch.stop()
"""


def lines_in(out_dir) -> list[HealthLine]:
    return from_lines(HealthLine, outdir.read_lines(out_dir / outdir.HEALTH)[0], outdir.HEALTH)


@pytest.mark.slow
def test_a_probe_under_way_while_we_are_stopped_is_marked(tmp_path):
    """SIGSTOP between its request and its answer; the probes before and after it are not marked."""
    route = "HTTP 200 text/plain\n---\n<<SLEEP 1.2>>ok"
    with FakeGateway(routes={"/healthz": route}) as fake:
        command = [sys.executable, "-P", "-c", WATCH, fake.url, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as watch:
            wait_for(lambda: fake.requests_received == 2, "the second probe")
            watch.send_signal(signal.SIGSTOP)
            time.sleep(2.5)  # the standstill itself
            watch.send_signal(signal.SIGCONT)
            wait_for(lambda: len(lines_in(tmp_path)) >= 3, "the third probe's line")
            watch.communicate(b"", timeout=30)
    first, stopped, after = lines_in(tmp_path)[:3]

    assert stopped.status == 200
    assert 1000 < stopped.stood_still_ms <= stopped.ms
    assert first.stood_still_ms is None or first.stood_still_ms < 1000
    assert after.stood_still_ms is None or after.stood_still_ms < 1000


def test_a_process_that_runs_did_not_stand_still():
    """Also when nobody beats yet: the beat that is due is asked for."""
    pulse = Pulse()
    began_ns = t_boot_ns()
    assert pulse.stood_still_ms(began_ns) is None
    time.sleep(0.4)  # the thread was never started, so no beat came
    assert 250 < pulse.stood_still_ms(began_ns)
    assert pulse.stood_still_ms(t_boot_ns() + S) is None


def seen(tmp_path, *lines: HealthLine):
    """What the judgement sees of these liveness probes of the first window, all others in order."""

    def change(run):
        at = [line for line in run.health if line.what == "live" and line.t_mono_ns > run.steps[0].t_window_ns]
        for old, new in zip(at, lines, strict=False):
            old.status, old.ms, old.error, old.stood_still_ms = new.status, new.ms, new.error, new.stood_still_ms

    ev = evidence.read(write_run(tmp_path / "out", change))
    return judge.facts_of(ev, plan_of(ev.run)).live


def line(status: int | None = 200, ms: float | None = 2.0, error: str | None = None, stood: float | None = None):
    return HealthLine(t_mono_ns=0, what="live", status=status, ms=ms, error=error, stood_still_ms=stood)


@pytest.mark.parametrize(
    ("probe", "left_out", "missed"),
    [
        (line(ms=1800.0, stood=1500.0), 4, 0),
        (line(ms=None, status=None, error="ReadTimeout", stood=4800.0), 4, 0),
        (line(ms=1800.0, stood=300.0), 0, 0),  # slow by itself
        (line(ms=None, status=None, error="ReadTimeout", stood=300.0), 0, 4),  # silent for long enough by itself
        (line(status=503, stood=2000.0), 0, 4),  # refused, whatever we did
        (line(ms=None, status=None, error="ConnectError", stood=2000.0), 0, 4),
        (line(ms=1800.0), 0, 0),
    ],
)
def test_only_what_a_standstill_explains_is_left_out(tmp_path, probe, left_out, missed):
    """The rest is the target's, and stays."""
    found = seen(tmp_path, *[probe] * 4)

    assert (left_out, missed, missed) == (found.left_out, found.missed, found.longest_row)
    assert 32 - left_out == found.n
    assert (found.p99_ms.v == 2.0) == (left_out > 0)


def test_a_long_standstill_is_a_hole_not_a_slow_target(tmp_path):
    """Nothing is known of the target for seven seconds: liveness is unknown, neither passed nor failed."""
    found = seen(tmp_path, *[line(ms=1800.0, stood=1500.0)] * 6)

    assert found.gap_why == "no probe for 7.0 s of step s01-c1-stream-k1"
    assert 0 == found.missed
