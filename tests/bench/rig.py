"""One measurement: the exact server on one core, a generator under Locust on another, what that used and saw."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import pytest
from require import need

from sweep import outdir
from sweep.records import Record
from sweep.step_files import ORDER_ENV, StepOrder, StepReport

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
PEER = f"Locust {version('locust')} FastHttpUser (geventhttpclient {version('geventhttpclient')}), readline + json"
_DEADLINE_S = 180


class Profile(NamedTuple):
    """What the server does and who asks: the first token's and each further token's time, answer length, users."""

    ttft_s: float
    gap_s: float
    n_tokens: int
    users: int
    modes: str = "stream"  # what a user asks for in turn, e.g. "stream,nonstream"
    settle_s: float = 2.0
    measure_s: float = 4.0
    together: bool = False  # users start in one instant, else evenly over half the settling time
    marks: str = ""  # memory is read when so many requests are finished


class Seen(NamedTuple):
    """A stream, as the generator saw it. arrivals_ns: of each token."""

    request_id: str
    t_start_ns: int
    arrivals_ns: list[int]


class Run(NamedTuple):
    tokens: int
    requests: int
    cpu_s: float
    wall_s: float
    rss_bytes: int
    rss_at: dict[str, int]
    users: int
    seen: list[Seen]  # that started within the measured time
    sent: dict[str, list[int]]  # request id -> instant of the request's last byte, of each token


def measure(tool: str, profile: Profile, *, sees: bool = False) -> Run:
    """One run of `ours` or `peer`. sees: with the streams as they were sent and seen."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores: one for the server, one for the generator")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        log = folder / "sent.txt" if sees else None
        with exact_server(profile, cores[0], log) as url:
            metered, found = _generate(tool, profile, url, cores[1], folder, sees)
        sent = {}
        for line in log.read_text().splitlines() if log is not None else ():
            request_id, *instants = line.split()
            sent[request_id] = [int(each) for each in instants]
    begun, over = metered.pop("from_ns"), metered.pop("to_ns")
    seen = [each for each in found if begun <= each.t_start_ns <= over and each.request_id in sent]
    return Run(**metered, wall_s=(over - begun) / 1e9, seen=seen, sent=sent)


def interleaved(profile: Profile, *tools: str, sees: bool = False) -> dict[str, list[Run]]:
    """ROUNDS runs of each tool, in turn, every other round the other way round."""
    runs: dict[str, list[Run]] = {tool: [] for tool in tools}
    for number in range(ROUNDS):
        for tool in tools if number % 2 == 0 else tools[::-1]:
            runs[tool].append(measure(tool, profile, sees=sees))
    return runs


def middle(runs: list[Run], figure) -> float:
    return median(figure(run) for run in runs)


@contextlib.contextmanager
def exact_server(profile: Profile, core: int, log: Path | None) -> Iterator[str]:
    """Its URL."""
    compiler = shutil.which("cc")
    need("cc", compiler is not None, "apt-get install gcc libc6-dev")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        program = Path(folder) / "exact_server"
        subprocess.run([str(compiler), "-O2", "-o", str(program), str(HERE / "exact_server.c")], check=True)
        words = [str(round(1e6 * each_s)) for each_s in (profile.ttft_s, profile.gap_s)] + ([str(log)] if log else [])
        server = subprocess.Popen(
            [str(program), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=lambda: _pin(core)
        )
        with server:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
            server.stdin.close()  # it writes its log and ends
            assert 0 == server.wait(_DEADLINE_S)


def _generate(tool: str, profile: Profile, url: str, core: int, folder: Path, sees: bool) -> tuple[dict, list[Seen]]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")} | {
        "BENCH_SETTLE_S": str(profile.settle_s), "BENCH_MEASURE_S": str(profile.measure_s),
        "BENCH_MODES": profile.modes, "BENCH_SPREAD_S": "0" if profile.together else str(profile.settle_s / 2),
        "BENCH_TOKENS": str(profile.n_tokens), "BENCH_USERS": str(profile.users), "BENCH_MARKS": profile.marks,
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "locust", "-f", str(HERE / f"{tool}.py"), "--host", url, "--headless", "--only-summary",
        "-u", str(profile.users), "-r", "10000",
    ]  # fmt: skip
    if tool == "ours":
        env[ORDER_ENV] = _order(profile, url, folder)
    elif sees:
        env["BENCH_SEEN"] = str(folder / "seen.json")
    done = subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, timeout=_DEADLINE_S,
        preexec_fn=lambda: _pin(core),
    )  # fmt: skip
    line = next((line for line in done.stdout.splitlines() if line.startswith("METER ")), None)
    assert line is not None, done.stderr[-2000:]
    metered = json.loads(line.removeprefix("METER "))
    assert metered["users"] == profile.users
    if tool == "ours":
        return metered, _records(folder)
    return metered, [Seen(*each) for each in json.loads((folder / "seen.json").read_text())] if sees else []


def _order(profile: Profile, url: str, folder: Path) -> str:
    """A step that lasts longer than the measurement; its file."""
    outdir.create(folder / "out")
    lasts_s = profile.settle_s + profile.measure_s + 0.5
    order = StepOrder(
        step="s01", worker="w01", out_dir=str(folder / "out"), url=url, api="openai-chat", model="m",
        users=profile.users, max_tokens=profile.n_tokens, prompt_words=8, seed=1,
        warmup_s=0.0 if profile.together else profile.settle_s,
        duration_s=lasts_s, max_step_s=60 + lasts_s, min_early_s=100.0, drain_s=10.0, n_early=10**9,
        n_wanted=int(profile.marks.split(",")[-1] or 1), max_requests=10**9, max_output_tokens=10**12,
    )  # fmt: skip
    (folder / "order.json").write_bytes(msgspec.json.encode(order))
    return str(folder / "order.json")


def _records(folder: Path) -> list[Seen]:
    """The streams of the records, each of which must be a success, and the counts must agree."""
    report = msgspec.json.decode((folder / "out" / outdir.locust_json("s01")).read_bytes(), type=StepReport)
    assert report.counts_agree, report.why
    lines, torn = outdir.read_lines(folder / "out" / outdir.requests_file("s01", "w01"))
    assert not torn
    decode = msgspec.json.Decoder(Record).decode
    seen = []
    for line in lines:
        record = decode(line)
        assert record.outcome in ("ok", "cut"), line
        if record.t_first_ns is not None and record.outcome == "ok":
            reads_ns = accumulate(record.gaps_us, lambda at, gap: at + 1000 * gap, initial=record.t_first_ns)
            each = record.read_tokens or [1] * (len(record.gaps_us) + 1)
            arrivals_ns = [at for at, n in zip(reads_ns, each, strict=True) for _ in range(n)]
            seen.append(Seen(record.request_id, record.t_start_ns, arrivals_ns))
    return seen


def _pin(core: int) -> None:
    os.sched_setaffinity(0, {core})
