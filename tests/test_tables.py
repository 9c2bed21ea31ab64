"""Evidence -> step, level, process and run tables."""

import math

import numpy as np
import pytest
from build import (
    MS,
    PID,
    SLO,
    BuiltRun,
    S,
    fail_some,
    make_end,
    make_generator,
    make_mark,
    make_process,
    make_record,
    make_sample,
    write_run,
)

from sweep import evidence
from sweep.judge import facts_of
from sweep.plot_process import tree_series
from sweep.process_table import RSS_SUM
from sweep.run_table import error_table, floors, holes, sampler_summary, visibility
from sweep.token_rate import MIXED
from sweep.windows import plan_of, sets, step_times


def read(tmp_path, change=None, **made):
    """(evidence, facts) of a built run."""
    ev = evidence.read(write_run(tmp_path, change, **made))
    return ev, facts_of(ev, plan_of(ev.run))


def row_of(tmp_path, change=None, **made):
    """The first level row of a built run."""
    made = {"levels": "1", "pid": None} | made
    return read(tmp_path, change, **made)[1].rows[0]


def use_of(tmp_path, change=None, **made):
    """What the process tree used in the window of the first row."""
    return row_of(tmp_path, change, pid=PID, **made).process


# -- sets --------------------------------------------------------------------------------------------------------------


def at(step, t_ns, **changes):
    return make_record(step=step.id, t_start_ns=t_ns, **changes)


def test_offered_is_what_started_in_the_half_open_window(tmp_path):
    """The instant of the window counts, that of the close does not."""

    def change(run: BuiltRun):
        step = run.steps[0]
        step.records = [
            at(step, t) for t in (step.t_window_ns - 1, step.t_window_ns, step.t_close_ns - 1, step.t_close_ns)
        ]

    assert 2 == row_of(tmp_path, change).offered


def test_a_request_is_completed_where_it_ended_and_offered_where_it_started(tmp_path):
    """One that started in the warm-up and ended in the window counts in the rate only."""

    def change(run: BuiltRun):
        step = run.steps[0]
        step.records = [at(step, step.t_window_ns - 50 * MS, phase="warmup"), at(step, step.t_close_ns - 50 * MS)]

    row = row_of(tmp_path, change)
    assert (1, 1) == (row.offered, row.request_rate.n)


def test_cut_requests_are_not_offered_and_counted_beside(tmp_path):
    """Ended by us, not by the target."""

    def change(run: BuiltRun):
        fail_some(run.steps[0], 3, "cut")

    row = row_of(tmp_path, change, n=100)
    assert (97, 3, 97) == (row.offered, row.cut, row.ok)
    assert pytest.approx(0.03) == row.cut_ratio
    assert 0.0 == row.ratio(row.failed).v


def test_left_and_refused_are_offered_but_no_errors(tmp_path):
    """error ratio = (offered - ok - rejected - left) / offered."""

    def change(run: BuiltRun):
        records = run.steps[0].records
        for i, outcome in enumerate(("left", "shed", "limited", "rejected_unclear", "timeout")):
            records[i] = make_record(step=records[i].step, t_start_ns=records[i].t_start_ns, outcome=outcome)

    row = row_of(tmp_path, change, n=100)
    assert (100, 95, 1) == (row.offered, row.ok, row.failed)
    assert (0.01, 0.01) == (row.ratio(row.failed).v, row.ratio(row.outcomes["shed"]).v)


def test_open_loop_counts_from_the_instant_it_was_due(tmp_path):
    """A late generator must not make the target look quick."""

    def change(run: BuiltRun):
        step = run.steps[0]
        step.records = [at(step, step.t_window_ns + S, t_due_ns=step.t_window_ns + S - 40 * MS)]

    assert 140.0 == row_of(tmp_path, change).latencies["ttft_ms"]["p50"].v


# -- latencies ---------------------------------------------------------------------------------------------------------


def test_latencies_of_a_good_stream(tmp_path):
    """Four tokens, 10 ms each, the first after 100 ms."""
    row = row_of(tmp_path, n=60)
    seen = {metric: row.latencies[metric]["p95"].v for metric in ("ttft_ms", "ttfa_ms", "tpot_ms", "gap_ms", "e2e_ms")}

    assert {"ttft_ms": 100.0, "ttfa_ms": 100.0, "tpot_ms": 10.0, "gap_ms": 10.0, "e2e_ms": 130.0} == seen


def test_nonstreaming_has_e2e_only(tmp_path):
    """No first token can be told in one body."""
    row = row_of(tmp_path, n=60, mode="nonstream", slos=["e2e_ms.p95<=500"])

    assert {"e2e_ms", "e2e_ms_ok"} == set(row.latencies)


def test_failures_are_infinite_and_successes_alone_are_shown_beside(tmp_path):
    """Six of sixty failed: the p95 of what was asked for is never."""
    row = row_of(tmp_path, lambda run: fail_some(run.steps[0], 6, "truncated"), n=60)

    assert (math.inf, 100.0) == (row.latencies["ttft_ms"]["p95"].v, row.latencies["ttft_ms_ok"]["p95"].v)
    assert (60, 54) == (row.latencies["ttft_ms"]["p95"].n, row.latencies["ttft_ms_ok"]["p95"].n)
    assert math.inf == row.latencies["gap_ms"]["p95"].v


@pytest.mark.parametrize("outcome", ["shed", "limited", "rejected_unclear", "left"])
def test_refused_and_left_requests_are_in_no_percentile(tmp_path, outcome):
    """They have gates of their own."""
    row = row_of(tmp_path, lambda run: fail_some(run.steps[0], 6, outcome), n=60)

    assert (100.0, 54) == (row.latencies["ttft_ms"]["p99"].v, row.latencies["ttft_ms"]["p99"].n)


def test_a_request_cut_before_its_step_ended_makes_the_step_invalid(tmp_path):
    """Nobody but the end of the step cuts: else what hangs would be in no ratio."""

    def change(run: BuiltRun):
        fail_some(run.steps[0], 3, "cut", t_over_ns=run.steps[0].t_close_ns - 1)

    _, facts = read(tmp_path, change)
    assert "3 requests are said to be cut by the end of the step" in facts.steps[0].invalid_why


def test_a_request_that_the_locustfile_gave_up_is_a_failed_one(tmp_path):
    row = row_of(tmp_path, lambda run: fail_some(run.steps[0], 3, "cancelled"), n=100)
    assert (100, 3, 0) == (row.offered, row.failed, row.cut)


def test_a_cut_request_counts_as_that_long_or_longer(tmp_path):
    """Its time to the first token is exact if one came."""

    def change(run: BuiltRun):
        step = run.steps[0]
        cut = {"outcome": "cut", "t_over_ns": step.t_close_ns}
        t = step.t_close_ns - 5 * S
        step.records = [at(step, t, **cut, t_first_ns=t + 300 * MS), at(step, t, **cut)]

    row = row_of(tmp_path, change)
    assert {"ge": 5000.0} == row.latencies["ttft_ms"]["p95"].as_json()["v"]
    assert 300.0 == row.latencies["ttft_ms"]["p50"].v
    assert {"ge": 5000.0} == row.latencies["e2e_ms"]["p50"].as_json()["v"]
    assert {"ge": 0.0} == row.latencies["tpot_ms"]["p50"].as_json()["v"]


def test_without_any_success_the_percentile_is_infinite_not_missing(tmp_path):
    """All failed: nothing was ever answered."""
    row = row_of(tmp_path, lambda run: fail_some(run.steps[0], 60), n=60)

    assert (math.inf, None) == (row.latencies["ttft_ms"]["p50"].v, row.latencies["ttft_ms_ok"]["p50"].v)
    assert row.latencies["ttft_ms_ok"]["p50"].why


def test_without_any_request_everything_is_unknown_with_a_reason(tmp_path):
    """Never 0."""
    row = row_of(tmp_path, n=0)

    values = [value for per in row.latencies.values() for value in per.values()] + [row.ratio(0), row.tokens.value]
    assert {None} == {value.v for value in values}
    assert all(value.why for value in values)


@pytest.mark.parametrize(("n_lacking", "why"), [(3, None), (4, "4 of 60 successful answers have no ttft_ms")])
def test_a_number_that_too_many_successes_lack_decides_nothing(tmp_path, n_lacking, why):
    """5 % of 60 is 3."""

    def change(run: BuiltRun):
        for i in range(n_lacking):
            old = run.steps[0].records[i]
            run.steps[0].records[i] = make_record(
                step=old.step, t_start_ns=old.t_start_ns, t_first_ns=None, gaps_us=[], flags=("not_streamed",)
            )

    assert why == row_of(tmp_path, change, n=60).missing.get("ttft_ms")


def test_an_answer_of_one_token_has_no_tpot_and_does_not_miss_it(tmp_path):
    """n < 2."""

    def change(run: BuiltRun):
        step = run.steps[0]
        step.records = step.make(60, n_out=1, n_events=1, gaps_us=[])

    row = row_of(tmp_path, change)
    assert (None, "no successful answer has a tpot_ms") == (
        row.latencies["tpot_ms"]["p50"].v, row.latencies["tpot_ms"]["p50"].why,
    )  # fmt: skip
    assert "tpot_ms" not in row.missing


def test_an_answer_that_came_in_one_read_misses_its_tpot(tmp_path):
    """Fewer than two reads carried tokens: buffered, not quick."""

    def change(run: BuiltRun):
        step = run.steps[0]
        step.records = step.make(60, gaps_us=[], read_tokens=[4], flags=("buffered",))

    row = row_of(tmp_path, change)
    assert "60 of 60 successful answers have no tpot_ms" == row.missing["tpot_ms"]
    assert {"buffered": 60} == row.flags


def test_tpot_is_per_token_by_the_servers_count(tmp_path):
    """Two tokens a read: 30 ms over seven tokens after the first, not over three reads."""
    row = row_of(tmp_path, lambda run: setattr(run.steps[0], "records", run.steps[0].make(5, n_out=8)))

    assert pytest.approx(30 / 7) == row.latencies["tpot_ms"]["p50"].v


# -- rates and goodput -------------------------------------------------------------------------------------------------


def test_tokens_count_where_they_arrived(tmp_path):
    """Of an answer begun before the window two of four reads are in it; of one at its end, one. Twice the events."""

    def change(run: BuiltRun):
        step = run.steps[0]
        early, late = step.t_window_ns - 115 * MS, step.t_close_ns - 105 * MS
        step.records = [at(step, early, n_out=8), at(step, late, n_out=8)]

    row = row_of(tmp_path, change)
    assert ("usage", pytest.approx((2 + 1) * 2 / 12)) == (row.tokens.source, row.tokens.value.v)


def test_tokens_of_failed_and_cut_answers_arrived_too(tmp_path):
    """Scaled as the ones the server counted."""

    def change(run: BuiltRun):
        step = run.steps[0]
        part = {"t_first_ns": step.t_window_ns + 2 * MS, "t_last_ns": step.t_window_ns + 5 * MS, "gaps_us": [3000],
                "n_events": 2, "t_over_ns": step.t_window_ns + S}  # fmt: skip
        step.records = [at(step, step.t_window_ns, n_out=8), at(step, step.t_window_ns, outcome="truncated", **part)]

    assert pytest.approx((8 + 2 * 2) / 12) == row_of(tmp_path, change).tokens.value.v


def test_reads_of_several_tokens_carry_them_all(tmp_path):
    """read_tokens 3 and 1, the second read after the close."""

    def change(run: BuiltRun):
        step = run.steps[0]
        t = step.t_close_ns - 105 * MS
        step.records = [at(step, t, gaps_us=[10_000], read_tokens=[3, 1], t_last_ns=t + 110 * MS)]

    assert pytest.approx(3 / 12) == row_of(tmp_path, change).tokens.value.v


def test_tokens_of_a_whole_body_arrive_at_its_end(tmp_path):
    """Non-streaming."""

    def change(run: BuiltRun):
        step = run.steps[0]
        step.records = [at(step, step.t_window_ns, stream=False), at(step, step.t_close_ns - 1, stream=False)]

    assert pytest.approx(4 / 12) == row_of(tmp_path, change, mode="nonstream", slos=[]).tokens.value.v


@pytest.mark.parametrize(
    ("changes", "source", "why"),
    [
        ({"token_source": "events"}, "mixed", MIXED),
        ({"token_source": None, "n_out": None}, "usage", "1 of 10 answers have no token count"),
    ],
)
def test_token_counts_are_never_mixed(tmp_path, changes, source, why):
    """Null, not a sum of two kinds."""

    def change(run: BuiltRun):
        step = run.steps[0]
        step.records[0] = at(step, step.t_window_ns, **changes)

    tokens = row_of(tmp_path, change, n=10).tokens
    assert (None, source, why) == (tokens.value.v, tokens.source, tokens.value.why)


def test_a_time_per_token_is_never_of_two_counts(tmp_path):
    """One answer of ten was counted by us: neither the percentile nor a goodput that rests on it is known."""

    def change(run: BuiltRun):
        step = run.steps[0]
        step.records[0] = at(step, step.t_window_ns, token_source="events")

    row = row_of(tmp_path, change, n=10, slos=["tpot_ms.p50<=50"])
    values = [*row.latencies["tpot_ms"].values(), *row.latencies["tpot_ms_ok"].values(), row.goodput]
    assert {(None, MIXED)} == {(value.v, value.why) for value in values}
    assert 130.0 == row.latencies["e2e_ms"]["p50"].v


def test_goodput_is_of_the_offered_and_needs_every_limit(tmp_path):
    """One failed, one slow, one refused, one cut: three of ten do not conform, the cut one is out of it."""

    def change(run: BuiltRun):
        step = run.steps[0]
        t = step.t_window_ns
        slow = {"t_first_ns": t + 600 * MS} | dict.fromkeys(("t_last_ns", "t_end_ns", "t_over_ns"), t + S)
        step.records = [at(step, t) for _ in range(7)] + [
            at(step, t, **slow),
            at(step, t, outcome="http_5xx"), at(step, t, outcome="shed"),
            at(step, t, outcome="cut", t_over_ns=step.t_close_ns),
        ]  # fmt: skip

    goodput = row_of(tmp_path, change).goodput
    assert (0.7, 10) == (goodput.v, goodput.n)


def test_goodput_needs_a_latency_limit(tmp_path):
    """Without one there is nothing to conform to."""
    assert row_of(tmp_path, slos=["error_ratio<=1%"]).goodput is None


# -- validity ----------------------------------------------------------------------------------------------------------


def drop_a_record(run):
    run.steps[0].process = {"started": len(run.steps[0].records)}
    run.steps[0].records.pop()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (drop_a_record, "20 requests started but 19 records in requests/"),
        (lambda run: run.steps[0].process.update(outcomes={"ok": 19, "reset": 1}), "outcomes are not those"),
        (lambda run: run.steps[0].process.update(sent=19), "19 requests sent but 20 records say so"),
        (lambda run: run.steps[0].process.update(locust_requests=19), "20 finished records but Locust counted 19"),
        (lambda run: run.steps[0].process.update(locust_failures=1), "0 failed records but Locust counted 1"),
        (lambda run: run.steps[0].process.update(ended=False), "worker lost"),
        (lambda run: run.steps[0].process.update(worker="w02"), "20 requests started but 0 records"),
        (lambda run: run.steps[0].report.update(processes=[]), "no load process told its counts"),
        (lambda run: run.steps[0].report.update(counts_agree=False, why="lost 3"), "lost 3"),
        (lambda run: setattr(run.steps[0], "has_report", False), "the step was killed"),
        (lambda run: run.steps[0].report.update(t_window_ns=None, t_close_ns=None), "its window never opened"),
        (lambda run: run.steps[0].report.update(users_min=0), "0 of 1 users alive"),
        (lambda run: run.steps[0].report.update(users_min=None), "how many users were alive is unknown"),
        (lambda run: run.steps[0].generator.clear(), "no generator/ line of the window"),
        (lambda run: run.steps[0].generator.__delitem__(slice(5, None)), "no generator/ line for"),
    ],
)
def test_an_invalid_step_says_why_and_its_numbers_are_unknown(tmp_path, change, why):
    """Its numbers are not about the target."""
    _, facts = read(tmp_path, change, n=20)
    step, row = facts.steps[0], facts.rows[0]

    assert not step.valid
    assert why in step.invalid_why
    assert not row.valid
    assert {None} == {value.v for per in row.latencies.values() for value in per.values()}
    assert None is row.ratio(0).v is row.request_rate.v is row.process.cpu_cores.v


def test_records_of_a_worker_that_told_nothing_make_the_step_invalid(tmp_path):
    """A file without a count."""
    out = write_run(tmp_path, n=5)
    mine = out / "requests" / "s01-c1-stream-k1.w01.jsonl"
    (out / "requests" / "s01-c1-stream-k1.w02.jsonl").write_bytes(mine.read_bytes())
    ev = evidence.read(out)

    assert "records of w02, which told no counts" == facts_of(ev, plan_of(ev.run)).steps[0].counts_why


def late(run, seconds, **changes):
    """Changes the generator lines of these seconds of the window."""
    step = run.steps[0]
    for i in seconds:
        step.generator[i + 2] = make_generator(step.t_open_ns + (i + 3) * S, **changes)


@pytest.mark.parametrize(
    ("seconds", "changes", "why"),
    [
        ([], {}, None),
        ([3], {"lag_p99_ms": 300.0}, None),
        ([3, 4], {"cpu_share": 1.0}, None),
        ([3, 4, 5], {"cpu_share": 0.9}, "generator saturated: CPU share 0.90 of a core, limit 0.7; 3 s of 12 s"),
        ([3, 4, 5], {"lag_p99_ms": 50.0}, "generator late: timer p99 50.0 ms, limit 20 ms; 3 s of 12 s"),
        ([3, 4, 5], {"cpu_share": 0.7, "lag_p99_ms": 20.0}, None),
        ([1, 3, 5, 7], {"lag_p99_ms": 21.0}, "generator late: timer p99 21.0 ms, limit 20 ms; 4 s of 12 s"),
        ([1, 4, 7], {"lag_p99_ms": 21.0}, None),
        ([3, 4, 5], {"lag_p99_ms": None}, "lag_p99_ms unknown"),
    ],
)
def test_a_late_second_is_forgiven_three_in_a_row_or_a_tenth_are_not(tmp_path, seconds, changes, why):
    """At the limit is within it; windows of 12 s."""
    _, facts = read(tmp_path, lambda run: late(run, seconds, **changes), n=20)
    seen = facts.steps[0].generator_why

    assert seen is None if why is None else why in seen


def test_a_process_that_stood_still_is_late_for_all_that_time(tmp_path):
    """Stopped for five seconds it writes one line afterwards: that line speaks for them all."""

    def change(run: BuiltRun):
        late(run, [7], lag_p99_ms=5000.0)
        del run.steps[0].generator[5:9]

    assert "5 s of 12 s" in read(tmp_path, change, n=20)[1].steps[0].generator_why


def test_levels_are_pooled_over_their_valid_steps(tmp_path):
    """Three cycles, one of them invalid: two thirds of the requests, its step named all the same."""

    def change(run: BuiltRun):
        fail_some(run.steps[0], 2)
        run.steps[1].process = {"ended": False}

    row = row_of(tmp_path, change, n=100, cycles=3)
    assert (200, 2, 24.0, True) == (row.offered, row.failed, row.window_s, row.valid)
    assert 3 == len(row.as_json()["steps"])
    assert (100.0, 200) == (row.latencies["ttft_ms_ok"]["p95"].v, row.latencies["ttft_ms"]["p95"].n)


def test_a_killed_step_is_counted_by_the_phase_of_its_records(tmp_path):
    """No report, no marks of its window: still readable, and invalid."""

    def change(run: BuiltRun):
        run.steps[0].has_report = False
        run.marks = run.marks[:3]
        run.steps[0].records.insert(0, at(run.steps[0], run.steps[0].t_open_ns, phase="warmup"))

    _, facts = read(tmp_path, change, n=20)
    assert (20, False) == (facts.rows[0].offered, facts.rows[0].valid)


# -- process -----------------------------------------------------------------------------------------------------------


def test_cpu_is_ticks_between_the_first_and_last_sample_of_the_window(tmp_path):
    """0.2 cores; 12 s are 2.4 s of CPU over 24 requests."""
    use = use_of(tmp_path, n=24)

    assert (pytest.approx(0.2), 13) == (use.cpu_cores.v, use.cpu_cores.n)
    assert pytest.approx(2400 / use.cpu_ms_per_request.n) == use.cpu_ms_per_request.v
    assert 24 == use.cpu_ms_per_request.n
    assert ({"pid": PID, "comm": "gateway", "cores": pytest.approx(0.2)},) == use.by_process
    assert pytest.approx(5.0) == use.ctx_switches_per_s.v


def test_a_recycled_worker_is_counted_with_its_successor(tmp_path):
    """One goes with 300 ticks used in the window, another is born and uses 400; a third was there and used 10."""

    def change(run: BuiltRun):
        w = run.steps[0].t_window_ns
        for sample in run.samples:
            s = (sample["t_mono_ns"] - w) / S
            old = make_process(50, start_ticks=1, comm="old", utime_ticks=int(1000 + 50 * s))
            new = make_process(50, start_ticks=900, comm="new", utime_ticks=int(80 * (s - 7)))
            idle = make_process(51, comm="idle", stime_ticks=5000 + int(min(max(s, 0), 12) * 10 / 12))
            sample["tree"] = [idle] + ([old] if s <= 6 else [new] if s >= 7 else [])

    use = use_of(tmp_path, change)
    assert pytest.approx((240 + 300 + 400 + 10) / 100 / 12) == use.cpu_cores.v
    assert ["new", "old", "gateway", "idle"] == [each["comm"] for each in use.by_process]


def test_children_that_ended_between_samples_are_counted_by_their_parents_ticks(tmp_path):
    """A process a request, never sampled: what the root waited for is theirs, and the row says so."""

    def change(run: BuiltRun):
        for sample in run.samples:
            sample["root"] |= {"cutime_ticks": 100 * sample["seq"], "cstime_ticks": 0}

    use = use_of(tmp_path, change)
    assert pytest.approx(0.2 + 1.0) == use.cpu_cores.v
    assert ["(ended children)", "gateway"] == [each["comm"] for each in use.by_process]


def test_a_worker_that_was_seen_is_not_counted_again_when_its_parent_waits_for_it(tmp_path):
    """Its ticks move to the parent's children's: the tree's sum does not change."""

    def change(run: BuiltRun):
        w = run.steps[0].t_window_ns
        for sample in run.samples:
            s = (sample["t_mono_ns"] - w) / S
            alive = s <= 6
            worker = make_process(50, start_ticks=1, comm="worker", utime_ticks=int(1000 + 50 * s))
            worker |= {"cutime_ticks": 0, "cstime_ticks": 0}
            sample["root"] |= {"cutime_ticks": 0 if alive else 1300, "cstime_ticks": 0}
            sample["tree"] = [worker] if alive else []

    use = use_of(tmp_path, change)
    assert pytest.approx((240 + 300) / 100 / 12) == use.cpu_cores.v
    assert ["worker", "gateway"] == [each["comm"] for each in use.by_process]


def test_a_process_that_was_unreadable_at_first_does_not_count_from_zero(tmp_path):
    """Context switches are read every other tick only: what came before the first reading is not the window's."""

    def change(run: BuiltRun):
        for sample in run.samples:
            sample["root"]["ctx_voluntary"] = None if sample["seq"] % 2 == 0 else 1_000_000 + 10 * sample["seq"]
            sample["root"]["ctx_involuntary"] = 0

    assert pytest.approx(10.0) == use_of(tmp_path, change).ctx_switches_per_s.v


def test_fewer_than_three_samples_in_the_window_give_no_process_numbers(tmp_path):
    """Two ends are the whole story."""

    def change(run: BuiltRun):
        step = run.steps[0]
        inside = [s for s in run.samples if step.t_window_ns <= s["t_mono_ns"] <= step.t_close_ns]
        run.samples = [s for s in run.samples if s not in inside[2:]]

    use = use_of(tmp_path, change)
    assert (None, "fewer than 3 samples in the window") == (use.cpu_cores.v, use.cpu_cores.why)
    assert (None, "fewer than 3 samples in the window") == (use.memory_anon_bytes.v, use.fds.why)


def test_no_pid_gives_no_process_numbers(tmp_path):
    """Client side only."""
    use = row_of(tmp_path).process

    assert None is use.cpu_cores.v is use.memory_anon_bytes.v
    assert "--gateway-pid" in use.fds.why


def test_ticks_that_run_backwards_are_unknown(tmp_path):
    """Never a negative number."""

    def change(run: BuiltRun):
        for sample in run.samples:
            sample["root"]["utime_ticks"] = 5000 - 10 * sample["seq"]

    use = use_of(tmp_path, change)
    assert (None, "CPU ticks of a process ran backwards") == (use.cpu_cores.v, use.cpu_cores.why)


def test_memory_is_the_cgroups_when_it_holds_only_the_tree(tmp_path):
    """anon, not current, which counts page cache."""

    def change(run: BuiltRun):
        for sample in run.samples:
            sample["cgroup"] = {"only_this_tree": True, "memory_anon_bytes": 7_000_000 + sample["seq"]}

    memory = use_of(tmp_path, change).memory_anon_bytes
    assert ("cgroup anon", True) == (memory.source, 7_000_000 < memory.v < memory.most)


@pytest.mark.parametrize("only", [False, None])
def test_memory_is_the_trees_rss_anon_otherwise(tmp_path, only):
    """Summed over root and child; a zombie has no memory, descriptors or threads."""

    def change(run: BuiltRun):
        zombie = make_process(52, state="Z", rss_anon_kb=None, n_fds=None)
        for sample in run.samples:
            sample["cgroup"] = {"only_this_tree": only, "memory_anon_bytes": 9}
            sample["tree"] = [make_process(51, rss_anon_kb=2_000), zombie]

    use = use_of(tmp_path, change)
    assert ("sum of RssAnon", 12_000 * 1024) == (use.memory_anon_bytes.source, use.memory_anon_bytes.v)
    assert (24, 6) == (use.fds.v, use.threads.v)


def test_descriptors_of_another_users_process_are_unknown_with_a_reason(tmp_path):
    """EACCES."""

    def change(run: BuiltRun):
        for sample in run.samples:
            sample["root"]["n_fds"] = None
        run.starts[0]["visibility"] = [
            {"source": "fd", "readable": False, "why": "EACCES"}, {"source": "stat", "readable": True, "why": None},
        ]  # fmt: skip

    ev, facts = read(tmp_path, change)
    fds = facts.rows[0].process.fds
    assert (None, "n_fds of the tree was readable in 0 of 13 samples") == (fds.v, fds.why)
    assert [{"source": "fd", "why": "EACCES"}] == visibility(ev)


# -- run ---------------------------------------------------------------------------------------------------------------


def test_what_went_wrong_is_one_row_an_outcome_status_and_code(tmp_path):
    """Most frequent first, with first and last time, levels, a text and three request ids."""

    def change(run: BuiltRun):
        for step in run.steps:
            fail_some(step, 4, error_text=None)
        old = run.steps[1].records[-1]
        run.steps[1].records[-1] = make_record(
            request_id="odd", step=old.step, t_start_ns=old.t_start_ns, outcome="error_event", status=200,
            error_code="overloaded", error_text="try later",
        )  # fmt: skip
        fail_some(run.steps[0], 1, "cut")

    ev, facts = read(tmp_path, change, n=40)
    table = error_table(ev, [row.times for row in facts.steps])

    assert [("http_5xx", 500, None, 7), ("error_event", 200, "overloaded", 1)] == [
        (row["outcome"], row["status"], row["error_code"], row["count"]) for row in table
    ]
    assert (["1", "2"], 3, None) == (table[0]["levels"], len(table[0]["request_ids"]), table[0]["text"])
    assert ("try later", ["odd"], ["2"]) == (table[1]["text"], table[1]["request_ids"], table[1]["levels"])
    assert table[0]["first_at_s"] < table[0]["last_at_s"]


def test_survival_of_the_same_process(tmp_path):
    """From the first sample to the last."""
    seen = read(tmp_path)[1].survival

    assert (True, True, None) == (seen.tested, seen.same, seen.died_in_step)


def end_early(run):
    t_exit = run.steps[1].t_window_ns
    run.ends = [make_end(t_exit + S, reason="target_gone", how="pidfd", exit_seen_t_mono_ns=t_exit)]
    run.samples = [s for s in run.samples if s["t_mono_ns"] < t_exit]


def nested_end(run):
    end_early(run)
    told = {key: run.ends[0].pop(key) for key in ("how", "exit_seen_t_mono_ns")}
    run.ends[0]["target_gone"] = told


def replace_process(run):
    t = run.steps[1].t_window_ns
    for sample in run.samples:
        if sample["t_mono_ns"] >= t:
            sample["root"]["start_ticks"] = 999
            sample["incarnation"] = 2


@pytest.mark.parametrize("change", [end_early, nested_end, replace_process])
def test_a_gateway_that_went_away_is_told_with_step_and_time(tmp_path, change):
    """Gone, or another process in its place."""
    seen = read(tmp_path, change)[1].survival

    assert (True, False, "s02-c2-stream-k1") == (seen.tested, seen.same, seen.died_in_step)
    assert pytest.approx(2 + 23 + 3, abs=1) == seen.died_at_s
    assert "s02-c2-stream-k1" in seen.why


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.ends.clear(),
        lambda run: run.samples.clear(),
        lambda run: run.samples.__delitem__(slice(20, None)),
    ],
)
def test_survival_is_unknown_when_the_sampler_did_not_see_the_end(tmp_path, change):
    """Neither survived nor died."""
    seen = read(tmp_path, change)[1].survival

    assert (True, None) == (seen.tested, seen.same)
    assert seen.why.startswith("unknown")


def test_a_target_that_stopped_answering_did_not_survive_even_without_a_pid(tmp_path):
    """The runner's abort mark says so."""

    def change(run: BuiltRun):
        t = run.steps[1].t_window_ns
        run.marks.insert(-1, make_mark("abort", t, run.steps[1].id, by="target", reason="connection refused"))

    seen = read(tmp_path, change, pid=None)[1].survival
    assert (True, False, "s02-c2-stream-k1") == (seen.tested, seen.same, seen.died_in_step)


def test_a_floor_is_the_median_before_the_cycles_last_cooldown_ended(tmp_path):
    """Not during load, and one a cycle."""

    def change(run: BuiltRun):
        for sample in run.samples:
            idle = any(s.t_end_ns <= sample["t_mono_ns"] <= s.t_idle_ns for s in run.steps)
            sample["root"] |= {"rss_anon_kb": 100 if idle else 999, "n_fds": 7 if idle else 50}

    ev, facts = read(tmp_path, change, cycles=2)
    seen = floors(ev, [row.times for row in facts.steps])
    floor = (5, 102_400, 7, 3, None, None)
    assert [(1, *floor), (2, *floor)] == [tuple(row.values()) for row in seen]


@pytest.mark.parametrize("n_shared", [0, 1])
def test_where_memory_comes_from_is_decided_once_a_run(tmp_path, n_shared):
    """One sample of the second level's window with a stranger in the cgroup: no level, floor or plot uses it."""

    def change(run: BuiltRun):
        for sample in run.samples:
            sample["cgroup"] = {"only_this_tree": True, "memory_anon_bytes": 5 * 2**20, "oom_kill": 0}
        inside = [s for s in run.samples if s["t_mono_ns"] > run.steps[1].t_window_ns]
        for sample in inside[:n_shared]:
            sample["cgroup"]["only_this_tree"] = False

    ev, facts = read(tmp_path, change)
    series = tree_series(ev)
    source, amount = (RSS_SUM, 10_000 * 1024) if n_shared else ("cgroup anon", 5 * 2**20)
    assert [source] * 2 == [row.process.memory_anon_bytes.source for row in facts.rows]
    assert source == series.attrs["memory_source"]
    assert {amount} == {
        *(row.process.memory_anon_bytes.v for row in facts.rows),
        *(floor["memory_bytes"] for floor in floors(ev, [row.times for row in facts.steps])),
        *series["memory_bytes"],
    }


def test_a_cooldown_that_was_not_finished_has_no_floor(tmp_path):
    """Null with a reason."""

    def change(run: BuiltRun):
        run.marks = [mark for mark in run.marks if mark.mark != "idle"]

    ev, facts = read(tmp_path, change)
    row = floors(ev, [each.times for each in facts.steps])[0]
    assert (None, "the cycle's last cool-down was not finished") == (row["memory_bytes"], row["why"])


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        ([], None),
        ([8], None),
        ([8, 9], "a hole of 3.0 s"),
        ([4, 5, 6], "from the window's start"),
        (list(range(15, 60)), "from the window's end"),
    ],
)
def test_process_evidence_needs_its_edges_and_no_hole(tmp_path, lost, why):
    """2.5 intervals, 1.5 at the edges. The window is from second 5 to 17."""

    def change(run: BuiltRun):
        run.samples = [s for s in run.samples if s["seq"] not in lost]

    _, facts = read(tmp_path, change, levels="1")
    seen = facts.process_why["s01-c1-stream-k1"]
    assert seen is None if why is None else why in seen


def test_the_samplers_own_cost_and_holes_are_told(tmp_path):
    """So that it can be trusted."""

    def change(run: BuiltRun):
        del run.samples[10:14]

    ev, _ = read(tmp_path, change)
    seen = sampler_summary(ev)
    assert [{"from_s": 9.0, "to_s": 14.0}] == seen["holes"]
    assert 1 == len(holes(ev))
    assert (300.0, 0.05, pytest.approx(0.0003)) == (seen["cost_us_median"], seen["lag_ms_p99"], seen["cpu_share"])


def test_probes_count_during_load_only_and_in_a_row_within_a_step(tmp_path):
    """Two missed at one step's end and two at the next one's start are no row of four."""

    def change(run: BuiltRun):
        a, b = run.steps
        bad = [a.t_end_ns - S, a.t_end_ns, b.t_open_ns, b.t_open_ns + S, a.t_end_ns + 2 * S]
        for line in run.health:
            if line.t_mono_ns in bad and line.what == "live":
                line.status, line.ms = None, None

    _, facts = read(tmp_path, change)
    assert (4, 2) == (facts.live.missed, facts.live.longest_row)
    assert 32 == facts.live.n == facts.ready.n


def hide_probes(run, begin_s, end_s):
    """No liveness probe in these seconds of the second step's window, which is twelve long."""
    t_ns = run.steps[1].t_window_ns
    run.health = [
        line for line in run.health
        if line.what != "live" or not t_ns + begin_s * S <= line.t_mono_ns <= t_ns + end_s * S
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("begin_s", "end_s", "silent_s"),
    [(20, 20, None), (3, 7, None), (3, 8, "7.0"), (-9, 6, "7.0"), (6, 20, "7.0"), (-9, 99, "22.0")],
)
def test_probes_that_do_not_cover_a_window_decide_nothing(tmp_path, begin_s, end_s, silent_s):
    """Ten early ones are not the whole run: a silence over six seconds, also at an edge, makes liveness unknown."""
    _, facts = read(tmp_path, lambda run: hide_probes(run, begin_s, end_s))

    assert 10 <= facts.live.n
    assert None is facts.ready.gap_why
    why = None if silent_s is None else f"no probe for {silent_s} s of step s02-c2-stream-k1"
    assert why == facts.live.gap_why


def test_a_missed_probe_counts_as_never_in_p99(tmp_path):
    """Two of three missed, never three in a row: the third that answered in 2 ms does not speak for them."""

    def change(run: BuiltRun):
        for number, line in enumerate(run.health):
            if number // 2 % 3:
                line.status, line.ms, line.error = None, None, "ReadTimeout"

    _, facts = read(tmp_path, change)
    assert (2, math.inf, math.inf) == (facts.live.longest_row, facts.live.p99_ms.v, facts.ready.p99_ms.lo)
    assert "inf" == facts.live.as_json("/healthz")["p99_ms"]


def test_sets_do_not_depend_on_the_order_of_the_files(tmp_path):
    """Each request is sorted by its own step's window."""
    ev, facts = read(tmp_path, n=10)
    times = step_times(ev)
    order = np.argsort(ev.requests["request_id"].to_numpy(dtype=object))[::-1]
    mixed = evidence.Evidence(
        **{**{name: getattr(ev, name) for name in ev.__slots__}, "requests": ev.requests.iloc[order]}
    )

    assert int(sets(ev, times).offered.sum()) == int(sets(mixed, times).offered.sum()) == 20
    assert SLO in [slo.text for slo in facts.plan.slos]
    assert make_sample(0, 0)["root"]["pid"] == PID


def test_the_step_in_which_the_locustfile_was_found_changed_is_invalid(tmp_path):
    def change(run: BuiltRun):
        step = run.steps[1]
        run.marks.insert(-1, make_mark("abort", step.t_close_ns, step.id, by="locustfile", reason="f.py was changed"))

    _, facts = read(tmp_path, change)
    assert [None, "f.py was changed"] == [step.invalid_why for step in facts.steps[:2]]


def test_requests_that_have_no_record_make_the_step_invalid(tmp_path):
    """A locustfile that changes our code may drop records and counts alike; the numbers go on."""

    def change(run: BuiltRun):
        records = run.steps[0].records
        for number, record in enumerate(records, 1):
            record.request_id = f"s01.w01-{number + (2 if number > 5 else 0):06d}"
        records.reverse()

    _, facts = read(tmp_path, change)
    assert "by the numbers in their ids 2 requests were sent that have no record" in facts.steps[0].invalid_why
    assert facts.steps[1].invalid_why is None
