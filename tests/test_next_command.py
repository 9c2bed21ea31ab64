"""The command of an INCONCLUSIVE run: it parses, keeps the plan, and lifts what kept the run from deciding."""

import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from build import PID, BuiltRun, S, fail_some, make_facts, make_mark, make_row, write_run

from sweep import gates
from sweep.judge import judge
from sweep.next_command import command, raised
from sweep.slo import parse_slo

STEP_LINE = re.compile(
    r"step (\S+): (\d+) requests wanted, closes early at (\d+), (\S+ \S+) to (\S+ \S+), at most ([0-9,]+) requests and "
    r"([0-9,]+) output"
)


def seconds(text):
    number, unit = text.split()
    return float(number) * {"s": 1, "min": 60}[unit]


def dry_run(command, cwd):
    """The plan the command would run, read back from what the real program prints: step -> numbers."""
    words = shlex.split(command)
    assert ["ha-sweep", "run"] == words[:2]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sweep", *words[1:], "--dry-run"], cwd=cwd, capture_output=True, text=True,
        timeout=60, env={"PYTHONPATH": str(Path(__file__).parent.parent), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert (0, "") == (done.returncode, done.stderr)
    steps = {}
    for line in done.stdout.splitlines():
        if (match := STEP_LINE.match(line)) is not None:
            steps[match[1]] = {
                "wanted": int(match[2]), "early": int(match[3]), "duration_s": seconds(match[4]),
                "max_s": seconds(match[5]), "cap": int(match[6].replace(",", "")),
                "tokens": int(match[7].replace(",", "")),
            }  # fmt: skip
    return steps, done.stdout


def expected(plan, rate_per_s, warmup_s, max_tokens):
    """Requests that start in the window of a step of this plan at the rate that was seen, by the rules of a step."""
    until_s = max(plan["duration_s"], plan["wanted"] / rate_per_s)
    early_s = max(plan["early"] / rate_per_s, min(plan["duration_s"], max(plan["duration_s"] / 4, 10)))
    cap_s = min(plan["cap"], plan["tokens"] / max_tokens) / rate_per_s - warmup_s
    return min(until_s, early_s, plan["max_s"], cap_s) * rate_per_s


def closed_by(run, reason):
    for step in run.steps:
        step.report["closed_by"] = reason


CASES = {
    "too few by time": (lambda run: closed_by(run, "max_step"), {"n": 40, "max_step_s": 12.0, "duration_s": 12.0}),
    "too few by caps": (lambda run: closed_by(run, "cap"), {"n": 40, "max_requests": 100}),
    "too few by tokens": (lambda run: closed_by(run, "cap"), {"n": 40, "max_output_tokens": 12_800}),
    "one failed": (lambda run: fail_some(run.steps[0], 1), {"duration_s": 12.0}),
    "eight failed": (lambda run: fail_some(run.steps[0], 8), {"n": 500, "duration_s": 12.0}),
    "p99": (lambda run: closed_by(run, "max_step"),
            {"slos": ["ttft_ms.p99<=500"], "max_step_s": 12.0, "duration_s": 12.0}),
    "near a ratio": (lambda run: fail_some(run.steps[1], 2), {"slos": ["error_ratio<=2%@2"], "duration_s": 12.0}),
    "closed early": (lambda run: (closed_by(run, "n_early"), fail_some(run.steps[0], 6)),
                     {"n": 400, "duration_s": 40.0}),
    "short of --max-time": (lambda run: closed_by(run, "max_step"), {"n": 40, "duration_s": 12.0, "max_time_s": 360.0}),
    "the demo": (lambda run: closed_by(run, "duration"), {"n": 40, "duration_s": 12.0, "demo": True}),
    "a hole in the samples": (lambda run: run.samples.__delitem__(slice(8, 14)), {}),
    "shell words": (lambda run: run.samples.clear(), {
        "name": "a.b", "extra_body": {"k": "it's $HOME; `x`"}, "acknowledge_load": 'ops "on call": a & b',
        "cycles": 2, "strict": True, "health_path": "/h", "api_key_env": "K", "drain_s": 2.5}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_command_runs_and_would_decide(name, tmp_path):
    """Read by the real program; its plan has time and room for the requests that each open gate needs."""
    change, made = CASES[name]
    run = BuiltRun(**made)
    change(run)
    result = judge(run.write(tmp_path / "out"))
    assert "INCONCLUSIVE" == result["verdict"]
    planned, told = dry_run(result["next"], tmp_path)

    assert [step.id for step in run.steps] == list(planned)
    rows = {row["step"]: row for row in result["steps"]}
    got = {
        step: expected(plan, rows[step]["offered"] / rows[step]["window_s"], run.plan.warmup_s, run.plan.max_tokens)
        for step, plan in planned.items()
    }
    for finding in result["findings"]:
        if finding["required"] and finding["status"] == "unknown" and finding["n_needed"]:
            mine = [got[s] for s, row in rows.items() if finding["level"] in (None, int(row["level"]))]
            assert sum(mine) >= finding["n_needed"], finding["gate"]
    for option, value in (("health path", run.plan.health_path), ("load acknowledged", run.plan.acknowledge_load)):
        assert value is None or f"{option}: {value}" in told


def again(facts, guessed=()):
    return command(facts.plan, guessed, raised(facts, gates.judge_findings(facts)))


def test_the_command_keeps_the_plan_and_quotes_it():
    """Target, levels, process and SLO; what the run drew or guessed for itself is left to the next one."""
    facts = make_facts(make_row(ms=[100.0] * 200), slos=["ttft_ms.p99<=500"])
    assert (
        "ha-sweep run --target http://127.0.0.1:9 --levels 2 --gateway-pid 4242 --sustain 2 --api openai-chat "
        "--model m --mode stream "
        "--slo 'ttft_ms.p99<=500'"
    ) == again(facts)
    assert "--model" not in again(facts, ["model"])


def test_the_command_finds_again_what_was_found():
    """A guessed target or API is left to be found again, and the process keeps the form it was given in."""
    facts = make_facts(make_row(ms=[100.0] * 200), slos=["ttft_ms.p99<=500"])
    facts = dataclasses.replace(facts, plan=dataclasses.replace(facts.plan, gateway_pid_given="unit:ollama"))
    assert (
        "ha-sweep run --levels 2 --gateway-pid unit:ollama --sustain 2 --mode stream --slo 'ttft_ms.p99<=500'"
    ) == again(facts, ["target", "api", "model"])


def test_a_step_that_would_go_on_for_its_requests_is_not_made_longer():
    """299 are wanted anyway: an interrupted step needs no other plan, one that wanted fewer does."""
    row = make_row(ms=[100.0] * 200)
    wanted = make_facts(row, slos=["ttft_ms.p99<=500"])
    more = make_facts(make_row(ms=[100.0] * 399, http_5xx=2), slos=["error_ratio<=1%"])
    more = dataclasses.replace(more, plan=dataclasses.replace(more.plan, duration_s=10.0))

    assert "--duration" not in again(wanted)
    assert "--duration 19s" in again(more)


def test_a_run_of_the_embedded_gateway_is_run_again_without_its_address():
    """--demo brings target, model and process of its own, and refuses others."""
    facts = make_facts(make_row(ms=[100.0] * 20), slos=())
    facts = dataclasses.replace(facts, plan=dataclasses.replace(facts.plan, demo=True, gateway_pid=PID))
    command = again(facts)

    assert command.startswith("ha-sweep run --demo --levels 2 ")
    assert not [word for word in ("--target", "--model", "--gateway-pid") if word in command]


def test_a_stopped_run_is_run_again_as_it_was(tmp_path):
    """Its short windows say nothing of the time that a whole one needs."""

    def stop(run):
        step = run.steps[1]
        run.marks = [mark for mark in run.marks if mark.t_mono_ns <= step.t_window_ns]
        run.marks += [make_mark("abort", step.t_window_ns + S, step.id, by="signal", reason="SIGINT")]
        step.report = {"t_close_ns": step.t_window_ns + S, "t_end_ns": step.t_window_ns + S, "closed_by": "signal"}
        step.records = [record for record in step.records if record.t_start_ns < step.t_window_ns + S]

    command = judge(write_run(tmp_path, stop))["next"]
    assert "--max-step" not in command
    assert f"--slo '{parse_slo('stream.ttft_ms.p95<=500').text}'" in command
