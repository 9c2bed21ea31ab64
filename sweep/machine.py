"""What this machine and this installation are: facts for run.json."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from sweep import __version__
from sweep.clocks import boot_id

_SHOWN = ("locust", "gevent", "httptools", "httpx", "pandas", "numpy", "matplotlib")


def machine() -> dict[str, Any]:
    """CPU model, cores, memory in bytes, kernel, architecture, boot id; what cannot be read is None."""
    return {
        "cpu_model": _cpu_model(),
        "n_cpus": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "arch": platform.machine(),
        "boot_id": boot_id(),
    }


def versions() -> dict[str, str]:
    return {"ha-sweep": __version__, "python": platform.python_version()} | {name: version(name) for name in _SHOWN}


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
