"""The errors that have a meaning; anything else is a bug of ours and ends with exit code 5."""

from __future__ import annotations


class SweepError(Exception):
    """Says what happened, to what, and what to do next, in one line."""


class PlanError(SweepError):
    """Fix the input: no load was sent (exit 2)."""


class RunError(SweepError):
    """A process of ours did not do its part (exit 5)."""


class EvidenceError(SweepError):
    """Files of OUT_DIR are missing, damaged or contradict each other (exit 5)."""


def keep_traceback() -> str:
    """Where the traceback of the exception being handled was put; it must not become another exception."""
    import tempfile
    import traceback

    tempfile.tempdir = None  # a run's scratch folder, which is gone by now
    try:
        with tempfile.NamedTemporaryFile("w", prefix="ha-sweep-traceback-", suffix=".txt", delete=False) as file:
            traceback.print_exc(file=file)
    except OSError as error:
        return f"what you did (no file holds more: {error.strerror})"
    return file.name
