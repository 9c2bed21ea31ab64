"""Files are followed while they grow: whole lines only, counts kept, gone samples not invented."""

from __future__ import annotations

from build import make_record

from sweep import outdir
from sweep.follow import GatewayProgress, StepProgress, Tail
from sweep.records import to_line


def test_a_torn_line_is_given_when_it_is_whole(tmp_path):
    """A reader between two writes of one line sees nothing of it yet."""
    path = tmp_path / "lines"
    tail = Tail(path)
    assert [] == tail.lines()
    for written, expected in ((b"one\ntw", [b"one"]), (b"o\n", [b"two"]), (b"", [])):
        with path.open("ab") as file:
            file.write(written)
        assert expected == tail.lines()


def test_a_steps_counts(tmp_path):
    """Finished, failed and refused; the median first token of the good ones; older than 10 s is not recent."""
    path = tmp_path / "requests"
    second = 10**9
    good = [make_record(t_start_ns=0, t_first_ns=n * second, t_over_ns=n * second) for n in (1, 2, 30)]
    bad = make_record(t_start_ns=0, outcome="truncated", t_first_ns=None, t_over_ns=31 * second)
    full = make_record(t_start_ns=0, outcome="shed", t_first_ns=None, t_over_ns=32 * second)
    with outdir.LineFile(path) as lines:
        for record in (*good, bad, full):
            lines.append(to_line(record))
    seen = StepProgress([path])
    seen.look(35 * second)

    assert (5, 1, 2000.0, (3, 1)) == (seen.n_finished, seen.n_failed, seen.ttft_p50_ms, seen.recent)


def test_nothing_seen_is_unknown_not_zero(tmp_path):
    """Before the first sample and the first record."""
    gateway, step = GatewayProgress(tmp_path / "none", 100), StepProgress([tmp_path / "none"])
    gateway.look()
    step.look(0)

    assert (None, None, None, None) == (gateway.sample, gateway.anon_bytes, gateway.cpu_cores, step.ttft_p50_ms)


def test_refusals_of_our_key_count_as_failures_once_it_is_shown_to_be_good(tmp_path):
    """Until an answer comes after them they may be our expired key's; without a key they are failures at once."""
    refused = make_record(outcome="http_4xx", status=401)
    path = tmp_path / "requests.jsonl"
    seen, keyless = StepProgress([path], sends_key=True), StepProgress([path])
    told = []
    for records in ([make_record(), *[refused] * 3], [make_record()]):
        with path.open("ab") as file:
            file.write(b"".join(map(to_line, records)))
        for each in (seen, keyless):
            each.look(refused.t_over_ns)
            told.append((each.n_refused, each.recent, each.n_failed))

    assert [(3, (1, 0), 3), (0, (4, 3), 3), (0, (5, 3), 3), (0, (5, 3), 3)] == told


def test_clients_that_left_hide_no_error_burst(tmp_path):
    """They are finished, and neither good nor failed."""
    path = tmp_path / "requests"
    with outdir.LineFile(path) as lines:
        for outcome in ("left", "left", "http_5xx"):
            lines.append(to_line(make_record(t_start_ns=0, outcome=outcome, t_over_ns=10**9)))
    seen = StepProgress([path])
    seen.look(2 * 10**9)

    assert (3, 1, (1, 1)) == (seen.n_finished, seen.n_failed, seen.recent)
