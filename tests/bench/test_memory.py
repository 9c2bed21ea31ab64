"""Memory of the generator: of an open stream, and over very many requests."""

from __future__ import annotations

import pytest
from rig import PEER, Profile, measure

pytestmark = pytest.mark.bench

N_REQUESTS, N_FEW = 200_000, 20_000


def test_memory_of_an_open_stream():
    """A thousand streams beside a hundred: what one more costs, its user and its record included."""
    print("\nmemory of an open stream, 100 to 1,000 of 64 tokens; target 60 KB")
    cost = {}
    for tool, name in (("ours", "LlmUser, records written"), ("peer", PEER)):
        few, many = (
            measure(tool, Profile(ttft_s=1.0, gap_s=0.05, n_tokens=64, users=users, settle_s=6.0, measure_s=1.0))
            for users in (100, 1000)
        )
        cost[tool] = (many.rss_bytes - few.rss_bytes) / 900 / 1024
        print(f"  {name:82} {cost[tool]:6.1f} KB ({many.rss_bytes / 2**20:.0f} MB with 1,000)")
    assert cost["ours"] <= 60


def test_memory_is_flat():
    """Nothing is kept of a request that is over: between 20,000 and 200,000 of both modes, not 4 bytes each."""
    profile = Profile(
        ttft_s=0, gap_s=0, n_tokens=2, users=32, modes="stream,nonstream", settle_s=1.0, marks=f"{N_FEW},{N_REQUESTS}"
    )
    run = measure("ours", profile)
    few, many = (run.rss_at[str(n)] for n in (N_FEW, N_REQUESTS))
    grown = many - few
    print(f"\nmemory after {N_FEW:,} requests {few / 2**20:.1f} MB, after {N_REQUESTS:,} {grown:+,} bytes")
    assert grown < 4 * (N_REQUESTS - N_FEW)
