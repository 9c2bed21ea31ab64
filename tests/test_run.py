"""The whole chain as a user starts it: to a verdict, stopped, killed, and with a target that dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from command import DEADLINE_S, QUICK, clean_environment, ha_sweep, marks_of, result_of, start_ha_sweep, undisturbed
from demo_process import demo
from loopback import wait_for
from require import need

from sweep import outdir

pytestmark = pytest.mark.slow


def begun(out_dir: Path, mark: str = "begin") -> bool:
    return (out_dir / outdir.MARKS).exists() and any(row["mark"] == mark for row in marks_of(out_dir))


def loading(out_dir: Path) -> bool:
    """The first step has written a record."""
    return any(path.stat().st_size for path in (out_dir / outdir.REQUESTS).glob("s01-*")) if out_dir.exists() else False


def family(process: subprocess.Popen) -> list[psutil.Process]:
    """Processes of ours below it: Locust, sampler; the embedded gateway too."""
    return psutil.Process(process.pid).children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; one that has ended may wait for init to take note of it."""
    found = []
    for each in processes:
        try:
            found += [each] if each.is_running() and each.status() != psutil.STATUS_ZOMBIE else []
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_demo_run_is_ready(tmp_path):
    """Exit 0, READY, the report's path last on stdout, all sealed, nothing left beside, a second report is the same."""
    places = places_in(tmp_path)

    def attempt() -> subprocess.CompletedProcess[str]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return ha_sweep(
            "run", "--demo", "--levels", "1,2", "--duration", "3s", "--warmup", "0.5s", "--cooldown", "1s",
            "--max-tokens", "8", "--slo", "stream.ttft_ms.p95<=500", "--out-dir", "run", cwd=tmp_path, **places,
        )  # fmt: skip

    done = undisturbed(attempt)
    out_dir = tmp_path / "run"

    assert 0 == done.returncode, done.stdout + done.stderr
    assert str(out_dir / outdir.REPORT_HTML) == done.stdout.splitlines()[-1]
    assert "READY for 2 concurrent requests of openai-chat with model demo-1" in done.stdout
    result = result_of(out_dir)
    assert ("PASS", "COMPLETE", 0) == (result["verdict"], result["run_status"], result["exit_code"])
    assert ["stream", "nonstream"] * 2 == [row["mode"] for row in result["levels"]]
    assert all(row["valid"] and row["cpu_cores"]["v"] is not None for row in result["levels"])
    assert "proved" == result["target"]["gateway"]["ownership"]
    names = [row["mark"] for row in marks_of(out_dir)]
    step = ["begin", "open", "window", "close", "end", "idle"]
    assert ["start", "preflight", *step * 4, "finish"] == names
    sums = subprocess.run(["sha256sum", "--quiet", "-c", outdir.SHA256SUMS], cwd=out_dir, capture_output=True)
    assert 0 == sums.returncode
    assert [] == left_in(tmp_path)
    rendered = {path: path.read_bytes() for path in out_dir.rglob("*") if path.is_file()}
    again = ha_sweep("report", str(out_dir), cwd=tmp_path)
    assert 0 == again.returncode
    assert rendered == {path: path.read_bytes() for path in out_dir.rglob("*") if path.is_file()}


# Everything is read-only but two folders; with bytecode writing on, as it is on a user's machine.
READ_ONLY = """
set -e
mount -t tmpfs tmpfs "$1"; mount -t tmpfs tmpfs "$2"
while read -r _ _ _ _ at _; do
  [ "$at" = "$1" ] || [ "$at" = "$2" ] || mount -o remount,bind,ro "$at"
done < /proc/self/mountinfo
if touch "$HOME/x" 2>/dev/null; then echo "HOME can be written"; exit 99; fi
shift 2; cd "$OUT"; unset PYTHONDONTWRITEBYTECODE OUT
code=0; "$@" --out-dir run || code=$?
find . "$TMPDIR" -mindepth 1 -maxdepth 1 >&2
cat run/result.json
exit $code
"""


def test_a_run_needs_no_file_system_but_out_dir_and_the_temporary_folder(tmp_path):
    """HOME and all else are mounted read-only: the run is as good as ever, and says truly what it left."""
    need("root", os.geteuid() == 0, "run as root: the test mounts file systems read-only")
    places = places_in(tmp_path)
    (tmp_path / "work").mkdir()
    script = ["sh", "-c", READ_ONLY, "sh", tmp_path / "work", tmp_path / "tmp", sys.executable, "-P", "-m", "sweep"]
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", *script, "run", "--demo", "--levels", "1", *QUICK],
        env=clean_environment(**places, OUT=str(tmp_path / "work")), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    need("root", "must be superuser" not in done.stderr and "not permitted" not in done.stderr, "the right to mount")

    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert ["./run"] == [line for line in done.stderr.splitlines() if line.startswith((".", "/"))]
    said = json.loads(done.stdout[done.stdout.index("\n{") :])["left_behind"]
    assert "model demo-1 was loaded before and is now (pinned for ever): as found" in said
    assert "files: none outside OUT_DIR (scratch files in the temporary folder are removed at the end)" in said
    assert [] == left_in(tmp_path)


def places_in(tmp_path: Path) -> dict[str, str]:
    """HOME and the temporary folder, empty, as environment."""
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    return {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}


def left_in(tmp_path: Path) -> list[str]:
    """Files in and beside the places that are not the run's, and processes that were started with them."""
    files = [path for name in ("home", "tmp") for path in (tmp_path / name).rglob("*")]
    files += [path for path in tmp_path.iterdir() if path.name not in ("home", "tmp", "run", "work")]
    return [*map(str, files), *(str(process) for process in psutil.process_iter() if is_of(process, tmp_path))]


def is_of(process: psutil.Process, tmp_path: Path) -> bool:
    try:
        return process.environ().get("TMPDIR") == str(tmp_path / "tmp")
    except psutil.Error:  # gone meanwhile, or another user's
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_in_order(tmp_path, number):
    """Load stops at once, the evidence stays, the report says ABORTED, exit 4, nothing of ours is left anywhere."""
    run = start_ha_sweep("run", "--demo", "--levels", "2", "--out-dir", "run", cwd=tmp_path, **places_in(tmp_path))
    wait_for(lambda: loading(tmp_path / "run"), "first record")
    ours = family(run)
    assert left_in(tmp_path)
    run.send_signal(number)
    out, err = run.communicate(timeout=60)

    assert 4 == run.returncode, out + err
    result = result_of(tmp_path / "run")
    assert ("ABORTED", 4) == (result["run_status"], result["exit_code"])
    assert "PASS" != result["verdict"]
    abort = next(row for row in marks_of(tmp_path / "run") if row["mark"] == "abort")
    assert ("signal", number.name) == (abort["detail"]["by"], abort["detail"]["reason"])
    assert [] == alive(ours)
    assert [] == left_in(tmp_path)
    assert "demo-1" in str(marks_of(tmp_path / "run")[-1]["detail"]["loaded"])
    report = json.loads((tmp_path / "run" / outdir.locust_json("s01-c2-stream-k1")).read_bytes())
    assert report["counts_agree"] and report["processes"][0]["outcomes"].get("cut", 0) <= 2
    last = json.loads((tmp_path / "run" / outdir.SAMPLES).read_bytes().splitlines()[-1])
    assert "end" == last["kind"]


def test_a_second_signal_ends_at_once(tmp_path):
    """No report is waited for; what was started is gone within two seconds, the scratch folder too."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    run = start_ha_sweep("run", "--demo", "--levels", "2", "--out-dir", "run", cwd=tmp_path, TMPDIR=str(temporary))
    wait_for(lambda: loading(tmp_path / "run"), "first record")
    ours = family(run)
    # Both wait for the process: two pending signals are handled one after the other when it goes on.
    run.send_signal(signal.SIGSTOP)
    run.send_signal(signal.SIGINT)
    run.send_signal(signal.SIGTERM)
    run.send_signal(signal.SIGCONT)
    run.communicate(timeout=10)

    assert 4 == run.returncode
    psutil.wait_procs(ours, timeout=2)
    assert [] == alive(ours)
    assert [] == list(temporary.iterdir())
    assert not (tmp_path / "run" / outdir.RESULT).exists()


def test_sigkill_leaves_nothing_running(tmp_path):
    """Two seconds after the orchestrator was killed no process of ours lives, and no request is being sent."""
    with demo() as gateway:
        run = start_ha_sweep(
            "run", "--target", f"http://127.0.0.1:{gateway.port}", "--gateway-pid", str(gateway.pid), "--levels", "2",
            "--out-dir", "run", cwd=tmp_path,
        )  # fmt: skip
        wait_for(lambda: loading(tmp_path / "run"), "first record")
        ours = family(run)
        run.kill()
        run.communicate(timeout=10)
        assert 2 <= len(ours)
        psutil.wait_procs(ours, timeout=2)

        assert [] == alive(ours)
        assert 0 == gateway.metric("in_flight")
    reported = ha_sweep("report", "run", cwd=tmp_path)
    assert 4 == reported.returncode, reported.stdout + reported.stderr
    assert "ABORTED" == result_of(tmp_path / "run")["run_status"]
    assert "killed" in (result_of(tmp_path / "run")["status_reason"] or "")


def test_a_gateway_that_dies_under_load_fails(tmp_path):
    """FAIL, exit 1, with when and at which level."""
    with demo("--defect", "die-after=60") as gateway:
        done = ha_sweep(
            "run", "--target", f"http://127.0.0.1:{gateway.port}", "--gateway-pid", str(gateway.pid), "--levels", "1,2",
            "--duration", "3s", "--warmup", "0.5s", "--cooldown", "0.5s", "--max-tokens", "8", "--out-dir", "run",
            cwd=tmp_path,
        )  # fmt: skip

    assert 1 == done.returncode, done.stdout + done.stderr
    result = result_of(tmp_path / "run")
    assert "FAIL" == result["verdict"]
    assert False is result["survival"]["same_process"]
    assert result["survival"]["died_in_step"] in [row["step"] for row in result["steps"]]
    assert result["survival"]["died_at_s"] > 0
    last = json.loads((tmp_path / "run" / outdir.SAMPLES).read_bytes().splitlines()[-1])
    assert ("end", "target_gone") == (last["kind"], last["reason"])


def test_a_stop_file_ends_the_run(tmp_path):
    """`touch OUT_DIR/STOP` is exit 4 with its reason."""
    run = start_ha_sweep("run", "--demo", "--levels", "1", "--out-dir", "run", cwd=tmp_path)
    wait_for(lambda: loading(tmp_path / "run"), "first record")
    (tmp_path / "run" / outdir.STOP).write_text("")
    out, err = run.communicate(timeout=60)

    assert 4 == run.returncode, out + err
    assert "STOP" in result_of(tmp_path / "run")["status_reason"]


def spoil_report(run: subprocess.Popen, out_dir: Path) -> None:
    """Locust cannot write its report: a folder stands in its place."""
    (out_dir / outdir.locust_json("s01-c2-stream-k1")).mkdir()


def kill_locust(run: subprocess.Popen, out_dir: Path) -> None:
    next(each for each in family(run) if "locust" in each.cmdline()).kill()


def kill_sampler(run: subprocess.Popen, out_dir: Path) -> None:
    next(each for each in family(run) if "sampler" in each.cmdline()).kill()


@pytest.mark.parametrize("spoil", [spoil_report, kill_locust, kill_sampler])
def test_a_process_of_ours_that_fails_is_exit_5_everywhere(tmp_path, spoil):
    """Never the target's fault, never READY: run, result.json and a later report agree; nothing is left running."""
    run = start_ha_sweep(
        "run", "--demo", "--levels", "2", "--duration", "2s", "--max-step", "3s", "--warmup", "0.5s", "--drain", "1s",
        "--cooldown", "0.5s", "--max-tokens", "4", "--out-dir", "run", cwd=tmp_path,
    )  # fmt: skip
    wait_for(lambda: loading(tmp_path / "run"), "first record")
    ours = family(run)
    spoil(run, tmp_path / "run")
    _, err = run.communicate(timeout=60)

    assert (5, False) == (run.returncode, "Traceback" in err), err
    result = result_of(tmp_path / "run")
    assert 5 == result["exit_code"]
    assert result["run_status"] == ("INVALID" if spoil is spoil_report else "ABORTED")
    assert result["verdict"] not in ("PASS", "WARN")
    assert 5 == ha_sweep("report", "run", cwd=tmp_path).returncode
    assert [] == alive(ours)


def test_a_process_of_another_user_is_sampled_with_what_is_readable(tmp_path):
    """The run says what cannot be read and what that costs: a gateway of `nobody`, watched without CAP_SYS_PTRACE."""
    need("root", os.geteuid() == 0, "run as root: the test starts a process of another user")
    # Real and saved user are nobody; the effective one stays root so that Python can still read its own files.
    as_nobody = "import os, sweep.demo_gateway as d; os.setresuid(65534, 0, 65534); d.main(['--port', '0'])"
    gateway = subprocess.Popen([sys.executable, "-P", "-c", as_nobody], stdout=subprocess.PIPE, text=True)
    port = gateway.stdout.readline().split()[4].rpartition(":")[2]
    dropped = "-sys_ptrace,-dac_override,-dac_read_search"
    command = [
        "setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}", sys.executable, "-P", "-m", "sweep", "run",
        "--target", f"http://127.0.0.1:{port}", "--gateway-pid", str(gateway.pid), "--levels", "1", *QUICK,
        "--quiet-check", "0", "--out-dir", "run",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=120)
    gateway.terminate()
    gateway.communicate(timeout=30)

    assert done.returncode in (0, 3), done.stdout + done.stderr
    result = result_of(tmp_path / "run")
    assert "declared" == result["target"]["gateway"]["ownership"]
    assert "io" in [row["source"] for row in result["visibility"]]
    assert "assumed" in [finding["status"] for finding in result["findings"]]
    assert all(row["fds"]["v"] is not None for row in result["levels"])


def test_ctrl_c_in_a_terminal(tmp_path):
    """A person presses C-c in tmux: a live line was shown, the run ends as ABORTED with exit 4."""
    tmux = subprocess.run(["which", "tmux"], capture_output=True, text=True).stdout.strip()
    need("tmux", bool(tmux), "apt-get install tmux")
    socket = ["-L", f"ha-sweep-{os.getpid()}"]

    def screen() -> str:
        return subprocess.run([tmux, *socket, "capture-pane", "-p"], capture_output=True, text=True).stdout

    command = f"{sys.executable} -P -m sweep run --demo --levels 2 --out-dir {tmp_path}/run; echo exit=$?"
    environment = dict(os.environ) | {"TERM": "xterm-256color"}
    subprocess.run(
        [tmux, *socket, "new-session", "-d", "-x", "150", "-y", "40", "-c", str(tmp_path), "sh"],
        check=True, env=environment,
    )  # fmt: skip
    try:
        subprocess.run([tmux, *socket, "send-keys", command, "Enter"], check=True)
        wait_for(lambda: "level 2 stream · " in screen() and "TTFT p50" in screen(), "live line")
        subprocess.run([tmux, *socket, "send-keys", "C-c"], check=True)
        wait_for(lambda: "exit=4" in screen().replace("exit=$?", ""), "exit=4")
        shown = screen()
    finally:
        subprocess.run([tmux, *socket, "kill-server"], check=False)

    assert "ABORTED" == result_of(tmp_path / "run")["run_status"]
    assert "Traceback" not in shown
