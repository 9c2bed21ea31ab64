"""After every kind of run that did not simply pass: what to do, and a command that the program accepts."""

import dataclasses
import shlex

import pytest
from build import S, make_facts, make_mark, make_probes, make_row, write_run
from click.testing import CliRunner

from sweep import gates, verdict
from sweep.cli import cli
from sweep.finding import Finding
from sweep.judge import judge
from sweep.next_step import IDENTITY, next_step
from sweep.run_table import GuardTrip, Survival
from sweep.units import parse_level

GOOD = (100.0,) * 400


def accepts(command):
    """Whether the program takes the command; its plan is printed, nothing is sent."""
    words = shlex.split(command)
    assert ["ha-sweep", "run"] == words[:2]
    done = CliRunner().invoke(cli, [*words[1:], "--dry-run"])
    return done.exit_code == 0 or done.output


def after(facts, **given):
    """(verdict, text, command) of these facts."""
    findings = gates.judge_findings(facts)
    decided = verdict.verdict(findings, "ABORTED" if given.get("by") else "COMPLETE")
    step = next_step(facts, findings, decided, **{"by": None} | given)
    return decided, step.text, step.command


def with_step(**changed):
    row = make_row(ms=GOOD)
    step = dataclasses.replace(row.rows[0], **changed)
    return make_facts(dataclasses.replace(row, rows=(step,), valid=step.valid, invalid_why=step.invalid_why))


def unowned():
    facts = make_facts(make_row(ms=GOOD))
    return dataclasses.replace(facts, subject=dict(facts.subject) | {"ownership": "contradicted", "why": "another"})


def short(row):
    """A plan whose steps end after 12 s, whatever is still open."""
    facts = make_facts(row)
    return dataclasses.replace(facts, plan=dataclasses.replace(facts.plan, duration_s=12.0, max_step_s=12.0))


# kind: facts, what the text names, what the command holds ("" for any command, None for none)
UNDECIDED = {
    "another process": (unowned, "listens at the target's port", "--gateway-pid port:9 "),
    "late generator": (lambda: with_step(generator_why="late"), "free core", ""),
    "records lost": (lambda: with_step(counts_why="410 of 418"), "locust/s01-c2-stream-k1.json", ""),
    "the caller's limit": (lambda: make_facts(make_row(ms=GOOD, limited=40)), "caller's own limit", ""),
    "refused without a reason": (lambda: make_facts(make_row(ms=GOOD, rejected_unclear=40)), "gateway's log", ""),
    "too few requests": (lambda: short(make_row(ms=GOOD[:40])), "longer", "--max-step"),
    "near the limit": (lambda: short(make_row(ms=[100.0] * 470 + [600.0] * 20)), "longer", "--duration"),
    "a step cut short": (lambda: make_facts(make_row(ms=GOOD[:40])), "go on for the requests", ""),
    "answers cut": (lambda: make_facts(make_row(ms=GOOD, cut=60), slos=["ttft_ms.p95<=20000"]), "--drain", "--drain"),
    "a mode not run": (
        lambda: make_facts(make_row(ms=GOOD), mode="both"), "the same again", "ha-sweep run"),
    "a level not run": (
        lambda: dataclasses.replace(f := make_facts(make_row(ms=GOOD)),
                                    planned=((parse_level("1"), "stream"), *f.planned)), "the same again", ""),
    "a hole in the samples": (
        lambda: dataclasses.replace(make_facts(make_row(ms=GOOD)), process_why={"s01-c2-stream-k1": "a hole"}),
        "sampler", ""),
    "few probes": (
        lambda: dataclasses.replace(make_facts(make_row(ms=GOOD)), live=make_probes(n=4)), "health paths", ""),
    "survival unknown": (
        lambda: dataclasses.replace(make_facts(make_row(ms=GOOD)),
                                    survival=Survival(True, None, None, None, "unknown: no end line")), "same", ""),
    "no token counts": (
        lambda: make_facts(dataclasses.replace(make_row(ms=GOOD), missing={"tpot_ms": "no server count"}),
                           slos=["tpot_ms.p95<=50", "ttft_ms.p95<=500"]), "leave that --slo out", "ttft_ms"),
    "everything cut": (lambda: make_facts(make_row(cut=30), slos=["ttft_ms.p95<=20000"]), "--drain", "--drain"),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNDECIDED)
def test_every_undecided_run_says_what_would_decide_it(kind):
    """The text names the cause or the option, and the program accepts the command."""
    make, named, held = UNDECIDED[kind]
    decided, text, command = after(make())

    assert "INCONCLUSIVE" == decided
    assert named in text
    assert held in command
    assert "port:9 " in command or True is accepts(command)  # nothing listens on port 9 that could be found


@pytest.mark.parametrize("by", ["signal", "stop_file", "disk", "fault", "killed", "api_key"])
def test_a_run_that_was_stopped_is_run_again(by):
    """Whatever stopped it; what has to be mended before that is said."""
    decided, text, command = after(make_facts(make_row(ms=GOOD)), by=by)

    assert "INCONCLUSIVE" == decided
    assert "the same again" in text
    assert True is accepts(command)


def one_error(outcome, status, ids=("a",)):
    return [{"outcome": outcome, "status": status, "error_code": None, "count": 9, "request_ids": list(ids)}]


@pytest.mark.parametrize(
    ("errors", "named"),
    [
        (one_error("http_4xx", 401), "name its variable with --api-key-env"),
        (one_error("http_4xx", 404), "--model (m)"),
        (one_error("connect", None), "listens at http://127.0.0.1:9"),
        (one_error("http_5xx", 500), "request ids"),
    ],
)
def test_a_target_that_refuses_everybody_is_asked_why(errors, named):
    """More load would say nothing."""
    decided, text, _ = after(make_facts(make_row(http_4xx=40)), errors=errors)

    assert "FAIL" == decided
    assert named in text


def test_a_failure_under_load_is_narrowed_between_what_held_and_what_failed():
    """Levels in between; with the one that held as the level production would get."""
    facts = make_facts(make_row("4", ms=GOOD), make_row("16", ms=[600.0] * 400))
    decided, text, command = after(facts)

    assert ("FAIL", "between 4 (held) and 16 (failed): levels 4,7,10,13,16") == (decided, text)
    assert "--levels 4,7,10,13,16 " in command
    assert "--sustain 4" in command
    assert True is accepts(command)


def test_narrower_levels_are_those_that_tenants_can_share(monkeypatch):
    """A level below their number is none, and a tenant's own numbers are given for each of the new levels."""
    for name in ("KEY_A", "KEY_B", "KEY_C"):
        monkeypatch.setenv(name, f"a key of {name}")
    facts = make_facts(make_row("4", ms=[600.0] * 400))
    with_tenants = dataclasses.replace(facts.plan, tenants=("a=KEY_A", "b=KEY_B:1.5", "c=KEY_C@7"))
    _, text, command = after(dataclasses.replace(facts, plan=with_tenants))

    assert "between none and 4 (failed): levels 2,3,4" == text
    assert "--tenant a=KEY_A --tenant b=KEY_B:1.5 --tenant c=KEY_C@7,7,7" in command
    assert True is accepts(command)


def test_a_lowest_level_that_fails_is_narrowed_below_it():
    """Down to one request at a time, and no further."""
    _, text, command = after(make_facts(make_row("2", ms=[600.0] * 400)))
    assert "between none and 2 (failed): levels 1,2" == text
    assert True is accepts(command)

    _, text, _ = after(make_facts(make_row("1", ms=[600.0] * 400)))
    assert "failed gates" in text  # nothing failed by itself, so that there are no ids to look for


def test_an_exploring_level_that_fails_is_narrowed_though_the_run_passed():
    """The capacity lies in between."""
    facts = make_facts(make_row("2", ms=GOOD), make_row("8", ms=[600.0] * 400, exploring=True))
    decided, text, command = after(facts)

    assert ("PASS", "between 2 (held) and 8 (failed): levels 2,4,5,6,8") == (decided, text)
    assert True is accepts(command)


def test_a_process_that_died_is_not_a_matter_of_fewer_requests():
    """Its log knows."""
    facts = make_facts(make_row("1", ms=GOOD), make_row("8", ms=GOOD))
    died = Survival(True, False, 9.0, "s01-c8-stream-k1", "gone")
    trip = GuardTrip("gone", parse_level("8"), "stream", "s01-c8-stream-k1")
    decided, text, command = after(dataclasses.replace(facts, survival=died, guards=(trip,)))

    assert "FAIL" == decided
    assert "why the process ended" in text
    assert "--levels 1,8 " in command


@pytest.mark.parametrize("gate", IDENTITY)
@pytest.mark.parametrize("status", ["fail", "unknown"])
def test_another_build_or_model_is_a_matter_of_deployment(gate, status):
    """Neither fewer requests nor more would tell anything of the one that was meant."""
    findings = [Finding(gate, status, "another", "the one declared")]
    decided = verdict.verdict(findings, "COMPLETE")
    step = next_step(make_facts(make_row("8", ms=GOOD)), findings, decided, by=None)

    assert step.text == IDENTITY[gate]
    assert True is accepts(step.command)


def test_without_an_slo_the_same_run_is_proposed_with_one():
    """Other objectives stay."""
    facts = make_facts(make_row(ms=GOOD), slos=["error_ratio<=1%"])
    decided, text, command = after(facts, proposed=["stream.ttft_ms.p95<=130@2", "nonstream.e2e_ms.p95<=9@2"])

    assert "WARN" == decided
    assert text.endswith("from this run: --slo 'stream.ttft_ms.p95<=130@2' --slo 'nonstream.e2e_ms.p95<=9@2'")
    assert 3 == command.count("--slo ")
    assert "error_ratio<=1%" in command


def test_labels_are_given_again_one_by_one():
    """As the command line takes them."""
    facts = make_facts(make_row(ms=GOOD[:40]))
    plan = dataclasses.replace(facts.plan, labels={"ticket": "OPS-12", "team": "a b"})
    _, _, command = after(dataclasses.replace(facts, plan=plan))

    assert "--label ticket=OPS-12 --label 'team=a b'" in command
    assert True is accepts(command)


def test_a_run_that_passed_needs_no_command():
    """Nothing is to be decided; how to find its end is said."""
    decided, text, command = after(make_facts(make_row(ms=GOOD)))

    assert ("PASS", None) == (decided, command)
    assert "levels above 2 with --sustain 2" in text


def test_without_a_pid_a_pid_is_what_is_missing():
    """No command can name it."""
    facts = dataclasses.replace(make_facts(make_row(ms=GOOD)), subject=None,
                                survival=Survival(False, None, None, None, "not tested"))  # fmt: skip

    assert ("WARN", None) == after(facts)[::2]
    assert "--gateway-pid PID" in after(facts)[1]


def test_damaged_evidence_is_verified_and_run_again(tmp_path):
    """The plan in run.json is still known."""
    out = write_run(tmp_path)
    (out / "samples.jsonl").write_bytes(b'{"kind":"other"}\n')
    result = judge(out)

    assert "INVALID" == result["run_status"]
    assert "ha-sweep verify" in result["next_text"]
    assert True is accepts(result["next"])


def test_result_json_carries_both(tmp_path):
    """As judged from files: a stop by the person at the terminal."""

    def stop(run):
        step = run.steps[1]
        run.marks = [mark for mark in run.marks if mark.t_mono_ns <= step.t_window_ns]
        run.marks += [make_mark("abort", step.t_window_ns + S, step.id, by="signal", reason="SIGINT")]
        step.report = {"t_close_ns": step.t_window_ns + S, "t_end_ns": step.t_window_ns + S, "closed_by": "signal"}
        step.records = [record for record in step.records if record.t_start_ns < step.t_window_ns + S]

    result = judge(write_run(tmp_path, stop))

    assert result["status_reason"].startswith("stopped by you (SIGINT) in step s02-c2-stream-k1")
    assert "the same again, and let it come to its end" == result["next_text"]
    assert True is accepts(result["next"])
