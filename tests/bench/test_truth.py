"""How far what the generator saw is from what the server sent: first tokens and gaps, stream by stream."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

import pytest
from rig import PEER, ROUNDS, Profile, Run, interleaved, middle

pytestmark = pytest.mark.bench


class Errors(NamedTuple):
    """Milliseconds beyond the server's own log: of the first token (since the start), of each gap, of the mean gap."""

    ttft_p50: float
    ttft_p99: float
    gap_p50: float
    gap_p99: float
    itl: float


def errors(run: Run) -> Errors:
    ttft_ns, gaps_ns, mean_gaps_ns = [], [], []
    for stream in run.seen:
        received_ns, *sent_ns = run.sent[stream.request_id]
        came_ns = stream.arrivals_ns
        assert len(sent_ns) == len(came_ns)
        # A microsecond: gaps are recorded in whole ones.
        assert all(came + 1000 >= sent for came, sent in zip(came_ns, sent_ns, strict=True)), "earlier than it was sent"
        ttft_ns.append((came_ns[0] - stream.t_start_ns) - (sent_ns[0] - received_ns))
        gaps = [(b - a) - (d - c) for (a, b), (c, d) in zip(pairwise(came_ns), pairwise(sent_ns), strict=True)]
        gaps_ns += map(abs, gaps)
        mean_gaps_ns.append(abs(fmean(gaps)))
    return Errors(at(ttft_ns, 0.5), at(ttft_ns, 0.99), at(gaps_ns, 0.5), at(gaps_ns, 0.99), fmean(mean_gaps_ns) / 1e6)


def at(values_ns: list[int], share: float) -> float:
    return sorted(values_ns)[int(share * (len(values_ns) - 1))] / 1e6


@pytest.mark.parametrize("users", [1, 16, 64, 256, 1000])
def test_first_tokens_and_gaps(users):
    """200 ms to the first of 64 tokens, 20 ms between them. Never early; in the middle closer than the peer."""
    profile = Profile(ttft_s=0.2, gap_s=0.02, n_tokens=64, users=users, settle_s=3.0)
    runs = interleaved(profile, "ours", "peer", sees=True)
    found = {tool: [errors(run) for run in each] for tool, each in runs.items()}
    limits = "1 / 25" if users == 1000 else "0.5 / 5"
    print(f"\n{users} streams; error beyond the server's log in ms, medians of {ROUNDS}; target {limits}, mean gap 0.1")
    print(f"  {'':82} {'TTFT p50':>9} {'p99':>9} {'gap p50':>9} {'p99':>9} {'mean gap':>9} {'of core':>9}")
    for tool, name in (("ours", "LlmUser, records written"), ("peer", PEER)):
        shown = [sorted(column)[len(column) // 2] for column in zip(*found[tool], strict=True)]
        share = middle(runs[tool], lambda run: run.cpu_s / run.wall_s)
        print(f"  {name:82} {' '.join(f'{each:9.3f}' for each in shown)} {share:9.0%}")
    best = {tool: min(each.ttft_p50 for each in all_errors) for tool, all_errors in found.items()}
    assert best["ours"] < best["peer"]
