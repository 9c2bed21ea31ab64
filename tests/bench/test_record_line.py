"""A record is written when its request ends, one write() a line: what that costs, and that no read waits for it."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import pytest
from build import make_record
from rig import Profile, measure

from sweep import outdir
from sweep.records import to_line

pytestmark = pytest.mark.bench


def test_what_a_line_costs(tmp_path: Path):
    """Encoding and the write() of a record of 64 tokens, of 2,000 in a row; the best of 5."""
    record = make_record(n_out=64, n_events=64, gaps_us=[20_000 + n for n in range(63)])
    took_us = {"encoding": [], "write()": []}
    for round_number in range(5):
        with outdir.LineFile(tmp_path / f"{round_number}.jsonl") as file:
            begun = time.perf_counter()
            lines = [to_line(record) for _ in range(2000)]
            encoded = time.perf_counter()
            for line in lines:
                file.append(line)
            took_us["encoding"].append((encoded - begun) / 2000 * 1e6)
            took_us["write()"].append((time.perf_counter() - encoded) / 2000 * 1e6)
    best = {what: min(found) for what, found in took_us.items()}
    print(f"\na record line of {len(lines[0])} bytes: " + ", ".join(f"{what} {us:.1f} us" for what, us in best.items()))
    assert sum(best.values()) < 100


def test_reads_do_not_wait_for_records():
    """256 streams in step end together: their records and next requests are due while the last tokens still come.

    Were each user woken within its read, the last token in the middle would be late by half of all that work, 8 ms.
    """
    run = measure("ours", Profile(ttft_s=0.2, gap_s=0.02, n_tokens=64, users=256, together=True), sees=True)
    late_ms = {
        name: sorted((each.arrivals_ns[at] - run.sent[each.request_id][1 + at]) / 1e6 for each in run.seen)
        for name, at in (("middle", 31), ("last", 63))
    }
    print("\n256 streams in step: a token is read so many ms after it was sent, median and p99")
    for name, found in late_ms.items():
        print(f"  {name:8} {median(found):7.3f} {found[int(0.99 * len(found))]:7.3f}")
    assert median(late_ms["last"]) < 5
