"""The sampler harms nothing: what it opens, writes and sends, what it may not see, and a disk that is full."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from require import need
from sampler_kit import ROOT, child, command, environment, lines, run, running, samples, wait_for

NOBODY = 65534
FORBIDDEN = re.compile(r"/(environ|mem|maps|smaps|smaps_rollup|numa_maps|pagemap|clear_refs|map_files|syscall|stack)\b")
CHANGES = re.compile(r"\b(open|openat|creat|unlink\w*|rename\w*|mkdir\w*|chmod|f?chown\w*|truncate|link\w*)\((.*)")
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC")


def as_nobody(*arguments: object) -> subprocess.CompletedProcess:
    """The sampler in a process that loaded it and then became another user (who may not see this interpreter)."""
    code = "import locale, os, shutil, sys; import sampler.loop, sampler.output; " \
           "from sampler.__main__ import main; os.setgroups([]); " \
           f"os.setgid({NOBODY}); os.setuid({NOBODY}); sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=30, check=False,
        env=environment(),
    )


@contextmanager
def strace(log, *arguments: object):
    calls = "trace=%file,%process,%signal,ptrace,process_vm_readv,process_vm_writev,prctl,write,pwrite64,ftruncate"
    with subprocess.Popen(
        ["strace", "-f", "-qq", "-y", "-s", "200", "-e", calls, "-o", str(log), *command(*arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(PYTHONDONTWRITEBYTECODE="1"),
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def opened(log: str, out_dir: str) -> tuple[list[str], list[str]]:
    """The log's paths opened to read, and those opened to write or changed outside OUT_DIR."""
    read, written = [], []
    for line in log.splitlines():
        call = re.search(CHANGES, line)
        if not call or "= -1 " in line:
            continue
        path = re.search(r"= \d+<([^>]*)>", line)
        where = path[1] if path else call[2]
        if call[1] in ("open", "openat") and not WRITES.search(call[2]):
            read.append(where)
        elif not where.startswith(out_dir) and "/dev/null" not in where and out_dir not in call[2]:
            written.append(line)
    return read, written


@pytest.mark.slow
def test_it_only_reads_what_it_may_and_writes_under_out_dir(tmp_path):
    """System calls of a whole run: no ptrace, no signal but 0, none of the files that stop or expose the process."""
    need("strace", shutil.which("strace") is not None, "apt-get install strace")
    out_dir, log = tmp_path / "out", tmp_path / "log"
    with child() as process:
        process.do("threading.Thread(target=time.sleep, args=(99,), daemon=True).start(); os.fork() or time.sleep(99)")
        arguments = ("run", "--pid", process.pid, "--out-dir", out_dir, "--interval", "50ms", "--for", "500ms")
        with strace(log, *arguments) as tracer:
            assert (0, b"") == (tracer.wait(20), tracer.stderr.read())
        assert "0" == process.do("result = open('/proc/self/status').read().split('TracerPid:')[1].split()[0]")
        calls = log.read_text()
    read, written = opened(calls, str(out_dir))

    assert len(samples(out_dir)) >= 5
    assert any(path.endswith(f"/{process.pid}/io") for path in read)        # the log does show what is opened
    assert any(f"/{process.pid}/task" in path for path in read)
    assert [] == [path for path in read if path.startswith("/proc") and FORBIDDEN.search(path)]
    assert [] == written
    assert [] == re.findall(r"\b(?:ptrace|process_vm_\w+|pidfd_send_signal|tgkill|tkill)\(", calls)
    assert [] == [call for call in re.findall(r"\bkill\(\d+, \w+", calls) if not call.endswith(", 0")]
    assert {str(out_dir / "samples.jsonl"), "standard output"} == {
        "standard output" if fd == "1" else path for fd, path in re.findall(r"\bp?write(?:64)?\((\d+)<([^>]*)>", calls)
    }


@pytest.mark.slow
def test_ps_opens_nothing_forbidden_either(tmp_path):
    """-o comm would have ps open environ and cmdline of every process; -q and fname leave them alone."""
    need("strace", shutil.which("strace") is not None, "apt-get install strace")
    with child() as process, strace(tmp_path / "log", "once", "--ps", "--pid", process.pid) as tracer:
        output, _ = tracer.communicate(timeout=20)
        assert json.loads(output)["ps"]["process"]
    read, written = opened((tmp_path / "log").read_text(), str(tmp_path))

    assert [] == written
    assert f"/proc/{process.pid}/stat" in read
    assert [] == [path for path in read if path.startswith("/proc") and FORBIDDEN.search(path)]


def test_another_users_process_gives_null_and_why():
    """io and exe need the owner's rights; the number of descriptors is known by the folder's size all the same."""
    need("root", os.geteuid() == 0, "run as root: the test drops to another user")
    with child() as process:
        process.do("fds = [os.open('/dev/null', 0) for _ in range(20)]")
        own = process.do("result = len(os.listdir('/proc/self/fd')) - 1")
        done = as_nobody("once", "--pid", process.pid)
    found = json.loads(done.stdout)
    root, why = found["sample"]["root"], found["sample"]["why"]

    assert (0, None, None) == (done.returncode, root["rchar"], root["write_bytes"])
    assert ("EACCES", "EACCES") == (why["root.io"], found["why"]["identity.exe_sha256"])
    assert root["rss_anon_kb"] > 0
    assert root["utime_ticks"] is not None
    if found["sample"]["root"]["n_fds"] is not None:
        assert own == root["n_fds"]
    else:
        assert "EACCES" == why["root.fd"]        # before kernel 6.2 they can only be listed
    rows = {row["source"]: (row["readable"], row["why"]) for row in found["visibility"]}
    assert ((False, "EACCES"), (False, "EACCES"), (True, None)) == (rows["io"], rows["fd list"], rows["status"])


def test_files_belong_to_the_owner_of_out_dir(tmp_path):
    """Root samples into a user's folder; the user can archive and delete what it finds there."""
    need("root", os.geteuid() == 0, "run as root: the test gives a folder away")
    os.chown(tmp_path, NOBODY, NOBODY)
    with child() as process:
        run("run", "--pid", process.pid, "--out-dir", tmp_path, "--for", "20ms")
    seen = (tmp_path / "samples.jsonl").stat()

    assert (NOBODY, NOBODY, 0o600) == (seen.st_uid, seen.st_gid, seen.st_mode & 0o777)


def test_a_folder_it_may_not_write_is_refused(tmp_path):
    """Exit 2 before anything is sampled."""
    need("root", os.geteuid() == 0, "run as root: the test drops to another user")
    tmp_path.chmod(0o755)
    with child() as process:
        done = as_nobody("run", "--pid", process.pid, "--out-dir", tmp_path)

    assert 2 == done.returncode
    assert "give --out-dir a folder that can be written" in done.stderr


def test_a_full_disk_ends_it_with_whole_lines(tmp_path):
    """Exit 5 and one line; what was written before stays readable, nothing is torn."""
    need("root", os.geteuid() == 0, "run as root: the test mounts a small file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    need("root", mounted.returncode == 0, "the right to mount a tmpfs")
    try:
        with child() as process:
            done = run("run", "--pid", process.pid, "--out-dir", tmp_path, "--interval", "10ms", "--for", "20s")
        content = (tmp_path / "samples.jsonl").read_bytes()
        written = lines(tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)

    assert 5 == done.returncode
    assert "No space left on device" in done.stderr
    assert 1 == done.stderr.count("\n")
    assert content.endswith(b"\n")
    assert ("start", "sample") == (written[0]["kind"], written[5]["kind"])
    if written[-1]["kind"] == "end":         # there may be room for the short line
        assert ("disk_full", "ENOSPC") == (written[-1]["reason"], written[-1]["errno"])


def test_a_terminals_interrupt_and_hang_up_end_it_cleanly(tmp_path):
    """Ctrl-C and a closed terminal are ends like any other."""
    for number in (signal.SIGINT, signal.SIGHUP):
        out_dir = tmp_path / str(number)
        with child() as process, running("--pid", process.pid, "--out-dir", out_dir) as sampler:
            wait_for(lambda out_dir=out_dir: samples(out_dir), "the first sample")
            sampler.send_signal(number)
            assert (0, b"") == (sampler.wait(5), sampler.stderr.read())
        assert "signal" == lines(out_dir)[-1]["reason"]


def test_the_sampler_imports_nothing_of_the_sweep():
    """It is a separate program; the arrow between the two packages points nowhere."""
    for path in (ROOT / "sampler").glob("*.py"):
        assert not re.search(r"^\s*(?:from|import) sweep\b", path.read_text(), re.MULTILINE), path.name
