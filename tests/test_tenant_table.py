"""How tenants were served, judged from records: demand, shares, Jain's index, longest waits; and who left."""

from __future__ import annotations

import pytest
from build import BuiltRun, S, make_record, write_run
from hypothesis import given
from hypothesis import strategies as st

from sweep.judge import judge
from sweep.report import render
from sweep.tenant_table import jain

TWO = {"tenants": ("a=KEY_A:3", "b=KEY_B"), "levels": "4", "pid": None}


def of_tenants(**shares: int):
    """A change: the level's requests are sent by tenants in turn, so many of each at a time."""

    def change(run: BuiltRun) -> None:
        turn = [name for name, n in shares.items() for _ in range(n)]
        for step in run.steps:
            for i, record in enumerate(step.records):
                record.tenant = turn[i % len(turn)]

    return change


def fairness(result):
    (row,) = result["tenants"]["fairness"]
    return row


def row_of(result, tenant):
    (row,) = (row for row in result["tenants"]["rows"] if row["tenant"] == tenant)
    return row


def test_tenants_served_by_their_weight_are_served_alike(tmp_path):
    """Three users get three times as much as one: share 100 % for both, Jain's index 1; no verdict hangs on it."""
    result = judge(write_run(tmp_path, of_tenants(a=3, b=1), n=320, **TWO))

    assert (1.0, pytest.approx(1.0)) == (fairness(result)["min_share"], fairness(result)["jain"])
    a, b = row_of(result, "a"), row_of(result, "b")
    assert (3.0, 240, 240, 1.0) == (a["part"], a["offered"], a["ok"], a["share"])
    assert (1.0, 80, 80, 1.0) == (b["part"], b["offered"], b["ok"], b["share"])
    assert (80, 80, 1.0) == (b["good"], b["goodput"]["n"], b["goodput"]["v"])
    assert 100.0 == b["ttft_p95_ms"]["v"] and 130.0 == b["e2e_p95_ms"]["v"]
    assert not any("tenant" in finding["gate"] for finding in result["findings"])
    assert "tenants (shown, not judged)" in result["not_tested"]


def test_a_starved_tenant_shows_though_all_it_offered_was_good(tmp_path):
    """b's one user waits so long that it offers little: by its own requests all is well."""
    result = judge(write_run(tmp_path, of_tenants(a=31, b=1), n=320, **TWO))

    b = row_of(result, "b")
    assert (10, 1.0) == (b["ok"], b["goodput"]["v"])
    assert pytest.approx(3 / 31) == b["share"] == fairness(result)["min_share"]
    assert "b" == fairness(result)["least_served"] == fairness(result)["longest_gap_of"]
    assert pytest.approx(jain([310 / 3, 10]), rel=1e-6) == fairness(result)["jain"]
    # The first of b's is the 32nd of 320 requests in 12 s, and takes 130 ms.
    assert pytest.approx(31 * 0.0375 + 0.13) == b["longest_gap_s"] and row_of(result, "a")["longest_gap_s"] < 0.2


def test_what_counts_as_good_and_how_long_a_silence_was(tmp_path):
    """A limit that half of a's answers miss, failures and refusals of b's, and nothing of b's after the middle."""

    def change(run: BuiltRun) -> None:
        (step,) = run.steps
        middle = (step.t_window_ns + step.t_close_ns) // 2
        made = []
        for i, old in enumerate(step.records):
            named = {"request_id": old.request_id, "step": old.step, "t_start_ns": old.t_start_ns}
            if i % 2 == 0:
                slow = {"t_first_ns": old.t_start_ns + 700_000_000, "t_over_ns": old.t_start_ns + S,
                        "t_last_ns": old.t_start_ns + S, "t_end_ns": old.t_start_ns + S}  # fmt: skip
                made.append(make_record(**named, tenant="a", **(slow if i % 4 == 0 else {})))
            elif old.t_start_ns < middle:
                made.append(make_record(**named, tenant="b"))
            else:
                outcome = "shed" if i % 4 == 1 else "http_5xx"
                made.append(make_record(**named, tenant="b", outcome=outcome))
        step.records = made

    result = judge(write_run(tmp_path, change, n=320, **(TWO | {"tenants": ("a=KEY_A", "b=KEY_B")})))

    a, b = row_of(result, "a"), row_of(result, "b")
    assert (160, 160, 80) == (a["offered"], a["ok"], a["good"])
    assert (160, 80, 40, 40, 80) == (b["offered"], b["ok"], b["refused"], b["failed"], b["good"])
    assert (0.5, 0.5) == (a["goodput"]["v"], b["goodput"]["v"])
    assert (1.0, 1.0) == (a["share"], b["share"])
    assert pytest.approx(6.0, abs=0.2) == b["longest_gap_s"] == fairness(result)["longest_gap_s"]
    assert "inf" == b["e2e_p95_ms"]["v"]


def test_nobody_served_is_no_fairness(tmp_path):
    """Missing with the reason, never 1 or 0."""

    def change(run: BuiltRun) -> None:
        (step,) = run.steps
        step.records = step.make(40, outcome="http_5xx", tenant="a")

    row = fairness(judge(write_run(tmp_path, change, **TWO)))

    assert (None, None, "no tenant got a good answer") == (row["jain"], row["min_share"], row["why"])


def test_an_invalid_step_has_no_rows(tmp_path):
    def change(run: BuiltRun) -> None:
        of_tenants(a=3, b=1)(run)
        run.steps[0].report |= {"counts_agree": False, "why": "a count is wrong"}

    result = judge(write_run(tmp_path, change, **TWO))

    assert [] == result["tenants"]["rows"]
    assert ["level 4 stream: invalid step: a count is wrong"] == result["tenants"]["left_out"]


def test_a_tenant_that_asks_for_nothing_is_no_starved_one(tmp_path):
    """Its number is 0 at this level; with one tenant left there is no fairness to speak of."""
    made = TWO | {"tenants": ("a=KEY_A", "b=KEY_B@0,1"), "levels": "2,4"}
    result = judge(write_run(tmp_path, of_tenants(a=1), n=320, **made))

    first, second = result["tenants"]["fairness"]
    assert "fewer than two tenants asked for anything" == first["why"]
    assert (0.0, "b") == (second["min_share"], second["least_served"])
    assert [None, 0.0] == [row["share"] for row in result["tenants"]["rows"] if row["tenant"] == "b"]


def test_a_tenant_whose_arrivals_are_all_cut_is_the_starved_one(tmp_path):
    """Requests that hang until the step's end were due all the same."""

    def change(run: BuiltRun) -> None:
        (step,) = run.steps
        for i, old in enumerate(step.records):
            named = {"request_id": old.request_id, "step": old.step, "t_start_ns": old.t_start_ns,
                     "t_due_ns": old.t_due_ns}  # fmt: skip
            late = {"t_over_ns": step.t_close_ns + S, "outcome": "cut"} if i % 2 else {}
            step.records[i] = make_record(**named, tenant="ab"[i % 2], **late)

    made = TWO | {"tenants": ("a=KEY_A", "b=KEY_B"), "levels": "20/s"}
    result = judge(write_run(tmp_path, change, **made))

    b = row_of(result, "b")
    assert (0, 0.0) == (b["offered"], b["share"]) and b["cut"] > 50
    assert (0.0, "b", "b") == tuple(fairness(result)[name] for name in ("min_share", "least_served", "longest_gap_of"))
    assert pytest.approx(0.5) == fairness(result)["jain"]


def test_the_report_shows_them_and_what_each_key_paid(tmp_path):
    """In HTML and Markdown; keys by the names of their variables."""
    result = judge(write_run(tmp_path, of_tenants(a=31, b=1), n=320, **TWO))
    shown = render(result)

    for text in (shown["report.html"], shown["summary.md"]):
        assert "b was served least, 9.68 %" in text.replace("\\", "")
        assert "longest wait" in text and "Tenants" in text
    assert ", 2 tenants, on one node" in result["scope"]
    assert any("310 openai-chat requests" in line and line.endswith("charged to the key in KEY_A of tenant a")
               for line in result["left_behind"])  # fmt: skip
    assert any("10 openai-chat requests" in line and line.endswith("charged to the key in KEY_B of tenant b")
               for line in result["left_behind"])  # fmt: skip


def test_a_run_without_tenants_has_no_such_section(tmp_path):
    result = judge(write_run(tmp_path))

    assert result["tenants"] is None and 'id="tenants"' not in render(result)["report.html"]


def test_clients_that_left_are_offered_and_no_error(tmp_path):
    """A fifth left: no failure, in no percentile, offered in goodput (metrics.md); the report says when they left."""

    def change(run: BuiltRun) -> None:
        for step in run.steps:
            for i in range(0, len(step.records), 5):
                old = step.records[i]
                step.records[i] = make_record(
                    request_id=old.request_id, step=old.step, user=old.user, t_start_ns=old.t_start_ns,
                    outcome="left", left_at="before_first" if i % 10 else "mid_stream",
                )  # fmt: skip

    result = judge(write_run(tmp_path, change, levels="2", n=400, cancel_ratio=0.2))

    (row,) = result["levels"]
    assert (400, 320, 0.0) == (row["offered"], row["ok"], row["error_ratio"]["v"])
    assert {"before_first": 40, "mid_stream": 40} == row["left_at"]
    assert (320, 0.8) == (row["ttft_ms"]["p95"]["n"], row["goodput"]["v"])
    assert [] == result["errors"] and "PASS" == result["verdict"], result["why"]
    assert ", 20 % of the clients leave, on one node" in result["sentence"]
    shown = render(result)
    for name in ("report.html", "summary.md"):
        assert "before_first 40, mid_stream 40" in shown[name].replace("\\", "")


def test_a_mixed_step_has_a_row_for_each_mode(tmp_path):
    """As those of an own locustfile do; SLOs of both modes are judged, and the caches are told."""

    def change(run: BuiltRun) -> None:
        for step in run.steps:
            step.records = [
                make_record(request_id=old.request_id, step=old.step, user=old.user, t_start_ns=old.t_start_ns,
                            stream=i % 4 > 0)
                for i, old in enumerate(step.make(400))
            ]  # fmt: skip

    slos = ["stream.ttft_ms.p95<=500", "nonstream.e2e_ms.p95<=500"]
    result = judge(write_run(tmp_path, change, levels="2", mode="mixed", stream_share=0.75, slos=slos))

    rows = [(row["mode"], row["ok"], row["shares_step"]) for row in result["levels"]]
    assert [("stream", 300, True), ("nonstream", 100, True)] == rows
    assert ["mixed"] == [step["mode"] for step in result["steps"]]
    assert "PASS" == result["verdict"], result["why"]
    assert {"pass"} == {each["status"] for each in result["findings"] if each["gate"].startswith("slo")}
    assert "75 % streaming" in result["sentence"] and "off by nonce" == result["target"]["prefix_caches"]
    assert "prefix caches: off by nonce" in render(result)["report.html"]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_jains_index_lies_between_one_nth_and_one(served):
    index = jain(served)

    assert (index is None) == (not any(x * x for x in served))
    assert index is None or 1 / len(served) - 1e-9 <= index <= 1 + 1e-9


def test_jains_index_of_nine_fair_tenants_and_a_starved_one():
    """The value of the literature that shows why it is never shown alone."""
    assert pytest.approx(0.9) == jain([1.0] * 9 + [0.0])
