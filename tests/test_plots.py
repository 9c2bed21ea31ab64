"""Plots show the numbers they are drawn from, read in light and dark, and are the same bytes each time."""

import os
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

import pandas as pd
import pytest
from build import fail_some, make_process, make_sample, write_run
from build_result import judged, make_evidence, make_level, make_result

from sweep import evidence, judge, plot_style, plots
from sweep.plot_process import tree_series

SVG = "{http://www.w3.org/2000/svg}"


def draw(result, *names, **made):
    """The named plots, or all of them."""
    ev = make_evidence(result, **made)
    with plot_style.style():
        drawn = {plot.name: plot.draw(ev, result) for plot in plots.PLOTS if not names or plot.name in names}
    return {name: svg for name, svg in drawn.items() if svg is not None}


def svgs(drawings):
    """Name -> SVG of what was drawn."""
    return {drawing.name: drawing.svg for drawing in drawings if drawing.svg is not None}


def texts(svg):
    return [element.text for element in ET.fromstring(svg[svg.index("<svg") :]).iter(f"{SVG}text")]


def description(svg):
    return next(ET.fromstring(svg[svg.index("<svg") :]).iter(f"{SVG}desc")).text


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.fixture(scope="module")
def drawn():
    return draw(make_result())


def test_a_real_run_has_every_plot(tmp_path):
    """From evidence files to well-formed drawings with text as text."""
    out_dir = write_run(tmp_path, mode="both")
    drawn = svgs(plots.draw(evidence.read(out_dir), judge.judge(out_dir)))

    assert ["latency", "ttft_dist", "throughput", "process"] == list(drawn)
    assert "SLO p95 ≤ 500 ms" in texts(drawn["latency"])
    assert "level, requests in flight (n: stream · nonstream)" in texts(drawn["throughput"])


def test_a_plot_without_data_is_left_out():
    """No empty axes: not a level, not a sample, not a streaming request."""
    nothing = make_result(levels=[], steps=[])
    only_whole = make_result(levels=[make_level(mode="nonstream")])

    assert {} == draw(nothing, sampled=False)
    assert {"latency", "throughput"} == set(draw(only_whole, sampled=False))


def test_curves_are_broken_between_requests_in_flight_and_rates():
    """No line leads from 2 in flight to 5/s; the axis names both kinds."""

    def lines(*levels):
        rows = [make_level(number) | changes for number, changes in levels]
        result = make_result(levels=rows, steps=[])
        svg = draw(result, "throughput", sampled=False)["throughput"]
        curves = re.findall(r'<path d="([^"]*)"[^>]*style="fill: none[^"]*stroke: #', svg)
        return [curve.count("M") for curve in curves if curve.count("L") + curve.count("M") >= 4], texts(svg)

    rate = {"kind": "rate"}
    whole, _ = lines((1, {}), (2, {}), (4, {}), (8, {}))
    broken, said = lines((1, {}), (2, {}), (4, rate | {"level": "4/s"}), (8, rate | {"level": "8/s"}))

    assert whole and {1} == set(whole)
    assert broken and {2} == set(broken)
    assert any("requests in flight or arrivals per s" in (text or "") for text in said)


@pytest.mark.slow
def test_the_same_evidence_gives_the_same_bytes_in_another_process(drawn, tmp_path):
    """No date, no random identifier, and no one's matplotlibrc."""
    script = "from test_plots import *; print(draw(make_result()))"
    (tmp_path / "matplotlibrc").write_text("font.size: 30\nsvg.fonttype: path\n")
    paths = os.pathsep.join([str(Path(plots.__file__).parent.parent), str(Path(__file__).parent)])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "3"}
    other = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, stdout=-1, check=True)

    assert f"{drawn}\n" == other.stdout.decode()


@pytest.mark.slow
def test_nothing_is_written_outside_out_dir(tmp_path):
    """matplotlib keeps a font list in HOME, unless told otherwise; its temporary folder is gone as well."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "MPL"))}
    environment |= {"HOME": str(home), "TMPDIR": str(temporary), "PYTHONPATH": str(Path(plots.__file__).parent.parent)}
    script = "import sweep.plots, os; assert 'MPLCONFIGDIR' not in os.environ"
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)

    assert [] == [*home.rglob("*"), *temporary.rglob("*")]


def test_the_alt_text_holds_the_numbers(drawn):
    """A reader who cannot see the drawing gets each value with its level and n."""
    said = "Time to first token p50 stream: 42.4 at level 1 (n 130), 51.1 at level 2 (n 170)"

    assert said in description(drawn["latency"])
    assert "Requests completed, per s, nonstream: 2.40 at level 1 (n 147)" in description(drawn["throughput"])
    assert "highest 34, last 34, n 648 samples" in description(drawn["process"])
    assert "98.3 % of 410 got a first token" in description(drawn["ttft_dist"])


def test_failures_are_marked_with_a_word():
    """An infinite percentile is no missing point, and failed requests are counted where they happened."""
    row = make_level(8)
    row["ttft_ms"]["p95"] = judged("inf", 410, 300.0, "inf")
    drawn = draw(make_result(levels=[make_level(4), row]))

    assert "∞ failed" in texts(drawn["latency"])
    assert "infinite, a failed request, at level 8" in description(drawn["latency"])
    assert "✕ 7 failed" in texts(drawn["throughput"])
    assert "level 8, n 410, 7 failed" in texts(drawn["ttft_dist"])


def test_a_gateway_that_died_is_marked_on_the_time_axis():
    """When, on every panel; the word once."""
    died = make_result()["survival"] | {"same_process": False, "died_at_s": 410.0}

    assert 1 == texts(draw(make_result(survival=died), "process")["process"]).count("✕ gateway gone")


def test_process_series_are_those_of_the_samples(tmp_path):
    """20 ticks a second of a 100 Hz clock are 0.2 cores; kB become bytes; time counts from the start mark."""
    out_dir = write_run(tmp_path)
    series = tree_series(evidence.read(out_dir))

    assert [0.0, 1.0, 2.0] == series["t_s"].tolist()[:3]
    assert series["cpu_cores"].isna().tolist()[0]
    assert {0.2} == set(series["cpu_cores"].tolist()[1:])
    assert ({10_000 * 1024.0}, {12.0}) == (set(series["memory_bytes"]), set(series["n_fds"]))
    assert "sum of RssAnon" == series.attrs["memory_source"]


def test_a_sum_is_unknown_where_one_process_of_the_tree_was_not_readable(tmp_path):
    """Half a tree's memory would look like a drop."""

    def hide(run):
        for seq, sample in enumerate(run.samples):
            sample["tree"] = [make_process(5001, rss_anon_kb=None if seq == 3 else 500)]

    memory = tree_series(evidence.read(write_run(tmp_path, hide)))["memory_bytes"].tolist()

    assert [10_500 * 1024.0] * 2 == [memory[2], memory[4]]
    assert pd.isna(memory[3])


def test_a_root_that_was_a_zombie_has_no_point_and_costs_no_plot(tmp_path):
    """Its sample has no live process: nothing to sum, and still a row."""

    def die(run):
        for sample in run.samples[-3:]:
            sample["root"] |= {"state": "Z", "rss_anon_kb": None, "n_fds": None}

    ev = evidence.read(write_run(tmp_path, die))
    series = tree_series(ev)
    for name in ("memory_bytes", "n_fds"):
        assert [False, True, True, True] == series[name].isna().tolist()[-4:]
    assert "process" in svgs(plots.draw(ev, judge.judge(tmp_path)))


def test_the_distribution_rests_on_the_requests_of_the_level_table(tmp_path):
    """An invalid step is in neither; a cut request and a failed one count in both."""

    def change(run):
        run.steps[0].generator.clear()
        fail_some(run.steps[1], 10)
        fail_some(run.steps[1], 4, "cut")
        run.steps[1].records[-1].phase = "warmup"  # the window is one of instants, not of words

    out_dir = write_run(tmp_path, change)
    result = judge.judge(out_dir)
    svg = svgs(plots.draw(evidence.read(out_dir), result))["ttft_dist"]
    row = result["levels"][1]

    assert (160, 8, 4) == (row["ttft_ms"]["p50"]["n"], row["outcomes"]["http_5xx"], row["cut"])
    assert "level 2, n 160, 8 failed, 4 cut" in texts(svg)
    assert not any(text.startswith("level 1") for text in texts(svg))


def test_a_plot_that_fails_is_loud_here_and_left_out_of_a_report(monkeypatch):
    """An operator keeps the other plots and reads why one is missing."""

    def broken(ev, result):
        raise ValueError("no such curve")

    table = [plot._replace(draw=broken) if plot.name == "process" else plot for plot in plots.PLOTS]
    monkeypatch.setattr(plots, "PLOTS", table)
    result = make_result()
    with pytest.raises(ValueError, match="no such curve"):
        plots.draw(make_evidence(result), result)
    drawn = plots.draw_or_say_why(make_evidence(result), result)

    assert {"latency", "ttft_dist", "throughput"} == set(svgs(drawn))
    assert "The gateway over time is not drawn: a fault of ours, ValueError" in drawn[-1].absent


def test_a_hole_in_the_samples_is_a_gap_in_the_line(tmp_path):
    """Nothing is known of it, so no line is drawn through it."""
    series = tree_series(evidence.read(write_run(tmp_path, lambda run: run.samples.__delitem__(slice(5, 9)))))
    (gap,) = series.index[series["n_fds"].isna()]

    assert [4.0, 6.5, 9.0] == series["t_s"].tolist()[gap - 1 : gap + 2]


def test_memory_is_led_by_the_cgroup_that_holds_only_this_tree(tmp_path):
    """As in the level table."""

    def contain(run):
        group = {"version": "v2", "only_this_tree": True, "memory_anon_bytes": 7_000_000, "oom_kill": 0}
        run.samples = [make_sample(i, sample["t_mono_ns"], cgroup=group) for i, sample in enumerate(run.samples)]

    series = tree_series(evidence.read(write_run(tmp_path, contain)))

    assert ({7_000_000.0}, "cgroup anon") == (set(series["memory_bytes"]), series.attrs["memory_source"])


def test_the_distribution_counts_a_failed_request_as_never_answered(tmp_path):
    """A quarter of failures: the curve ends at 75 %."""
    out_dir = write_run(tmp_path, lambda run: fail_some(run.step("2"), 40))
    svg = svgs(plots.draw(evidence.read(out_dir), judge.judge(out_dir)))["ttft_dist"]

    assert "Level 2: median of the 120 that got one 100 ms, 75 % of 160 got a first token." in description(svg)


def test_every_colour_has_a_dark_one_and_both_can_be_read(drawn):
    """Each colour drawn is one the dark rule knows; text and lines stand out on both papers."""
    died = make_result()["survival"] | {"died_at_s": 400.0}
    drawn = drawn | draw(make_result(survival=died), "process")
    bodies = "".join(re.sub(r"<style>.*?</style>", "", svg) for svg in drawn.values())
    used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", bodies))

    assert plot_style.BAD in used
    assert used <= set(plot_style.DARK)
    for light, dark in plot_style.DARK.items():
        if light != plot_style.GRID:
            assert 4.5 <= contrast(light, "#ffffff"), light
            assert 4.5 <= contrast(dark, "#14171a"), dark


def test_curves_differ_by_more_than_colour():
    """Read in grey, two curves still have their own marker or line."""
    for one, other in combinations(range(len(plot_style.SERIES)), 2):
        assert (plot_style.LINES[one], plot_style.MARKERS[one]) != (plot_style.LINES[other], plot_style.MARKERS[other])
        assert plot_style.MARKERS[one] != plot_style.MARKERS[other]


@pytest.mark.parametrize("n_levels", [1, 20])
def test_one_level_and_twenty_are_drawn(n_levels):
    """Labels are thinned, and one point needs no line."""
    levels = [make_level(level, mode) for level in range(1, n_levels + 1) for mode in ("stream", "nonstream")]
    drawn = draw(make_result(levels=levels), "latency", "throughput", sampled=False)

    assert {"latency", "throughput"} == set(drawn)
    assert f"{n_levels + 1}" not in texts(drawn["throughput"])


def test_hostile_text_stays_text():
    """A dollar sign starts no formula and a bracket no element."""
    row = make_level(1) | {"level": "$\\frac{<b>}{2}$"}
    drawn = draw(make_result(levels=[row]), "latency", sampled=False)

    assert any("$\\frac{<b>}{2}$" in text for text in texts(drawn["latency"]))
