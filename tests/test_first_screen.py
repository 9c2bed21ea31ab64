"""The first screen: one block, the same words in terminal, HTML and Markdown, whatever the run came to."""

import re

import pytest
from build_result import HOSTILE, judged, make_level, make_result, make_step
from markdown_it import MarkdownIt
from report_reader import Page

from sweep import first_screen, outdir, report
from sweep.screen_text import columns
from sweep.terminal import Terminal
from sweep.wording import VERDICT_WORDS

LONG = "org/a-model-with-a-very-long-name-that-nobody-can-read-at-02:00-instruct-v12-awq-int4"
WIDE = "模型/通义千问-对话-一百一十亿参数-指令微调-量化版-最新" * 2


def errors(n):
    return [
        {"outcome": "http_5xx", "status": 500 + number, "error_code": "E" * 30, "count": 1000 - number,
         "first_at_s": 1.0, "last_at_s": 2.0, "levels": ["8"], "text": "boom " * 40,
         "request_ids": [f"0123456789abcdef0123456789abcdef-{number}-{id_}" for id_ in range(3)]}
        for number in range(n)
    ]  # fmt: skip


def target(**changed):
    return make_result()["target"] | changed


def of_model(name):
    return make_result(
        scope=f"for 8 concurrent requests of openai-chat with model {name} on one node", target=target(model=name)
    )


def invalid(**changed):
    """What is left of a run whose files were changed."""
    reason = "samples.jsonl: the sealed part was changed " * 3
    nothing = {"findings": [], "levels": [], "steps": [], "errors": [], "floors": [], "sampler": None, "health": None}
    told = {"verdict": "INCONCLUSIVE", "run_status": "INVALID", "status_reason": reason, "why": [reason], "knee": None}
    return make_result(
        capacity={"level": None, "bracketed": False, "stopped_by": None, "failed_at": None, "text": "not judged"},
        survival={"tested": False, "same_process": None, "died_at_s": None, "died_in_step": None, "text": "unknown"},
        **nothing | told | changed,
    )  # fmt: skip


STOPPED = "stopped by you (SIGINT) in step s03-c4-stream-k1; what was measured until then is kept"
RESULTS = {
    "a failure": make_result(),
    "ready": make_result(verdict="PASS", errors=[], next=None),
    "without an SLO": make_result(
        verdict="WARN", capacity={"level": None, "bracketed": False, "stopped_by": None, "failed_at": None,
                                  "text": "not judged (no latency target, --slo)"},
        next_text="with a latency target, computed from this run: --slo 'stream.ttft_ms.p95<=250@8' "
                  "--slo 'nonstream.e2e_ms.p95<=1200@8'"),
    "a long model name": of_model(LONG),
    "a wide model name": of_model(WIDE),
    "combining and right-to-left": of_model("m\u0301\u0327o\u202edel"),
    "a model of one letter": of_model("o"),
    "many errors": make_result(errors=errors(40)),
    "many reasons": make_result(why=["because " * 40] * 3, not_tested=["something " * 9] * 20),
    "without spaces": make_result(why=["x" * 500], not_tested=["y" * 300], next_text="z" * 400, run="r" * 200),
    "INVALID": invalid(),
    "INVALID without a run": invalid(run=None, target=target(gateway=None, model=None)),
    "ABORTED": make_result(verdict="INCONCLUSIVE", run_status="ABORTED", status_reason=STOPPED, why=[STOPPED]),
    "killed at its start": invalid(run_status="ABORTED", status_reason="killed", sustain=None, not_tested=[]),
    "no PID": make_result(target=target(gateway=None), sampler=None, floors=[]),
    "who was tested, who else was there": make_result(
        subject={"text": "litellm 1.2.3, answered by GET /version, image sha256:0123456789ab"},
        others={"text": "others: 0.4 requests/s before, under 1 % during", "quiet_check": None, "during": [],
                "quiet_check_why": None, "listener": None, "peers": []}, errors=[]),
    "many levels": make_result(sustain=1, target=target(levels=[str(level) for level in range(1, 200)])),
    "arrivals": make_result(sustain="5/s", target=target(levels=["1/s", "5/s", "10/s"])),
    "nothing known": make_result(
        levels=[make_level(memory_anon_bytes={"v": None, "max": None, "source": None, "why": "?"},
                           generator={"cpu_share_max": None, "lag_p99_ms_max": None, "users_min": None},
                           cpu_cores=judged(None, why="?"))],
        steps=[make_step(1, 8, "stream", started=None, valid=False, invalid_why="?")],
        survival=make_result()["survival"] | {"same_process": None}),
    "hostile": make_result(why=[HOSTILE] * 3, next_text=HOSTILE, errors=[e | {"text": HOSTILE} for e in errors(3)],
                           scope=HOSTILE, run=HOSTILE, not_tested=[HOSTILE] * 3, target=target(model=HOSTILE)),
}  # fmt: skip


def words(text):
    """Text without its layout and without the sign beside the verdict."""
    return "".join(re.sub(r"^\s*[✗?!≈✓○] ", "", text).split())


@pytest.mark.parametrize("name", RESULTS)
def test_the_three_renderings_open_with_the_same_words(name):
    """Terminal, HTML and Markdown; a reader of one can speak of it to a reader of another."""
    result = RESULTS[name]
    rendered = report.render(result)
    terminal = "\n".join(first_screen.lines(result))
    html = Page(rendered["report.html"])
    summary = Page(MarkdownIt("commonmark").render(rendered["summary.md"].split("\n\n## ")[0]))
    shown, told = html.sections[None].partition("Gates What went wrong")[0], summary.text
    if result["next"]:
        assert shown.rstrip().endswith(result["next"])
        assert told.rstrip().endswith(result["next"])
        shown = shown.rstrip().removesuffix(result["next"])
        told = told.rstrip().removesuffix(result["next"]).rstrip().removesuffix("The next command:")
    title = f"{result['verdict']}: {result['run'] or '–'}"

    assert words(terminal) == words(told)
    assert words(shown.strip().removeprefix(title)) == words(terminal) or name in ("hostile", "INVALID without a run")
    assert words(shown).endswith(words(terminal))


@pytest.mark.parametrize("name", RESULTS)
def test_it_fits_a_terminal(name):
    """At most 15 lines of 80 columns, none empty; the verdict first, every label once, the place of the report last."""
    lines = first_screen.lines(RESULTS[name])
    labels = [line[:10].strip() for line in lines[1:] if line[:10].strip() in first_screen.LABELS]

    assert 8 <= len(lines) <= 15
    assert [] == [line for line in lines if columns(line) > 80 or not line.strip()]
    assert lines[0].startswith(VERDICT_WORDS[RESULTS[name]["verdict"]])
    assert labels == sorted(set(labels), key=list(first_screen.LABELS).index)
    assert {"why", "holds to", "gateway", "next", "report"} <= set(labels)
    assert lines[-1].startswith("report    report.html")


def fact(label, name=None, **changed):
    """The text of one fact."""
    shown = first_screen.screen(RESULTS[name] if name else make_result(**changed))
    return next((" ".join(each.rows) for each in shown.facts if each.label == label), None)


@pytest.mark.parametrize("name", ["a long model name", "a wide model name"])
def test_a_long_name_keeps_both_ends_and_the_verdict_its_end(name):
    """What the verdict is about must be readable: level, API and node are never cut."""
    shown = first_screen.screen(RESULTS[name])
    model = RESULTS[name]["target"]["model"]

    assert shown.scope.startswith(f"for 8 concurrent requests of openai-chat with model {model[:8]}")
    assert shown.scope.endswith(f"{model[-5:]} on one node")
    assert "…" in shown.scope


def test_each_line_says_what_an_operator_asks_first():
    """Who, restarts, health, floors and limit, whether the numbers hold, what was left out."""
    assert "4 concurrent; 8 failed (stream integrity) · wanted 8 by default" == fact("holds to")
    assert (
        "build unknown · pid 4100 (gateway, proved), 2 processes · 0 restarts · live 100 % of 640 · ready not probed"
        == fact("gateway", errors=[])
    )
    assert "idle 171 MiB after cycle 1 · highest 192 MiB · limit 512 MiB" == fact("memory")
    assert "generator 28.1 % of a core · 2,320 records = requests · 652 samples" == fact("numbers")
    assert "restart, drain, backend loss, leak (1 cycle), tenants" == fact("left out")
    assert "client side only (no --gateway-pid)" in fact("gateway", "no PID")
    assert "explored 2, 3, 4, 5, 6, 7, 8, 9 and 190 more" in fact("holds to", "many levels")
    assert "explored 10/s" in fact("holds to", "arrivals")


@pytest.mark.parametrize(
    ("n", "missed", "told"),
    [(7200, 0, "live 100 %"), (7200, 1, "live 99.99 %"), (1000, 1, "live 99.9 %"), (10**6, 1, "live 99.9999 %"),
     (10, 10, "live 0 %")],
)  # fmt: skip
def test_one_missed_answer_is_not_a_hundred_per_cent(n, missed, told):
    """However many were not."""
    result = {"health": {"live": {"n": n, "missed": missed}}}

    assert f"{told} of {n}" == first_screen._answering(result, "live")


def test_errors_come_with_their_cause_and_the_ids_to_look_for():
    """Three of the most frequent kind; a broken stream says how it broke."""
    assert fact("errors").startswith(
        "7 truncated (the answer ended before its terminal marker) · id 9f1c0b7e-0001 · id 9f1c0b7e-0002"
    )
    assert "none" == fact("errors", errors=[])
    assert "more" in fact("errors", "many errors")


def test_the_texts_of_subject_and_others_have_their_place():
    """Whatever build was seen, and whoever else used the target."""
    assert fact("gateway", "who was tested, who else was there").startswith("litellm 1.2.3, answered by GET /version")
    assert "others: 0.4 requests/s before" in fact("numbers", "who was tested, who else was there")


def test_without_an_slo_growth_and_a_line_to_paste_are_on_it():
    """An option is never torn from its value."""
    lines = first_screen.lines(RESULTS["without an SLO"])
    text = "\n".join(lines)

    assert "level 8 gives 3 % more tokens/s than 4 for 1.9 × the TTFT (p95)" in text
    assert "--slo 'stream.ttft_ms.p95<=250@8'" in text
    assert "--slo 'nonstream.e2e_ms.p95<=1200@8'" in text


def test_where_throughput_stopped_growing_comes_before_what_stands_elsewhere():
    """On a full screen too: that capacity is not judged is why it warns, and the level is in the verdict."""
    grew = "throughput still grew at the highest level tried: level 4 gives 96 % more tokens/s than 2 for 1.1 × the E2E"
    slos = "--slo 'stream.ttft_ms.p95<=28@4' --slo 'nonstream.e2e_ms.p95<=56@4'"
    crowded = RESULTS["without an SLO"] | {
        "knee": {"text": grew, "proposed_slo": slos}, "why": ["because " * 20] * 3, "not_tested": ["something"] * 20,
        "next_text": f"with a latency target, computed from this run: {slos}",
    }  # fmt: skip
    lines = first_screen.lines(crowded)

    assert len(lines) <= 15
    assert grew in " ".join(" ".join(lines).split())


def test_an_early_end_says_who_ended_it():
    """ABORTED is no accusation, and INVALID no verdict about the target."""
    assert f"ABORTED: {STOPPED}" == fact("why", "ABORTED")
    assert fact("why", "INVALID").startswith("INVALID: samples.jsonl")


def test_the_command_stands_whole_below_the_block_and_quiet_leaves_the_verdict():
    """It can be copied in one piece; --quiet prints the sentence and why, before the path that always ends it."""
    result = make_result(next="ha-sweep run " + "--slo 'x' " * 60)
    screen = first_screen.lines(result)

    assert [*screen, "", result["next"], ""] == list(Terminal(quiet=False).verdict(result, screen))
    whys = [f"why: {line}" for line in result["why"]]
    assert [result["sentence"], *whys] == list(Terminal(quiet=True).verdict(result, screen)) and whys


def test_of_evidence_that_cannot_be_trusted_nothing_is_said():
    """No step, no probe and no error were seen because nothing was read."""
    pages = report.render(RESULTS["INVALID"])

    assert "not read: the evidence is invalid" == fact("numbers", "INVALID")
    for page in (outdir.REPORT_HTML, outdir.SUMMARY_MD):
        for untrue in ("anything but success", "No step ran", "No level was", "not probed", "left no lines"):
            assert untrue not in pages[page], (page, untrue)
