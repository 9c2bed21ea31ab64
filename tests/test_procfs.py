"""The sampler's parsers, on hostile names, odd files and folders shaped like /proc."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from sampler_kit import child

from sampler import host, procfs
from sampler.loop import Sampler, encode
from sampler.procfs import Descriptors
from sampler.threads import ThreadSums
from sampler.tree import Tree

LIMITS = b"""Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max open files            1024                 4096                 files     
"""  # noqa: W291 - the kernel pads


def stat(pid: int, comm: str = "gateway", ppid: int = 1, state: str = "S", n_threads: int = 1) -> str:
    return (f"{pid} ({comm}) {state} {ppid} 1 1 0 -1 4194560 10 0 2 0 31 17 0 0 20 0 {n_threads} 0 555 1000000 250 "
            "18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n")


def make_process(root: Path, pid: int, children: str = "", cgroup: str = "0::/\n", **more: object) -> Path:
    folder = root / str(pid)
    task = folder / "task" / str(pid)
    (folder / "fd").mkdir(parents=True)
    task.mkdir(parents=True)
    (folder / "fd" / "0").touch()
    (folder / "fd" / "7").touch()
    status = f"Name:\tgateway\nTgid:\t{pid}\nVmHWM:\t    4000 kB\nRssAnon:\t     100 kB\nRssFile:\t     200 kB\n" \
             "RssShmem:\t       0 kB\nVmSwap:\t       0 kB\nThreads:\t1\n" \
             "voluntary_ctxt_switches:\t8\nnonvoluntary_ctxt_switches:\t3\n"
    (folder / "stat").write_text(stat(pid, **more))
    (folder / "status").write_text(status)
    (folder / "io").write_text("rchar: 5\nwchar: 6\nsyscr: 1\nsyscw: 1\nread_bytes: 4096\nwrite_bytes: 0\n")
    (folder / "limits").write_bytes(LIMITS)
    (folder / "cgroup").write_text(cgroup)
    (task / "schedstat").write_text("1000 200 3\n")
    (task / "children").write_text(children)
    (task / "status").write_text(status)
    return folder


def sample_tree(root: Path, pid: int) -> tuple[dict, list[dict], dict]:
    tree, why = Tree(str(root), pid, Descriptors(50)), {}
    try:
        row, rows, _, _ = tree.sample(1, why)
        return row, rows, why
    finally:
        tree.close()


def test_a_name_that_looks_like_stat_fields_does_not_move_them():
    """stat is cut at its last bracket; the name holds what stands before it."""
    with child() as process:
        process.do("libc.prctl(15, b'a) R 1 (x', 0, 0, 0)")
        sampler = Sampler(process.pid)
        row = sampler.sample(1)["root"]
        sampler.close()

    assert ("a) R 1 (x", os.getpid(), 1) == (row["comm"], row["ppid"], row["n_threads"])


def test_a_name_that_looks_like_a_status_line_is_not_one():
    """`Threads:\\t99999` and `VmSwap:\\t7777 kB` as names change no count."""
    with child() as process:
        sampler = Sampler(process.pid)
        before = sampler.sample(1)["root"]
        for name in ("Threads:\\t99999", "VmSwap:\\t7777 k", "x\\nVmSwap:\\t77"):
            process.do(f"open('/proc/self/comm', 'wb').write(b'{name}')")
            row = sampler.sample(2)["root"]
            assert (before["n_threads"], before["vm_swap_kb"]) == (row["n_threads"], row["vm_swap_kb"])
        sampler.close()


def test_a_name_of_any_bytes_gives_one_line_that_strict_json_reads():
    """A line break and a byte that is no UTF-8 stay inside one string; lone surrogates would be refused."""
    with child() as process:
        process.do("libc.prctl(15, b'x\\n\\xff\\xc3y', 0, 0, 0)")
        sampler = Sampler(process.pid)
        line = encode(sampler.sample(1))
        sampler.close()

    assert "x\n\\xff\\xc3y" == msgspec.json.decode(line)["root"]["comm"]
    assert 1 == line.count(b"\n")


def test_stat_without_brackets_is_an_error():
    """Half a file is no row of zeros."""
    with pytest.raises(ValueError, match="name"):
        procfs.parse_stat(b"12 gateway S 1")


def test_columns_are_found_by_name_in_any_order():
    """Kernels add and move columns; one that is not there is None, not the neighbour's."""
    columns = procfs.Columns(("TcpExt:ListenDrops", "TcpExt:Missing"))

    assert [9, None] == columns.parse(b"TcpExt: A ListenDrops\nTcpExt: 1 9\nIpExt: A\nIpExt: 4\n")
    assert [3, None] == columns.parse(b"TcpExt: ListenDrops A\nTcpExt: 3 1\n")
    with pytest.raises(ValueError, match="values"):
        columns.parse(b"TcpExt: ListenDrops A\n")


def test_limits_are_read_by_column():
    """Limit names hold spaces, values may be a word."""
    limits = procfs.parse_limits(LIMITS)

    assert (b"1024", b"4096") == limits["Max open files"]
    assert (b"unlimited", b"unlimited") == limits["Max cpu time"]


def test_pressure_and_sockstat():
    """Totals and section counts, whatever stands around them."""
    assert {b"some": 12, b"full": 3} == procfs.parse_pressure(
        b"some avg10=0.00 avg60=1.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n"
    )
    assert {"sockets:used": 14, "TCP:inuse": 1, "TCP:tw": 7} == procfs.parse_sockstat(
        b"sockets: used 14\nTCP: inuse 1 tw 7\n"
    )


def test_a_file_longer_than_the_buffer_is_read_whole(tmp_path):
    """The second read starts anew, so that the parts are of one moment."""
    path = tmp_path / "long"
    path.write_bytes(b"x" * 5000)

    assert 5000 == len(procfs.Source(str(path), size=64).read())


def test_files_stay_open_only_while_descriptors_last(tmp_path):
    """A tree of any size cannot use the sampler's descriptors up."""
    held = Descriptors(1)
    files = []
    for name in "ab":
        (tmp_path / name).write_text("1")
        files.append(procfs.Source(str(tmp_path / name), held=held))

    assert [b"1", b"1", b"1"] == [files[0].read(), files[1].read(), files[1].read()]
    assert 0 == held.n_left
    files[0].close()
    files[1].close()
    assert 1 == held.n_left


def test_a_threads_end_does_not_lower_the_sums():
    """Its last reading stays; a tid whose counter fell is another thread."""
    sums = ThreadSums()

    assert (30, 3) == sums.update({1: (10, 1), 2: (20, 2)})
    assert (35, 3) == sums.update({1: (15, 1)})
    assert (37, 3) == sums.update({1: (15, 1), 2: (2, 0)})
    assert 1 == sums.n_gone
    assert (38, 3) == sums.update({1: (15, 1), 2: (3, 0)})
    assert (36 + 3, 4) == sums.update({1: (15, 1), 2: (1, 1)})
    assert 2 == sums.n_gone


def test_a_tree_shaped_folder_is_read_like_proc(tmp_path):
    """Every field comes from its own file."""
    make_process(tmp_path, 100, children="101 ")
    make_process(tmp_path, 101, comm="worker", ppid=100)
    row, rows, why = sample_tree(tmp_path, 100)

    wanted = {"pid": 100, "start_ticks": 555, "ppid": 1, "comm": "gateway", "utime_ticks": 31, "stime_ticks": 17,
              "rss_pages": 250, "vm_hwm_kb": 4000, "rss_anon_kb": 100, "n_fds": 2, "fd_soft_limit": 1024,
              "run_ns": 1000, "wait_ns": 200, "slices": 3, "ctx_voluntary": 8, "read_bytes": 4096, "majflt": 2}
    assert wanted == {name: row[name] for name in wanted}
    assert ["worker"] == [child_row["comm"] for child_row in rows]
    assert {} == why


def test_without_children_files_descendants_are_found_by_their_parents(tmp_path):
    """A kernel without CONFIG_PROC_CHILDREN: grandchildren too, strangers not."""
    for pid, parent in ((100, 1), (101, 100), (102, 101), (103, 1)):
        make_process(tmp_path, pid, ppid=parent)
        (tmp_path / str(pid) / "task" / str(pid) / "children").unlink()
    _, rows, _ = sample_tree(tmp_path, 100)

    assert [101, 102] == sorted(row["pid"] for row in rows)


@pytest.mark.parametrize(("name", "content", "field", "code"), [
    ("io", "rchar: 5\n", "wchar", "short"),
    ("io", "rchar: many\nwchar: 1\nread_bytes: 1\nwrite_bytes: 1\n", "rchar", "parse"),
    ("status", "Name:\tgateway\n", "rss_anon_kb", "short"),
    ("limits", "", "fd_soft_limit", "parse"),
    ("io", None, "rchar", "ENOENT"),
])
def test_a_damaged_file_gives_null_and_its_reason(tmp_path, name, content, field, code):
    """Never 0, never an exception; the other files still count."""
    folder = make_process(tmp_path, 100)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    row, _, why = sample_tree(tmp_path, 100)

    assert (None, code) == (row[field], why[f"root.{name}"])
    assert 31 == row["utime_ticks"]


def test_host_without_pressure_is_null_with_reason(tmp_path):
    """psi=0 removes the folder; the CPU times stay known."""
    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 8 0 0\nctxt 99\nprocs_running 2\n")
    group, why = host.host(str(tmp_path), Descriptors(9)), {}
    row = group.sample(why)
    group.close()

    assert (8, 99, None) == (row["cpu_steal_ticks"], row["ctxt"], row["psi_cpu_some_us"])
    assert "ENOENT" == why["host.pressure/cpu"]


def test_lines_are_json_objects_without_nan():
    """json writes NaN and Infinity if asked to; nothing here does."""
    assert {"a": None} == json.loads(encode({"a": None}))
