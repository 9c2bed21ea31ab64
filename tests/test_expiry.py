"""An expired key is our side's: its step is invalid and fails nothing. Refusals between good answers are not."""

from __future__ import annotations

import dataclasses

import pytest
from build import BuiltRun, S, make_mark, make_record

from sweep.judge import judge
from sweep.records import HealthLine


def refuse(step, numbers, status: int = 401) -> None:
    """These requests of a step, by number, were refused for the key."""
    for i in numbers:
        old = step.records[i]
        step.records[i] = make_record(
            request_id=old.request_id, step=old.step, user=old.user, t_start_ns=old.t_start_ns, stream=old.stream,
            outcome="http_4xx", status=status, error_text="bad token",
        )  # fmt: skip


def number_keys(run: BuiltRun, *numbers: int) -> None:
    """The begin marks as the runner writes them with --api-key-cmd."""
    of_step = dict(zip((step.id for step in run.steps), numbers, strict=True))
    run.marks = [
        make_mark("begin", mark.t_mono_ns, mark.step, key=of_step[mark.step]) if mark.mark == "begin" else mark
        for mark in run.marks
    ]


def judged(tmp_path, change, levels="1,2", **plan):
    run = BuiltRun(levels, **({"api_key_env": "K"} | plan))
    change(run)
    result = judge(run.write(tmp_path))
    return result, {step["step"]: step["invalid_why"] for step in result["steps"]}


def test_a_key_that_expires_in_a_step_makes_it_invalid_and_fails_nothing(tmp_path):
    """Half of its requests are refused; the reason names the hour, and no gate fails."""
    result, why = judged(tmp_path, lambda run: refuse(run.steps[1], range(80, 160)))

    (told,) = (each for each in why.values() if each)
    assert told.startswith("token expired at 16:00 UTC: 80 requests were refused with 401"), told
    assert why["s01-c1-stream-k1"] is None
    assert ("INCONCLUSIVE", 3) == (result["verdict"], result["exit_code"])
    assert [] == [f["gate"] for f in result["findings"] if f["status"] == "fail"]


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(("n", "told"), [(1, "1 request was"), (4, "4 requests were"), (16, "16 requests were")])
def test_refusals_at_the_end_make_the_step_unknown_however_few(tmp_path, status, n, told):
    """A step that closes just after the expiry is not the target's failure, and no pass either."""
    result, why = judged(tmp_path, lambda run: refuse(run.steps[1], range(160 - n, 160), status))

    assert f"{told} refused with {status}" in why["s02-c2-stream-k1"]
    assert "INCONCLUSIVE" == result["verdict"]


def fail(step, numbers, outcome="http_5xx", status: int | None = 500) -> None:
    for i in numbers:
        old = step.records[i]
        step.records[i] = make_record(
            request_id=old.request_id, step=old.step, user=old.user, t_start_ns=old.t_start_ns, stream=old.stream,
            outcome=outcome, status=status, error_text="boom",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "status", "every"),
    [("http_5xx", 500, 3), ("shed", 503, 3), ("connect", None, 3), ("truncated", 200, 8)],
)
def test_what_failed_before_the_expiry_still_fails_the_step(tmp_path, outcome, status, every):
    """An expired key excuses its own refusals only."""

    def change(run):
        fail(run.steps[1], range(0, 80, every), outcome, status)
        refuse(run.steps[1], range(80, 160))

    result, why = judged(tmp_path, change)

    assert "FAIL" == result["verdict"], why


def test_a_target_that_fails_after_the_refusals_is_answering(tmp_path):
    """Any other answer with the key ends the stretch: 500 between the refusals are the target's own."""

    def change(run):
        refuse(run.steps[1], range(80, 160))
        fail(run.steps[1], range(83, 160, 4))

    result, why = judged(tmp_path, change)

    assert [None, None] == list(why.values())
    assert "FAIL" == result["verdict"]


def test_a_header_that_is_no_credential_does_not_expire(tmp_path):
    """A team's name from the environment makes no 403 ours."""
    plan = {"api_key_env": None, "headers": {"X-Team": "TEAM"}}
    result, why = judged(tmp_path, lambda run: refuse(run.steps[1], range(80, 160), 403), **plan)

    assert [None, None] == list(why.values())
    assert "FAIL" == result["verdict"]


def test_refusals_between_good_answers_are_the_target_s(tmp_path):
    """One backend of several that refuses the key: each refusal is a failure, and too many fail."""
    result, why = judged(tmp_path, lambda run: refuse(run.steps[1], range(10, 150, 5)))

    assert [None, None] == list(why.values())
    assert "FAIL" == result["verdict"]


def test_a_later_step_that_is_answered_with_the_same_key_disproves_the_expiry(tmp_path):
    """The last requests of a step were refused, the next step is fine: the key was good all the time."""
    result, why = judged(tmp_path, lambda run: refuse(run.steps[0], range(120, 160)))

    assert [None, None] == list(why.values())
    assert "FAIL" == result["verdict"]


def test_another_key_in_the_next_step_does_not(tmp_path):
    """With --api-key-cmd: the refused one was gone for good, and the next step is valid by itself."""

    def change(run):
        refuse(run.steps[0], range(120, 160))
        number_keys(run, 1, 2)

    result, why = judged(tmp_path, change, api_key_env=None, api_key_cmd="token")

    assert why["s01-c1-stream-k1"].startswith("token expired at 16:00 UTC") and why["s02-c2-stream-k1"] is None
    assert "INCONCLUSIVE" == result["verdict"]


def test_a_step_refused_from_its_first_request_on(tmp_path):
    """The key worked in the step before: expired between them, not a target that refuses everything."""
    result, why = judged(tmp_path, lambda run: refuse(run.steps[1], range(160)))

    assert why["s02-c2-stream-k1"].startswith("token expired at 16:00 UTC: 160 requests")
    assert [] == [f["gate"] for f in result["findings"] if f["status"] == "fail"]


def test_a_new_key_that_was_never_accepted(tmp_path):
    """It never worked, so it did not expire; it says nothing about the target all the same."""

    def change(run):
        refuse(run.steps[1], range(160))
        number_keys(run, 1, 2)

    _, why = judged(tmp_path, change, api_key_env=None, api_key_cmd="token")

    assert why["s02-c2-stream-k1"].startswith("the key was never accepted: 160 requests were refused with 401")


def test_an_answer_admitted_before_the_expiry_may_end_after_it(tmp_path):
    """A long stream that outlasts its token does not show that the token was good."""

    def change(run):
        step = run.steps[1]
        refuse(step, range(80, 160))
        step.records[79] = make_record(
            request_id=step.records[79].request_id, step=step.id, t_start_ns=step.records[79].t_start_ns,
            t_over_ns=step.t_end_ns, t_end_ns=step.t_end_ns,
        )  # fmt: skip

    _, why = judged(tmp_path, change)

    assert "80 requests" in why["s02-c2-stream-k1"]


def test_without_any_key_a_401_is_the_target_s(tmp_path):
    """Nothing of ours can have expired."""
    result, why = judged(tmp_path, lambda run: refuse(run.steps[1], range(80, 160)), api_key_env=None)

    assert [None, None] == list(why.values())
    assert "FAIL" == result["verdict"]


def test_a_secret_header_expires_like_a_key(tmp_path):
    """--header may carry the token."""
    plan = {"api_key_env": None, "headers": {"Authorization": "TOKEN"}}
    _, why = judged(tmp_path, lambda run: refuse(run.steps[1], range(80, 160)), **plan)

    assert why["s02-c2-stream-k1"].startswith("token expired")


def test_health_probes_refused_for_the_expired_key_are_not_the_target_s(tmp_path):
    """A path that wants the key fails with it; without the expiry they are missed probes."""

    def change(run, expire=True):
        step = run.steps[1]
        if expire:
            refuse(step, range(80, 160))
        t_half_ns = step.t_window_ns + 6 * S
        run.health = [
            HealthLine(t_mono_ns=each.t_mono_ns, what=each.what, status=401, ms=1.0)
            if t_half_ns <= each.t_mono_ns <= step.t_idle_ns else each for each in run.health
        ]  # fmt: skip

    expired, _ = judged(tmp_path / "a", change)
    kept, _ = judged(tmp_path / "b", lambda run: change(run, expire=False))

    assert 0 == expired["health"]["live"]["missed"] < kept["health"]["live"]["missed"]
    assert "fail" not in {f["status"] for f in expired["findings"]}
    assert "fail" in {f["status"] for f in kept["findings"] if f["gate"] == "liveness"}


def test_an_unverified_certificate_warns(tmp_path):
    """A finding of its own, the verdict at most WARN, and on the first screen."""
    run = BuiltRun("1,2")
    run.plan = dataclasses.replace(run.plan, target="https://127.0.0.1:9", insecure=True)
    run.run["plan"] |= {"target": "https://127.0.0.1:9", "insecure": True}
    result = judge(run.write(tmp_path))

    assert "WARN" == result["verdict"]
    assert [("certificate", "warn")] == [(f["gate"], f["status"]) for f in result["findings"] if f["status"] == "warn"]
    assert any("--insecure" in line for line in result["why"])


def test_each_tenants_key_expires_by_itself(tmp_path):
    """One tenant's refusals are the last word on its key, though the other's goes on working; mixed ones are none."""
    tenants = {"api_key_env": None, "tenants": ("a=KEY_A", "b=KEY_B")}

    def of_tenants(run: BuiltRun) -> None:
        for step in run.steps:
            for i, record in enumerate(step.records):
                record.tenant = "ab"[i % 2]

    def late(run: BuiltRun) -> None:
        refuse(run.steps[1], range(81, 160, 2))
        of_tenants(run)

    def early(run: BuiltRun) -> None:
        refuse(run.steps[1], range(1, 80, 2))
        of_tenants(run)

    _, why = judged(tmp_path / "late", late, "2,4", **tenants)
    result, none = judged(tmp_path / "early", early, "2,4", **tenants)

    assert why["s02-c4-stream-k1"].startswith("token expired at 16:00 UTC: 40 requests were refused with 401")
    assert {None} == set(none.values()) and "FAIL" == result["verdict"]
