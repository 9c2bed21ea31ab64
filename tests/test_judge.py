"""OUT_DIR -> result.json, whole: ready, failed, stopped, killed, damaged; only from files, always the same."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from build import (
    MS,
    BuiltRun,
    S,
    fail_some,
    make_end,
    make_generator,
    make_mark,
    make_record,
    write_run,
)

from sweep import outdir
from sweep.errors import EvidenceError
from sweep.judge import judge

KEYS = {
    "warnings",
    "format", "rules", "run", "verdict", "sentence", "why", "exit_code", "run_status", "status_reason", "sustain",
    "sustain_default", "capacity", "target", "findings", "levels", "steps", "errors", "survival", "floors", "leak",
    "sampler", "visibility", "health", "not_tested", "left_behind", "next", "next_text", "problems", "versions",
    "machine", "labels", "subject", "others", "beside", "knee", "tenants", "scope", "policy", "guessed", "search",
}  # fmt: skip


def judged(tmp_path, change=None, **made):
    return judge(write_run(tmp_path / "out", change, **made))


def told(result):
    return (result["verdict"], result["exit_code"], result["run_status"])


def abort(run, by, level=None, at=1):
    """Ends the run in a step: its window not closed, later steps not run."""
    step = run.steps[at]
    mark = make_mark("abort", step.t_window_ns + S, step.id, by=by, reason="because", level=level)
    run.marks = [m for m in run.marks if m.t_mono_ns <= step.t_window_ns]
    run.marks += [mark, make_mark("finish", step.t_window_ns + 2 * S)]
    run.steps[at].report = {"t_close_ns": step.t_window_ns + S, "t_end_ns": step.t_window_ns + S, "closed_by": "signal"}
    step.records = [r for r in step.records if r.t_start_ns < step.t_window_ns + S]
    run.steps = run.steps[: at + 1]
    run.samples = [s for s in run.samples if s["t_mono_ns"] <= step.t_window_ns + 2 * S]


def test_a_good_run_is_ready(tmp_path):
    """Every key of the contract, and no other."""
    result = judged(tmp_path)

    assert ("PASS", 0, "COMPLETE") == told(result)
    assert KEYS == set(result)
    assert (
        "READY for 2 concurrent requests of openai-chat with model m on one node; "
        "not tested: restart, drain, backend loss, tenants, leak (1 cycle), non-streaming" == result["sentence"]
    )
    assert {"level": 2, "bracketed": False, "stopped_by": None} == {
        key: result["capacity"][key] for key in ("level", "bracketed", "stopped_by")
    }
    assert (2, True) == (result["sustain"], result["sustain_default"])
    assert [] == result["problems"] == result["errors"]
    assert None is result["next"]


def test_the_same_files_give_the_same_result_anywhere(tmp_path):
    """No clock, no path, no order of dictionaries."""
    first = write_run(tmp_path / "out", lambda run: fail_some(run.steps[0], 3))
    shutil.copytree(first, tmp_path / "copy")

    assert msgspec.json.encode(judge(first)) == msgspec.json.encode(judge(tmp_path / "copy"))
    assert str(tmp_path) not in msgspec.json.encode(judge(first)).decode()


def test_a_result_is_json_without_nan_or_infinity(tmp_path):
    """An infinity is the word "inf": encoders would write null."""
    result = judged(tmp_path, lambda run: fail_some(run.steps[0], 160, "reset"))

    def walk(value):
        if isinstance(value, dict):
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)
        else:
            assert value is None or isinstance(value, (str, bool, int)) or math.isfinite(value)

    walk(result)
    assert "inf" == result["levels"][0]["ttft_ms"]["p50"]["v"]
    assert ("FAIL", 1) == told(result)[:2]


def test_evidence_names_files_that_exist(tmp_path):
    """A reader can look."""
    out = write_run(tmp_path / "out")
    named = {file for finding in judge(out)["findings"] for file in finding["evidence"]}

    assert named
    assert [] == [name for name in named if not (out / name).is_file()]


def test_missing_values_carry_a_reason(tmp_path):
    """Null is never bare."""
    result = judged(tmp_path, pid=None, n=0)

    def walk(value, at):
        if isinstance(value, dict):
            if "v" in value:
                assert value["v"] is not None or value["why"], at
            for key, each in value.items():
                walk(each, f"{at}.{key}")
        elif isinstance(value, list):
            for each in value:
                walk(each, at)

    walk(result["levels"], "levels")
    walk(result["findings"], "findings")


@pytest.mark.parametrize(
    "change",
    [
        lambda run: [fail_some(step, 160, "http_5xx") for step in run.steps],
        lambda run: [fail_some(step, 160, "shed") for step in run.steps],
        lambda run: [fail_some(step, 160, "limited") for step in run.steps],
        lambda run: [fail_some(step, 160, "cut") for step in run.steps],
        lambda run: [fail_some(step, 160, "left") for step in run.steps],
        lambda run: [step.records.clear() for step in run.steps],
        lambda run: run.steps[1].records.clear(),
        lambda run: fail_some(run.steps[1], 160, "limited"),
        lambda run: [step.generator.clear() for step in run.steps],
        lambda run: run.samples.clear(),
        lambda run: run.marks.clear(),
        lambda run: run.health.clear(),
        lambda run: [setattr(step, "has_report", False) for step in run.steps],
        lambda run: [setattr(step, "records", step.make(160, t_first_ns=None)) for step in run.steps],
        lambda run: [setattr(step, "records", step.make(160, outcome="cut")) for step in run.steps],
    ],
)
def test_what_lacks_data_never_passes(tmp_path, change):
    """All failed, all refused, none sent, a level or a file empty, a field missing."""
    result = judged(tmp_path, change)

    assert result["verdict"] in ("FAIL", "INCONCLUSIVE")
    assert result["exit_code"] in (1, 3, 4)


def test_a_gateway_that_fails_is_not_ready_and_the_errors_are_listed(tmp_path):
    """Exit 1: a judgement about the target."""
    result = judged(tmp_path, lambda run: fail_some(run.steps[1], 20, error_text="boom"))

    assert ("FAIL", 1, "COMPLETE") == told(result)
    assert result["sentence"].startswith("NOT READY for 2")
    assert "20 of 160 requests failed (12.50 %, limit 1.00 %) at level 2 stream" == result["why"][0]
    assert [("http_5xx", 20, "boom")] == [(row["outcome"], row["count"], row["text"]) for row in result["errors"]]


def test_too_few_requests_are_inconclusive_with_a_command(tmp_path):
    """Exit 3."""
    result = judged(tmp_path, n=40)

    assert ("INCONCLUSIVE", 3, "COMPLETE") == told(result)
    assert result["next"].startswith("ha-sweep run ")
    assert "too few requests: 0 of 80 requests failed, 299 with 0 would show 1 % or less" in result["why"][0]


def trip(run, reason="memory at the limit: 9 of 10 bytes are anonymous"):
    """A guard closed the second of three levels early; the third was not run."""
    step = run.steps[1]
    idle = next(mark for mark in run.marks if (mark.mark, mark.step) == ("idle", step.id))
    idle.detail = {"guard": reason}
    run.steps = run.steps[:2]
    run.marks = [mark for mark in run.marks if mark.step is None or not mark.step.startswith("s03")]


def test_a_guard_that_ended_the_exploring_is_shown_and_brackets_the_capacity(tmp_path):
    """The idle mark of the step it closed names it; it never fails the verdict."""
    result = judged(tmp_path, trip, levels="1,4,8", sustain="1", n=300)
    (guard,) = [f for f in result["findings"] if f["gate"] == "guard"]

    assert ("PASS", 0, "COMPLETE") == told(result)
    assert ("fail", 4, "stream", True, False) == tuple(
        guard[key] for key in ("status", "level", "mode", "exploring", "required")
    )
    assert "memory at the limit" in guard["reason"]
    assert (1, True, "guard") == tuple(result["capacity"][key] for key in ("level", "bracketed", "stopped_by"))
    assert {("skipped", "not run: a guard ended the exploring at level 4")} == {
        (f["status"], f["reason"]) for f in result["findings"] if f["level"] == 8
    }


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("has_finish", [False, True])
def test_a_fault_of_ours_is_exit_5_whatever_else_was_found(tmp_path, fails, has_finish):
    """Without a step and after all of them were done; it never passes, and a failure stays one."""

    def change(run: BuiltRun):
        finish = run.marks.pop()
        run.marks.append(make_mark("abort", finish.t_mono_ns, by="fault", reason="the sampler failed"))
        run.marks += [finish] if has_finish else []
        if fails:
            fail_some(run.steps[0], 60)

    result = judged(tmp_path, change)
    assert ("FAIL" if fails else "INCONCLUSIVE", 5, "ABORTED") == told(result)
    assert "a fault of ours (the sampler failed); what was measured until then is kept" == result["status_reason"]


def kill_with_the_demo(run: BuiltRun):
    """No finish mark, and the sampler saw its target go, which the kernel ends with the tool."""
    t_kill = run.steps[1].t_window_ns + 3 * S
    run.marks = [mark for mark in run.marks if mark.t_mono_ns <= t_kill]
    run.steps[1].has_report = False
    run.steps[1].records = run.steps[1].records[:30]
    run.samples = [sample for sample in run.samples if sample["t_mono_ns"] <= t_kill]
    run.ends = [make_end(t_kill, reason="target_gone", how="pidfd", exit_seen_t_mono_ns=t_kill)]


@pytest.mark.parametrize(
    ("demo", "expected"), [(True, ("INCONCLUSIVE", 4, "ABORTED")), (False, ("FAIL", 1, "ABORTED"))]
)
def test_a_killed_run_of_the_embedded_gateway_is_no_death_of_the_target(tmp_path, demo, expected):
    """A gateway of its own that went before the tool did is one."""
    result = judged(tmp_path, kill_with_the_demo, demo=demo)

    assert expected == told(result)
    assert result["survival"]["same_process"] is (None if demo else False)


def test_a_target_that_went_after_our_own_end_did_not_die_of_the_load(tmp_path):
    """The sampler had ended with its parent."""

    def change(run: BuiltRun):
        kill_with_the_demo(run)
        run.ends.insert(0, make_end(run.ends[0]["t_mono_ns"] - MS, reason="parent_gone"))

    result = judged(tmp_path, change)
    assert ("INCONCLUSIVE", 4, "ABORTED") == told(result)
    assert result["survival"]["same_process"] is not False


def test_a_run_file_whose_steps_are_not_those_of_its_plan_is_invalid(tmp_path):
    """A level left out would not be missed."""
    result = judged(tmp_path, lambda run: run.run["steps"].pop(0))

    assert "INVALID" == result["run_status"]
    assert "its steps are not those of its plan" in result["status_reason"]


def test_a_step_of_one_cycle_that_left_nothing_is_missed(tmp_path):
    """The other cycles have the level's numbers, and enough of them."""

    def change(run: BuiltRun):
        gone = run.steps.pop(1)
        run.marks = [mark for mark in run.marks if mark.step != gone.id]

    result = judged(tmp_path, change, levels="1", cycles=3, n=400)
    assert ("INCONCLUSIVE", "counts agree: step s02-c1-stream-k2 was not run") == (
        result["verdict"], result["why"][0].replace(" at level 1 stream", ""),
    )  # fmt: skip


def test_a_signal_is_exit_4_even_when_a_gate_failed(tmp_path):
    """First that applies: 4 by signal comes before 1."""

    def change(run: BuiltRun):
        fail_some(run.steps[0], 40)
        abort(run, "signal")

    result = judged(tmp_path, change)
    assert ("FAIL", 4, "ABORTED") == told(result)
    assert (
        "stopped by a signal (because) in step s02-c2-stream-k1; what was measured until then is kept"
        == result["status_reason"]
    )


@pytest.mark.parametrize("by", ["signal", "stop_file", "disk", "locustfile"])
def test_a_run_stopped_from_our_side_is_aborted_and_never_passes(tmp_path, by):
    """Exit 4."""
    result = judged(tmp_path, lambda run: abort(run, by))

    assert ("INCONCLUSIVE", 4, "ABORTED") == told(result)
    assert result["next"]


def test_a_gateway_that_died_fails_with_when_and_where(tmp_path):
    """Exit 1, also though the run ended early."""

    def change(run: BuiltRun):
        abort(run, "target", "2")
        t_exit = run.steps[1].t_window_ns + S
        run.ends = [make_end(t_exit + MS, reason="target_gone", how="pidfd", exit_seen_t_mono_ns=t_exit)]

    result = judged(tmp_path, change)
    assert ("FAIL", 1, "ABORTED") == told(result)
    assert ("s02-c2-stream-k1", False) == (result["survival"]["died_in_step"], result["survival"]["same_process"])
    assert any("pid 4242) was gone" in line for line in result["why"])


def test_a_target_that_stopped_answering_fails_without_a_pid_too(tmp_path):
    """The runner saw it go."""
    assert ("FAIL", 1, "ABORTED") == told(judged(tmp_path, lambda run: abort(run, "target", "2"), pid=None))


def test_a_guard_at_a_needed_level_fails(tmp_path):
    """An error burst, memory or descriptors at the limit."""
    assert ("FAIL", 1, "ABORTED") == told(judged(tmp_path, lambda run: abort(run, "guard", "2")))


def test_exploring_that_a_guard_ended_leaves_the_verdict(tmp_path):
    """Level 8 was not run: it was never needed."""

    def change(run: BuiltRun):
        fail_some(run.steps[1], 80)
        run.steps = run.steps[:2]
        run.marks = [mark for mark in run.marks if mark.step is None or not mark.step.startswith("s03")]

    result = judged(tmp_path, change, levels="1,4,8", sustain="1", n=300)
    assert ("PASS", 0, "COMPLETE") == told(result)
    assert (1, False) == (result["sustain"], result["sustain_default"])
    assert (1, True) == (result["capacity"]["level"], result["capacity"]["bracketed"])
    assert {"pass", "unknown"} == {f["status"] for f in result["findings"] if f["gate"] == "answered"}


def test_a_killed_run_is_reported_and_never_passes(tmp_path):
    """No finish mark, a torn line, a step without its counts."""
    out = write_run(tmp_path / "out", lambda run: run.marks.__delitem__(slice(9, None)))
    (out / "locust" / "s02-c2-stream-k1.json").unlink()
    path = out / "requests" / "s02-c2-stream-k1.w01.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    result = judge(out)

    assert ("INCONCLUSIVE", 4, "ABORTED") == told(result)
    assert result["status_reason"] == "killed: the run has no finish mark"
    assert [f"requests/{path.name}: its last line was torn and is not counted"] == result["problems"]
    assert [True, False] == [step["valid"] for step in result["steps"]]
    assert [160, 159] == [row["offered"] for row in result["levels"]]


def test_a_killed_run_that_had_already_failed_is_exit_1(tmp_path):
    """A required gate had failed."""

    def change(run: BuiltRun):
        fail_some(run.steps[0], 60)
        run.marks.pop()

    assert ("FAIL", 1, "ABORTED") == told(judged(tmp_path, change))


@pytest.mark.parametrize(
    "name", ["requests/s01-c1-stream-k1.w01.jsonl", "samples.jsonl", "marks.jsonl", "locust/s01-c1-stream-k1.json"]
)
def test_damaged_evidence_is_invalid_and_exit_5(tmp_path, name):
    """Judged not at all, and still a result that can be shown."""
    out = write_run(tmp_path / "out")
    content = (out / name).read_bytes()
    (out / name).write_bytes(b"{broken}\n" + content)
    result = judge(out)

    assert ("INCONCLUSIVE", 5, "INVALID") == told(result)
    assert KEYS == set(result)
    assert name in result["status_reason"]
    assert [] == result["findings"] == result["levels"]


def test_a_report_of_another_shape_is_invalid(tmp_path):
    """Valid JSON, but not what a Locust process writes."""
    out = write_run(tmp_path / "out")
    (out / "locust" / "s01-c1-stream-k1.json").write_bytes(b'{"step":"s01-c1-stream-k1","processes":"none"}')

    assert "INVALID" == judge(out)["run_status"]


@pytest.mark.parametrize("plan", [{}, {"target": "x", "levels": ["a"]}, {"levels": ["1"]}])
def test_a_run_file_without_a_readable_plan_is_refused(tmp_path, plan):
    """Then it is not known what was run."""
    out = write_run(tmp_path / "out", lambda run: run.run.update(plan=plan))

    with pytest.raises(EvidenceError, match=r"run\.json: its plan cannot be read"):
        judge(out)


def test_strict_turns_a_warning_into_exit_1(tmp_path):
    """Without it a warning is 0."""
    assert ("WARN", 0, "COMPLETE") == told(judged(tmp_path / "a", slos=()))
    assert ("WARN", 1, "COMPLETE") == told(judged(tmp_path / "b", slos=(), strict=True))


def test_without_a_latency_target_one_is_proposed(tmp_path):
    """From the run's own p95."""
    result = judged(tmp_path, slos=())

    assert "--slo 'stream.ttft_ms.p95<=130@2'" == result["knee"]["proposed_slo"]
    assert "no latency target was given: capacity is not judged" == result["why"][0]
    assert result["capacity"]["text"].startswith("not judged")


def test_without_a_pid_the_run_is_client_side_only(tmp_path):
    """At most a warning, and process evidence is named as not tested."""
    result = judged(tmp_path, pid=None)

    assert ("WARN", 0) == told(result)[:2]
    assert None is result["sampler"] is result["target"]["gateway"]
    assert "process evidence (no --gateway-pid)" in result["not_tested"]
    assert any("client side only" in line for line in result["why"])


def test_without_health_paths_they_are_not_tested(tmp_path):
    """A gateway need not have them."""
    result = judged(tmp_path, lambda run: run.run["paths"].update(health=None, ready=None))

    assert ("PASS", None) == (result["verdict"], result["health"])
    assert "liveness (no path)" in result["not_tested"]


def test_a_saturated_generator_is_inconclusive_not_a_failure_of_the_target(tmp_path):
    """Even if everything failed in that step."""

    def change(run: BuiltRun):
        step = run.steps[0]
        step.generator = [make_generator(step.t_open_ns + i * S, cpu_share=1.0) for i in range(1, 17)]
        fail_some(step, 160)

    result = judged(tmp_path, change)
    assert ("INCONCLUSIVE", 3) == told(result)[:2]
    assert {"skipped"} == {
        f["status"] for f in result["findings"] if f["level"] == 2 and f["gate"] in ("answered", "slo stream.ttft_ms")
    }


def test_cycles_are_pooled_and_leak_says_what_it_was(tmp_path):
    """Three cycles, one floor each; the built-in policy shows them and does not gate."""
    result = judged(tmp_path, levels="1", cycles=3, n=120)

    assert "PASS" == result["verdict"]
    assert (1, 360) == (len(result["levels"]), result["levels"][0]["offered"])
    assert [1, 2, 3] == [floor["cycle"] for floor in result["floors"]]
    assert "leak: not tested (3 cycles, floors shown but not judged)" == result["leak"]


def test_both_modes_have_their_own_rows(tmp_path):
    """The first token exists in one of them."""
    result = judged(tmp_path, mode="both")

    assert [("1", "stream"), ("1", "nonstream"), ("2", "stream"), ("2", "nonstream")] == [
        (row["level"], row["mode"]) for row in result["levels"]
    ]
    assert [True, False] == ["ttft_ms" in row for row in result["levels"][:2]]


def test_preflight_requests_are_in_no_level(tmp_path):
    """They are listed if they went wrong."""
    out = write_run(tmp_path / "out")
    record = make_record(step="preflight", outcome="http_4xx", status=404)
    (out / outdir.requests_file("preflight", "w01")).write_bytes(msgspec.json.encode(record) + b"\n")
    result = judge(out)

    assert "PASS" == result["verdict"]
    assert [["preflight"]] == [row["levels"] for row in result["errors"]]


def test_judging_loads_neither_the_running_half_nor_scipy():
    """Pure functions of OUT_DIR; a fresh process shows what is imported."""
    code = (
        "import sys, sweep.judge\n"
        "bad = {'scipy', 'gevent', 'locust', 'httptools', 'matplotlib', 'jinja2', 'sweep.runner', 'sweep.cli',"
        " 'sweep.llm_user', 'sweep.probe'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip

    assert "[]" == shown.stdout.strip()
