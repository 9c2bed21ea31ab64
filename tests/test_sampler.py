"""The sampler on real processes: what it says against what the process itself knows."""

from __future__ import annotations

import json
import os
import platform
import signal
import time

import pytest
from sampler_kit import child, run, state, wait_for

from sampler import fields, ps
from sampler.attach import Refused
from sampler.loop import Sampler

SYS_EXIT = {"x86_64": 60, "aarch64": 93}


def test_threads_count_although_the_leader_idles():
    """Switches and run time are those of all threads; /proc/PID/status has the leader's alone."""
    with child() as process:
        process.do("stop = threading.Event(); step = lambda: [time.sleep(0.001) for _ in iter(stop.is_set, True)]")
        process.do("threads = [threading.Thread(target=step) for _ in range(4)]; [t.start() for t in threads]")
        sampler = Sampler(process.pid)

        def busy() -> dict | None:
            row = sampler.sample(1)["root"]
            return row if row["ctx_voluntary"] > 200 else None

        row = wait_for(busy, "switches of the threads")
        leader = process.do("result = open('/proc/self/status').read()")
        n_leader = int(leader.rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])
        process.do("stop.set(); [t.join() for t in threads]")
        # join returns when the thread's Python part is over, a moment before the kernel's
        after = wait_for(lambda: (row := sampler.sample(2)["root"])["n_threads"] == 1 and row, "the threads' end")
        sampler.close()

    assert 5 == row["n_threads"]
    assert row["ctx_voluntary"] > 3 * n_leader
    assert (1, 4) == (after["n_threads"], after["n_tids_gone"])
    assert after["ctx_voluntary"] >= row["ctx_voluntary"]
    assert after["run_ns"] >= row["run_ns"] > 0


def test_fds_are_what_the_process_counts_itself():
    """Fifty more opened are fifty more seen; the limit is its own."""
    with child() as process:
        sampler = Sampler(process.pid)
        before = sampler.sample(1)["root"]["n_fds"]
        process.do("fds = [os.open('/dev/null', 0) for _ in range(50)]")
        own = process.do("result = len(os.listdir('/proc/self/fd')) - 1")
        limit = process.do("import resource; result = resource.getrlimit(resource.RLIMIT_NOFILE)[0]")
        row = sampler.sample(2)["root"]
        sampler.close()

    assert (own, before + 50, limit) == (row["n_fds"], row["n_fds"], row["fd_soft_limit"])


def test_cpu_ticks_are_those_the_process_is_told():
    """The delta over a burn equals the child's own os.times(), give or take a tick at each end."""
    with child() as process:
        sampler = Sampler(process.pid)
        before, told_before = sampler.sample(1)["root"], process.do("result = os.times()[:2]")
        process.do("end = time.process_time() + 0.5; [0 for _ in iter(lambda: time.process_time() < end, False)]")
        told, after = process.do("result = os.times()[:2]"), sampler.sample(2)["root"]
        sampler.close()

    tick = 1 / os.sysconf("SC_CLK_TCK")
    seen = (after["utime_ticks"] + after["stime_ticks"] - before["utime_ticks"] - before["stime_ticks"]) * tick
    assert 0.4 < seen
    assert abs(sum(told) - sum(told_before) - seen) <= 3 * tick


def test_births_and_exits_of_descendants_are_told():
    """Grandchildren belong to the tree; each birth and each exit appears once."""
    with child() as process:
        process.do("fork = lambda then: os.fork() or (then(), time.sleep(1000))")
        first = process.do("result = fork(lambda: None)")
        sampler = Sampler(process.pid)
        line = sampler.sample(1)
        assert ([first], [], []) == ([row["pid"] for row in line["tree"]], line["born"], line["gone"])

        second = process.do("result = fork(lambda: fork(lambda: None))")
        line = wait_for(lambda: (line := sampler.sample(2)) and len(line["tree"]) == 3 and line, "the grandchild")
        grandchild = {row["pid"] for row in line["tree"]} - {first, second}
        assert [second] == [row["ppid"] for row in line["tree"] if row["pid"] in grandchild]

        process.do(f"os.kill({second}, 9); os.waitpid({second}, 0)")
        line = sampler.sample(3)
        assert ([second], {first, *grandchild}) == (line["gone"], {row["pid"] for row in line["tree"]})
        assert [] == sampler.sample(4)["gone"]
        for pid in (first, *grandchild):
            process.do(f"os.kill({pid}, 9)")
        sampler.close()


def test_an_orphan_stays_in_the_tree():
    """Its parent ended and init took it; its memory is still the gateway's."""
    with child() as process:
        process.do("inner = lambda: os.fork() or time.sleep(1000)")
        parent = process.do("result = os.fork() or (inner(), time.sleep(1000))")
        sampler = Sampler(process.pid)
        line = wait_for(lambda: (line := sampler.sample(1)) and len(line["tree"]) == 2 and line, "the grandchild")
        orphan = next(row["pid"] for row in line["tree"] if row["pid"] != parent)
        process.do(f"os.kill({parent}, 9); os.waitpid({parent}, 0)")
        tree = sampler.sample(2)["tree"]
        os.kill(orphan, signal.SIGKILL)
        sampler.close()

    assert [orphan] == [row["pid"] for row in tree]
    assert parent != tree[0]["ppid"]


def test_a_dead_descendant_has_counters_but_no_gauges():
    """A zombie shows 0 descriptors and 0 bytes; neither was measured."""
    with child() as process:
        pid = process.do("result = os.fork() or os._exit(0)")
        sampler = Sampler(process.pid)

        def zombie() -> tuple | None:
            line = sampler.sample(1)
            row = line["tree"][0]
            return (row, line["why"]) if row["state"] == "Z" else None

        row, why = wait_for(zombie, "the zombie")
        sampler.close()

    assert (None,) * 5 == tuple(row[name] for name in ("n_fds", "rss_pages", "rss_anon_kb", "vm_hwm_kb", "n_threads"))
    assert "zombie" == why[f"{pid}.gauges"]
    assert isinstance(row["utime_ticks"], int)


@pytest.mark.skipif(platform.machine() not in SYS_EXIT, reason="knows no exit call for this machine")
def test_a_process_whose_leader_ended_is_alive():
    """State Z with threads that go on is not a dead gateway, and not one without memory."""
    with child() as process:
        process.do("threading.Thread(target=time.sleep, args=(1000,)).start()")
        process.process.stdin.write(f"libc.syscall({SYS_EXIT[platform.machine()]}, 0)\n")
        process.process.stdin.flush()
        sampler = Sampler(process.pid)
        line = wait_for(lambda: (line := sampler.sample(1)) and line["root"]["state"] == "Z" and line, "its end")
        how = sampler.gone_how()
        sampler.close()

    assert (None, None) == (how, line["root"]["rss_pages"])
    assert "zombie" == line["why"]["root.gauges"]


def test_a_held_process_that_is_gone_gives_no_row():
    """Not zeros, not its successor's numbers."""
    with child() as process:
        sampler = Sampler(process.pid)
        assert None is sampler.gone_how()
        process.kill()

        assert (None, "pidfd") == (sampler.sample(1), sampler.gone_how())
        sampler.close()


def test_a_sample_holds_exactly_the_fields_of_the_table():
    """The table is what is read; nothing is measured that it does not explain."""
    with child() as process:
        sampler = Sampler(process.pid)
        line = sampler.sample(1)
        sampler.close()

    for group, row in (("process", line["root"]), ("net", line["net"]), ("host", line["host"])):
        assert {field.name for field in fields.FIELDS if field.group == group} == set(row)
    assert {field.name for field in fields.FIELDS if field.group == "line"} < set(line)
    listed = {field.name for field in fields.FIELDS if field.group == "cgroup"}
    assert listed | {"version", "memory_path", "only_this_tree"} == set(line["cgroup"])


def test_many_threads_have_their_switches_read_every_tenth_sample():
    """Absent where not read: a repeated number would look like a rate of nothing."""
    with child() as process:
        process.do("[threading.Thread(target=time.sleep, args=(1000,), daemon=True).start() for _ in range(60)]")
        sampler = Sampler(process.pid)
        rows = [sampler.sample(n)["root"] for n in range(1, 13)]
        sampler.close()

    assert [0, 10] == [at for at, row in enumerate(rows) if "ctx_voluntary" in row]
    assert all(row["run_ns"] is not None for row in rows)


@pytest.mark.parametrize(("pid", "says"), [
    (os.getpid, "this sampler itself"), (os.getppid, "started this sampler"), (lambda: 4194304, "no process"),
])
def test_unfit_pids_are_refused(pid, says):
    """What is the matter and what to do, before anything is opened for long."""
    with pytest.raises(Refused, match=says):
        Sampler(pid())


def test_a_zombie_is_refused():
    """It is dead already; its numbers would be zeros."""
    with child() as process:
        pid = process.do("result = os.fork() or os._exit(0)")
        wait_for(lambda: state(pid) == "Z", "the zombie")
        with pytest.raises(Refused, match="zombie"):
            Sampler(pid)


def test_a_kernel_thread_is_refused():
    """kthreadd and its children are no gateway."""
    found = [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_kernel_thread(pid)]
    if not found:
        pytest.skip("no kernel thread is visible here; run outside a pid namespace")
    with pytest.raises(Refused, match="kernel thread"):
        Sampler(int(found[0]))


def _is_kernel_thread(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as cmdline, open(f"/proc/{pid}/stat") as stat:
            return not cmdline.read() and stat.read().rpartition(")")[2].split()[1] in ("0", "2") and pid != "1"
    except (FileNotFoundError, ProcessLookupError):  # it ended between the list and the look
        return False


def test_a_thread_id_is_refused_with_its_process():
    """/proc answers for a thread id too, with the thread's numbers."""
    with child() as process:
        process.do("t = threading.Thread(target=time.sleep, args=(1000,), daemon=True); t.start()")
        tid = process.do("result = t.native_id")
        with pytest.raises(Refused, match=f"thread of process {process.pid}"):
            Sampler(tid)


def test_once_prints_sample_identity_and_ps():
    """One JSON object; the exe's hash is the file's, the arguments are hashed and not kept."""
    with child("--api-key=sk-very-secret") as process:
        done = run("once", "--pid", process.pid, "--ps", "--subject", "replica-a")
        found = json.loads(done.stdout)
        exe = process.do("import hashlib; result = hashlib.sha256(open('/proc/self/exe', 'rb').read()).hexdigest()")

    assert (0, "") == (done.returncode, done.stderr)
    assert ("sample", "replica-a", 1) == tuple(found["sample"][name] for name in ("kind", "subject", "seq"))
    identity = found["identity"]
    assert (process.pid, exe, False) == tuple(identity[name] for name in ("pid", "exe_sha256", "exe_deleted"))
    assert found["sample"]["root"]["start_ticks"] == identity["start_ticks"]
    assert os.stat("/proc/self/ns/pid").st_ino == identity["pid_ns"]
    assert [process.pid] == [row["pid"] for row in found["ps"]["process"]]
    assert found["sample"]["root"]["comm"][:8] == found["ps"]["tree"][0]["fname"]
    assert 1 == len(found["ps"]["threads"])
    assert "secret" not in done.stdout


def test_ps_names_with_spaces_stay_whole():
    """The name is the last column and may hold spaces."""
    with child() as process:
        process.do("open('/proc/self/comm', 'w').write('a b  c d e')")
        found = ps.snapshot(process.pid, [])

    assert (["a b  c d"], {}) == ([row["fname"] for row in found["process"]], found["why"])
    assert "a b  c d" in found["raw"]["threads"]


def test_without_ps_the_snapshot_says_so(monkeypatch, tmp_path):
    """Null and the reason; the sample itself does not need ps."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert (None, "no ps on PATH") == (ps.snapshot(1, [])["tree"], ps.snapshot(1, [])["why"]["tree"])


def test_a_ps_without_these_options_is_null_and_its_complaint(monkeypatch, tmp_path):
    """busybox prints its usage and exits 1; that is no empty process table."""
    fake = tmp_path / "ps"
    fake.write_text("#!/bin/sh\necho \"ps: unrecognized option: q\" >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    found = ps.snapshot(1, [])

    assert (None, "ps failed: ps: unrecognized option: q") == (found["threads"], found["why"]["threads"])


def test_check_tells_a_person_what_is_readable():
    """Identity and one line a source."""
    with child() as process:
        done = run("check", "--pid", process.pid)

    assert 0 == done.returncode
    assert f"pid              {process.pid}\n" in done.stdout
    assert "\nio                     yes\n" in done.stdout


def test_a_sample_is_cheap():
    """The whole sample of a small process, median; far above what is measured (0.3 ms), far below what would weigh."""
    with child() as process:
        sampler = Sampler(process.pid)
        costs = sorted(sampler.sample(n)["cost_ns"] for n in range(1, 52))
        begin = time.process_time_ns()
        sampler.sample(52)
        assert time.process_time_ns() - begin < 20_000_000
        sampler.close()

    assert costs[25] < 5_000_000
