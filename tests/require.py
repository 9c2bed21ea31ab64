"""What a test needs of the machine: a skip that says how to lift it, or a failure where HA_SWEEP_REQUIRE names it."""

from __future__ import annotations

import os

import pytest

NAMES = ("cc", "chromium", "strace", "netns", "root", "tmux", "realgateway")


def is_required(name: str) -> bool:
    assert name in NAMES, f"{name} is none of {NAMES}"
    return name in os.environ.get("HA_SWEEP_REQUIRE", "").split(",")


def need(name: str, is_there: bool, how: str) -> None:
    """how: the command that brings it."""
    if not is_there and not is_required(name):
        pytest.skip(f"needs {name}: {how}")
    assert is_there, f"HA_SWEEP_REQUIRE names {name}, and it is missing: {how}"
