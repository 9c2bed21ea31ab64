"""Which cgroup a process is in and what it says: v2, v1, both at once, and what cannot be seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from sampler.cgroup import Cgroup
from sampler.mounts import Mounts, folder_of
from sampler.procfs import Descriptors


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content + "\n")


def cgroup_row(member: str, root: Path, procs: Path, pids: set[int]) -> tuple[dict, dict]:
    why: dict[str, str] = {}
    group = Cgroup(str(procs), str(root), member.encode, lambda: frozenset(pids), Descriptors(50))
    row = group.sample(1, why)
    group.close()
    return row, why


def make_v2(root: Path) -> None:
    write(root, cgroup__controllers="cpu memory pids")
    write(root / "a", cgroup__controllers="cpu memory pids", memory__max="5000")
    write(root / "a" / "b", cgroup__controllers="cpu memory pids", memory__max="max", memory__current="900",
          memory__stat="anon 400\nfile 300", memory__events="low 0\noom 1\noom_kill 2", pids__current="3",
          pids__max="max", cgroup__procs="100",
          cpu__stat="usage_usec 7\nnr_periods 4\nnr_throttled 1\nthrottled_usec 9")


def test_cgroup_v2_takes_the_tightest_limit_above(tmp_path):
    """The own cgroup says `max`; its parent's limit is the one that kills."""
    make_v2(tmp_path / "cg")
    row, why = cgroup_row("0::/a/b\n", tmp_path / "cg", tmp_path, {100})

    wanted = {"version": "v2", "memory_path": "/a/b", "memory_current_bytes": 900, "memory_limit_bytes": 5000,
              "memory_anon_bytes": 400, "memory_file_bytes": 300, "oom_kill": 2, "cpu_usage_ns": 7000, "n_periods": 4,
              "n_throttled": 1, "throttled_ns": 9000, "pids_current": 3, "pids_max": None, "only_this_tree": True}
    assert wanted == row
    assert {"cgroup.pids_max": "unlimited"} == why


def test_cgroup_v2_without_the_controller_is_accounted_above(tmp_path):
    """A cgroup whose parent does not delegate memory has no memory files; the one above holds the account."""
    make_v2(tmp_path / "cg")
    write(tmp_path / "cg" / "a" / "b" / "c", cgroup__controllers="", cgroup__procs="100")
    row, _ = cgroup_row("0::/a/b/c\n", tmp_path / "cg", tmp_path, {100})

    assert ("/a/b", 400) == (row["memory_path"], row["memory_anon_bytes"])


@pytest.mark.parametrize("path", ["/../..", "/a/../../x", "/not/there"])
def test_a_cgroup_out_of_sight_is_unreachable(tmp_path, path):
    """Inside a cgroup namespace paths lead out of the mount: null, not the numbers of another cgroup."""
    make_v2(tmp_path / "cg")
    row, why = cgroup_row(f"0::{path}\n", tmp_path / "cg", tmp_path, {100})

    assert (None, None, None) == (row["memory_current_bytes"], row["cpu_usage_ns"], row["only_this_tree"])
    assert {"cgroup.memory": "unreachable", "cgroup.cpu": "unreachable", "cgroup.pids": "unreachable"} == why


def test_hybrid_resolves_each_controller_on_its_own(tmp_path):
    """Memory in v1 (total_rss, hierarchical limit, ns), the v2 mount holding no controller."""
    root = tmp_path / "cg"
    write(root / "unified", cgroup__controllers="")
    write(root / "memory" / "m", memory__usage_in_bytes="800", memory__oom_control="oom_kill_disable 0\noom_kill 1",
          memory__stat="rss 1\nhierarchical_memory_limit 4096\ntotal_rss 77\ntotal_cache 66", cgroup__procs="100\n555")
    write(root / "cpu", cpu__stat="nr_periods 1\nnr_throttled 2\nthrottled_time 3")
    write(root / "cpuacct", cpuacct__usage="12")
    row, why = cgroup_row("4:memory:/m\n2:cpu:/\n3:cpuacct:/\n0::/\n", root, tmp_path, {100})

    wanted = {"version": "hybrid", "memory_path": "/m", "memory_current_bytes": 800, "memory_limit_bytes": 4096,
              "memory_anon_bytes": 77, "memory_file_bytes": 66, "oom_kill": 1, "cpu_usage_ns": 12, "n_periods": 1,
              "n_throttled": 2, "throttled_ns": 3, "pids_current": None, "pids_max": None, "only_this_tree": False}
    assert wanted == row
    assert {"cgroup.pids": "no controller"} == why


def test_no_limit_in_v1_is_a_huge_number_and_shown_as_unlimited(tmp_path):
    """2^63 rounded to pages is not a limit anything can come near."""
    write(tmp_path / "cg" / "memory", memory__stat="hierarchical_memory_limit 9223372036854771712\ntotal_rss 1\n"
          "total_cache 1", memory__usage_in_bytes="8", memory__oom_control="oom_kill 0", cgroup__procs="100")
    row, why = cgroup_row("4:memory:/\n", tmp_path / "cg", tmp_path, {100})

    assert (None, "unlimited", "v1") == (row["memory_limit_bytes"], why["cgroup.memory_limit_bytes"], row["version"])


def test_a_stranger_in_a_cgroup_below_is_seen(tmp_path):
    """anon of the cgroup includes those below it, so they must hold only the tree too. A newborn child is ours."""
    make_v2(tmp_path / "cg")
    for pid, parent in ((101, 100), (102, 1)):
        write(tmp_path / str(pid), stat=f"{pid} (x) S {parent} 1")
    below = tmp_path / "cg" / "a" / "b" / "c"
    write(below, cgroup__procs="101", cgroup__controllers="")
    assert True is cgroup_row("0::/a/b\n", tmp_path / "cg", tmp_path, {100})[0]["only_this_tree"]

    write(below, cgroup__procs="101\n102")
    assert False is cgroup_row("0::/a/b\n", tmp_path / "cg", tmp_path, {100})[0]["only_this_tree"]


def test_mounts_are_found_by_mountinfo(tmp_path):
    """Controllers from the super options; a bind mount of a part shows only that part; octal escapes."""
    write(tmp_path / "self", mountinfo="""22 27 0:21 / /proc rw - proc proc rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/ab /sys/fs/cgroup/mem\\040ory rw shared:5 master:2 - cgroup cgroup rw,memory
41 31 0:38 / /nowhere/unified rw - cgroup2 cgroup2 rw""")
    mounts = Mounts(str(tmp_path), None)

    assert "hybrid" == mounts.version()
    assert ("/sys/fs/cgroup/cpu,cpuacct", "/") == mounts.v1["cpu"] == mounts.v1["cpuacct"]
    assert ("/sys/fs/cgroup/mem ory", "/docker/ab") == mounts.v1["memory"]
    assert (("/nowhere/unified", "/"), frozenset()) == (mounts.v2, mounts.v2_controllers)


@pytest.mark.parametrize(("path", "shown", "found"), [
    ("/docker/ab/x", "/docker/ab", "x"), ("/docker/ab", "/docker/ab", ""), ("/docker/abc", "/docker/ab", None),
    ("/", "/", ""), ("/x", "/", "x"), ("/gone", "/", None),
])
def test_a_path_means_a_folder_below_what_the_mount_shows(tmp_path, path, shown, found):
    """A cgroup next to the one mounted has a longer name, not a folder here."""
    (tmp_path / "x").mkdir()
    expected = None if found is None else f"{tmp_path}/{found}".rstrip("/")

    assert expected == folder_of((str(tmp_path), shown), path)
