"""Each gate: pass, fail, unknown, exactly at the limit, not tested; then capacity, verdict and exit code."""

import dataclasses
import itertools

import pytest
from build import SLO, make_facts, make_mark, make_probes, make_row
from hypothesis import given, settings
from hypothesis import strategies as st

from sweep import gates, stats, verdict
from sweep.finding import Finding, compare
from sweep.knee import proposed_slos
from sweep.request_gates import INTEGRITY
from sweep.run_table import GuardTrip, Survival
from sweep.stats import Value
from sweep.units import parse_level

GOOD = (100.0,) * 400
ORDER = ("FAIL", "INCONCLUSIVE", "WARN", "PASS")


def find(facts, gate, **where):
    """The findings of a gate, by name or its start."""
    return [
        each for each in gates.judge_findings(facts)
        if each.gate.startswith(gate) and all(getattr(each, key) == value for key, value in where.items())
    ]  # fmt: skip


def one(facts, gate, **where):
    found = find(facts, gate, **where)
    assert len(found) == 1, found
    return found[0]


def decide(facts, status="COMPLETE"):
    return verdict.verdict(gates.judge_findings(facts), status)


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "op", "status"),
    [
        (Value(4, 9, lo=3, hi=5), "<=", "pass"),
        (Value(4, 9, lo=3, hi=5.1), "<=", "unknown"),
        (Value(6, 9, lo=5, hi=7), "<=", "unknown"),
        (Value(6, 9, lo=5.1, hi=7), "<=", "fail"),
        (Value(4, 9, lo=3, hi=None), "<=", "unknown"),
        (Value(float("inf"), 9, lo=float("inf"), hi=float("inf")), "<=", "fail"),
        (Value(6, 9, lo=5, hi=7), ">=", "pass"),
        (Value(6, 9, lo=4.9, hi=7), ">=", "unknown"),
        (Value(4, 9, lo=3, hi=5), ">=", "unknown"),
        (Value(4, 9, lo=3, hi=4.9), ">=", "fail"),
        (stats.unknown("nothing"), "<=", "unknown"),
        (stats.unknown("nothing"), ">=", "unknown"),
    ],
)
def test_bounds_decide_and_the_limit_itself_passes(value, op, status):
    """Against a limit of 5."""
    assert status == compare(value, op, 5)


# -- answered ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "status", "reason"),
    [
        (make_row(ms=[1.0]), "pass", "1 good answers"),
        (make_row(http_5xx=300), "unknown", "no good answer at this level"),
        (make_row(), "unknown", "no good answer at this level"),
        (make_row(ms=GOOD, valid=False), "unknown", "invalid step: counts disagree"),
    ],
)
def test_a_level_without_a_good_answer_says_nothing(row, status, reason):
    """All failed, none sent, or not about the target."""
    seen = one(make_facts(row), "answered")

    assert (status, reason, True) == (seen.status, seen.reason, seen.required)


def test_a_level_of_the_plan_that_was_not_run_is_unknown():
    """The run was stopped before it."""
    facts = make_facts(make_row("1", ms=GOOD), make_row("2", ms=GOOD))
    facts = dataclasses.replace(facts, rows=facts.rows[:1])

    seen = one(facts, "answered", level=facts.plan.levels[1])
    assert ("unknown", "it was not run") == (seen.status, seen.reason)
    assert decide(facts) == "INCONCLUSIVE"


# -- errors and shed ---------------------------------------------------------------------------------------------------


def mixed(n, k, outcome):
    return make_facts(make_row(ms=[100.0] * (n - k), **{outcome: k}))


@pytest.mark.parametrize(("gate", "outcome"), [("errors", "http_5xx"), ("errors", "stalled"), ("shed", "shed")])
@pytest.mark.parametrize(
    ("n", "k", "status", "n_needed"),
    [
        (299, 0, "pass", None),
        (298, 0, "unknown", 299),
        (473, 1, "pass", None),
        (472, 1, "unknown", 473),
        (1000, 10, "unknown", None),
        (1000, 20, "fail", None),
        (100, 100, "fail", None),
    ],
)
def test_a_share_passes_or_fails_by_its_bounds(gate, outcome, n, k, status, n_needed):
    """1 %: 299 requests without one, 473 with one; 2 % of a thousand is beyond doubt."""
    seen = one(mixed(n, k, outcome), gate, level=None)

    assert (status, n) == (seen.status, seen.n)
    assert n_needed is None or seen.n_needed == n_needed


@pytest.mark.parametrize(("gate", "outcome"), [("errors", "http_5xx"), ("shed", "shed")])
def test_a_share_exactly_at_its_limit_passes(gate, outcome):
    """The upper bound of 0 in n is exactly 1 % at the n where 0.99**n is 0.05."""
    facts = mixed(400, 0, outcome)
    limit = stats.share(0, 400).hi
    table = [dataclasses.replace(each, limit=limit) for each in gates.GATES if each.name == gate]

    assert "pass" == table[0].judge(facts, table[0])[0].status
    below = dataclasses.replace(table[0], limit=limit * 0.999999)
    assert "unknown" == below.judge(facts, below)[0].status


def test_one_bad_level_fails_even_when_the_pool_does_not():
    """Each level alone can only fail."""
    facts = make_facts(make_row("1", ms=GOOD * 5), make_row("2", ms=[100.0] * 90, http_5xx=10))

    assert ("pass", True) == (one(facts, "errors", level=None).status, one(facts, "errors", level=None).required)
    alone = one(facts, "errors", level=facts.plan.levels[1])
    assert ("fail", True) == (alone.status, alone.required)
    assert "FAIL" == decide(facts)


def test_an_exploring_level_that_fails_is_shown_and_does_not_count():
    """It brackets the capacity."""
    facts = make_facts(make_row("2", ms=GOOD), make_row("4", ms=[100.0] * 50, http_5xx=50, exploring=True))
    seen = one(facts, "errors", level=facts.plan.levels[1])

    assert ("fail", False, True) == (seen.status, seen.required, seen.exploring)
    assert "PASS" == decide(facts)


def test_a_pool_that_lacks_a_level_can_fail_and_never_pass():
    """An invalid step is not in it."""
    rows = [make_row("1", ms=GOOD), make_row("2", ms=GOOD, valid=False)]

    assert "unknown" == one(make_facts(*rows), "errors", level=None).status
    rows[0] = make_row("1", ms=GOOD, http_5xx=40)
    assert "fail" == one(make_facts(*rows), "errors", level=None).status


@pytest.mark.parametrize(("outcome", "gate"), [("limited", "limited"), ("rejected_unclear", "refused, unclear")])
@pytest.mark.parametrize(("k", "status"), [(0, "pass"), (10, "pass"), (11, "unknown")])
def test_refusals_that_are_not_fullness_leave_the_capacity_unknown(outcome, gate, k, status):
    """More than 1 % of a thousand; exactly 1 % is not more."""
    seen = one(mixed(1000, k, outcome), gate)

    assert status == seen.status
    assert decide(mixed(1000, k, outcome)) == ("PASS" if status == "pass" else "INCONCLUSIVE")


def test_a_level_with_many_limited_requests_is_not_hidden_by_the_others():
    """1 % at each level too."""
    facts = make_facts(make_row("1", ms=GOOD * 10), make_row("2", ms=GOOD, limited=8))

    assert ("unknown", "8 of 4408 requests refused by the caller's own limit, "
            "the gateway's own capacity was not reached (level 2 stream)") == (
        one(facts, "limited").status, one(facts, "limited").reason,
    )  # fmt: skip


# -- stream integrity --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", INTEGRITY)
@pytest.mark.parametrize(
    ("n_ok", "k", "status"),
    [(100, 0, "pass"), (99, 0, "unknown"), (99, 1, "unknown"), (100, 1, "warn"), (40, 1, "fail"), (5000, 3, "warn"),
     (5000, 20, "fail"), (0, 3, "fail"), (0, 0, "unknown")],
)  # fmt: skip
def test_streams_that_break(outcome, n_ok, k, status):
    """None in a hundred passes, one below 0.1 % warns, more beyond doubt fails."""
    facts = make_facts(make_row(ms=[100.0] * n_ok, **{outcome: k}))

    assert status == one(facts, "stream integrity", level=None).status


def test_other_failures_do_not_count_as_broken_streams():
    """They have the errors gate, and do not help to the hundred."""
    facts = make_facts(make_row(ms=[100.0] * 99, http_5xx=50, connect=50))

    assert ("unknown", 99) == (one(facts, "stream integrity").status, one(facts, "stream integrity").n)


def test_stream_integrity_is_not_tested_without_a_stream():
    """Skipped, and never in the way."""
    facts = make_facts(make_row(mode="nonstream", ms=GOOD), mode="nonstream", slos=["e2e_ms.p95<=500"])

    assert ("skipped", False) == (one(facts, "stream integrity").status, one(facts, "stream integrity").required)
    assert "PASS" == decide(facts)


# -- flags -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "gate"),
    [("buffered", "buffering"), ("not_streamed", "not streamed"), ("no_done", "flag no_done"), ("cold", "flag cold")],
)
@pytest.mark.parametrize(("count", "found"), [(4, False), (5, True)])
def test_a_flag_on_more_than_one_percent_warns(flag, gate, count, found):
    """Exactly 1 % of 400 does not."""
    facts = make_facts(make_row(ms=GOOD, flags={flag: count}))

    assert found == bool(find(facts, gate))
    assert ("WARN" if found else "PASS") == decide(facts)


def test_a_flag_above_the_sustained_level_does_not_count():
    """Shown only."""
    facts = make_facts(make_row("2", ms=GOOD), make_row("4", ms=GOOD, flags={"buffered": 400}, exploring=True))

    assert "warn" == one(facts, "buffering").status
    assert "PASS" == decide(facts)


# -- SLOs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ms", "failed", "status", "reason"),
    [
        ([500.0] * 59, 0, "pass", "within the limit, beyond doubt"),
        ([500.0] * 58, 0, "unknown", "58 of 59 requests"),
        ([500.1] * 59, 0, "fail", "above the limit, beyond doubt"),
        ([100.0] * 90 + [600.0] * 6, 0, "unknown", "too near the limit for so few requests"),
        ([100.0] * 58, 1, "unknown", "too near the limit for so few requests"),
        ([100.0] * 60, 20, "fail", "above the limit, beyond doubt"),
        ([], 60, "fail", "above the limit, beyond doubt"),
        ([], 0, "unknown", "no request"),
    ],
)
def test_a_latency_slo_is_decided_by_rank_bounds(ms, failed, status, reason):
    """p95 within 500 ms, failures as never."""
    seen = one(make_facts(make_row(ms=ms, http_5xx=failed)), "slo ")

    assert (status, reason) == (seen.status, seen.reason)


def test_an_slo_on_a_cut_request_is_unknown_and_beyond_the_limit_fails():
    """At least 10 s is above 5 s and says nothing of 20 s."""
    row = make_row(ms=[100.0] * 57, cut=3)

    assert "unknown" == one(make_facts(row, slos=["ttft_ms.p99<=20000"]), "slo ").status
    many = make_row(ms=[100.0] * 960, cut=40)
    assert "fail" == one(make_facts(many, slos=["ttft_ms.p99<=5000"]), "slo ").status


@pytest.mark.parametrize(("cut", "status"), [(32, "pass"), (40, "unknown")])
def test_more_than_five_percent_cut_leave_the_error_ratio_unknown(cut, status):
    facts = make_facts(make_row(ms=[10.0] * 620, cut=cut))
    assert status == one(facts, "errors").status


@pytest.mark.parametrize(("cut", "status"), [(20, "pass"), (21, "unknown")])
def test_more_than_five_percent_cut_decide_no_latency(cut, status):
    """The answers are longer than the drain; exactly 5 % is not more. The p50 would not even be touched."""
    facts = make_facts(make_row(ms=[100.0] * 380, cut=cut), slos=["ttft_ms.p50<=500"])

    assert status == one(facts, "slo ").status
    assert status == "pass" or "answers longer than the drain" in one(facts, "slo ").reason


def test_a_number_too_many_successes_lack_decides_no_slo():
    """However good the others are."""
    row = dataclasses.replace(make_row(ms=GOOD), missing={"ttft_ms": "300 of 700 successful answers have no ttft_ms"})

    assert ("unknown", "300 of 700 successful answers have no ttft_ms") == (
        one(make_facts(row), "slo ").status, one(make_facts(row), "slo ").reason,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("slo", "status"),
    [
        ("error_ratio<=1%", "pass"),
        ("error_ratio<=0.1%", "unknown"),
        ("shed_ratio<=1%", "pass"),
        ("request_rate_per_s>=30", "pass"),
        ("request_rate_per_s>=40", "unknown"),
        ("request_rate_per_s>=60", "fail"),
        ("token_rate_per_s>=1", "unknown"),
        ("goodput>=90%", "unknown"),
    ],
)
def test_slos_of_shares_and_rates(slo, status):
    """400 good answers in 10 s, tokens not counted, no latency limit for a goodput."""
    assert status == one(make_facts(make_row(ms=GOOD), slos=[slo]), "slo ").status


def test_an_slo_without_a_level_must_hold_at_the_sustained_one():
    """At others it only tells the capacity."""
    facts = make_facts(make_row("1", ms=GOOD), make_row("2", ms=GOOD), make_row("4", ms=GOOD, exploring=True))

    assert [("1", False), ("2", True), ("4", False)] == [(str(f.level), f.required) for f in find(facts, "slo ")]


def test_an_slo_with_a_level_holds_there_and_below():
    """And says nothing above."""
    rows = (make_row("1", ms=GOOD), make_row("2", ms=GOOD), make_row("4", ms=GOOD))

    assert [("1", True), ("2", True)] == [
        (str(f.level), f.required) for f in find(make_facts(*rows, slos=[SLO + "@2"]), "slo ")
    ]


def test_a_latency_target_below_the_sustained_level_only_warns():
    """Nothing was promised for the level that production needs."""
    facts = make_facts(make_row("1", ms=GOOD), make_row("2", ms=GOOD), slos=[SLO + "@1"])

    assert "no latency target speaks of the sustained level 2" == one(facts, "slo", level=None).reason
    assert "WARN" == decide(facts)


def test_a_gate_that_needs_a_limit_does_not_invent_one():
    """A row without one is a fault of ours, never a limit of zero."""
    facts = make_facts(make_row(ms=GOOD))
    for name in ("errors", "shed", "limited", "stream integrity", "liveness"):
        (gate,) = (dataclasses.replace(each, limit=None) for each in gates.GATES if each.name == name)
        with pytest.raises(ValueError, match="needs a limit"):
            gate.judge(facts, gate)


def test_without_a_latency_target_the_verdict_is_at_most_a_warning():
    """Capacity is not judged, and a target is proposed from the run: p95 and a quarter more."""
    facts = make_facts(make_row(ms=GOOD), slos=["error_ratio<=1%"])

    assert "WARN" == decide(facts)
    assert ["stream.ttft_ms.p95<=130@2"] == proposed_slos(facts)
    assert verdict.capacity(facts, gates.judge_findings(facts)).text.startswith("not judged")


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "gate"), [("counts_why", "counts agree"), ("generator_why", "generator")])
def test_an_invalid_step_is_unknown_never_fail(field, gate):
    """Its numbers are not about the target."""
    row = make_row(ms=GOOD)
    assert "pass" == one(make_facts(row), gate).status
    step = dataclasses.replace(row.rows[0], **{field: "it went wrong"})
    row = dataclasses.replace(row, rows=(step,), valid=False, invalid_why="it went wrong")

    assert ("unknown", "it went wrong", True) == (
        one(make_facts(row), gate).status, one(make_facts(row), gate).reason, one(make_facts(row), gate).required,
    )  # fmt: skip
    assert "INCONCLUSIVE" == decide(make_facts(row))


def test_an_invalid_step_makes_all_its_gates_unknown_and_its_pools():
    """Whichever of them found it out."""
    findings = gates.judge_findings(make_facts(make_row(ms=GOOD, valid=False)))
    pools = ("errors", "shed", "limited", "refused, unclear", "stream integrity")

    assert {"unknown"} == {each.status for each in findings if each.level is not None or each.gate in pools}


def test_levels_above_an_invalid_one_are_skipped():
    """What cannot be trusted at 1 is not at 2; the pool is then unknown, not passed."""
    facts = make_facts(make_row("1", ms=GOOD, valid=False), make_row("2", ms=GOOD))

    assert {"skipped"} == {f.status for f in gates.judge_findings(facts) if f.level == facts.plan.levels[1]
                           and f.gate in ("answered", f"slo {SLO}")}  # fmt: skip
    assert "INCONCLUSIVE" == decide(facts)


@pytest.mark.parametrize("row", [make_row(), make_row(http_5xx=500), make_row(shed=500), make_row(limited=500)])
def test_a_step_without_a_good_answer_passes_nothing(row):
    """No finding at its level passes, not even those about its evidence; nor does a pool of it."""
    findings = gates.judge_findings(make_facts(row))

    assert [] == [f.gate for f in findings if f.status == "pass" and f.level is not None]
    assert [] == [f.gate for f in findings if f.status == "pass" and f.gate in ("errors", "stream integrity")]
    assert decide(make_facts(row)) in ("FAIL", "INCONCLUSIVE")


# -- process -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("same", "status", "decided"), [(True, "pass", "PASS"), (False, "fail", "FAIL"), (None, "unknown", "INCONCLUSIVE")]
)
def test_the_same_process_to_the_end(same, status, decided):
    """Gone or changed fails."""
    facts = make_facts(make_row(ms=GOOD), survival=Survival(True, same, None, None, "told"))

    assert (status, decided) == (one(facts, "same process").status, decide(facts))


def test_a_gateway_that_died_fails_its_level_and_brackets_the_capacity():
    """When and at which level."""
    rows = (make_row("1", ms=GOOD), make_row("2", ms=GOOD))
    facts = make_facts(*rows, survival=Survival(True, False, 40.0, "s01-c2-stream-k1", "gone"))
    findings = gates.judge_findings(facts)

    seen = one(facts, "same process")
    assert ("fail", facts.plan.levels[1], "s01-c2-stream-k1") == (seen.status, seen.level, seen.step)
    assert ("1", "same process") == (
        str(verdict.capacity(facts, findings).level), verdict.capacity(facts, findings).stopped_by,
    )  # fmt: skip


def test_a_level_that_only_observes_is_asked_nothing():
    """Level 0 sends no request."""
    facts = make_facts(make_row("0"), make_row("2", ms=GOOD))

    assert ["2"] == [str(each.level) for each in find(facts, "answered")]
    assert "PASS" == decide(facts)


def test_a_hole_in_the_samples_makes_process_evidence_unknown_and_nothing_else():
    """The requests are still about the target."""
    facts = make_facts(make_row(ms=GOOD), process_why={"s01-c2-stream-k1": "a hole of 4.0 s"})

    assert {"process evidence"} == {f.gate for f in gates.judge_findings(facts) if f.status == "unknown"}
    assert "INCONCLUSIVE" == decide(facts)


def test_without_a_pid_process_gates_are_not_tested_and_the_verdict_is_a_warning():
    """Client side only."""
    never = Survival(False, None, None, None, "not tested: no --gateway-pid")
    facts = make_facts(make_row(ms=GOOD), subject=None, survival=never, oom_kills=None)

    assert {"skipped"} == {one(facts, gate).status for gate in ("process evidence", "same process", "oom")}
    assert ("warn", "WARN") == (one(facts, "client side only").status, decide(facts))


@pytest.mark.parametrize(
    ("ownership", "status", "decided"),
    [("proved", "pass", "PASS"), ("declared", "assumed", "WARN"), ("contradicted", "unknown", "INCONCLUSIVE")],
)
def test_ownership_that_is_only_declared_is_assumed(ownership, status, decided):
    """And so warns."""
    facts = make_facts(make_row(ms=GOOD), subject={"name": "gateway", "ownership": ownership, "why": "told"})

    assert (status, decided) == (one(facts, "ownership").status, decide(facts))


@pytest.mark.parametrize(
    ("kills", "alone", "status"), [(0, True, "pass"), (1, True, "fail"), (1, False, "warn"), (None, False, "skipped")]
)
def test_oom_kills(kills, alone, status):
    """In a shared cgroup the victim may be anybody."""
    assert status == one(make_facts(make_row(ms=GOOD), oom_kills=kills, oom_alone=alone), "oom").status


@pytest.mark.parametrize(("level", "decided"), [("2", "FAIL"), ("4", "PASS"), (None, "FAIL")])
def test_a_guard_fails_the_run_up_to_the_sustained_level_only(level, decided):
    """While exploring it only ends the exploring."""
    trips = (GuardTrip("error burst", None if level is None else parse_level(level), "stream", "s"),)
    facts = make_facts(make_row("2", ms=GOOD), make_row("4", ms=GOOD, exploring=True), guards=trips)

    assert ("fail", decided) == (one(facts, "guard").status, decide(facts))


def test_a_guard_that_ended_the_exploring_brackets_the_capacity_and_explains_what_was_not_run():
    """The level it tripped at failed, whatever its few answers; those above are skipped, not unknown."""
    rows = [make_row("2", ms=GOOD), make_row("4", ms=GOOD, exploring=True), make_row("8", exploring=True)]
    trip = GuardTrip("memory at the limit: 9 of 10 bytes", rows[1].level, "stream", "s01-c4-stream-k1")
    facts = make_facts(*rows, guards=(trip,))
    facts = dataclasses.replace(facts, rows=facts.rows[:2], steps=facts.steps[:2])
    findings = gates.judge_findings(facts)
    seen, above = one(facts, "guard"), find(facts, "", level=rows[2].level)

    assert ("fail", True, False) == (seen.status, seen.exploring, seen.required)
    assert (rows[1].level, "stream", "s01-c4-stream-k1", trip.reason) == (seen.level, seen.mode, seen.step, seen.reason)
    capacity = verdict.capacity(facts, findings)
    assert ("2", True, "guard") == (str(capacity.level), capacity.bracketed, capacity.stopped_by)
    assert "memory at the limit" in capacity.text
    assert {("skipped", "not run: a guard ended the exploring at level 4")} == {(f.status, f.reason) for f in above}
    assert "PASS" == decide(facts)


def test_a_step_of_another_cycle_that_was_not_run_is_unknown():
    """The level's other steps would hide it."""
    facts = make_facts(make_row("2", ms=GOOD))
    facts = dataclasses.replace(facts, planned_steps=(*facts.planned_steps, ("s02-c2-stream-k2", *facts.planned[0])))

    assert ["pass", "unknown"] == [f.status for f in find(facts, "counts agree")]
    assert "INCONCLUSIVE" == decide(facts)


def test_requests_without_a_byte_at_the_drains_end_are_not_proof_of_no_errors():
    """A server that hangs for ever on some: cut by the step, and whether they are errors is not known."""
    row = make_row(ms=[10.0] * 600, cut=4)
    assert "pass" == one(make_facts(row), "errors").status
    lost = one(make_facts(dataclasses.replace(row, unanswered=4)), "errors")

    assert ("unknown", True) == (lost.status, "4 more had no byte" in lost.reason)


def test_a_latency_above_its_limit_by_less_than_our_own_lateness_is_unknown():
    """A late tenth of the window may have made it; a shorter one, or a wider miss, does not excuse the target."""
    row = make_row(ms=[1050.0] * 600)

    def status(row, **step):
        late = dataclasses.replace(row, rows=tuple(dataclasses.replace(each, **step) for each in row.rows))
        return find(make_facts(late, slos=("stream.ttft_ms.p95<=1000",)), "slo stream.ttft_ms.p95<=1000")[0].status

    assert "fail" == status(row)
    assert "unknown" == status(row, late_s=1.0, lag_p99_ms_max=90.0)
    assert "fail" == status(row, late_s=1.0, lag_p99_ms_max=40.0)
    assert "fail" == status(row, late_s=0.4, lag_p99_ms_max=90.0)
    assert "unknown" == status(row, late_s=1.0, lag_p99_ms_max=None)  # how late is not known: not 0


def test_failures_outside_the_window_are_said():
    """They are in no ratio, and a gateway that fails its first requests is not simply READY."""
    row = make_row(ms=[10.0] * 600)
    steps = tuple(dataclasses.replace(each, failed_outside=3) for each in row.rows)
    facts = make_facts(dataclasses.replace(row, rows=steps))

    assert "warn" == one(facts, "outside the window").status
    assert "pass" == one(make_facts(row), "outside the window").status


# -- health ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probes", "live", "ready"),
    [
        (make_probes(10, ms=1000.0), "pass", "pass"),
        (make_probes(10, ms=1000.1), "fail", "pass"),
        (make_probes(9), "unknown", "unknown"),
        (make_probes(60, 40, 2), "fail", "fail"),
        (make_probes(60, 1, 1), "warn", "warn"),
        (make_probes(100, 1, 1), "pass", "pass"),
        (make_probes(60, 3, 3), "fail", "fail"),
        (make_probes(3, 3, 3), "fail", "fail"),
        (make_probes(0), "unknown", "unknown"),
        (make_probes(60, gap_why="no probe for 7.0 s"), "unknown", "unknown"),
        (make_probes(60, 3, 3, gap_why="no probe for 7.0 s"), "fail", "fail"),
        (None, "skipped", "skipped"),
    ],
)
def test_health(probes, live, ready):
    """Three in a row fail, ten probes without a long silence are needed, liveness fails when p99 is surely over 1 s.

    Readiness warns where one in a hundred was missed, and fails where that is beyond doubt. No path is not tested.
    """
    facts = make_facts(make_row(ms=GOOD), live=probes, ready=probes)

    assert (live, ready) == (one(facts, "liveness").status, one(facts, "readiness").status)


def test_readiness_is_not_asked_of_a_gateway_that_sheds():
    """503 is then the honest answer."""
    facts = make_facts(make_row(ms=GOOD, shed=1), ready=make_probes(60, 30, 30))
    facts = dataclasses.replace(facts, steps=facts.rows[0].rows)

    assert "skipped" == one(facts, "readiness").status


# -- capacity ----------------------------------------------------------------------------------------------------------


SLOW = (600.0,) * 400


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ((GOOD, GOOD, GOOD), ("4", False, None)),
        ((GOOD, GOOD, SLOW), ("2", True, f"slo {SLO}")),
        ((GOOD, SLOW, GOOD), ("1", True, f"slo {SLO}")),
        ((SLOW, GOOD, GOOD), (None, False, f"slo {SLO}")),
        ((GOOD[:10], GOOD, SLOW), ("2", True, f"slo {SLO}")),
        ((GOOD, GOOD[:10], SLOW), ("1", True, f"slo {SLO}")),
        ((GOOD[:10], GOOD[:10], GOOD[:10]), (None, False, None)),
    ],
)
def test_capacity_is_the_highest_level_that_met_all_with_none_failed_below(at, expected):
    """Too few requests below do not break the chain; a failure does, and is named."""
    facts = make_facts(*(make_row(str(level), ms=ms) for level, ms in zip((1, 2, 4), at, strict=True)))
    seen = verdict.capacity(facts, gates.judge_findings(facts))

    assert expected == (None if seen.level is None else str(seen.level), seen.bracketed, seen.stopped_by)


def test_capacity_needs_every_mode():
    """Streaming alone is half of it."""
    rows = (make_row("1", ms=GOOD), make_row("1", "nonstream", ms=SLOW))
    facts = make_facts(*rows, mode="both", slos=["ttft_ms.p95<=500", "nonstream.e2e_ms.p95<=500"])

    assert None is verdict.capacity(facts, gates.judge_findings(facts)).level


# -- verdict -----------------------------------------------------------------------------------------------------------


def finding(status, required=True, exploring=False):
    return Finding("g", status, "r", "rule", required=required, exploring=exploring)


@pytest.mark.parametrize(
    ("findings", "status", "expected"),
    [
        ([finding("pass")], "COMPLETE", "PASS"),
        ([finding("pass"), finding("skipped")], "COMPLETE", "PASS"),
        ([finding("pass"), finding("warn")], "COMPLETE", "WARN"),
        ([finding("pass"), finding("assumed")], "COMPLETE", "WARN"),
        ([finding("warn"), finding("unknown")], "COMPLETE", "INCONCLUSIVE"),
        ([finding("unknown"), finding("fail")], "COMPLETE", "FAIL"),
        ([finding("pass"), finding("unknown", required=False)], "COMPLETE", "PASS"),
        ([finding("pass"), finding("fail", required=False)], "COMPLETE", "WARN"),
        ([finding("pass"), finding("fail", required=False, exploring=True)], "COMPLETE", "PASS"),
        ([finding("pass"), finding("warn", required=False, exploring=True)], "COMPLETE", "PASS"),
        ([], "COMPLETE", "INCONCLUSIVE"),
        ([finding("pass")], "ABORTED", "INCONCLUSIVE"),
        ([finding("fail")], "ABORTED", "FAIL"),
    ],
)
def test_the_verdict_is_the_worst_of_what_counts(findings, status, expected):
    """fail, unknown, warn, pass; a run that is not complete never passes."""
    assert expected == verdict.verdict(findings, status)


def test_exit_codes_in_the_order_of_precedence():
    """5, 4 by signal, 1, 4, 3, 0; every combination. Our own fault is 5 even when a gate failed."""
    by_whom = (None, "signal", "disk", "stop_file", "target", "killed", "fault")
    for decided, status, by, strict in itertools.product(
        ORDER, ("COMPLETE", "ABORTED", "INVALID"), by_whom, (False, True)
    ):
        code = verdict.exit_code(decided, status, by, strict=strict)
        expected = (
            5 if status == "INVALID" or by == "fault" else 4 if by == "signal" else 1 if decided == "FAIL"
            else 4 if status == "ABORTED" else 3 if decided == "INCONCLUSIVE"
            else 1 if strict and decided == "WARN" else 0
        )  # fmt: skip
        assert expected == code


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([make_mark("start", 0), make_mark("finish", 9)], ("COMPLETE", None)),
        ([make_mark("start", 0)], ("ABORTED", "killed")),
        ([], ("ABORTED", "killed")),
        ([make_mark("abort", 5, by="signal"), make_mark("finish", 9)], ("ABORTED", "signal")),
        ([make_mark("abort", 5, by="disk")], ("ABORTED", "disk")),
        ([make_mark("abort", 5, by="fault", reason="words")], ("ABORTED", "fault")),
        ([make_mark("abort", 5, by="signal"), make_mark("abort", 6, by="fault")], ("ABORTED", "fault")),
        ([make_mark("finish", 5), make_mark("abort", 6, by="fault")], ("ABORTED", "fault")),
    ],
)
def test_the_marks_tell_how_the_run_ended(marks, expected):
    """A fault of ours counts before anything else, whenever it came."""
    status, _, by = verdict.run_status(marks)

    assert expected == (status, by)


@given(
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 700), st.booleans()), min_size=1, max_size=3),
    st.lists(st.sampled_from(("http_5xx", "truncated", "reset", "timeout", "stalled")), max_size=3),
    st.integers(0, 2), st.sampled_from(("http_5xx", "truncated", "bad_body", "timeout", "connect")),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_one_more_failed_request_never_improves_the_verdict(levels, failures, where, outcome):
    """Whatever the mix of quick, slow and failed requests, and whatever had been too few."""

    def world(more):
        rows = []
        for i, (quick, slow, _) in enumerate(levels):
            counts = {name: failures.count(name) for name in set(failures)}
            if more and i == where % len(levels):
                counts[outcome] = counts.get(outcome, 0) + 1
            rows.append(make_row(str(2**i), ms=[100.0] * quick + [600.0] * (slow // 10), **counts))
        return make_facts(*rows, slos=[SLO, "error_ratio<=2%"])

    assert ORDER.index(decide(world(more=True))) <= ORDER.index(decide(world(more=False)))


@given(
    st.integers(1, 700), st.integers(0, 5), st.integers(0, 12), st.sampled_from(("http_5xx", "truncated", "timeout"))
)
@settings(max_examples=60, deadline=None)
def test_a_good_answer_that_fails_instead_never_improves_the_verdict(n, refused, failed, outcome):
    """Also beside refusals."""

    def world(k):
        return make_facts(make_row(ms=[100.0] * (n - k), **{outcome: failed + k}, shed=refused, limited=refused))

    assert ORDER.index(decide(world(1))) <= ORDER.index(decide(world(0)))


# -- words -------------------------------------------------------------------------------------------------------------


def test_the_sentence_has_its_scope():
    """What for, and what was not tested."""
    facts = make_facts(make_row("8", ms=GOOD))

    assert (
        "READY for 8 concurrent requests of openai-chat with model m on one node; not tested: restart, tenants"
        == verdict.sentence(facts, "PASS", ["restart", "tenants"])
    )
    assert verdict.sentence(facts, "FAIL", []).startswith("NOT READY for 8")


def test_why_names_what_decided_with_value_and_limit_at_most_three():
    """Failures, not what else is open."""
    facts = make_facts(make_row(ms=[600.0] * 380, http_5xx=20))
    findings = gates.judge_findings(facts)
    lines = verdict.why(facts, findings, "FAIL", None)

    assert "20 of 400 requests failed (5.00 %, limit 1.00 %) at level 2 stream" == lines[0]
    assert 2 == len(lines)


def test_every_finding_names_its_rule_and_the_gates_their_reason():
    """Nothing is judged by a rule that is not written."""
    findings = gates.judge_findings(make_facts(make_row(ms=GOOD)))

    assert all(f.rule and f.reason for f in findings)
    assert all(gate.why for gate in gates.GATES)
    assert len(gates.GATES) == len({gate.name for gate in gates.GATES})
