"""A stranger checks a bundle: every file flipped, cut, added, removed, renamed; and a verdict edited by hand."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from command import ha_sweep

from sweep import outdir, seal
from sweep.verify import verify


@pytest.fixture(scope="module")
def sealed(tmp_path_factory) -> Path:
    """A real run of the embedded gateway."""
    folder = tmp_path_factory.mktemp("verify")
    done = ha_sweep(
        "run", "--demo", "--levels", "1", "--duration", "1s", "--warmup", "0.3s", "--cooldown", "0.5s",
        "--max-tokens", "2", "--max-requests", "200", "--out-dir", "run", cwd=folder,
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr
    return folder / "run"


@pytest.fixture
def run(sealed, tmp_path) -> Path:
    return Path(shutil.copytree(sealed, tmp_path / "run"))


def files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_run_as_sealed_has_no_fault(sealed):
    """The untouched folder, and the command's words and code."""
    assert ((), ()) == verify(sealed)
    done = ha_sweep("verify", str(sealed), cwd=sealed.parent)
    assert (0, True) == (done.returncode, "evidence intact" in done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["flip", "cut", "grow", "remove", "rename"])
def test_every_change_of_every_file_is_named(run, change):
    """No file can be changed unseen, the manifest and the sums included."""
    for path in files(run):
        content = path.read_bytes()
        if not content and change in ("flip", "cut"):
            continue
        if change == "flip":
            path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        elif change == "cut":
            path.write_bytes(content[:-1])
        elif change == "grow":
            path.write_bytes(content + b"\n")
        elif change == "remove":
            path.unlink()
        else:
            path.rename(path.with_name("renamed"))
        done = ha_sweep("verify", str(run), cwd=run.parent) if path.name == outdir.MANIFEST else None
        if done is None:
            assert verify(run).evidence, path
        else:
            assert 5 == done.returncode, (path, done.stdout, done.stderr)
        path.with_name("renamed").unlink(missing_ok=True)
        path.write_bytes(content)
    assert () == verify(run).evidence


@pytest.mark.slow
def test_an_added_file_is_named(run):
    """`sha256sum -c` would not see it."""
    (run / "extra.txt").write_text("x")

    assert ("extra.txt: not in the manifest",) == verify(run).evidence


@pytest.mark.slow
def test_a_verdict_edited_and_sealed_anew_is_found(run):
    """Someone who rewrites result.json and all hashes still cannot make the evidence agree."""
    path = run / outdir.RESULT
    result = json.loads(path.read_bytes())
    path.write_text(json.dumps(result | {"verdict": "PASS" if result["verdict"] != "PASS" else "FAIL"}))
    seal.write_manifest(run)

    faults = verify(run)
    assert () == faults.evidence
    assert 1 == len(faults.judgement)


@pytest.mark.slow
def test_a_record_removed_and_sealed_anew_is_found_by_the_prefix_seals(run):
    """The seals in marks.jsonl were taken during the run."""
    path = next(path for path in files(run) if path.parent.name == outdir.REQUESTS and path.name.startswith("s01"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[1:]))
    seal.write_manifest(run)

    assert [path.name] == [Path(fault.partition(":")[0]).name for fault in verify(run).evidence]


@pytest.mark.slow
def test_a_report_on_changed_evidence_is_invalid(run):
    """Not only `verify`: no report says READY over records that are not those sealed during the run."""
    path = next(path for path in files(run) if path.parent.name == outdir.REQUESTS and path.name.startswith("s01"))
    path.write_bytes(path.read_bytes().replace(b'"phase":"window"', b'"phase":"warmup"', 1))
    (run / outdir.MANIFEST).unlink()  # as after a run that was killed
    done = ha_sweep("report", str(run), cwd=run.parent)

    assert 5 == done.returncode
    assert "INVALID" == json.loads((run / outdir.RESULT).read_bytes())["run_status"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [outdir.RUN, outdir.MARKS, outdir.SAMPLES, "snapshots", "locust"])
def test_a_report_seals_no_change_of_the_evidence(run, name):
    """Judged again, an edit would get hashes of its own, and `verify` would find nothing any more."""
    path = run / name if (run / name).is_file() else min((run / name).iterdir())
    path.write_bytes(path.read_bytes() + b"\n")
    before = {each: each.read_bytes() for each in files(run)}
    done = ha_sweep("report", str(run), cwd=run.parent)

    assert (5, "") == (done.returncode, done.stdout)
    assert f"{path.relative_to(run)}: changed since it was sealed; not judged again" in done.stderr
    assert before == {each: each.read_bytes() for each in files(run)}


@pytest.mark.slow
@pytest.mark.parametrize("manifest", ['{"files":[5]}', '{"files":5}', '{"format":1,"files":[{}]}', "[]"])
def test_an_odd_manifest_is_one_line(run, manifest):
    """Exit 5, no traceback."""
    (run / outdir.MANIFEST).write_text(manifest)
    done = ha_sweep("verify", str(run), cwd=run.parent)

    assert (5, 1) == (done.returncode, len(done.stderr.strip().splitlines()))
    assert "fault of ours" not in done.stderr


@pytest.mark.slow
def test_a_pipe_in_the_folder_is_named_and_not_read(run):
    """A FIFO would be waited for for ever."""
    os.mkfifo(run / "snapshots" / "x.json")

    for command in ("verify", "report"):
        done = ha_sweep(command, str(run), cwd=run.parent)
        assert (5, True) == (done.returncode, "snapshots/x.json" in done.stderr)


def test_a_folder_without_a_manifest_is_one_line(tmp_path):
    """Exit 5, no traceback."""
    done = ha_sweep("verify", str(tmp_path), cwd=tmp_path)

    assert (5, 1) == (done.returncode, len(done.stderr.strip().splitlines()))
