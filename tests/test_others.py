"""Whose traffic it was: request counters by their labels, connections by their processes, and a step's share."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from build import BuiltStep, S, fail_some, make_record, write_run
from build_result import make_result
from require import need

from sweep import outdir, report
from sweep.connections import ConnectionWatch, Growth, Look, Place, listener, look, peer_texts, place_of
from sweep.endpoint import parse_endpoint
from sweep.judge import judge
from sweep.others import _quiet_check, risen
from sweep.plan import SweepPlan
from sweep.records import ConnectionLine, to_line
from sweep.request_counters import Counted, request_counters
from sweep.sockets import flows_of, n_accepted, own_flows
from sweep.units import parse_levels

SERVED = "gateway_requests_total"


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (
            {"gateway_requests_total{model=m,status=success}": 7, "gateway_requests_total{model=m,status=error}": 2},
            {"gateway_requests_total": Counted(7, "successes")},
        ),
        (
            {"http_requests_total{handler=/v1/chat/completions,method=POST}": 5,
             "http_requests_total{handler=/healthz,method=GET}": 900},
            {"http_requests_total": Counted(5, "inference")},
        ),
        ({"http_requests_total{handler=/healthz}": 900}, {"http_requests_total": Counted(0, "inference")}),
        ({"my_requests_total{}": 4}, {"my_requests_total": Counted(4, "everything")}),
        (
            {"vllm:request_success_total{finished_reason=stop}": 3, "http_requests_total{}": 9},
            {"vllm:request_success_total": Counted(3, "successes"), "http_requests_total": Counted(9, "everything")},
        ),
        (
            {"promhttp_metric_handler_requests_total{code=200}": 8, "gateway_upstream_requests_total{}": 8,
             "process_cpu_seconds_total{}": 8, "gateway_requests_in_flight{}": 1},
            {},
        ),
    ],
)  # fmt: skip
def test_counters_of_requests_are_known_by_name_and_labels(samples, expected):
    """Failed answers, GETs, health paths, scrapes, upstream requests are nobody's load; the preferred one is first."""
    found = request_counters(samples)

    assert expected == found
    assert list(expected) == list(found)


@pytest.mark.parametrize("odd", [None, float("nan"), float("inf"), "7"])
def test_a_counter_that_is_no_number_tells_nothing(odd):
    """Neither it nor what it rises by; the other counters of the page do."""
    good = {"my_requests_total{}": 4.0}
    found = request_counters({"http_requests_total{a=1}": odd, "http_requests_total{a=2}": 3.0} | good)

    assert math.isnan(found["http_requests_total"].value)
    assert {"my_requests_total": 4} == risen({}, found, 2)["rose"]
    fine = request_counters({"http_requests_total{a=2}": 3.0} | good)
    assert {"my_requests_total": 0} == risen(found, fine, 2)["rose"] == risen(fine, found, 2)["rose"]


def test_a_counter_that_becomes_no_number_leaves_the_run_judged(tmp_path):
    """Null in a snapshot, as NaN and infinity are written there."""
    share, step, _ = judged(tmp_path, excess=0, first=None)

    assert step["valid"] and share["share"] is None
    assert "is no number" in share["why"]


def test_a_counter_that_appears_with_its_first_request_rose_from_nothing():
    """One that fell says nothing."""
    before = {"a": Counted(5, "inference"), "c": Counted(9, "inference")}
    after = {"a": Counted(7, "inference"), "b": Counted(2, "inference"), "c": Counted(1, "inference")}

    assert {"sent": 2, "rose": {"a": 2, "b": 2}} == risen(before, after, 2)
    assert {"sent": 2, "rose": {}} == risen(None, after, 2)


@pytest.fixture
def served():
    """A listening socket of ours; whoever connects is accepted."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening, Place("127.0.0.1", listening.getsockname()[1], None)


LOOK = """
import json, socket, sys
from sweep.connections import Place, look, peer_texts
port = int(sys.argv[1])
with socket.create_connection(("127.0.0.1", port)) as mine:
    mine.sendall(b"x" * 1234)
    seen = look(Place("127.0.0.1", port, None))
    told = {"mine": mine.getsockname()[1], "ours": [each for _, each in seen.ours], "others": peer_texts(seen)}
    print(json.dumps(told | {"bytes": [flow.n_in for flow in seen.ours.values()]}))
"""


def test_connections_are_told_apart_by_process(served):
    """Seen from another process: its own by its socket, and ours with our name and pid; bytes as they went through."""
    listening, place = served
    with socket.create_connection(("127.0.0.1", place.port)) as client, listening.accept()[0]:
        done = subprocess.run([sys.executable, "-c", LOOK, str(place.port)], capture_output=True, text=True, timeout=30)
        told = json.loads(done.stdout)

        name = Path("/proc/self/comm").read_text().strip()
        assert [f"127.0.0.1:{client.getsockname()[1]} ({name}, pid {os.getpid()})"] == told["others"], done.stderr
    assert [told["mine"]] == told["ours"]
    assert told["bytes"] in ([1234], [None])  # None: this kernel does not tell


def test_both_sources_see_the_same_sockets(served):
    """sock_diag and /proc/net/tcp agree on ends and inodes."""
    listening, place = served
    with socket.create_connection(("127.0.0.1", place.port)), listening.accept()[0]:
        seen = [
            sorted(str(flow[:6]) for flow in flows if place.port in (flow.port, flow.peer_port))
            for flows in (own_flows(), flows_of(os.getpid()))
        ]

    assert 3 == len(seen[0])
    assert seen[0] == seen[1]


def test_who_listens_is_known(served):
    """And nobody where nothing does."""
    listening, place = served

    assert (True, os.getpid()) == listener(place)
    listening.close()
    assert (False, None) == listener(place)


FAMILY = """
import json, subprocess, sys
from sweep.connections import Place, look, peer_texts
ASK = '''
import socket, subprocess, sys
held = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
if sys.argv[2:]:
    subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]], stdout=1).communicate()
else:
    print("there", flush=True)
    sys.stdin.read()
'''
child = subprocess.Popen([sys.executable, "-c", ASK, sys.argv[1], ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
seen = look(Place("127.0.0.1", int(sys.argv[1]), None))
print(json.dumps({"child": child.pid, "n_ours": len(seen.ours), "others": peer_texts(seen)}))
child.communicate()
"""


def test_what_a_locustfile_starts_is_somebody_else(served):
    """A child of ours is Locust, and its connections ours; those of its child are not."""
    command = [sys.executable, "-c", FAMILY, str(served[1].port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    told = json.loads(done.stdout)

    assert 1 == told["n_ours"] == len(told["others"]), done.stderr
    assert f"pid {told['child']}" not in told["others"][0]


class Pages:
    """A metrics page that says the next of these at each reading, the last of them from then on."""

    def __init__(self, *pages: dict[str, float | None]) -> None:
        self._pages = list(pages)
        self._n = 0

    def metrics(self, path: str) -> dict[str, Any]:
        self._n += 1
        return {"samples": self._pages.pop(0) if len(self._pages) > 1 else self._pages[0]}

    def n_gets(self) -> dict[str, int]:
        return {"/metrics": self._n}


CHATS, SEEN = "http_requests_total{path=/v1/chat/completions}", "my_requests_total{}"
NOT_OK = "{path=/v1/embed,status=429}"


@pytest.mark.parametrize(
    ("pages", "is_busy", "why"),
    [
        ([{CHATS: 10}, {CHATS: 20}, {CHATS: 30}], True, None),
        ([{CHATS: 10}, {CHATS: 77_000}, {CHATS: 77_000}], False, None),  # another worker of it answered
        ([{CHATS: 10}, {CHATS: 77_000}, {CHATS: 10}], None, "fell meanwhile"),
        ([{CHATS: 10}, {CHATS: 10}, {CHATS: float("inf")}], None, "no numbers"),
        ([{SEEN: 10}, {SEEN: 11}, {SEEN: 12}], False, None),  # our own reading
        ([{SEEN: 10}, {SEEN: 20}, {SEEN: 30}], True, None),
        ([{CHATS: 0, SEEN: 10}, {CHATS: 0, SEEN: 20}, {CHATS: 0, SEEN: 30}], True, None),
        ([{CHATS: 9, SEEN: 10}, {CHATS: 9, SEEN: 20}, {CHATS: 9, SEEN: 30}], False, None),  # health probes
        ([{"a_requests_total" + NOT_OK: n} for n in (10, 20, 30)], True, None),  # refused: somebody asks all the same
        ([{"gateway_requests_total{route=chat}": n} for n in (10, 20, 30)], True, None),  # the name of no path
        ([{}], None, "count no requests yet"),
    ],
)
def test_the_quiet_check_reads_three_times(pages, is_busy, why):
    """Only what rose in both halves is somebody's load, and only a number that never fell is a count."""
    plan = SweepPlan(target="http://127.0.0.1:9", levels=parse_levels("1"), quiet_check_s=0.2)
    check = _quiet_check(plan, Pages(*pages), "nobody looks")

    assert (bool(check["busy"]), check["requests_per_s"] is None) == (is_busy is True, is_busy is None), check
    assert why is None or why in check["requests_why"]


ELSEWHERE = """
import socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
listening = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listening.getsockname())
accepted, _ = listening.accept()
print(listening.getsockname()[1], client.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_connections_in_another_network_namespace_are_listed():
    """A container's: by its pid, all of them others', without their bytes and processes."""
    need("root", os.getuid() == 0, "sudo make test; a network namespace of its own")
    need("netns", shutil.which("unshare") is not None and shutil.which("ip") is not None, "apt-get install iproute2")
    command = ["unshare", "--net", sys.executable, "-c", ELSEWHERE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        port, client = map(int, process.stdout.readline().split())
        place = place_of(parse_endpoint(f"http://127.0.0.1:{port}"), process.pid, None)
        seen = look(place)
        texts = peer_texts(seen)
        growth = Growth(seen).since(seen)
        process.stdin.close()

    assert Place("127.0.0.1", port, process.pid) == place
    assert ([f"127.0.0.1:{client}"], {}) == (texts, seen.ours)
    assert ((None, None), (None, None), 1) == growth


def test_where_connections_can_be_seen():
    """Loopback, or the network namespace of a pid; not another machine."""
    here, there = parse_endpoint("http://127.0.0.1:8080"), parse_endpoint("http://10.9.9.9:8080")

    assert Place("127.0.0.1", 8080, None) == place_of(here, None, None)
    assert Place("10.9.9.9", 8080, None) == place_of(there, os.getpid(), None)
    assert "the target is another machine" == place_of(there, None, None)
    assert "the proxy before the gateway is another machine" == place_of(there, os.getpid(), here)


def test_bytes_count_from_a_connection_s_second_look(served):
    """With all it has carried; one that was there before the first look counts from there."""
    listening, place = served
    with socket.create_connection(("127.0.0.1", place.port)) as client, listening.accept()[0] as accepted:
        client.sendall(b"x" * 100)
        accepted.recv(1000)
        first = look(place)
        growth = Growth(first)
        client.sendall(b"x" * 11)
        accepted.recv(1000)
        again = look(place)

        if next(iter(again.ours.values())).n_in is None:
            pytest.skip("this kernel tells no bytes of a socket")
        assert 11 == growth.since(again)[0][0]
        empty = Growth(Look({}, {}, {}))
        assert (0, 0) == empty.since(again)[0]
        assert 111 == empty.since(again)[0][0]
        as_others = Growth(Look({}, {}, {}))
        mirrored = Look({}, again.ours, {})
        assert [1, 1, 0] == [as_others.since(mirrored)[2] for _ in range(3)]


def test_connections_too_short_to_be_seen_are_counted(served, tmp_path):
    """Opened and closed between two looks: the kernel counts each as accepted, and ours as ours."""
    listening, place = served
    watch = ConnectionWatch(place, tmp_path)
    watch._look()
    for _ in range(7):
        with socket.create_connection(("127.0.0.1", place.port)), listening.accept()[0]:
            pass
    with socket.create_connection(("127.0.0.1", place.port)), listening.accept()[0]:
        watch._look()
    watch.stop()
    first, second = map(json.loads, (tmp_path / outdir.CONNECTIONS).read_text().splitlines())

    assert (None, None) == (first["n_ours_new"], first["n_opened"])
    assert 1 == second["n_ours_new"]
    assert second["n_opened"] is None or second["n_opened"] >= 8
    assert n_accepted(tmp_path / "missing") is None


def others_in(step: BuiltStep, **changes: Any) -> list[ConnectionLine]:
    """A look a second over the step: 1,000 bytes to and from ours, others as given."""
    values = {
        "n_ours": 1, "n_others": 1, "n_active": 1, "n_ours_new": 0, "n_opened": 0, "ours_in_bytes": 1000,
        "ours_out_bytes": 1000, "others_in_bytes": 0, "others_out_bytes": 0,
    } | changes  # fmt: skip
    times = range(step.t_open_ns + S, step.t_end_ns + S, S)
    return [ConnectionLine(t_mono_ns=t_ns, **values) for t_ns in times]


def judged(tmp_path, *, excess=None, rose=2, name=SERVED, labels="status=success", looks=None, first=10.0, dated=True):
    """The first step's share and row; excess: what the counter rose by more than our requests, None for no page.

    dated: the pages say when they were read.
    """
    built = {}

    def change(run):
        built["run"] = run
        run.run["others"] = {"connections_why": None, "counted": {"sent": 2, "rose": {name: rose}}}

    out_dir = write_run(tmp_path / "run", change)
    step = built["run"].steps[0]
    lines = [] if looks is None else others_in(step, **looks)
    (out_dir / outdir.CONNECTIONS).write_bytes(b"".join(map(to_line, lines)))
    if excess is not None:
        for when, value, t_ns in (
            ("before", first, step.t_begin_ns), ("after", (first or 0.0) + len(step.records) + excess, step.t_idle_ns),
        ):  # fmt: skip
            page = {"samples": {f"{name}{{{labels}}}": value}}
            snapshot = {"mark": f"{step.id}.{when}", "problems": [], "metrics": page}
            snapshot |= {"t_mono_ns": t_ns} if dated else {}
            (out_dir / outdir.snapshot_file(f"{step.id}.{when}")).write_bytes(msgspec.json.encode(snapshot))
    result = judge(out_dir)
    return result["others"]["during"][0], result["steps"][0], result


def test_requests_that_are_not_ours_make_the_step_invalid(tmp_path):
    """30 more than we sent, by the target's own counter."""
    share, step, result = judged(tmp_path, excess=30)

    n = step["sent"]
    assert ("counters", pytest.approx(30 / (n + 30))) == (share["source"], share["share"])
    assert step["invalid_why"].startswith("others' traffic: ")
    assert f"({n + 30} counted, {n} ours)" in step["invalid_why"]
    assert "INCONCLUSIVE" == result["verdict"]
    assert len(result["others"]["text"]) <= 60


def foreign_later(tmp_path, *, lost=0, foreign=0, counted=True, attempts=1):
    """Shares of three steps: the first loses requests to time-outs, each later one has so many of others'.

    counted: the lost ones are counted while we wait, else with the second step. attempts: what one answer tells.
    """
    built = {}

    def change(run):
        built["run"] = run
        run.run["others"] = {"connections_why": None, "counted": {"sent": 2, "rose": {SERVED: 2}}}
        records = run.steps[0].records
        for i in range(lost):
            old = records[i]
            records[i] = make_record(request_id=old.request_id, step=old.step, t_start_ns=old.t_start_ns, user=old.user,
                                     outcome="timeout")  # fmt: skip
        for step in run.steps:
            step.records[-1].attempts = attempts

    out_dir = write_run(tmp_path, change, levels="1,2,4")
    (out_dir / outdir.CONNECTIONS).write_bytes(
        b"".join(to_line(line) for step in built["run"].steps for line in others_in(step))
    )
    value = 10.0
    for i, step in enumerate(built["run"].steps):
        for when, t_ns in (("before", step.t_begin_ns), ("after", step.t_idle_ns)):
            if when == "after":
                value += len(step.records) + (foreign if i else 0)
                value += 0 if counted else {0: -lost, 1: lost}.get(i, 0)
            snapshot = {"mark": f"{step.id}.{when}", "t_mono_ns": t_ns, "problems": [],
                        "metrics": {"samples": {f"{SERVED}{{}}": value}}}  # fmt: skip
            (out_dir / outdir.snapshot_file(f"{step.id}.{when}")).write_bytes(msgspec.json.encode(snapshot))
    return judge(out_dir)["others"]["during"]


def test_what_was_counted_late_is_used_up_once(tmp_path):
    """150 lost in the first step excuse 150 in the second when they were not counted before, and none in the third."""
    late = foreign_later(tmp_path / "late", lost=150, counted=False)
    hidden = foreign_later(tmp_path / "hidden", lost=150, foreign=150)
    both = foreign_later(tmp_path / "both", lost=150, foreign=150, counted=False)

    assert [0, 0, 0] == [row["share"] for row in late]
    assert [0, 150 / 310, 150 / 310] == pytest.approx([row["share"] for row in hidden])
    assert [0, 150 / 310, 150 / 310] == pytest.approx([row["share"] for row in both])


def test_attempts_the_target_tells_of_hide_nobody(tmp_path):
    """A counter of clients' requests knows nothing of them, so they neither excuse nor accuse."""
    told = foreign_later(tmp_path / "told", foreign=150, attempts=151)
    few = foreign_later(tmp_path / "few", foreign=150, attempts=11)
    none = foreign_later(tmp_path / "none", attempts=151)

    assert all(row["source"] != "counters" for row in told[1:])
    assert [140 / 300] * 2 == pytest.approx([row["share"] for row in few[1:]])
    assert [(0, "counters")] * 3 == [(row["share"], row["source"]) for row in none]


def test_failures_that_the_target_counts_as_good_are_not_somebody_else_s(tmp_path):
    """A proxy on the way fails what the target answered: the target's failure is not excused by its own counter."""

    def change(run):
        run.run["others"] = {"connections_why": None, "counted": {"sent": 2, "rose": {SERVED: 2}}}
        fail_some(run.steps[1], 40)
        built["run"] = run

    built: dict[str, Any] = {}
    out_dir = write_run(tmp_path, change)
    step = built["run"].steps[1]
    looks = others_in(step, n_opened=10, others_in_bytes=10)
    (out_dir / outdir.CONNECTIONS).write_bytes(b"".join(map(to_line, looks)))
    for when, value, t_ns in (("before", 5, step.t_begin_ns), ("after", 165, step.t_idle_ns)):
        snapshot = {"mark": f"{step.id}.{when}", "t_mono_ns": t_ns, "problems": [],
                    "metrics": {"samples": {f"{SERVED}{{status=success}}": value}}}  # fmt: skip
        (out_dir / outdir.snapshot_file(f"{step.id}.{when}")).write_bytes(msgspec.json.encode(snapshot))
    result = judge(out_dir)

    assert "FAIL" == result["verdict"], result["why"]
    assert "failed requests of ours" in result["others"]["during"][1]["why"]


QUIET = {"others_in_bytes": 0, "n_active": 0}


@pytest.mark.parametrize(
    ("seen", "source", "why"),
    [
        ({"excess": 0}, "counters", None),
        ({"excess": 1}, "counters", None),  # one may be one that was counted late
        ({"excess": -3}, "counters", None),  # counts good answers alone
        ({"excess": 30, "looks": QUIET}, "connections", None),  # nobody else was connected: it counts something else
        ({"excess": 30, "rose": 4}, None, "did not count the preflight as we do"),  # streams counted twice
        ({"excess": 30, "rose": 0}, None, "did not count the preflight as we do"),
        ({"excess": -3000, "first": 5000.0}, None, "fell: it was restarted"),
        ({"excess": 20, "name": "http_requests_total", "labels": ""}, "counters", None),  # and counts our probes too
        # How many probes it may have counted is then not known, and not "as many as there are".
        ({"excess": 30, "name": "http_requests_total", "labels": "", "dated": False}, None, "not known when"),
        ({}, None, "no counter of requests was read"),
        ({"looks": {"others_in_bytes": 400, "others_out_bytes": 10}}, "connections", None),  # a scrape, the other way
        ({"looks": {"others_in_bytes": 10, "others_out_bytes": 9000}}, "connections", None),  # a scrape
        ({"looks": {"ours_in_bytes": None}}, None, "the kernel does not tell"),
        ({"looks": {"n_opened": 3, "n_ours_new": 3}}, "connections", None),
        ({"looks": {"n_opened": 9}}, None, "too short to be seen"),
        ({"looks": {"n_ours_new": 9}}, None, "fewer than"),
        ({"looks": {"n_opened": None}}, None, "short ones of others cannot be seen"),
    ],
)  # fmt: skip
def test_what_is_no_sign_of_others_leaves_the_step_valid(tmp_path, seen, source, why):
    """Counters that count otherwise than we do, idle connections, scrapes: the step is valid, unknown says why."""
    share, step, _ = judged(tmp_path, **seen)

    assert step["valid"], step["invalid_why"]
    assert source == share["source"], share
    assert (share["share"] is None) == (source is None)
    if why is not None:
        assert why in share["why"]


def test_a_counter_is_believed_when_connections_may_have_been_too_short(tmp_path):
    """None of others' is seen, but the machine accepted one a request: the counter is no miscount."""
    share, step, _ = judged(tmp_path, excess=150, looks=QUIET | {"n_opened": 10})

    assert "counters" == share["source"] and not step["valid"]


def test_bytes_of_others_make_the_step_invalid(tmp_path):
    """The smaller of the two shares; exactly at the limit it is valid."""
    share, step, _ = judged(tmp_path, looks={"others_in_bytes": 500, "others_out_bytes": 250})
    assert ("connections", 0.2) == (share["source"], share["share"])
    assert "others' traffic: 20 % of bytes" in step["invalid_why"]

    at_limit, step, _ = judged(tmp_path / "2", looks={"ours_in_bytes": 1900, "ours_out_bytes": 1900,
                                                      "others_in_bytes": 100, "others_out_bytes": 100})  # fmt: skip
    assert 0.05 == at_limit["share"] and step["valid"]


def test_the_report_tells_what_was_seen():
    """Both renderings: before the load and in each step; a name that would be markup is text."""
    name = "<b>|`x`"
    check = {
        "seconds": 10.0, "connections": [f"10.0.0.7:4242 ({name}, pid 9)"], "connections_why": None,
        "requests_per_s": 3.25, "counter": SERVED, "requests_why": None, "cpu_share": None,
        "cpu_why": "no --gateway-pid", "busy": ["3.2 requests/s"], "acknowledged": "ops: agreed",
    }  # fmt: skip
    during = [
        {"step": "s01", "share": 0.12, "source": "counters", "told": "by its counter", "why": None},
        {"step": "s02", "share": None, "source": None, "told": None, "why": "the kernel does not tell"},
    ]
    others = {
        "quiet_check": check, "quiet_check_why": None, "listener": {"pid": 7, "comm": "ssh", "is_tunnel": True},
        "during": during, "peers": ["10.0.0.8:1"], "text": "12 % in the worst of 1 invalid step",
    }  # fmt: skip
    texts = report.render(make_result(others=others))

    for text in (texts[outdir.REPORT_HTML], texts[outdir.SUMMARY_MD]):
        assert "<b>|" not in text
        for told in ("Who else was there", "12 %", "3.25", "ssh (pid 7), a tunnel", "10.0.0.8:1", "ops: agreed"):
            assert told in text.replace("\\", ""), told
    assert "the kernel does not tell" in texts[outdir.REPORT_HTML]


def test_looks_that_were_taken_away_let_nothing_pass(tmp_path):
    """A file that the run wrote is missing: unknown and required. Without it nobody could say so much."""
    counted = {"connections_why": None, "counted": {}}
    out_dir = write_run(tmp_path / "run", lambda run: run.run.update(others=counted))
    (out_dir / outdir.CONNECTIONS).touch()
    assert "PASS" == judge(out_dir)["verdict"]
    (out_dir / outdir.CONNECTIONS).unlink()
    result = judge(out_dir)

    assert "INCONCLUSIVE" == result["verdict"]
    assert {None} == {row["share"] for row in result["others"]["during"]}
    assert "connections.jsonl is missing" in result["others"]["during"][0]["why"]


CHECK = {
    "seconds": 10.0, "connections": [], "connections_why": None, "requests_per_s": 0, "counter": "c",
    "requests_why": None, "cpu_share": None, "cpu_why": "no --gateway-pid", "busy": [], "acknowledged": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        {"guesses": 7}, {"guesses": [None]}, {"guesses": {"model": "m"}}, {"guesses": {"model": {"value": "m"}}},
        {"others": []}, {"others": {"listener": {}}}, {"others": {"quiet_check": {}}}, {"others": {"counted": 5}},
        {"others": {"counted": {"sent": 2, "rose": {"a": None}}}},
        {"others": {"quiet_check": CHECK | {"seconds": None}}},
        {"others": {"quiet_check": CHECK | {"requests_per_s": {"a": None}}}}, {"warnings": 5}, {"subjects": 5},
        {"subjects": [{"seen": 1.5}]},
        {"versions": []}, {"machine": 5}, {"guessed": None}, {"paths": [1]}, {"locustfile": 7},
    ],
)  # fmt: skip
def test_parts_of_another_shape_are_damage(tmp_path, damage):
    """INVALID, by name, and every rendering is made all the same."""
    result = judge(write_run(tmp_path, lambda run: run.run.update(damage)))

    assert ("INVALID", 5) == (result["run_status"], result["exit_code"])
    (name,) = damage
    assert f"run.json: {name}: " in result["status_reason"], result["status_reason"]
    assert all(report.render(result).values())


def test_parts_as_runs_write_them_are_none(tmp_path):
    """Also those of an earlier version, which lack some."""
    counted = {"sent": 2, "rose": {"a": 2.0}}
    listener = {"pid": None, "comm": None, "is_tunnel": None}
    others = {"quiet_check": CHECK, "listener": listener, "counted": counted, "connections_why": "not looked"}
    guesses = {"model": {"value": "m", "how": "the only one"}}
    result = judge(write_run(tmp_path, lambda run: run.run.update(others=others, guesses=guesses, locustfile=None)))

    assert "PASS" == result["verdict"]


def test_a_run_that_did_not_look_is_judged_as_before(tmp_path):
    """Evidence of an earlier version: nothing is known of others, and nothing is held against it."""
    result = judge(write_run(tmp_path / "run"))

    assert {None} == {row["share"] for row in result["others"]["during"]}
    assert all(row["valid"] for row in result["steps"])
    assert result["others"]["quiet_check"] is None
    assert len(result["others"]["text"]) <= 60
