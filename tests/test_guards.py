"""Guards name what they saw, and only what lasts three looks trips."""

from __future__ import annotations

import pytest

from sweep.guards import Hysteresis, key_troubles, troubles


def sample(**changes: object) -> dict:
    root = {"n_fds": 10, "fd_soft_limit": 1000}
    cgroup = {"memory_anon_bytes": 1, "memory_limit_bytes": 1000, "only_this_tree": True}
    return {"root": root | {k: v for k, v in changes.items() if k in root}, "cgroup": cgroup | {
        k: v for k, v in changes.items() if k in cgroup
    }}  # fmt: skip


@pytest.mark.parametrize(
    ("recent", "seen", "kinds"),
    [
        ((0, 0), None, []),
        ((4, 4), None, []),  # too few to call it a burst
        ((5, 5), None, ["errors"]),
        ((19, 18), None, []),
        ((20, 10), None, []),  # exactly half
        ((20, 11), None, ["errors"]),
        ((0, 0), sample(n_fds=900), []),
        ((0, 0), sample(n_fds=901), ["fds"]),
        ((0, 0), sample(n_fds=None), []),
        ((0, 0), sample(fd_soft_limit=None, n_fds=10**6), []),
        ((0, 0), sample(memory_anon_bytes=901), ["memory"]),
        ((0, 0), sample(memory_limit_bytes=None, memory_anon_bytes=10**12), []),
        ((0, 0), sample(memory_anon_bytes=901, only_this_tree=False), []),  # it may be ours
        ((50, 50), sample(n_fds=999, memory_anon_bytes=999), ["errors", "fds", "memory"]),
    ],
)
def test_troubles(recent, seen, kinds):
    """At the limit is not above it; what is not known is no trouble."""
    assert kinds == list(troubles(recent, seen))


def test_a_guard_trips_on_the_third_look_in_a_row():
    """One bad second does not end a run, and a good one starts the count anew."""
    guard = Hysteresis()
    looks = [{"fds": "f1"}, {"fds": "f2"}, {}, {"fds": "f3"}, {"fds": "f4", "errors": "e1"}, {"fds": "f5"}]

    assert [None, None, None, None, None, "f5"] == [guard.look(each) for each in looks]


@pytest.mark.parametrize(("n_refused", "kinds"), [(0, []), (4, []), (5, ["key"])])
def test_a_key_refused_again_and_again(n_refused, kinds):
    """A few may be chance."""
    assert kinds == list(key_troubles(n_refused))
