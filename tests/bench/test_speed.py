"""What a token and a request cost the generator, beside Locust's own idiom in the same run.

Each prints the ratio it aims at and whether it was reached; it fails only below a bound that noise does not reach.
"""

from __future__ import annotations

import pytest
from rig import PEER, ROUNDS, Profile, Run, interleaved, middle

pytestmark = pytest.mark.bench


def tokens_per_cpu_s(run: Run) -> float:
    return run.tokens / run.cpu_s


def requests_per_cpu_s(run: Run) -> float:
    return run.requests / run.cpu_s


def compare(title: str, profile: Profile, unit: str, figure, target: float | None = None) -> float:
    """Prints both tools' medians, and whether the target is reached; ours / the peer's."""
    runs = interleaved(profile, "ours", "peer")
    speed = {tool: middle(found, figure) for tool, found in runs.items()}
    ratio = speed["ours"] / speed["peer"]
    print(f"\n{title}; medians of {ROUNDS}, generator pinned to one core")
    for tool, name in (("ours", "LlmUser, records written"), ("peer", PEER)):
        share = middle(runs[tool], lambda run: run.cpu_s / run.wall_s)
        each = " ".join(f"{figure(run):,.0f}" for run in runs[tool])
        print(f"  {name:82} {speed[tool]:9,.0f} {unit} a CPU-second ({each}), {share:.0%} of the core")
    aim = "" if target is None else f"; target {target:.2f}, {'reached' if ratio >= target else 'MISSED'}"
    print(f"  ratio {ratio:.2f}{aim}; CPU of each {1 / ratio:.2f} x the peer's")
    return ratio


def test_a_paced_token_in_step():
    """256 streams, a token of each every 20 ms at the same instant, as a server sends them that decodes in batches."""
    profile = Profile(ttft_s=0.2, gap_s=0.02, n_tokens=64, users=256, together=True)
    assert compare("256 streams in step, a token each 20 ms", profile, "tokens", tokens_per_cpu_s, 1 / 0.45) > 1.6


def test_a_paced_token_alone():
    """The same streams one after the other: each token wakes the process, which costs both tools the same."""
    profile = Profile(ttft_s=0.2, gap_s=0.02, n_tokens=64, users=256)
    assert compare("256 streams spread evenly, 64 tokens, one each 20 ms", profile, "tokens", tokens_per_cpu_s) > 1.2


def test_tokens_at_full_speed():
    """As fast as both ends can: reads bring many tokens."""
    profile = Profile(ttft_s=0, gap_s=0, n_tokens=128, users=32)
    assert compare("32 streams, 128 tokens, no pauses", profile, "tokens", tokens_per_cpu_s, 2.5) > 2


def test_requests_without_streaming():
    """A short JSON answer at once."""
    profile = Profile(ttft_s=0, gap_s=0, n_tokens=8, users=32, modes="nonstream")
    assert compare("32 users, answers without streaming", profile, "requests", requests_per_cpu_s, 3) > 1.5
