"""Who was tested and who answered, judged: built runs through the whole judgement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from build import PID, BuiltRun, S, make_record

from sweep import judge, outdir, report

STEP = "s01-c1-stream-k1"
DIGEST = "ab" * 32
N = 320  # enough for the error gate of one level
NATIVE = {"comm": "gateway", "exe": "/opt/gateway", "exe_sha256": DIGEST, "exe_deleted": False, "arch": "x86_64"}
PYTHON = NATIVE | {"exe": "/usr/bin/python3.11"}


def version(value: str, product: str | None = None, source: str = "GET /version") -> dict[str, Any]:
    return {"what": "version", "value": value, "product": product, "path": "/version", "source": source}


def judged(tmp_path: Path, rows=(), later=None, seen=None, change=None, why=None, **plan: Any) -> dict[str, Any]:
    """The result of a READY run whose target answered rows before the load, and `later` after each step.

    later: rows of every round, None: as before. seen: identity of the process.
    """
    run = BuiltRun(levels="1", **{"n": N} | plan)
    run.run["answered"] = {"rows": list(rows), "why": why}
    if seen is not None and run.run["subjects"]:
        run.run["subjects"][0]["seen"] = seen
    if change is not None:
        change(run)
    out_dir = run.write(tmp_path)
    snapshot = {"mark": f"{STEP}.after", "t_mono_ns": run.t_finish_ns - S, "identity": seen}
    snapshot["answered"] = {"rows": list(rows if later is None else later), "why": None}
    (out_dir / outdir.snapshot_file(f"{STEP}.after")).write_bytes(msgspec.json.encode(snapshot))
    return judge.judge(out_dir)


def findings(result: dict[str, Any], gate: str) -> list[tuple[str, bool, str]]:
    return [(each["status"], each["required"], each["reason"]) for each in result["findings"] if each["gate"] == gate]


def line(result: dict[str, Any]) -> str:
    text = result["subject"]["text"]
    assert 0 < len(text) <= 60
    return text


def test_the_declared_version_that_is_answered_passes(tmp_path):
    """With where it was answered; nothing else in the verdict changes."""
    result = judged(tmp_path, [version("v1.2.0")], seen=PYTHON, subject="gate@1.2")

    assert [("pass", True, "GET /version answers v1.2.0, as declared")] == findings(result, "subject")
    assert [("pass", True, "GET /version answers v1.2.0 before and after")] == findings(result, "same build")
    assert "gate@1.2, as GET /version answers" == line(result)
    assert ("PASS", True) == (result["verdict"], result["subject"]["build_known"])
    assert {"version": "v1.2.0", "source": "GET /version"} == result["subject"]["answered"]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([version("1.2.1")], "declared gate@1.2.0, but GET /version answers 1.2.1"),
        ([version("1.2.0-rc1")], "declared gate@1.2.0, but GET /version answers 1.2.0-rc1"),
        ([version("1.2.0", "LiteLLM", "header x-litellm-version")],
         "declared gate@1.2.0, but header x-litellm-version answers LiteLLM 1.2.0"),
        ([version("0.6.0", "Ollama", "GET /api/version"), version("1.3")],
         "declared gate@1.2.0, but GET /version answers 1.3"),
    ],
)  # fmt: skip
def test_another_version_than_declared_fails(tmp_path, rows, reason):
    """Required: exit 1, however good the numbers are."""
    result = judged(tmp_path, rows, subject="gate@1.2.0")

    assert [("fail", True, reason)] == findings(result, "subject")
    assert ("FAIL", 1) == (result["verdict"], result["exit_code"])
    assert "declared gate@1.2.0" in line(result)


@pytest.mark.parametrize(
    ("rows", "why", "reason"),
    [
        ([], None, "declared gate@1.2; the target answers no version (no path and no header tells one)"),
        ([], "GET /: ReadTimeout", "declared gate@1.2; the target answers no version (GET /: ReadTimeout)"),
        ([version("1.2", "Ollama", "GET /api/version")], None,
         "declared gate@1.2; GET /api/version answers Ollama 1.2, which is about another product"),
        ([version("1.2"), version("9", None, "GET /info")], None,
         "GET /version answers 1.2, but GET /info answers 9"),
    ],
)  # fmt: skip
def test_a_declaration_that_nothing_confirms_is_assumed(tmp_path, rows, why, reason):
    """READY WITH WARNINGS at most; Ollama's paths are imitated by many gateways, so that they contradict no name."""
    result = judged(tmp_path, rows, why=why, seen=NATIVE, subject="gate@1.2")

    assert [("assumed", True, reason)] == findings(result, "subject")
    assert "WARN" == result["verdict"]


def test_an_answer_about_the_declared_product_wins_over_one_about_its_upstream(tmp_path):
    """A front of Ollama answers for both."""
    rows = [version("0.6.0", "Ollama", "GET /api/version"), version("1.2", "LiteLLM", "header x-litellm-version")]
    result = judged(tmp_path, rows, subject="litellm@1.2")

    assert ["pass"] == [status for status, _, _ in findings(result, "subject")]


@pytest.mark.parametrize(
    ("pid", "rows", "seen", "known", "text"),
    [
        (PID, [], PYTHON, False, "build unknown (python3.11 is an interpreter)"),
        (None, [], None, False, "build unknown (no --gateway-pid)"),
        (PID, [], {"comm": "x"}, False, "build unknown (the program cannot be read (EACCES))"),
        (PID, [], NATIVE, True, "gateway, sha256 abababababab…"),
        (PID, [], NATIVE | {"exe": "/opt/gateway (deleted)"}, True, "gateway, sha256 abababababab…"),
        (PID, [version("0.1", "Demo gateway", "GET /api/version")], PYTHON, True,
         "Demo gateway 0.1 (GET /api/version)"),
        (None, [version("0.1")], None, True, "version 0.1 (GET /version)"),
        (None, [version("0" * 100)], None, True, "version " + "0" * 51 + "…"),
    ],
)  # fmt: skip
def test_the_line_without_a_declaration(tmp_path, pid, rows, seen, known, text):
    """What is known of the build, or why it is unknown; neither changes the verdict."""

    def unreadable(run: BuiltRun) -> None:
        for subject in run.run["subjects"]:
            subject["visibility"] = [{"source": "exe_sha256", "readable": False, "why": "EACCES"}]

    result = judged(tmp_path, rows, seen=seen, change=unreadable, pid=pid)

    assert (text, known) == (line(result), result["subject"]["build_known"])
    assert [] == findings(result, "subject") + findings(result, "subject digest")
    assert ("WARN" if pid is None else "PASS") == result["verdict"]


@pytest.mark.parametrize(
    ("seen", "digest", "status", "words"),
    [
        (NATIVE, DIGEST.upper(), "pass", "the running program /opt/gateway has it"),
        (NATIVE, "cd" * 32, "unknown", f"/opt/gateway has sha256:{DIGEST}: another build, or the digest of an image"),
        (NATIVE | {"container_id": "cd" * 32}, "cd" * 32, "assumed", "not comparable: the program in container cdcd"),
        (NATIVE | {"container_id": "cd" * 32}, DIGEST, "pass", "has it"),
        (PYTHON, "cd" * 32, "assumed", "cannot be compared: python3.11 is an interpreter"),
        (PYTHON, DIGEST, "assumed", "is that of the interpreter itself"),
        ({"comm": "x"}, DIGEST, "assumed", "the program cannot be read"),
        (None, DIGEST, "assumed", "no --gateway-pid"),
    ],
)
def test_a_declared_digest_is_compared_with_the_running_program(tmp_path, seen, digest, status, words):
    """Equal passes; what may be the digest of something else never passes in silence."""
    result = judged(tmp_path, seen=seen, pid=None if seen is None else PID, subject_digest=f"sha256:{digest}")
    [(found, required, reason)] = findings(result, "subject digest")

    assert (status, True) == (found, required)
    assert words in reason
    assert {"pass": "PASS", "unknown": "INCONCLUSIVE", "assumed": "WARN"}[status] == result["verdict"]


def test_a_target_that_changed_under_the_load_is_undecided(tmp_path):
    """The numbers are of two builds: unknown, required, and on the first screen."""
    result = judged(tmp_path, [version("1.2")], later=[version("1.3")], subject="gate@1.2")
    [(status, required, reason)] = findings(result, "same build")

    assert ("unknown", True) == (status, required)
    assert f"1.2, then 1.3 (GET /version, seen at {STEP}.after)" in reason
    assert ("INCONCLUSIVE", 3) == (result["verdict"], result["exit_code"])
    assert line(result).startswith("changed during the run: 1.2, then 1.3")


def test_a_process_that_became_another_program_is_undecided(tmp_path):
    """execve keeps pid and start time; the hash tells."""

    def exec_(run: BuiltRun) -> None:
        run.run["subjects"][0]["seen"] = NATIVE | {"exe_sha256": "cd" * 32}

    result = judged(tmp_path, seen=NATIVE, change=exec_)

    assert ["unknown"] == [status for status, _, _ in findings(result, "same build")]
    assert "program sha256 cdcdcdcdcdcd…, then abababababab…" in findings(result, "same build")[0][2]


def test_a_target_that_answers_no_more_is_said(tmp_path):
    """It is not tested; a silent path is no other build."""
    result = judged(tmp_path, [version("1.2")], later=[])

    assert [("skipped", False)] == [each[:2] for each in findings(result, "same build")]
    assert "PASS" == result["verdict"]


def test_a_program_whose_file_is_gone_warns(tmp_path):
    """What a restart would run was not tested."""
    deleted = NATIVE | {"exe": "/opt/gateway (deleted)", "exe_deleted": True}
    result = judged(tmp_path, seen=deleted)

    assert ["warn"] == [status for status, _, _ in findings(result, "program")]
    assert "WARN" == result["verdict"]


def serve(n_other: int, *, asked: str | None = "m", other: str = "m2", flag: str = "other_model", **more: Any):
    """Changes a run: the first n_other answers name another model."""

    def change(run: BuiltRun) -> None:
        step = run.step("1")
        for i, old in enumerate(step.records):
            is_other = i < n_other
            step.records[i] = make_record(
                request_id=old.request_id, step=old.step, user=0, t_start_ns=old.t_start_ns,
                model_served=other if is_other else asked, flags=(flag,) if is_other else (), **more,
            )  # fmt: skip

    return change


@pytest.mark.parametrize(
    ("n", "n_other", "status", "required"),
    [(300, 3, "warn", False), (300, 4, "fail", True), (320, 320, "warn", False)],
)
def test_a_mixture_of_models_fails_above_one_percent(tmp_path, n, n_other, status, required):
    """At the limit it warns; one other name throughout may be an alias: it warns."""
    result = judged(tmp_path, change=serve(n_other), n=n)
    [(found, is_required, reason)] = findings(result, "other model")

    assert (status, required) == (found, is_required)
    assert f"{n_other} of {n} good answers name another: m2 ({n_other})" in reason
    assert ("an alias of it" in reason) == (n == n_other)
    assert ("FAIL" if required else "WARN") == result["verdict"]
    assert [] == findings(result, "flag other_model")


def test_the_model_asked_for_passes_and_none_named_is_not_tested(tmp_path):
    """`m:latest` is `m`; an answer that names none says nothing."""
    named = judged(tmp_path / "a", change=serve(0, asked="m:latest"))
    silent = judged(tmp_path / "b", change=serve(0, asked=None))

    assert [("pass", True, "all of 320 name the model asked for")] == findings(named, "other model")
    assert [("skipped", False)] == [each[:2] for each in findings(silent, "other model")]
    assert ("PASS", "PASS") == (named["verdict"], silent["verdict"])


@pytest.mark.parametrize(
    ("change", "statuses", "words"),
    [
        (serve(0, attempts=1), ["pass"], "none of the 320 answers that tell"),
        (serve(0), ["skipped"], "no answer carries a known header"),
        (serve(0, attempts=3), ["warn"], "320 of 320 answers that tell took more than one attempt"),
        (serve(1, other="m", flag="fallback", attempts=1), ["warn"], "1 of 320 answers came after a fallback"),
    ],
)
def test_retries_and_fallbacks_are_a_finding_of_their_own(tmp_path, change, statuses, words):
    """One is enough to warn; it is no flag beside."""
    result = judged(tmp_path, change=change)
    found = findings(result, "retries")

    assert statuses == [status for status, _, _ in found]
    assert words in found[0][2]
    assert [] == findings(result, "flag fallback")
    assert ("WARN" if statuses == ["warn"] else "PASS") == result["verdict"]


def test_backends_and_kept_headers_are_counted_by_value(tmp_path):
    """Most frequent first, at most eight, the rest summed up; answers without one are counted too."""

    def change(run: BuiltRun) -> None:
        for i, old in enumerate(run.step("1").records):
            headers = {"x-served-by": f"n{i % 20:02d}" if i < 100 else "main"}
            run.step("1").records[i] = make_record(
                request_id=old.request_id, step=old.step, user=0, t_start_ns=old.t_start_ns,
                backend="b" if i % 4 else "a", headers={} if i == 0 else headers,
            )  # fmt: skip

    result = judged(tmp_path, change=change, keep_headers=("X-Served-By",))
    told = result["levels"][0]["told"]

    assert {"values": [["b", 240], ["a", 80]], "others": 0, "absent": 0} == told["backends"]
    served = told["headers"]["x-served-by"]
    assert [["main", 220], ["n01", 5], ["n02", 5]] == served["values"][:3]
    assert (8, 13, 1) == (len(served["values"]), served["others"], served["absent"])


def test_the_report_shows_what_was_seen_with_its_source(tmp_path):
    """HTML and Markdown alike; hostile values stay text."""
    seen = NATIVE | {"build_id": "b1d5", "container_id": "ef" * 32}
    rows = [version("<b>1|2</b>"), {"what": "Server header", "value": "uvicorn", "product": None, "path": "/",
                                    "source": "GET /"}]  # fmt: skip
    seen |= {"exe": "/usr/bin/python3.11 (deleted)"}
    kept = serve(1, other="m2", attempts=2, headers={"x-zone": "eu"})
    result = judged(tmp_path, rows, seen=seen, change=kept, subject="gate@1", keep_headers=("x-zone",))
    pages = report.render(result)

    html, summary = pages[outdir.REPORT_HTML], pages[outdir.SUMMARY_MD]
    for text in (DIGEST, "b1d5", "ef" * 32, "/proc/PID/cgroup", "uvicorn", "gate@1", "eu: 320", "320 of 320",
                 "python3.11 is an interpreter: its file", "deleted or replaced on disk"):
        assert text in html and text in summary.replace("\\", ""), text
    assert "m: 319; m2: 1" in html
    markup = [line for line in summary.splitlines() if not line.startswith("    ")]  # the rest is a code block
    assert "<b>1|2</b>" not in html and "<b>1|2</b>" not in "\n".join(markup)
    assert "&lt;b&gt;1|2&lt;/b&gt;" in html


def test_a_subject_no_run_would_have_taken_is_damaged_evidence(tmp_path):
    """Exit 5, not the usage error that the same text is on the command line."""
    result = judged(tmp_path, subject="no version")

    assert ("INVALID", 5, None) == (result["run_status"], result["exit_code"], result["subject"])


def test_a_run_of_before_this_is_still_judged(tmp_path):
    """run.json without `answered`, snapshots without it, records without headers."""
    run = BuiltRun(levels="1", n=N)
    run.run.pop("answered", None)
    result = judge.judge(run.write(tmp_path))

    assert "PASS" == result["verdict"]
    assert "build unknown (the program cannot be read (no reason record…" == line(result)
