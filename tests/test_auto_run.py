"""`--levels auto` as a process against a gateway of known capacity; on IPv6 and below a base path."""

from __future__ import annotations

import shutil
import socket

import msgspec
import pytest
from command import ha_sweep, marks_of, result_of
from sharp_gateway import sharp

from sweep import outdir
from sweep.judge import judge
from sweep.records import GeneratorLine, from_lines

pytestmark = pytest.mark.slow
CAPACITY = 3
SLO = "stream.ttft_ms.p90<=80"


@pytest.fixture(scope="module")
def auto(tmp_path_factory):
    """(the process, its OUT_DIR); production needs 2, so the search begins there; one more cycle of it at the end."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("needs IPv6 on loopback")
    folder = tmp_path_factory.mktemp("auto")
    with sharp(CAPACITY) as gateway:
        done = ha_sweep(
            "run", "--levels", "auto", "--sustain", "2", "--leak-cycles", "1", "--mode", "stream", "--slo", SLO,
            "--target", gateway.url, "--gateway-pid", str(gateway.pid), "--no-keepalive", "--duration", "1s",
            "--max-step", "2s", "--warmup", "0.3s", "--cooldown", "0.3s", "--max-tokens", "4", "--prompt-tokens", "16",
            "--out-dir", str(folder / "out"), cwd=folder,
        )  # fmt: skip
    assert done.returncode in (0, 3), done.stdout + done.stderr  # 3: the machine was too busy for some gate
    return done, folder / "out"


def answers(out) -> list[dict]:
    return [mark["detail"]["search"] for mark in marks_of(out) if "search" in mark["detail"]]


def steps_of(out) -> list[str]:
    return [mark["step"] for mark in marks_of(out) if mark["mark"] == "begin"]


def is_disturbed(out) -> bool:
    """A step in which the generator was late ends the search: that is then what there is to see."""
    return answers(out)[-1]["answer"] == "invalid"


def test_the_bracket_holds_the_true_capacity(auto):
    """2 is met, 4 is not, 3 is: everywhere the same is said, and the judge counted for itself."""
    done, out = auto
    result = result_of(out)
    if is_disturbed(out):
        assert "could not be judged" in result["search"]["text"]
        return

    assert [("2", "met"), ("4", "not met"), ("3", "met")] == [(a["level"], a["answer"]) for a in answers(out)]
    assert (CAPACITY, CAPACITY + 1, "bracketed") == tuple(result["search"][k] for k in ("meets", "fails", "ended"))
    assert (CAPACITY, True) == (result["capacity"]["level"], result["capacity"]["bracketed"])
    assert (2, False) == (result["sustain"], result["sustain_default"])
    assert "pass" == next(f["status"] for f in result["findings"] if f["gate"] == "search")
    for text in (done.stdout, result["sentence"], (out / "report.html").read_text(), (out / "summary.md").read_text()):
        assert "meets at 3, fails at 4" in " ".join(text.split())


def test_every_level_is_a_step_with_evidence_and_the_leak_cycle_follows(auto):
    """The steps that run.json could not know stand in the begin marks; floors are taken after both cycles."""
    _, out = auto
    if is_disturbed(out):
        return
    steps = ["s01-c2-stream-k1", "s02-c4-stream-k1", "s03-c3-stream-k1", "s04-c2-stream-k2"]
    result = result_of(out)

    assert steps == steps_of(out) == [row["step"] for row in result["steps"]]
    assert steps[:1] == [row["step"] for row in msgspec.json.decode((out / outdir.RUN).read_bytes())["steps"]]
    assert [1, 2] == [floor["cycle"] for floor in result["floors"]]
    assert result["leak"].startswith("leak: not tested (2 cycles, 1 of the sustained level alone")
    for step in steps:
        assert (out / outdir.requests_file(step, "w01")).stat().st_size > 0


def test_ipv6_and_a_base_path_reach_everything(auto):
    """Discovery, ownership, health by a redirect on the same host, and the watch on connections."""
    _, out = auto
    result = result_of(out)

    assert "proved" == result["target"]["gateway"]["ownership"]
    assert "/healthz" == msgspec.json.decode((out / outdir.RUN).read_bytes())["paths"]["health"]
    assert result["health"]["live"]["n"] > 0
    looks = [msgspec.json.decode(line) for line in (out / outdir.CONNECTIONS).read_bytes().splitlines()]
    assert max(look["n_ours"] for look in looks) >= 1
    assert 0 == max(look["n_others"] for look in looks)


def test_the_generator_tells_what_it_delivered_and_which_ports_are_left(auto):
    """In every line, and beside each level of the report."""
    _, out = auto
    name = outdir.generator_file("s01-c2-stream-k1", "w01")
    lines = from_lines(GeneratorLine, outdir.read_lines(out / name)[0], name)
    level = result_of(out)["levels"][0]["generator"]

    assert {1.0} == {line.achieved_ratio for line in lines[1:]}
    counted = [line for line in lines if line.ports_left is not None]
    assert counted
    assert all(0 < line.ports_left < line.ports for line in counted)
    assert 1.0 == level["achieved_ratio_min"]
    assert 0 < level["ports_left_min"] <= min(line.ports_left for line in counted)  # of both cycles' steps
    table = (out / "summary.md").read_text().partition("### Load generator")[2]
    assert "| level | CPU | lateness p99 | delivered | connections | ports left | valid |" in table
    assert "Load generator" in (out / "report.html").read_text()


@pytest.mark.parametrize("taken", ["s02-c4-stream-k1", "s03-c3-stream-k1"])
def test_a_step_that_was_taken_out_is_damage(auto, tmp_path, taken):
    """Neither its marks alone nor with all its evidence: the answers of the others ask for it."""
    out = tmp_path / "out"
    shutil.copytree(auto[1], out)
    if is_disturbed(out):
        return
    lines = outdir.read_lines(out / outdir.MARKS)[0]
    kept = [line for line in lines if f'"step":"{taken}"'.encode() not in line]
    kept = [msgspec.json.encode(msgspec.json.decode(line) | {"seals": []}) for line in kept]
    (out / outdir.MARKS).write_bytes(b"".join(line + b"\n" for line in kept))
    marks_only = judge(out)
    for file in out.rglob(f"{taken}*"):
        file.unlink()
    all_of_it = judge(out)

    assert ["INVALID", "INVALID"] == [marks_only["run_status"], all_of_it["run_status"]]


def test_an_answer_that_the_evidence_does_not_bear_out_is_not_believed(auto, tmp_path):
    """The last level was met; a mark that says otherwise leaves the whole unknown."""
    out = tmp_path / "out"
    shutil.copytree(auto[1], out)
    if is_disturbed(out):
        return
    marks = [msgspec.json.decode(line) | {"seals": []} for line in outdir.read_lines(out / outdir.MARKS)[0]]
    for mark in marks:
        if mark["mark"] == "idle" and mark["step"] == "s03-c3-stream-k1":
            mark["detail"]["search"]["answer"] = "not met"
    (out / outdir.MARKS).write_bytes(b"".join(msgspec.json.encode(mark) + b"\n" for mark in marks))
    result = judge(out)

    assert "INCONCLUSIVE" == result["verdict"]
    assert any("level 3 holds by the evidence" in line for line in result["why"])
