"""`ha-sampler run` as a program: its lines, its ends, its refusals, its schedule."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest
from sampler_kit import ROOT, child, command, environment, lines, run, running, samples, state, wait_for


def test_sigterm_leaves_a_last_sample_and_an_end_line(tmp_path):
    """Complete lines, the last one says why it ended."""
    with child() as process, running("--pid", process.pid, "--out-dir", tmp_path, "--interval", "50ms") as sampler:
        wait_for(lambda: len(samples(tmp_path)) >= 3, "three samples")
        sampler.terminate()
        assert 0 == sampler.wait(5)
        written = lines(tmp_path)

    assert "start" == written[0]["kind"]
    assert {"sample"} == {line["kind"] for line in written[1:-1]}
    end = written[-1]
    assert ("end", "signal", len(written) - 2) == (end["kind"], end["reason"], end["n_samples"])
    assert written[-2]["cpu_ns"] <= end["cpu_ns"]
    assert end["rss_kb"] < 32_000
    assert 0.05 == written[0]["interval_s"]
    assert process.pid == written[0]["identity"]["pid"]


def test_the_first_sample_comes_at_once_and_later_ones_on_schedule(tmp_path):
    """Instants are origin + k intervals; lateness is measured against them and does not add up."""
    with child() as process:
        done = run("run", "--pid", process.pid, "--out-dir", tmp_path, "--interval", "20ms", "--for", "400ms")
    rows = samples(tmp_path)
    origin = rows[0]["t_mono_ns"] - rows[0]["lag_ns"]

    assert (0, "for") == (done.returncode, lines(tmp_path)[-1]["reason"])
    assert origin == lines(tmp_path)[0]["t_mono_ns"]
    for row in rows:
        assert row["t_mono_ns"] - row["lag_ns"] == origin + (row["seq"] - 1) * 20_000_000
        assert row["lag_ns"] >= 0
    assert 21 == rows[-1]["seq"]


def test_its_end_says_where_the_evidence_is(tmp_path):
    """One line on standard output with the number of samples; nobody listening is no fault; a parent is not told."""
    with child() as process:
        arguments = ("run", "--pid", process.pid, "--interval", "20ms", "--for", "50ms", "--out-dir")
        done = run(*arguments, tmp_path / "told")
        reader, writer = os.pipe()
        silent = run(*arguments, tmp_path / "silent", "--parent-fd", reader, pass_fds=(reader,))
        os.close(reader)
        alone = subprocess.run(
            command(*arguments, tmp_path / "alone"), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=30,
            env=environment(), check=False,
        )
        os.close(writer)

    n = len(samples(tmp_path / "told"))
    assert (0, f"{tmp_path}/told/samples.jsonl: {n} samples\n", "") == (done.returncode, done.stdout, done.stderr)
    assert (0, "", "") == (silent.returncode, silent.stdout, silent.stderr)
    assert (0, "") == (alone.returncode, alone.stderr)
    assert "end" == lines(tmp_path / "alone")[-1]["kind"]


def test_missed_ticks_are_skipped_and_show_in_seq(tmp_path):
    """A stopped sampler does not catch up with a burst; the hole is in the numbers."""
    with child() as process, running("--pid", process.pid, "--out-dir", tmp_path, "--interval", "20ms") as sampler:
        wait_for(lambda: len(samples(tmp_path)) >= 3, "three samples")
        sampler.send_signal(signal.SIGSTOP)
        wait_for(lambda: state(sampler.pid) == "T", "its stop")
        before = samples(tmp_path)[-1]
        time.sleep(0.3)          # the hole itself
        sampler.send_signal(signal.SIGCONT)
        wait_for(lambda: samples(tmp_path)[-1]["seq"] > before["seq"] + 5, "a sample after the hole")
        sampler.terminate()
        sampler.wait(5)

    rows = samples(tmp_path)
    late, after = next((one, two) for one, two in pairwise(rows) if two["seq"] > one["seq"] + 1)
    assert late["lag_ns"] > 250_000_000
    assert after["seq"] - late["seq"] >= 10
    assert after["t_mono_ns"] - late["t_mono_ns"] < 100_000_000
    assert lines(tmp_path)[-1]["n_missed"] >= 9
    assert lines(tmp_path)[-1]["n_late"] >= 1


def test_the_processs_end_is_told_at_once(tmp_path):
    """The next tick is an hour away; the pidfd is not."""
    with child() as process, running("--pid", process.pid, "--out-dir", tmp_path, "--interval", "1h") as sampler:
        wait_for(lambda: samples(tmp_path), "the first sample")
        killed_ns = time.monotonic_ns()
        process.kill()
        assert 0 == sampler.wait(5)
    end = lines(tmp_path)[-1]

    assert ("end", "target_gone", "pidfd") == (end["kind"], end["reason"], end["how"])
    assert 0 <= end["exit_seen_t_mono_ns"] - killed_ns < 1_000_000_000


def test_the_parents_end_ends_it(tmp_path):
    """End of file on the pipe, within a second, with an end line."""
    reader, writer = os.pipe()
    with child() as process, running(
        "--pid", process.pid, "--out-dir", tmp_path, "--interval", "1h", "--parent-fd", reader, pass_fds=(reader,)
    ) as sampler:
        os.close(reader)
        wait_for(lambda: samples(tmp_path), "the first sample")
        os.close(writer)
        assert 0 == sampler.wait(2)

    assert "parent_gone" == lines(tmp_path)[-1]["reason"]


def test_sigkill_leaves_whole_lines(tmp_path):
    """What was written stands; at most the last line is torn."""
    with child() as process, running("--pid", process.pid, "--out-dir", tmp_path, "--interval", "10ms") as sampler:
        wait_for(lambda: len(samples(tmp_path)) >= 5, "five samples")
        sampler.kill()
        sampler.wait()
    *whole, rest = (tmp_path / "samples.jsonl").read_bytes().split(b"\n")

    assert len(whole) >= 6
    assert all(json.loads(line)["subject"] == "gateway" for line in whole)
    assert b"" == rest or rest.startswith(b"{")


def test_bare_call_with_environment_is_run(tmp_path):
    """GATEWAY_PID and OUT_DIR are enough."""
    with child() as process:
        env = environment(GATEWAY_PID=str(process.pid), OUT_DIR=str(tmp_path / "new"))
        done = run("--for", "20ms", env=env)

    assert (0, "for") == (done.returncode, lines(tmp_path / "new")[-1]["reason"])
    assert 0o600 == (tmp_path / "new" / "samples.jsonl").stat().st_mode & 0o777


def test_existing_evidence_is_never_touched(tmp_path):
    """Not appended to, not replaced: exit 2."""
    (tmp_path / "samples.jsonl").write_text("old\n")
    with child() as process:
        done = run("run", "--pid", process.pid, "--out-dir", tmp_path)

    assert (2, "old\n") == (done.returncode, (tmp_path / "samples.jsonl").read_text())
    assert 1 == done.stderr.count("\n")
    assert "give --out-dir a new folder" in done.stderr


@pytest.mark.parametrize("arguments", [
    ("run", "--pid", "0", "--out-dir", "x"), ("run", "--pid", "12x", "--out-dir", "x"), ("once", "--pid", "4194304"),
    ("once",), (), ("run", "--pid", "1", "--out-dir", "x", "--interval", "0"), ("run", "--pid", "1"),
    ("run", "--pid", "1", "--out-dir", "x", "--parent-fd", "77"), ("once", "--pid", str(os.getpid())),
    ("once", "--pid", "99999999999"), ("once", "--pid", "1", "--procfs", "/nowhere"),
    ("run", "--pid", "1", "--out-dir", "x", "--subject", "../x"),
])
def test_bad_calls_exit_2_and_write_nothing(arguments, tmp_path):
    """A clear line on standard error; no traceback, no file."""
    done = run(*arguments, cwd=tmp_path)

    assert (2, "", []) == (done.returncode, done.stdout, os.listdir(tmp_path))
    assert "Traceback" not in done.stderr
    assert "ha-sampler" in done.stderr


def test_the_fault_of_a_reader_downstream_is_no_fault():
    """`ha-sampler fields | head -1` ends quietly."""
    with subprocess.Popen(
        command("fields"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        process.stdout.close()
        assert b"" == process.stderr.read()
    assert 0 == process.returncode


def test_fields_explains_every_number():
    """One line a field with unit, kind and source."""
    done = run("fields")

    assert 0 == done.returncode
    for word in ("rss_anon_kb", "kB", "status RssAnon", "listen_overflows", "psi_cpu_some_us", "memory_anon_bytes"):
        assert word in done.stdout


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_help_loads_nothing_heavy(option):
    """A person waits for it: no hashing, no subprocess, no json."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sampler", option], capture_output=True, text=True, timeout=30,
        env=environment(), check=False,
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}

    assert 0 == done.returncode
    assert "argparse" in loaded
    assert not loaded & {"hashlib", "subprocess", "json", "select", "sampler.loop", "sampler.fields"}


def test_it_is_python_3_9_and_the_standard_library_alone():
    """It runs on the gateway's host, with what that has."""
    for path in (ROOT / "sampler").glob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.partition(".")[0] in sys.stdlib_module_names | {"sampler"}, path.name


def test_it_runs_on_an_old_python(tmp_path):
    """A real 3.9 or 3.10, where there is one."""
    old = next((path for name in ("python3.9", "python3.10") if (path := shutil.which(name))), None)
    works = old and subprocess.run([old, "-c", ""], capture_output=True, timeout=30, check=False).returncode == 0
    if not works:
        pytest.skip("no python3.9 or python3.10 on PATH; install one")
    with child() as process:
        done = subprocess.run(
            [old, "-m", "sampler", "run", "--pid", str(process.pid), "--out-dir", str(tmp_path), "--for", "50ms",
             "--interval", "20ms"],
            capture_output=True, text=True, timeout=30, env=environment(), check=False,
        )

    assert (0, "") == (done.returncode, done.stderr)
    assert ("start", "end") == (lines(tmp_path)[0]["kind"], lines(tmp_path)[-1]["kind"])
