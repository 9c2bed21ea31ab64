"""`ha-sweep run` with tenants, mixed modes, clients that leave and prompts: from the options to a sealed report."""

from __future__ import annotations

import json

import pytest
from command import QUICK, ha_sweep, result_of, start_ha_sweep
from demo_process import demo
from loopback import wait_for

from sweep import outdir

pytestmark = pytest.mark.slow

KEYS = {"KEY_A": "key-of-a-0123456789", "KEY_B": "key-of-b-0123456789"}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A run of two tenants, one beside the level, with prompts of a file; its folder and what was said."""
    folder = tmp_path_factory.mktemp("swept")
    lines = [{"prompt": f"private question number {i}"} for i in range(40)]
    (folder / "mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with demo("--ttft", "30ms") as gateway:
        done = ha_sweep(
            "run", "--target", f"http://127.0.0.1:{gateway.port}", "--levels", "3", "--mode", "mixed",
            "--stream-share", "0.7", "--cancel-ratio", "0.2", "--tenant", "noisy=KEY_A", "--tenant",
            "steady=KEY_B@1", "--prompts", "mine.jsonl", *QUICK, "--duration", "2s", "--out-dir", "run",
            cwd=folder, **KEYS,
        )  # fmt: skip
    assert done.returncode in (0, 3), done.stdout + done.stderr
    return folder / "run", done


def test_the_level_is_shared_and_the_report_says_by_whom(swept):
    """Three noisy users and a steady one beside them; the demo gateway serves all alike."""
    out, done = swept
    result = result_of(out)
    order = json.loads((out / outdir.locust_json("s01-c3-mixed-k1")).read_bytes())

    assert 4 == order["users_wanted"]
    assert order["counts_agree"] and order["processes"][0]["outcomes"]["left"] > 0
    assert ", 70 % streaming, 2 tenants, 20 % of the clients leave, on one node" in result["scope"]
    assert {"stream", "nonstream"} == {row["mode"] for row in result["levels"]}
    rows = result["tenants"]["rows"]
    assert {("noisy", 3.0), ("steady", 1.0)} == {(row["tenant"], row["part"]) for row in rows}
    assert all(row["ok"] > 0 and row["share"] > 0.4 for row in rows), rows
    for name in ("report.html", "summary.md"):
        assert "served least" in (out / name).read_text()
    assert "steady" in done.stdout + (out / "report.html").read_text()


def test_neither_keys_nor_prompts_are_kept(swept):
    """Their names and the file's hash are; what each key paid for is told."""
    out, done = swept
    run = json.loads((out / outdir.RUN).read_bytes())
    kept = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    kept += (done.stdout + done.stderr).encode()

    assert not any(key.encode() in kept for key in KEYS.values()) and b"private question" not in kept
    assert 40 == run["prompts"]["count"] and 64 == len(run["prompts"]["sha256"])
    assert {"noisy": "ok", "steady": "ok"} == run["preflight"]["tenants"]
    paid = [line for line in result_of(out)["left_behind"] if "charged to" in line]
    assert ["the key in KEY_A of tenant noisy", "the key in KEY_B of tenant steady"] == [
        line.partition("charged to ")[2] for line in paid
    ]
    page = (out / "report.html").read_text()
    assert "prefix caches: as mine.jsonl has it" in page and f"sha256 {run['prompts']['sha256']}" in page


def test_the_verdict_is_recomputed_from_the_evidence(swept):
    out, _ = swept

    assert 0 == ha_sweep("verify", str(out), cwd=out.parent).returncode


def test_what_cannot_start_is_refused_before_any_load(tmp_path):
    """A tenant's key that the gateway refuses, by its name; one that is not set; a prompt that is none, by its line."""
    (tmp_path / "mine.jsonl").write_text('{"prompt": "fine"}\n{"prompt": ""}\n')
    tenants = ("--tenant", "a=KEY_A", "--tenant", "b=KEY_B")
    with demo("--api-key-env", "KEY_A", env=KEYS) as gateway:
        run = ("run", "--target", f"http://127.0.0.1:{gateway.port}", "--levels", "2", *QUICK, "--out-dir", "run")
        refused = ha_sweep(*run, *tenants, cwd=tmp_path, **KEYS)
        unset = ha_sweep(*run, *tenants, cwd=tmp_path, KEY_A=KEYS["KEY_A"])
        bad = ha_sweep(*run, "--prompts", "mine.jsonl", cwd=tmp_path, **KEYS)

    assert 2 == refused.returncode, refused.stderr
    assert "the key in KEY_B of tenant b is refused, set the right one" in refused.stderr
    assert (2, 2) == (unset.returncode, bad.returncode)
    assert "--tenant b: environment variable KEY_B is not set" in unset.stderr
    assert "mine.jsonl:2: its prompt is no text, or empty" in bad.stderr
    assert not (tmp_path / "run").exists()
    assert not any(key in each.stderr for key in KEYS.values() for each in (refused, unset, bad))


def test_prompts_that_change_during_the_run_end_it(tmp_path):
    """Exit 4: from our side; what the step sent is not known any more, so its numbers are not used."""
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"prompt": "one"}\n')
    run = start_ha_sweep(
        "run", "--demo", "--levels", "6,7", "--mode", "stream", "--prompts", "mine.jsonl", *QUICK,
        "--duration", "0.5s", "--max-step", "0.5s", "--out-dir", "run", cwd=tmp_path,
    )  # fmt: skip
    first = tmp_path / "run" / outdir.requests_file("s01-c6-stream-k1", "w01")
    wait_for(lambda: first.exists() and first.stat().st_size > 0, "first record")
    mine.write_text('{"prompt": "two"}\n')
    _, err = run.communicate(timeout=60)

    assert 4 == run.returncode, err
    result = result_of(tmp_path / "run")
    assert any("mine.jsonl was changed while its prompts were sent" in line for line in result["why"])
    assert result["next_text"].startswith("leave the file of --prompts as it is")
    assert "--prompts mine.jsonl" in result["next"]
    assert not result["steps"][0]["valid"] and 1 == len(result["steps"])
