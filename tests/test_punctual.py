"""Evidence of open-loop steps and of level 0 -> a verdict: what a generator that was late may not claim."""

import msgspec
import pytest
from build import MS, BuiltRun, S, make_record, write_run

from sweep.judge import judge

RATES = {"levels": "10/s,20/s", "slos": ("stream.ttft_ms.p95<=500", "stream.ttft_ms.p95<=500@10/s")}


def judged(tmp_path, change=None, **made):
    return judge(write_run(tmp_path / "out", change, **RATES | made))


def late(step, n, lag_ms):
    """n requests of a step start so late; they were due when they were due."""
    for i in range(n):
        old = step.records[10 * i]
        step.records[10 * i] = make_record(
            request_id=old.request_id, step=old.step, t_due_ns=old.t_due_ns, t_start_ns=old.t_due_ns + lag_ms * MS
        )


def fewer(step, n):
    """The schedule itself held n requests fewer; every count agrees."""
    del step.records[-n:]


def due_at(step, change_ms):
    """One arrival due so much later than it was; None: it does not say when."""
    old = step.records[0]
    due_ns = None if change_ms is None else old.t_due_ns + change_ms * MS
    step.records[0] = make_record(
        request_id=old.request_id, step=old.step, t_due_ns=due_ns, t_start_ns=old.t_due_ns + MS
    )


def unstarted(step, n):
    step.process["due"] = len(step.records) + n


def test_a_good_open_loop_run_is_ready_and_tells_both_instants(tmp_path):
    """Latencies count from when a request was due, and beside them from when it started."""
    result = judged(tmp_path)

    assert ("PASS", 0) == (result["verdict"], result["exit_code"])
    assert result["sentence"].startswith("READY for 20 arrivals a second (Poisson) of openai-chat with model m")
    assert ("20/s", "at least 20/s, not bracketed: no level above it failed") == (
        result["sustain"], result["capacity"]["text"]
    )  # fmt: skip
    row = result["levels"][1]
    assert ("20/s", "rate", 240, None) == (row["level"], row["kind"], row["offered"], row["generator"]["users_min"])
    seen = row["open_loop"]
    assert (240, 0, 1.0, 1.0) == (
        seen["due"], seen["unstarted"], seen["start_lag_ms"]["p50"]["v"], seen["start_lag_ms"]["p99"]["v"]
    )  # fmt: skip
    assert (101.0, 100.0) == (row["ttft_ms"]["p95"]["v"], seen["from_start"]["ttft_ms"]["p95"]["v"])
    assert (131.0, 130.0) == (row["e2e_ms"]["p50"]["v"], seen["from_start"]["e2e_ms"]["p50"]["v"])
    assert [0, 0] == [step["unstarted"] for step in result["steps"]]
    generator = [each for each in result["findings"] if each["gate"] == "generator"]
    assert "requests started 1.0 ms after they were due at p99" in generator[0]["reason"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda run: late(run.step("20/s"), 2, 900), None),  # 2 of 240: the 238th in order is in time
        (lambda run: late(run.step("20/s"), 3, 50), None),  # exactly at the limit
        (
            lambda run: late(run.step("20/s"), 3, 51),
            "generator late: requests started 51 ms after they were due at p99, limit 50 ms",
        ),
        (lambda run: unstarted(run.step("20/s"), 12), None),
        (lambda run: unstarted(run.step("20/s"), 13), "generator late: 240 of 253 due requests were started"),
        (lambda run: run.step("20/s").process.update(due=None), "w01: how many requests were due is unknown"),
        (lambda run: fewer(run.step("20/s"), 60), None),  # a draw may have so few
        (lambda run: fewer(run.step("20/s"), 80), "generator late: 160 requests were due in 12 s at 20/s"),
        (lambda run: run.step("20/s").report.update(users_min=0), "0 of 1 users alive during the window"),
    ],
)
def test_a_step_whose_generator_did_not_keep_its_schedule_is_invalid(tmp_path, change, why):
    """Its gates are unknown, so that a level the generator could not deliver is never PASS."""
    result = judged(tmp_path, change)

    assert (why, why is None) == (result["steps"][1]["invalid_why"], result["steps"][1]["valid"])
    assert ("PASS" if why is None else "INCONCLUSIVE") == result["verdict"]
    seen = result["levels"][1]["open_loop"]
    assert seen["due"] >= 160 and seen["start_lag_ms"]["p99"]["v"] is not None
    assert (why is None) == (seen["from_start"]["e2e_ms"]["p95"]["v"] is not None)
    if why is not None:
        assert "give the load generator a free core" in result["next_text"]
        assert {"unknown"} == {
            each["status"] for each in result["findings"] if each["gate"] == "generator" and each["level"] == "20/s"
        }


def test_constant_arrivals_have_no_draw_to_excuse_missing_ones(tmp_path):
    """15 of 240 are 6 %: more than rounding, though a draw might have them."""
    by_draw = judged(tmp_path / "poisson", lambda run: fewer(run.step("20/s"), 15))
    even = judged(tmp_path / "constant", lambda run: fewer(run.step("20/s"), 15), arrivals="constant")

    assert (True, False) == (by_draw["steps"][1]["valid"], even["steps"][1]["valid"])


def test_unstarted_requests_are_counted_beside_the_due_ones(tmp_path):
    """Too few to spoil the step, and still not silent."""
    result = judged(tmp_path, lambda run: unstarted(run.step("20/s"), 5))

    assert (245, 5) == tuple(result["levels"][1]["open_loop"][key] for key in ("due", "unstarted"))
    assert 5 == result["steps"][1]["unstarted"]


def test_a_slow_target_fails_by_the_time_since_due(tmp_path):
    """From start each answer is in time; the queue in front of it is the target's doing, and counts."""

    def queue(run: BuiltRun) -> None:
        step = run.step("20/s")
        for i, old in enumerate(step.records):
            start = old.t_due_ns + 40 * MS
            step.records[i] = make_record(
                request_id=old.request_id, step=old.step, t_due_ns=old.t_due_ns, t_start_ns=start
            )

    result = judged(tmp_path, queue, slos=("stream.ttft_ms.p95<=120",))

    assert ("FAIL", 140.0, 100.0) == (
        result["verdict"],
        result["levels"][1]["ttft_ms"]["p95"]["v"],
        result["levels"][1]["open_loop"]["from_start"]["ttft_ms"]["p95"]["v"],
    )
    assert "levels 10/s,12.5/s,15/s,17.5/s,20/s" in result["next_text"]
    assert "--levels 10/s,12.5/s,15/s,17.5/s,20/s" in result["next"]


def test_levels_of_the_other_kind_explore(tmp_path):
    """The sustained level is a rate: what fails among requests in flight never fails the verdict."""
    result = judged(tmp_path, levels="2,20/s", slos=("stream.ttft_ms.p95<=500",))

    assert [True, False] == [row["exploring"] for row in result["levels"]]
    assert ("2", "20/s") == tuple(row["level"] for row in result["levels"])


def test_level_0_beside_others_is_judged_for_what_it_can_show(tmp_path):
    """No gate fails for want of requests; the process is in the table; nothing is said of answers."""
    result = judged(tmp_path, levels="0,1,2", slos=("stream.ttft_ms.p95<=500@2",))

    assert "PASS" == result["verdict"], result["why"]
    row, step = result["levels"][0], result["steps"][0]
    assert ("0", "observe", True, 0) == (row["level"], row["mode"], row["valid"], row["offered"])
    assert row["cpu_cores"]["v"] is not None
    assert (None, "level 0 asks nothing") == tuple(row["request_rate_per_s"][key] for key in ("v", "why"))
    assert (0, 0, True) == (step["started"], step["lines"], step["valid"])
    assert not [each for each in result["findings"] if each["level"] == 0 and each["status"] not in ("pass", "skipped")]
    assert ["stream"] == [row["mode"] for row in result["levels"][1:2]]


def test_level_0_alone_says_that_nothing_was_asked(tmp_path):
    """An observation is no judgement: at most a warning, and its sentence says so."""
    result = judged(tmp_path, levels="0", slos=())

    assert ("WARN", 0) == (result["verdict"], result["exit_code"])
    assert result["sentence"].startswith("READY WITH WARNINGS for no load at all: level 0 observes and asks nothing")
    assert "nothing asked" in {each["gate"] for each in result["findings"] if each["status"] == "warn"}
    assert {"streaming", "non-streaming"} <= set(result["not_tested"])
    assert "level with load" in result["next_text"]


def test_requests_in_a_step_that_only_observes_make_it_invalid(tmp_path):
    """Somebody of ours sent them, or the files are of another run."""

    def send(run: BuiltRun) -> None:
        step = run.steps[0]
        step.records = [make_record(step=step.id, t_start_ns=step.t_window_ns + S)]

    result = judged(tmp_path, send, levels="0,1", slos=())

    assert "it only observes, and has records of requests" == result["steps"][0]["invalid_why"]
    assert msgspec.json.encode(result)


@pytest.mark.parametrize(("change_ms", "is_valid"), [(1, True), (2, False), (None, False)])
def test_an_arrival_that_was_due_after_its_start_or_never_spoils_its_step(tmp_path, change_ms, is_valid):
    """Its latency would leave out what it waited for; one that started at its due instant is sound."""
    result = judged(tmp_path, lambda run: due_at(run.step("20/s"), change_ms))

    why = None if is_valid else "1 arrivals have no due instant at or before their start"
    assert (why, "PASS" if is_valid else "INCONCLUSIVE") == (result["steps"][1]["invalid_why"], result["verdict"])
