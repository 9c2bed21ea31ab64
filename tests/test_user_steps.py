"""Steps of an own locustfile, judged: rows by the mode that was sent, gates and SLOs of modes that never were."""

from __future__ import annotations

import pytest
from build import BuiltRun, S, make_generator, make_record, write_run

from sweep.estimate import Measured, estimate
from sweep.judge import judge
from sweep.plan import SweepPlan, parse_levels
from sweep.plan_json import as_json, from_json
from sweep.plan_steps import n_by_mode, steps
from sweep.slo import parse_slo

OWN = {"mode": "user", "locustfile": "mine/own.py", "user_classes": ("Reader", "Talker")}


def made_of(*streams: bool, n: int = 320):
    """A change: each step's requests are of these modes in turn."""

    def change(run: BuiltRun) -> None:
        for step in run.steps:
            step.records = [
                make_record(request_id=old.request_id, step=old.step, user=old.user, t_start_ns=old.t_start_ns,
                            stream=streams[i % len(streams)])
                for i, old in enumerate(step.make(n))
            ]  # fmt: skip

    return change


def judged(tmp_path, *streams: bool, n: int = 320, **made):
    return judge(write_run(tmp_path, made_of(*streams, n=n), n=n, **({"levels": "1,2"} | OWN | made)))


def findings(result, gate):
    return [each for each in result["findings"] if each["gate"] == gate]


def test_a_level_has_a_row_for_each_mode_sent(tmp_path):
    """Counts and rates are of the row's mode; the step is one."""
    result = judged(tmp_path, True, True, True, False)

    rows = [(row["level"], row["mode"], row["ok"], row["shares_step"]) for row in result["levels"]]
    assert [("1", "stream", 240, True), ("1", "nonstream", 80, True), ("2", "stream", 240, True),
            ("2", "nonstream", 80, True)] == rows  # fmt: skip
    assert ["user", "user"] == [step["mode"] for step in result["steps"]]
    assert "ttft_ms" in result["levels"][0] and "ttft_ms" not in result["levels"][1]
    assert 3 == pytest.approx(
        result["levels"][0]["request_rate_per_s"]["v"] / result["levels"][1]["request_rate_per_s"]["v"], rel=0.05
    )
    assert "PASS" == result["verdict"], result["why"]
    assert result["sentence"].startswith(
        "READY for 2 users of openai-chat with model m by Reader and Talker of own.py on one node"
    )


def test_in_flight_is_below_the_level_where_users_pause(tmp_path):
    """Requests of 0.5 s, one a second, are half a request in flight."""

    def change(run: BuiltRun) -> None:
        step = run.steps[0]
        step.records = [
            make_record(request_id=f"r{t}", step=step.id, t_start_ns=t, t_over_ns=t + S // 2, t_end_ns=t + S // 2)
            for t in range(step.t_window_ns, step.t_close_ns, S)
        ]  # fmt: skip

    (row,) = judge(write_run(tmp_path, change, **({"levels": "1", "pid": None} | OWN)))["levels"]

    assert 0.5 == pytest.approx(row["in_flight"]["v"])


def test_a_mode_that_was_never_sent_is_not_tested(tmp_path):
    """Without a stream no gate waits for one, and the verdict names what was left out."""
    result = judged(tmp_path, False, slos=["nonstream.e2e_ms.p95<=5000"])

    assert ["nonstream", "nonstream"] == [row["mode"] for row in result["levels"]]
    assert not any(row["shares_step"] for row in result["levels"])
    assert ["skipped"] == [each["status"] for each in findings(result, "stream integrity")]
    assert {"streaming", "stream integrity"} <= set(result["not_tested"])
    assert "non-streaming" not in result["not_tested"]
    assert "PASS" == result["verdict"], result["why"]


def test_an_slo_of_a_mode_never_sent_is_unknown(tmp_path):
    """What was asked for and not seen decides: INCONCLUSIVE, with the reason."""
    result = judged(tmp_path, False, slos=["stream.ttft_ms.p95<=500"])

    found = {each["level"]: each for each in findings(result, "slo stream.ttft_ms.p95<=500")}
    assert ("unknown", True) == (found[2]["status"], found[2]["required"])
    assert "no stream request was sent at this level" == found[2]["reason"]
    assert not found[1]["required"]
    assert "INCONCLUSIVE" == result["verdict"]


def test_a_step_that_failed_by_its_own_code_is_invalid(tmp_path):
    """Both rows are unknown for the reason the step gave, and the command names file and classes again."""
    why = "Reader raised KeyError('x') in own.py, line 9"

    def change(run: BuiltRun) -> None:
        made_of(True, False)(run)
        run.steps[1].report |= {"counts_agree": False, "why": why}

    result = judge(write_run(tmp_path, change, **({"levels": "1,2", "n": 320} | OWN)))

    assert [True, True, False, False] == [row["valid"] for row in result["levels"]]
    assert why in result["levels"][2]["invalid_why"]
    assert any(why in line for line in result["why"])
    assert result["next"].endswith("--locustfile mine/own.py Reader Talker")
    assert "--mode " not in result["next"]


def test_a_step_without_a_request_is_no_good_answer(tmp_path):
    """Nothing sent: neither mode has a row of numbers, and nothing passes."""

    def change(run: BuiltRun) -> None:
        run.steps[0].records = []
        run.steps[0].generator = [make_generator(run.steps[0].t_open_ns + i * S) for i in range(1, 17)]

    result = judge(write_run(tmp_path, change, **({"levels": "1"} | OWN)))

    (row,) = result["levels"]
    assert ("user", 0) == (row["mode"], row["ok"])
    assert ["unknown"] == [each["status"] for each in findings(result, "answered")]
    assert "INCONCLUSIVE" == result["verdict"]


def plan_of(levels: str, *slos: str, **changes) -> SweepPlan:
    values = {"target": "http://127.0.0.1:9", "levels": parse_levels(levels), "slos": tuple(map(parse_slo, slos))}
    return SweepPlan(**(values | OWN | changes))


def test_each_mode_gets_the_requests_its_gates_need():
    """59 for a p95 of streams, 100 streams for their integrity, 299 over both levels for errors."""
    plan = plan_of("2,4", "stream.ttft_ms.p95<=500", "nonstream.e2e_ms.p99<=9000")
    low, high = steps(plan)

    assert ["s01-c2-user-k1", "s02-c4-user-k1"] == [low.id, high.id]
    assert {"stream": 50, "nonstream": 1} == n_by_mode(plan, low.level)
    assert {"stream": 59, "nonstream": 299} == high.n_by_mode
    assert (150, 299) == (low.n_wanted, high.n_wanted)


def test_a_plan_of_own_classes_is_read_back():
    """run.json's plan gives the same steps again."""
    plan = plan_of("1,2", drain_s=1.0)

    assert plan == from_json(as_json(plan))


def test_what_own_classes_send_is_not_estimated():
    """The preflight's answers are told as what they are; nothing is called undecidable for want of a guess."""
    told = estimate(plan_of("1,2"), {"stream": Measured(0.5, 10, 8), "nonstream": Measured(0.7, 10, 8)})

    assert () == told.undecidable
    assert any("one stream request" in line and "0.5 s" in line for line in told.lines)
    assert any("Reader, Talker of mine/own.py" in line and "not estimated" in line for line in told.lines)
