"""The three clocks, read together, and which boot they belong to."""

from __future__ import annotations

import time
from pathlib import Path


def read_clocks() -> dict[str, int]:
    """t_mono_ns, t_boot_ns and t_wall_ns, within microseconds of each other."""
    return {
        "t_mono_ns": time.monotonic_ns(),
        "t_boot_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        "t_wall_ns": time.time_ns(),
    }


def boot_id() -> str | None:
    """Source: random(4), /proc/sys/kernel/random/boot_id; None where the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
