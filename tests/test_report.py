"""The renderings say what result.json says, in the order a reader needs, and nothing in them can act."""

import copy
import math
import re
import shutil
import subprocess

import msgspec
import pytest
from build import S, fail_some, write_run
from build_result import HOSTILE, judged, make_evidence, make_finding, make_level, make_result
from markdown_it import MarkdownIt
from report_reader import Page, browse, chromium, measure

from sweep import evidence, plots, report
from sweep.view import METRICS, STATS

GATES = "Gates"


def page(result, drawn=()):
    return Page(report.render(result, drawn)["report.html"])


def markdown(result):
    return report.render(result)["summary.md"]


def rendered(result):
    """The summary as a GitHub-flavoured reader shows it."""
    return Page(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown(result)))


def hostile(value):
    """The same result with every free text replaced by a hostile one; words with a closed set stay."""
    fixed = {"status", "verdict", "run_status", "gate", "mode", "outcome", "kind", "level", "unit", "evidence", "modes"}
    if isinstance(value, dict):
        return {key: item if key in fixed else hostile(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


def nothing_ran():
    """A run killed before its first step."""
    return make_result(
        verdict="INCONCLUSIVE", exit_code=4, run_status="ABORTED", status_reason="killed", findings=[], levels=[],
        steps=[], errors=[], why=[], sampler=None, health=None, floors=[], visibility=[], not_tested=[], next=None,
        capacity={"level": None, "bracketed": False, "stopped_by": None, "text": "not judged"}, sustain=None,
        target=make_result()["target"] | {"gateway": None, "model": None, "duration_s": None},
        survival={"tested": False, "same_process": None, "died_at_s": None, "died_in_step": None, "text": "not tested"},
    )  # fmt: skip


def real(text):
    """A printed number as a number, in the unit of result.json."""
    number, _, unit = text.replace(",", "").replace("≥ ", "").partition(" ")
    value = math.inf if number == "∞" else float(number.removesuffix("/s"))
    return value / 100 if unit == "%" else value * 1024**2 if unit == "MiB" else value


@pytest.fixture(scope="module")
def drawn():
    """The plots of make_result."""
    result = make_result()
    return plots.draw(make_evidence(result), result)


def test_what_was_run_stands_whole_below_the_gates():
    """The sentence with all it left out, target, time, survival and trust, of which the first screen keeps the core."""
    result = make_result()
    text = page(result).sections["run"]
    wanted = [
        result["sentence"], result["capacity"]["text"], result["knee"]["text"], "http://127.0.0.1:8080", "10 min 52 s",
        "ownership proved", "ticket: OPS-12", result["survival"]["text"], "2,320 records = 2,320 requests started",
        "28.1 % of a core", "652 samples, no holes",
    ]  # fmt: skip

    assert wanted == sorted(wanted, key=text.index)


def test_a_level_without_a_good_answer_is_one_row():
    """That nothing else is known of it follows; each gate is still a finding of its own in result.json."""
    mute = {"level": 8, "mode": "stream", "status": "unknown", "reason": "no good answer at this level"}
    findings = [make_finding(gate=name, **mute) for name in ("answered", "counts agree", "generator", "slo a", "slo b")]
    other = make_finding(gate="counts agree", level=4, mode="stream", status="unknown")
    (_, _, row, _, _) = page(make_result(findings=[*findings, other])).tables[GATES]

    assert "no good answer at this level; so also unknown: counts agree, generator, slo a, slo b" in row[5][0]


def test_gates_stand_with_failures_first():
    """What failed and what could not be judged is what a reader came for; a rule is said once."""
    again = make_finding(level=4, reason="again")
    heads = [
        row[0][0]
        for row in page(make_result(findings=[*make_result()["findings"], again])).tables[GATES][1:]
        if len(row) == 1
    ]

    assert ["fail", "fail", "unknown", "warn", "assumed", "pass", "pass", "skipped"] == [
        head.split()[1] for head in heads
    ]
    assert "exploring" in heads[1]
    assert 1 == sum("p95 of TTFT" in head and "pass" in head for head in heads)


def test_an_unknown_that_does_not_count_stands_below_what_passed():
    """At 02:00 a READY page does not begin with question marks."""
    beside = make_finding(gate="errors", status="unknown", required=False)
    heads = [
        row[0][0] for row in page(make_result(findings=[beside, make_finding()])).tables[GATES][1:] if len(row) == 1
    ]

    assert ["pass", "unknown"] == [head.split()[1] for head in heads]
    assert "not required" in heads[1]


def test_each_gate_shows_the_values_it_was_judged_by():
    """Observed, bounds and limit are those of result.json, and each printed relation is the real one."""
    result = make_result()
    rows = {row[5][0]: row for row in page(result).tables[GATES][1:] if len(row) == 7}
    checked = 0
    for finding in result["findings"]:
        v, limit = finding["observed"].get("v"), finding["limit"]
        if not isinstance(v, float) or limit is None:
            continue
        row = rows[finding["reason"]]
        assert (v, limit) == (row[1][1], row[4][1])
        assert real(row[1][0]) == pytest.approx(v, rel=0.01)
        assert (v > limit) == (real(row[1][0]) > real(row[4][0]))
        unit = row[2][0].split(" ")[-1]
        for bound, printed in zip(("lo", "hi"), row[2][0].removesuffix(f" {unit}").split("–"), strict=True):
            assert (finding["observed"][bound] > limit) == (real(f"{printed} {unit}") > real(row[4][0]))
        checked += 1

    assert (5, 4) == (len(rows), checked)


def test_each_number_of_the_level_tables_is_that_of_the_result():
    """HTML read back and compared, every metric, percentile, level and mode; a printed digit never contradicts."""
    result = make_result()
    tables = page(result).tables
    compared = 0
    for key, title in METRICS:
        levels = [row for row in result["levels"] if key in row]
        for row, printed in zip(levels, tables[title][1:] if levels else [], strict=True):
            assert f"{row['level']} {row['mode']}" == printed[0][0].strip()
            for suffix, first in (("", 1), ("_ok", 4)):
                for place, stat in enumerate(STATS, first):
                    value, (text, raw) = row[key + suffix][stat], printed[place]
                    v = math.inf if value["v"] == "inf" else value["v"]
                    assert raw == (None if v == math.inf else v)
                    assert real(" ".join(text.split()[:2])) == pytest.approx(v, rel=0.006)
                    assert f"n {value['n']}" in text
                    compared += 1

    assert 6 * (3 * 4 + 8) == compared


def test_counts_rates_and_process_numbers_are_those_of_the_result():
    """The other tables, by the values they carry."""
    result = make_result()
    tables = page(result).tables
    for at, row in enumerate(result["levels"], 1):
        requests = [
            row["window_s"],
            row["offered"],
            row["ok"],
            row["outcomes"].get("truncated"),
            row["cut"],
            row["error_ratio"]["v"],
            row["shed_ratio"]["v"],
        ]
        rates = [
            row["request_rate_per_s"]["v"],
            row["token_rate_per_s"]["v"],
            None,  # the source of its tokens, a word
            row["in_flight"]["v"],
            row["goodput"]["v"],
            row["generator"]["users_min"],
        ]
        health = ("cpu_share_max", "lag_p99_ms_max", "achieved_ratio_min", "connections_max", "ports_left_min")
        generator = [*(row["generator"][name] for name in health), None]
        process = [
            row["cpu_cores"]["v"],
            row["cpu_ms_per_request"]["v"],
            row["memory_anon_bytes"]["v"],
            row["fds"]["v"],
            row["threads"]["v"],
            row["ctx_switches_per_s"]["v"],
        ]
        for title, expected in (
            ("Requests", requests), ("Throughput", rates), ("Load generator", generator),
            ("Process tree by level", process),
        ):  # fmt: skip
            assert expected == [value for _, value in tables[title][at][1:]]
        assert row["token_source"] == tables["Throughput"][at][3][0]


def test_every_printed_number_is_the_value_it_carries():
    """No cell prints another number than the one in its machine-readable value."""
    data = page(make_result()).data

    assert 150 < len(data)
    for value, text in data:
        assert real(text) == pytest.approx(float(value), rel=0.006, abs=1e-9), text


def test_successes_alone_are_shown_only_where_they_differ():
    """Without a failure the second half of a table would repeat the first; two equal metrics share one table."""
    row = make_level(4)
    row |= {f"{key}_ok": row[key] for key in ("ttft_ms", "tpot_ms", "gap_ms", "e2e_ms")} | {
        "ttfa_ms": row["ttft_ms"],
        "ttfa_ms_ok": row["ttft_ms"],
    }
    tables = page(make_result(levels=[row])).tables

    assert ["level", "p50", "p95", "p99"] == [text for text, _ in tables["End to end (E2E)"][0]]
    assert "Time to first token (TTFT); the same: Time to first answer token (TTFA)" in tables


def test_a_missing_number_is_a_dash_with_its_reason():
    """Never 0, and the reason is readable on paper too."""
    why = "fewer than 3 samples in the window"
    row = make_level(
        cpu_ms_per_request=judged(None, why=why), memory_anon_bytes={"v": None, "max": None, "why": why, "source": None}
    )
    read = page(make_result(levels=[row]))
    cells = read.tables["Process tree by level"][1]

    assert [("–1", None), ("–1", None)] == [tuple(cells[2]), tuple(cells[3])]
    assert 1 == read.sections["process"].count(why)


def test_a_failed_percentile_is_infinite_and_a_cut_one_at_least():
    """A failure must not become a missing number."""
    row = make_level()
    row["ttft_ms"]["p95"] = judged({"ge": 30_000.4}, 44, 210.0, "inf")
    cells = page(make_result(levels=[row])).tables["Time to first token (TTFT)"][1]

    assert ("≥ 30,000 ms 210–∞ ms, n 44", "∞ ms") == (cells[2][0], " ".join(cells[3][0].split()[:2]))


def test_what_went_wrong_can_be_found_in_the_gateways_log():
    """Outcome with its meaning, status, code, count, times, levels, text and three request ids."""
    truncated, shed = page(make_result()).tables["What went wrong"][1:]

    assert "truncated the answer ended before its terminal marker" == truncated[0][0]
    assert (7.0, "566.1–598.8 s", "9f1c0b7e-0001 9f1c0b7e-0002 9f1c0b7e-0003") == (
        truncated[1][1],
        truncated[4][0],
        truncated[7][0],
    )
    assert ["503", "queue_full"] == [shed[2][0], shed[3][0]]


def test_a_run_killed_at_its_start_still_has_a_report():
    """It says what it is, and shows no empty table."""
    read = page(nothing_ran())

    assert "ABORTED: killed" in read.sections[None]
    assert "No level was measured." in read.sections["levels"]
    assert "client side only" in read.sections[None]
    assert "ABORTED" in markdown(nothing_ran())


def test_a_plot_without_data_is_a_sentence():
    """The reader learns why there is no drawing instead of seeing an empty one."""
    result = make_result()
    drawn = plots.draw(make_evidence(result, sampled=False), result)

    assert ["process"] == [each.name for each in drawn if each.svg is None]
    assert "is not drawn: no sample of its process" in page(result, drawn).sections["process"]


def test_hostile_text_is_inert_in_the_page():
    """Model names and error bodies add no element, no attribute and no hidden character."""
    tame, read = page(make_result()), page(hostile(make_result()))

    assert sorted(set(tame.tags)) == sorted(set(read.tags))
    assert not {"script", "img", "iframe", "form"} & set(read.tags)
    assert 20 < read.text.count("<script>alert(1)</script>")
    assert not [character for character in read.text if character in "\x1b\u202e"]
    assert not [name for name, _ in read.attributes if name.startswith("on")]


def test_nothing_in_the_page_leaves_it(drawn):
    """One file: links lead to files beside it, nothing is fetched, and the page forbids it to itself."""
    result = make_result(
        findings=[make_finding(evidence=["javascript:alert(1)", "../../etc/passwd", "//evil.example/x", "run.json"])]
    )
    html = report.render(result, drawn)["report.html"]
    read = Page(html)
    links = [value for name, value in read.attributes if name in ("href", "src", "xlink:href")]

    assert "run.json" in links
    assert [] == [link for link in links if ":" in link or link.startswith(("/", ".."))]
    assert "default-src 'none'" in html
    assert "@import" not in html
    assert [] == [part for part in html.split("url(")[1:] if not part.startswith("#")]


def test_every_plot_has_alt_text_and_no_id_twice(drawn):
    """Drawings share one page with its anchors."""
    read = page(make_result(), drawn)
    ids = [value for name, value in read.attributes if name == "id"]

    assert len(set(ids)) == len(ids)
    assert 4 == read.tags.count("svg") == read.tags.count("desc")


def test_the_summary_has_the_same_first_block_and_tables():
    """What a CI shows is the verdict, the gates, what went wrong and the levels."""
    result = make_result()
    text = " ".join(rendered(result).text.split())

    for wanted in (
        "NOT READY for",
        *result["why"],
        result["next"],
        "0.854 %",
        "queue is full",
        "∞ ms",
    ):
        assert wanted in text


def test_labels_and_warnings_stand_in_both_renderings():
    """Whoever reads the report later sees what the operator saw; without any there is no empty heading."""
    result = make_result(labels={"team": "search", "issue": "7"})
    for shown in (report.render(result)["report.html"], markdown(result)):
        assert re.search("team(=|: )search", shown) and re.search("issue(=|: )7", shown)
        assert "Warned of before the load" in shown and "the first stream request failed" in shown
    assert "## Labels" in markdown(result)
    for bare in report.render(make_result(labels={}, warnings=[])).values():
        assert "Warned of" not in bare and "## Labels" not in bare


def test_hostile_text_is_inert_in_the_summary():
    """Pipes make no column, markup no element, a name mentions no one."""
    tame, read = rendered(make_result()), rendered(hostile(make_result()))

    assert {"h1", "h2", "h3", "p", "table", "td"} <= set(tame.tags)
    for tag in ("tr", "td", "th", "a", "h1", "h2", "h3", "img", "script", "em", "del", "pre"):
        assert tame.tags.count(tag) == read.tags.count(tag), tag
    assert "x|`rm`</style><script>" in read.text


def test_a_summary_never_outgrows_what_a_ci_shows():
    """Its first block stays whole, and it says how much is missing."""
    findings = [make_finding(reason="r" * 3000, rule=f"rule {number}") for number in range(500)]
    levels = [make_level(level) for level in range(1, 80)]
    result = make_result(findings=findings, levels=levels, not_tested=["n" * 200] * 50)
    text = markdown(result)

    assert len(text.encode()) <= report.SUMMARY_BYTES
    assert result["scope"] in text
    assert "more in report.html" in text


@pytest.mark.slow
def test_the_same_result_gives_the_same_bytes():
    """No time of generation, no random identifier."""
    result = make_result()
    one, two = (report.render(result, plots.draw(make_evidence(result), result)) for _ in range(2))

    assert one == two


def test_rendering_leaves_the_result_as_it_was():
    """A rendering of the truth does not edit it."""
    result = make_result()
    before = copy.deepcopy(result)
    report.render(result)

    assert before == result


def test_infinity_survives_in_json_and_nan_does_not_get_in():
    """JSON would turn both into null, which reads as unknown."""
    assert {"v": "inf"} == msgspec.json.decode(report.to_json({"v": math.inf}))
    with pytest.raises(ValueError, match="NaN"):
        report.to_json({"v": math.nan})


def test_a_run_is_judged_and_rendered_from_its_evidence(tmp_path):
    """result.json is what the renderings show, and nothing but OUT_DIR is touched."""
    out_dir = write_run(tmp_path / "run", lambda run: fail_some(run.step("2"), 40))
    evidence_before = {path: path.read_bytes() for path in out_dir.rglob("*") if path.is_file()}
    result = report.write_report(out_dir)
    read = Page((out_dir / "report.html").read_text())

    assert "FAIL" == result["verdict"]
    assert msgspec.json.decode((out_dir / "result.json").read_bytes()) == msgspec.json.decode(
        msgspec.json.encode(result)
    )
    assert result["scope"] in read.sections[None]
    assert result["sentence"] in read.sections["run"]
    assert ("http_5xx any other 5xx status", 40.0) == (
        read.tables["What went wrong"][1][0][0],
        read.tables["What went wrong"][1][1][1],
    )
    assert {f"{plot.name}.svg" for plot in plots.PLOTS} == {path.name for path in (out_dir / "plots").iterdir()}
    assert evidence_before == {path: path.read_bytes() for path in evidence_before}
    assert [out_dir] == list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_report_written_twice_is_the_same(tmp_path):
    """Without changes every byte is, result and plots too."""
    out_dir = write_run(tmp_path)
    report.write_report(out_dir)
    first = {path: path.read_bytes() for path in out_dir.rglob("*") if path.is_file()}
    report.write_report(out_dir)

    assert first == {path: path.read_bytes() for path in out_dir.rglob("*") if path.is_file()}


def test_a_killed_run_is_reported(tmp_path):
    """Marks, samples and records end in the middle of a step; the page says ABORTED and never PASS."""

    def kill(run):
        run.marks = [mark for mark in run.marks if mark.t_mono_ns <= run.steps[1].t_window_ns + 3 * S]
        run.samples, run.ends = run.samples[:20], []
        run.steps[1].records, run.steps[1].has_report = run.steps[1].records[:20], False

    result = report.write_report(write_run(tmp_path, kill))

    assert ("ABORTED", 4) == (result["run_status"], result["exit_code"])
    assert "ABORTED" in Page((tmp_path / "report.html").read_text()).sections[None]


def test_damaged_evidence_is_reported_as_invalid(tmp_path):
    """A reader gets a page that says so instead of none, and a plot of an earlier report is gone."""
    out_dir = write_run(tmp_path)
    report.write_report(out_dir)
    (out_dir / "samples.jsonl").write_bytes(b'{"kind":"other"}\n')
    result = report.write_report(out_dir)

    assert ("INVALID", 5) == (result["run_status"], result["exit_code"])
    assert "INVALID" in (out_dir / "summary.md").read_text()
    assert [] == list((out_dir / "plots").iterdir())


@pytest.fixture(scope="module")
def folder(tmp_path_factory, drawn):
    """A report with every plot, in a folder of its own."""
    folder = tmp_path_factory.mktemp("report")
    result = make_result(visibility=[{"source": "s" * 300, "why": "w" * 300}])
    (folder / "report.html").write_text(report.render(result, drawn)["report.html"])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_it_without_sideways_scroll_and_with_contrast(folder, tmp_path, width, scheme):
    """On a phone and a desk, light and dark; only the page itself is fetched."""
    flags = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    seen, asked = measure(chromium(), folder, tmp_path / "profile", width, *flags)

    assert width == seen["width"] == seen["scroll"]
    assert [] == seen["low"]
    assert 500 < seen["texts"]
    assert {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme] == seen["paper"]
    assert {"/measure.html", "/report.html"} == {line for line in asked if "favicon" not in line}


@pytest.mark.slow
def test_the_measurement_of_layout_can_fail(folder, tmp_path):
    """The control: a page that is too wide and too pale is found to be so."""
    spoilt = tmp_path / "spoilt"
    spoilt.mkdir()
    html = (folder / "report.html").read_text()
    wide = html.replace("<footer>", '<footer><p style="width:500px;color:#999">pale</p>')
    (spoilt / "report.html").write_text(wide)
    seen, _ = measure(chromium(), spoilt, tmp_path / "profile", 390)

    assert 390 == seen["width"] < seen["scroll"]
    assert ["pale"] == [text.split()[1] for text in seen["low"]]


@pytest.mark.slow
def test_paper_has_every_table(folder, tmp_path):
    """Printed to PDF, nothing hides behind a scroll bar."""
    if shutil.which("pdftotext") is None:
        pytest.skip("needs pdftotext: apt-get install poppler-utils")
    pdf = tmp_path / "report.pdf"
    browse(
        chromium(),
        tmp_path / "profile",
        (folder / "report.html").as_uri(),
        "--no-pdf-header-footer",
        f"--print-to-pdf={pdf}",
    )
    text = subprocess.run(["pdftotext", "-layout", pdf, "-"], capture_output=True, text=True, check=True).stdout

    for wanted in (
        "NOT READY",
        "error ratio",
        "lateness p99",
        "p99, ok only",
        "switches",
        "window from",
        "queue is full",
        "Files beside this page",
    ):
        assert wanted in text


def test_the_evidence_is_read_once_for_judgement_and_plots(tmp_path, monkeypatch):
    """A million records are not decoded twice."""
    reads = []
    read = evidence.read
    monkeypatch.setattr(evidence, "read", lambda out_dir: (reads.append(out_dir), read(out_dir))[1])
    report.write_report(write_run(tmp_path))

    assert [tmp_path] == reads
