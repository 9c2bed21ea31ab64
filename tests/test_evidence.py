"""OUT_DIR -> Evidence: finished, killed, torn, damaged."""

import msgspec
import numpy as np
import pandas as pd
import pytest
from build import MS, T0, BuiltRun, S, make_end, make_process, make_record, make_sample, write_run

from sampler.fields import FIELDS
from sweep import evidence, outdir
from sweep.errors import EvidenceError
from sweep.records import GENERATOR_COLUMNS, HEALTH_COLUMNS, REQUEST_COLUMNS, to_line

STEP = "s01-c1-stream-k1"


def append(path, content):
    path.write_bytes(path.read_bytes() + content)


def test_a_finished_run_is_read_whole(tmp_path):
    """Every file, no problem."""
    ev = evidence.read(write_run(tmp_path, n=20))

    assert [] == ev.problems
    assert 40 == len(ev.requests)
    assert {"s01-c1-stream-k1", "s02-c2-stream-k1"} == set(ev.requests["step"])
    assert {"w01"} == set(ev.requests["worker"]) == set(ev.generator["worker"])
    assert len(ev.samples) == len(ev.processes)


def test_frames_have_the_columns_of_their_line_types(tmp_path):
    """One column table drives writer and reader."""
    ev = evidence.read(write_run(tmp_path, n=2))

    assert [c.name for c in REQUEST_COLUMNS] + ["worker"] == list(ev.requests.columns)
    assert [c.name for c in GENERATOR_COLUMNS] + ["step", "worker"] == list(ev.generator.columns)
    assert [c.name for c in HEALTH_COLUMNS] == list(ev.health.columns)


def test_missing_is_na_and_zero_stays_zero(tmp_path):
    """A request that never got a token has no t_first; n_out 0 is a count."""

    def change(run: BuiltRun):
        run.steps[0].records = [make_record(outcome="timeout"), make_record(n_out=0)]

    ev = evidence.read(write_run(tmp_path, change))

    assert pd.isna(ev.requests["t_first_ns"][0])
    assert "Int64" == str(ev.requests["t_first_ns"].dtype)
    assert 0 == ev.requests["n_out"][1]
    assert pd.isna(ev.requests["n_out"][0])


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_gaps_stay_with_their_request_however_the_file_is_cut(tmp_path, monkeypatch, chunk):
    """Arrays are views of one block a chunk."""
    gaps = [[1], [], [2, 3, 2**31], [4], [5, 6]]
    made = [make_record(request_id=str(i), gaps_us=list(each)) for i, each in enumerate(gaps)]
    monkeypatch.setattr(evidence, "CHUNK_LINES", chunk)
    ev = evidence.read(write_run(tmp_path, lambda run: setattr(run.steps[0], "records", made)))

    mine = ev.requests[ev.requests["step"] == STEP]
    assert gaps == [each.tolist() for each in mine["gaps_us"]]


def test_read_tokens_are_arrays_or_none(tmp_path):
    """None: one token each read."""
    made = [make_record(), make_record(read_tokens=[1, 1, 1, 2])]
    ev = evidence.read(write_run(tmp_path, lambda run: setattr(run.steps[0], "records", made)))

    assert ev.requests["read_tokens"][0] is None
    assert [1, 1, 1, 2] == ev.requests["read_tokens"][1].tolist()


@pytest.mark.parametrize(
    "name", ["requests/" + STEP + ".w01.jsonl", "generator/" + STEP + ".w01.jsonl", "samples.jsonl", "health.jsonl",
             "marks.jsonl"],
)  # fmt: skip
def test_a_torn_last_line_is_dropped_and_counted(tmp_path, name):
    """A kill tears at most the last line."""
    out = write_run(tmp_path, n=5)
    append(out / name, b'{"torn":')
    ev = evidence.read(out)

    assert [f"{name}: its last line was torn and is not counted"] == ev.problems


@pytest.mark.parametrize(
    "name", ["requests/" + STEP + ".w01.jsonl", "generator/" + STEP + ".w01.jsonl", "samples.jsonl", "health.jsonl",
             "marks.jsonl"],
)  # fmt: skip
@pytest.mark.parametrize("damage", [b'{"torn":\n', b"{}\n", b'{"t_mono_ns": NaN}\n', b"\xff\n", b"\n"])
def test_any_other_damaged_line_is_refused_by_its_number(tmp_path, name, damage):
    """A whole line of another shape was changed."""
    out = write_run(tmp_path, n=5)
    lines = (out / name).read_bytes().splitlines(keepends=True)
    (out / name).write_bytes(b"".join([lines[0], damage, *lines[1:]]))

    with pytest.raises(EvidenceError, match=f"{name}:2: .*changed or damaged"):
        evidence.read(out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": "s02-c2-stream-k1"}, "files were mixed"),
        ({"t_first_ns": T0 - 1}, "t_first_ns is before t_start_ns"),
        ({"t_over_ns": T0 - 1}, "t_over_ns is before t_start_ns"),
        ({"t_end_ns": None}, "is ok without t_end_ns"),
        ({"read_tokens": [1, 1]}, "do not fit together"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(tmp_path, change, message):
    """Each names the request."""
    made = [make_record(**change)]

    with pytest.raises(EvidenceError, match=message):
        evidence.read(write_run(tmp_path, lambda run: setattr(run.steps[0], "records", made)))


def test_missing_files_are_named_and_the_rest_is_read(tmp_path):
    """A killed run can always be reported."""
    out = write_run(tmp_path, n=3)
    for name in (outdir.MARKS, outdir.SAMPLES, outdir.HEALTH):
        (out / name).unlink()
    for path in (out / "generator").iterdir():
        path.unlink()
    (out / "generator").rmdir()
    ev = evidence.read(out)

    assert ["marks.jsonl is missing", "samples.jsonl is missing", "generator/ is missing"] == ev.problems
    assert 6 == len(ev.requests)


def test_a_run_without_a_gateway_pid_does_not_miss_its_samples(tmp_path):
    """Client side only is no problem of the evidence."""
    assert [] == evidence.read(write_run(tmp_path, n=1, pid=None)).problems


def test_samples_without_an_end_line_are_a_killed_sampler(tmp_path):
    """It says so when it stops by itself."""
    out = write_run(tmp_path, lambda run: run.ends.clear(), n=1)

    assert ["samples.jsonl has no end line: the sampler was killed"] == evidence.read(out).problems


def test_a_folder_without_run_json_is_no_run(tmp_path):
    """Names what is missing."""
    with pytest.raises(EvidenceError, match=r"has no run\.json"):
        evidence.read(tmp_path)


def test_a_newer_format_is_refused(tmp_path):
    """A key keeps its meaning only within a format."""
    out = write_run(tmp_path, lambda run: run.run.update(format=2), n=1)

    with pytest.raises(EvidenceError, match="format 2, this version reads 1"):
        evidence.read(out)


def test_a_step_name_with_a_dot_is_told_from_the_worker(tmp_path):
    """Level 0.5/s: the worker is what follows the last dot."""
    out = write_run(tmp_path, n=1)
    record = make_record(step="s03-r0.5-stream-k1")
    (out / "requests" / "s03-r0.5-stream-k1.w02.jsonl").write_bytes(to_line(record))
    ev = evidence.read(out)

    assert {"s03-r0.5-stream-k1": "w02"} == dict(
        ev.requests.loc[ev.requests["step"] == "s03-r0.5-stream-k1", ["step", "worker"]].itertuples(index=False)
    )


def test_a_file_of_another_shape_is_a_problem(tmp_path):
    """Not read, and not passed over in silence."""
    out = write_run(tmp_path, n=1)
    (out / "requests" / "notes.txt").write_text("mine")

    assert ["requests/notes.txt is no evidence file; it was not read"] == evidence.read(out).problems


def test_processes_of_a_sample_are_rows_and_unread_fields_are_na(tmp_path):
    """One row for the root, one for each descendant; keys this version does not know are passed over."""
    child = make_process(43, comm="worker", n_fds=None) | {"new_field": 1}

    def change(run: BuiltRun):
        run.samples = [make_sample(0, T0, tree=[child]), make_sample(1, T0 + S, root=make_process(rss_anon_kb=0))]
        run.ends = [make_end(T0 + 2 * S)]

    ev = evidence.read(write_run(tmp_path, change, n=1))

    assert [(True, "gateway", 12), (False, "worker", None), (True, "gateway", 12)] == [
        (bool(root), comm, None if pd.isna(fds) else fds)
        for root, comm, fds in ev.processes[["is_root", "comm", "n_fds"]].itertuples(index=False)
    ]
    assert 0 == ev.processes["rss_anon_kb"].iloc[-1]
    assert [2, 1] == ev.samples["n_processes"].tolist()


def test_every_field_the_sampler_writes_is_a_column(tmp_path):
    """The sampler's own table drives the reader: a row added there needs nothing here."""
    ev = evidence.read(write_run(tmp_path, n=1))
    lists = {"process": ev.processes, "line": ev.samples, "cgroup": ev.samples}
    prefix = {"cgroup": "cgroup_"}

    assert [] == [
        field.name for field in FIELDS
        if field.group in lists and prefix.get(field.group, "") + field.name not in lists[field.group]
    ]  # fmt: skip
    assert {"string"} == {str(ev.processes[name].dtype) for name in ("comm", "state")}
    assert {"Int64"} == {str(ev.processes[name].dtype) for name in ("rss_anon_kb", "n_tids_gone", "pid")}


def test_a_field_of_another_type_is_damage(tmp_path):
    """Named by file and line."""

    def change(run: BuiltRun):
        run.samples = [make_sample(0, T0), make_sample(1, T0 + S, root=make_process(n_fds="many"))]

    with pytest.raises(EvidenceError, match=r"samples\.jsonl:3: Expected `int \| null`, got `str`"):
        evidence.read(write_run(tmp_path, change, n=1))


def test_cgroup_net_and_host_are_columns_with_na_for_what_was_null(tmp_path):
    """Prefixed by their group."""
    cgroup = {"only_this_tree": None, "memory_anon_bytes": None, "oom_kill": 0}

    def change(run: BuiltRun):
        run.samples = [make_sample(0, T0, cgroup=cgroup, net={"listen_drops": 4}), make_sample(1, T0 + MS)]

    ev = evidence.read(write_run(tmp_path, change, n=1))

    assert pd.isna(ev.samples["cgroup_only_this_tree"][0])
    assert pd.isna(ev.samples["cgroup_memory_anon_bytes"][0])
    assert 0 == ev.samples["cgroup_oom_kill"][0]
    assert [4, None] == [None if pd.isna(v) else v for v in ev.samples["net_listen_drops"]]


def test_damaged_json_files_are_refused(tmp_path):
    """They are written atomically: half of one was not left by us."""
    out = write_run(tmp_path, n=1)
    (out / "locust" / f"{STEP}.json").write_bytes(b'{"step":')

    with pytest.raises(EvidenceError, match=f"locust/{STEP}.json"):
        evidence.read(out)


def test_reading_writes_nothing(tmp_path):
    """Analysis never writes raw evidence."""
    out = write_run(tmp_path, n=2)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    evidence.read(out)

    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert msgspec.json.decode(before[out / outdir.RUN])["format"] == 1
    assert np.all([len(content) for content in before.values()])


def test_what_a_snapshot_found_amiss_is_a_problem_said_once_with_its_mark(tmp_path):
    """In order of time; the same words at later marks are counted."""
    out = write_run(tmp_path, n=1)
    for name, t_ns, problems in (("b.before", 1, ["uid differs"]), ("a.after", 2, ["uid differs", "pid 7 has ended"])):
        snapshot = {"mark": name, "t_mono_ns": t_ns, "problems": problems}
        (out / outdir.snapshot_file(name)).write_bytes(msgspec.json.encode(snapshot))

    assert ["b.before: uid differs (and at 1 more)", "a.after: pid 7 has ended"] == evidence.read(out).problems
