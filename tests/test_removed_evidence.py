"""Nothing passes without its data: whatever evidence is taken away, no verdict becomes PASS, or stays it unseen."""

import shutil

import msgspec
import pytest
from build import BuiltRun, fail_some, make_generator, make_mark

from sweep import outdir
from sweep.errors import EvidenceError
from sweep.judge import judge

STEP = "s02-c2-stream-k1"


def drop_file(name):
    return lambda out: (out / name).unlink()


def drop_folder(name):
    return lambda out: shutil.rmtree(out / name)


def drop_lines(name, **having):
    """Takes away the lines of a file that have these values; all of them without any."""

    def drop(out):
        lines = (out / name).read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if not all(msgspec.json.decode(line).get(k) == v for k, v in having.items())]
        assert len(kept) < len(lines)
        (out / name).write_bytes(b"".join(kept))

    return drop


def drop_step(out):
    """All a step left, as if it had never begun."""
    for folder in (outdir.REQUESTS, outdir.GENERATOR, outdir.LOCUST):
        for path in (out / folder).glob(f"{STEP}.*"):
            path.unlink()
    drop_lines(outdir.MARKS, step=STEP)(out)


# What a required gate rests on.
NEEDED = {
    "run.json": drop_file(outdir.RUN),
    "marks": drop_file(outdir.MARKS),
    "marks: finish": drop_lines(outdir.MARKS, mark="finish"),
    "samples": drop_file(outdir.SAMPLES),
    "samples: start": drop_lines(outdir.SAMPLES, kind="start"),
    "samples: sample": drop_lines(outdir.SAMPLES, kind="sample"),
    "samples: end": drop_lines(outdir.SAMPLES, kind="end"),
    "health": drop_file(outdir.HEALTH),
    "health: live": drop_lines(outdir.HEALTH, what="live"),
    "health: ready": drop_lines(outdir.HEALTH, what="ready"),
    "requests": drop_folder(outdir.REQUESTS),
    "requests of a step": drop_file(outdir.requests_file(STEP, "w01")),
    "one request": drop_lines(outdir.requests_file(STEP, "w01"), request_id=f"{STEP}.w01.7"),
    "lines of a step": drop_lines(outdir.requests_file(STEP, "w01")),
    "generator": drop_folder(outdir.GENERATOR),
    "generator of a step": drop_file(outdir.generator_file(STEP, "w01")),
    "generator lines of a step": drop_lines(outdir.generator_file(STEP, "w01")),
    "locust": drop_folder(outdir.LOCUST),
    "locust of a step": drop_file(outdir.locust_json(STEP)),
    "a step": drop_step,
}  # fmt: skip
# What no gate rests on, or what other files say as well.
OTHERS = {
    "snapshots": drop_folder(outdir.SNAPSHOTS),
    **{f"marks: {name}": drop_lines(outdir.MARKS, mark=name)
       for name in ("start", "preflight", "begin", "open", "window", "close", "end", "idle")},
}  # fmt: skip
NOT_PASSING = {
    "too few": lambda run: [step.records.__delitem__(slice(60, None)) for step in run.steps],
    "failed": lambda run: fail_some(run.steps[0], 40),
    "shed": lambda run: fail_some(run.steps[1], 40, "shed"),
    "limited": lambda run: fail_some(run.steps[1], 40, "limited"),
    "late": lambda run: run.steps[0].generator.__setitem__(
        slice(None), [make_generator(run.steps[0].t_open_ns + i * 10**9, cpu_share=1.0) for i in range(1, 17)]
    ),
    "miscounted": lambda run: run.steps[1].process.update(started=161),
    "replaced": lambda run: [sample["root"].update(start_ticks=5) for sample in run.samples[30:]],
    "missed": lambda run: [setattr(line, "status", None) for line in run.health[20:40]],
    "stopped": lambda run: run.marks.insert(-1, make_mark("abort", run.t_finish_ns, by="stop_file", reason="STOP")),
    "our fault": lambda run: run.marks.insert(-1, make_mark("abort", run.t_finish_ns, by="fault", reason="a bug")),
    "assumed": lambda run: run.run["subjects"][0].update(ownership="declared"),
}


def verdict(out):
    try:
        return judge(out)["verdict"]
    except EvidenceError:
        return "INVALID"


@pytest.fixture(scope="module")
def passing(tmp_path_factory):
    return BuiltRun().write(tmp_path_factory.mktemp("passing") / "out")


def test_the_run_that_everything_is_taken_from_passes(passing):
    """The control, without which the tests below could not fail."""
    assert "PASS" == verdict(passing)


@pytest.mark.parametrize("what", NEEDED)
def test_without_what_a_required_gate_rests_on_nothing_passes(passing, tmp_path, what):
    """A file, a line kind, one step's share of it, one line."""
    shutil.copytree(passing, tmp_path / "out")
    NEEDED[what](tmp_path / "out")

    assert verdict(tmp_path / "out") in ("INCONCLUSIVE", "FAIL", "INVALID")


@pytest.mark.slow
@pytest.mark.parametrize("what", NEEDED | OTHERS)
def test_taking_evidence_away_never_makes_a_run_pass(tmp_path_factory, what):
    """Runs that do not pass, each for another reason."""
    for name, change in NOT_PASSING.items():
        run = BuiltRun()
        change(run)
        out = run.write(tmp_path_factory.mktemp("out") / "out")
        before = verdict(out)
        (NEEDED | OTHERS)[what](out)

        assert "PASS" != before, name
        assert "PASS" != verdict(out), f"{name}: {before}"


def test_without_one_cycles_step_the_others_do_not_speak_for_it(tmp_path):
    """Each step of each cycle is missed by itself."""
    out = BuiltRun("2", cycles=3).write(tmp_path / "out")
    assert "PASS" == verdict(out)
    for folder in (outdir.REQUESTS, outdir.GENERATOR, outdir.LOCUST):
        for path in (out / folder).glob("s02-*"):
            path.unlink()
    drop_lines(outdir.MARKS, step="s02-c2-stream-k2")(out)

    assert "INCONCLUSIVE" == verdict(out)
