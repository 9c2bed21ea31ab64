"""Built evidence of two targets in turns: what is compared, what is not, and what the first one is judged by."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from build import MS, PID, T0, BuiltRun, S, make_end, make_mark, make_process, make_record, make_sample, make_start

from sweep import beside_view, first_screen, outdir
from sweep.evidence import read
from sweep.judge import judge
from sweep.report import render

N = 80  # requests a block: enough of them for a verdict
UPSTREAM = {"direct": "http://127.0.0.1:8"}


def make_run(beside=UPSTREAM, pid=None):
    return BuiltRun(levels="1", n=N, beside=beside, pid=pid)


def timed(step, ttft_ms, *, noise_ms=0.0, seed=0, n_out=4, **changes):
    """The step's answers with this time to the first token, and 30 ms more to the end."""
    delays = ttft_ms + np.random.default_rng(seed).normal(0, noise_ms, len(step.records))
    step.records = [
        make_record(
            request_id=old.request_id, step=old.step, user=old.user, t_start_ns=(start := old.t_start_ns),
            t_first_ns=(first := start + int(delay * MS)), t_answer_ns=first, t_event_ns=first,
            t_last_ns=first + 30 * MS, t_end_ns=first + 30 * MS, t_over_ns=first + 30 * MS, n_out=n_out, **changes,
        )
        for old, delay in zip(step.records, delays, strict=True)
    ]  # fmt: skip


def judged(run, tmp_path):
    return judge(run.write(tmp_path / "run"))


def measures(target, mode="stream"):
    (pairs,) = [each for each in target["pairs"] if each["mode"] == mode]
    return {row["measure"]: row for row in pairs["measures"]}


def of(run, target):
    return [step for step in run.steps if step.target == target]


def test_the_overhead_is_the_paired_difference(tmp_path):
    """3 ms more in each pair while both drift by 20 ms a block: the difference is sharp, the blocks are not."""
    run = make_run()
    for step in run.steps:
        timed(step, 100 + 20 * step.block + (3 if step.target is None else 0), noise_ms=0.5, seed=run.steps.index(step))
    (target,) = judged(run, tmp_path)["beside"]
    row = measures(target)["ttft_ms"]

    assert 2.4 < row["difference"]["lo"] <= 3 <= row["difference"]["hi"] < 3.6
    assert (4, "higher") == (row["difference"]["n"], row["shown"])
    assert pytest.approx(1.02, abs=0.005) == row["ratio"]["v"]
    assert "no difference shown" == measures(target)["tpot_ms"]["shown"]
    assert target["text"].startswith("direct: gateway overhead TTFT +3.")


def test_a_target_against_itself_shows_no_difference(tmp_path):
    """The control: the same times, noise and all, and an interval that holds 1 and 0."""
    run = make_run(beside={"same": "http://127.0.0.1:9"})
    for number, step in enumerate(run.steps):
        timed(step, 100, noise_ms=10, seed=number)
    (target,) = judged(run, tmp_path)["beside"]

    for name in ("ttft_ms", "e2e_ms", "request_rate_per_s"):
        row = measures(target)[name]
        assert "no difference shown" == row["shown"], row
        assert row["ratio"]["lo"] <= 1 <= row["ratio"]["hi"] and row["difference"]["lo"] <= 0 <= row["difference"]["hi"]
    assert target["text"].startswith("against same: TTFT ×")


def test_what_a_target_beside_does_never_fails_the_first_one(tmp_path):
    """All its requests fail, its process is gone: the verdict, findings and level table are as without it."""
    good, bad = make_run(pid=PID), make_run(pid=PID)
    for step in of(bad, "direct"):
        step.records = [
            make_record(request_id=each.request_id, step=each.step, user=each.user, t_start_ns=each.t_start_ns,
                        outcome="connect", t_sent_ns=None)
            for each in step.records
        ]  # fmt: skip
    bad.marks.insert(-1, make_mark("idle", of(bad, "direct")[-1].t_idle_ns, of(bad, "direct")[-1].id, guard="errors"))
    without, with_it = judge(good.write(tmp_path / "good")), judge(bad.write(tmp_path / "bad"))

    assert without["verdict"] == with_it["verdict"] == "PASS", with_it["why"]
    for key in ("findings", "levels", "errors", "capacity", "sentence", "steps", "floors"):
        assert without[key] == with_it[key], key
    (target,) = with_it["beside"]
    assert {"connect": 4 * N} == target["levels"][0]["outcomes"] and 0 == target["levels"][0]["ok"]
    assert ["errors"] == target["guards"]
    row = measures(target)["ttft_ms"]
    assert row["ratio"]["v"] is None and "half of the requests failed" in row["ratio"]["why"]


def test_the_judged_rows_are_of_its_own_blocks(tmp_path):
    """Pooled over them; the other target's requests, steps and errors are in none of its tables."""
    run = make_run()
    result = judged(run, tmp_path)
    (row,) = result["levels"]

    assert (4 * N, [step.id for step in of(run, None)]) == (row["offered"], row["steps"])
    assert [step.id for step in of(run, None)] == [step["step"] for step in result["steps"]]
    assert (4 * N, [step.id for step in of(run, "direct")]) == (
        result["beside"][0]["levels"][0]["offered"], [step["step"] for step in result["beside"][0]["steps"]],
    )  # fmt: skip
    assert f"{4 * N} openai-chat requests" in result["left_behind"][0]
    assert f"{4 * N} openai-chat requests" in result["beside"][0]["left_behind"][0]


@pytest.mark.parametrize("whose", [None, "direct"])
def test_an_invalid_block_takes_its_partner_along(whose, tmp_path):
    """Named with the reason; three pairs are left and still compare."""
    run = make_run()
    of(run, whose)[1].report = {"why": "made up", "counts_agree": False}
    (target,) = judged(run, tmp_path)["beside"]
    (pairs,) = target["pairs"]

    (dropped,) = pairs["dropped"]
    assert (1, 2) == (dropped["cycle"], dropped["block"])
    assert "made up" in dropped["why"] and ("first" in dropped["why"]) == (whose is None)
    assert 3 == pairs["n_pairs"] == measures(target)["ttft_ms"]["ratio"]["n"]
    assert any("1 pairs of blocks do not count" in line for line in beside_view.sentences(target))


def test_too_few_pairs_are_unknown_with_the_number_needed(tmp_path):
    """Two of four are left."""
    run = make_run()
    for step in (of(run, None)[0], of(run, "direct")[3]):
        step.report = {"why": "made up", "counts_agree": False}
    (target,) = judged(run, tmp_path)["beside"]
    row = measures(target)["ttft_ms"]

    assert (None, "2 of 3 pairs of blocks that an interval needs") == (row["ratio"]["v"], row["ratio"]["why"])
    assert "not compared at level 1 (stream): 2 of 3 pairs" in target["text"]


@pytest.mark.parametrize(
    ("n_out", "source", "why"),
    [
        (8, "usage", "answers are of another length: median 4 output tokens against 8"),
        (4, "events", "output tokens are not counted alike: by usage against events"),
        (None, None, "how long the answers are is not known"),
    ],
)
def test_answers_of_another_length_compare_only_their_beginning(n_out, source, why, tmp_path):
    """TTFT does not depend on it; times of whole answers, rates and their cost do."""
    run = make_run()
    for step in of(run, "direct"):
        timed(step, 100, n_out=n_out, token_source=source)
    (target,) = judged(run, tmp_path)["beside"]
    rows = measures(target)

    assert (why, why) == (rows["e2e_ms"]["ratio"]["why"], rows["request_rate_per_s"]["ratio"]["why"])
    assert rows["ttft_ms"]["ratio"]["v"] is not None


def test_nearly_the_same_length_is_the_same(tmp_path):
    """Up to 5 %: medians of 100 and 104."""
    run = make_run()
    for step in run.steps:
        timed(step, 100, n_out=100 if step.target is None else 104)

    assert measures(judged(run, tmp_path)["beside"][0])["e2e_ms"]["ratio"]["v"] is not None


def add_process(run, name, ticks):
    """A second watched process that uses so many ticks a second, its samples in a file of its own."""
    run.run["subjects"].append({**run.run["subjects"][0], "name": name, "target": name, "pid": 99, "start_ticks": 5})
    samples = [
        make_sample(i, T0 + i * S, make_process(99, start_ticks=5, utime_ticks=ticks * i, rss_anon_kb=20_000),
                    subject=name)
        for i in range(len(run.samples))
    ]  # fmt: skip
    return [make_start(subject=name), *samples, make_end(run.t_finish_ns, subject=name)]


def test_processes_are_compared_by_their_own_samples(tmp_path):
    """CPU and memory of each from its own file; the first one's rows know nothing of the other."""
    run = make_run(pid=PID)
    lines = add_process(run, "direct", 10)
    alone = judge(make_run(pid=PID).write(tmp_path / "alone"))
    out_dir = run.write(tmp_path / "run")
    (out_dir / outdir.samples_file("direct")).write_bytes(b"".join(msgspec.json.encode(x) + b"\n" for x in lines))
    result = judge(out_dir)
    rows = measures(result["beside"][0])

    assert pytest.approx(2.0, abs=0.1) == rows["cpu_ms_per_request"]["ratio"]["v"]  # 20 ticks a second against 10
    assert pytest.approx(0.5) == rows["memory_anon_bytes"]["ratio"]["v"]
    assert "same gateway process (pid 99)" in result["beside"][0]["survival"]["text"]
    for key in ("levels", "survival", "sampler", "floors"):
        assert alone[key] == result[key], key
    (out_dir / outdir.samples_file("direct")).unlink()
    assert "samples.direct.jsonl is missing" in read(out_dir).problems


def test_only_the_other_process_was_watched(tmp_path):
    """The first target stays client side only; its gates do not speak of another's process."""
    run, watched = make_run(), make_run(pid=PID)
    run.samples = watched.samples
    run.run["subjects"] = watched.run["subjects"]
    lines = add_process(run, "direct", 10)
    run.run["subjects"], run.samples = run.run["subjects"][1:], []
    out_dir = run.write(tmp_path / "run")
    (out_dir / outdir.samples_file("direct")).write_bytes(b"".join(msgspec.json.encode(x) + b"\n" for x in lines))
    result = judge(out_dir)

    assert result["target"]["gateway"] is None and [] == result["problems"]
    assert ["skipped"] == [each["status"] for each in result["findings"] if each["gate"] == "same process"]
    assert 99 == result["beside"][0]["gateway"]["pid"]


def test_blocks_that_are_missing_in_the_plan_as_run_make_the_evidence_invalid(tmp_path):
    """A pair that was struck out would not be missed."""
    run = make_run()
    run.run["steps"] = run.run["steps"][:-2]
    result = judged(run, tmp_path)

    assert ("INVALID", 5) == (result["run_status"], result["exit_code"])
    assert "its steps are not those of its plan" in result["status_reason"]


def test_blocks_that_were_not_run_are_named(tmp_path):
    """A target that was given up: the rest of its blocks, and the pairs they would have made."""
    run = make_run(pid=PID)
    gone = [step.id for step in of(run, "direct")[2:]]
    run.steps = [step for step in run.steps if step.id not in gone]
    run.marks = [mark for mark in run.marks if mark.step not in gone]
    result = judged(run, tmp_path)
    (target,) = result["beside"]

    assert gone == target["not_run"] and "PASS" == result["verdict"]
    assert ["the block of this one was not run"] * 2 == [each["why"] for each in target["pairs"][0]["dropped"]]


def test_html_markdown_and_the_first_screen_show_it(tmp_path):
    """The same numbers as result.json, the interval in brackets; a run of one target has no such section."""
    run = make_run()
    for step in run.steps:
        timed(step, 103 if step.target is None else 100, noise_ms=0.5, seed=run.steps.index(step))
    result = judged(run, tmp_path)
    pages = render(result)
    shown = "\n".join(first_screen.lines(result))

    assert "direct: gateway overhead TTFT +3." in shown
    for name in (outdir.REPORT_HTML, outdir.SUMMARY_MD):
        assert "Side by side" in pages[name] and "Gateway overhead: first target against direct" in pages[name]
        assert "Levels of direct" in pages[name] and "4 pairs" in pages[name]
    value = measures(result["beside"][0])["ttft_ms"]["difference"]["v"]
    assert f'<data value="{value}">' in pages[outdir.REPORT_HTML]
    alone = judge(BuiltRun().write(tmp_path / "alone"))
    assert alone["beside"] is None and "Side by side" not in render(alone)[outdir.REPORT_HTML]
