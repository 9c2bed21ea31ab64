"""Which locustfile a step runs: one of ours by its mode, or the user's own (-f), looked at in a child before any load.

An own file is never imported here: it is a program of the user's, and Locust changes the process that imports it.
"""

from __future__ import annotations

import ast
import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from sweep import outdir
from sweep.access import masked_before
from sweep.children import Child
from sweep.errors import PlanError, RunError
from sweep.plan import SweepPlan

_OURS = {"stream": "streaming.py", "nonstream": "nonstreaming.py", "mixed": "by_share.py"}
_OPEN_LOOP = "arrivals.py"  # of a level like 5/s, in any mode
_CHECK_S = 60.0
_MAX_REFUSAL = 400  # an exception's text is of any length


def as_user_plan(plan: SweepPlan, mode_given: str | None) -> SweepPlan:
    """The plan, of mode `user` if it names a locustfile. mode_given: --mode, None when it was left out.

    Raises PlanError when --mode or class names stand where they mean nothing.
    """
    if plan.locustfile is None:
        if plan.user_classes:
            raise PlanError(f"{plan.user_classes[0]!r} is no option; classes to start are named after -f FILE")
        return plan
    if mode_given is not None or plan.mode != "both":
        raise PlanError(
            "--mode says nothing with -f: each task of the file asks with stream=True or False; leave it out"
        )
    return replace(plan, mode="user")


def checked(plan: SweepPlan) -> SweepPlan:
    """The plan with the classes that Locust will start, named. Raises PlanError for a file that cannot drive."""
    if plan.locustfile is None:
        return plan
    path = Path(plan.locustfile).absolute()
    if path.suffix != ".py" or "," in str(path) or not path.is_file():
        what = "is no file" if not path.is_file() else "is no name that Locust takes (.py at its end, no comma)"
        raise PlanError(f"-f {plan.locustfile} {what}; give the path of one locustfile")
    with tempfile.TemporaryDirectory(prefix="ha-sweep-") as scratch:
        folder, answer = Path(scratch) / "empty", Path(scratch) / "answer.json"
        folder.mkdir()
        dropped = plan.metrics_key_env if plan.metrics_key_env != plan.api_key_env else None
        inherited = {name: value for name, value in os.environ.items() if name != dropped}
        environment = locust_environment(inherited, folder)
        masked = masked_before(plan)
        child = Child(
            ("-m", "sweep.locustfile_check", str(answer), *arguments(plan, "user")[1:]),
            Path(scratch) / "log", environment, folder, masked,
        )  # fmt: skip
        try:
            code = child.wait(_CHECK_S)
        except BaseException:
            child.end(grace_s=0.0)
            raise
        if not answer.exists():
            raise PlanError(f"-f {plan.locustfile}: {_ended(code)}; its last words: {child.last_words() or 'none'}")
        found = msgspec.json.decode(answer.read_bytes())
    if found["refusal"] is not None:
        raise PlanError(f"-f {plan.locustfile}: {masked(found['refusal'])[:_MAX_REFUSAL]}")
    return replace(plan, user_classes=tuple(found["classes"]))


def arguments(plan: SweepPlan, mode: str, kind: str = "concurrency") -> tuple[str, ...]:
    """Locust's options that name the file, and the classes of an own one. kind: of the step's level."""
    if plan.locustfile is None:
        ours = _OPEN_LOOP if kind == "rate" else _OURS[mode]
        return "-f", str(outdir.data_folder("locustfiles") / ours)
    return "-f", str(Path(plan.locustfile).absolute()), *plan.user_classes


def folder_of(plan: SweepPlan) -> str | None:
    """Where an own locustfile finds the modules beside it."""
    return None if plan.locustfile is None else str(Path(plan.locustfile).absolute().parent)


def locust_environment(inherited: Mapping[str, str], folder: Path) -> dict[str, str]:
    """For a Locust in an empty folder that is also its home: what it inherits, without Locust's own options."""
    kept = {name: value for name, value in inherited.items() if not name.startswith("LOCUST_")}
    return kept | {"HOME": str(folder)}


def evidence_of(plan: SweepPlan) -> dict[str, Any] | None:
    """run.json's `locustfile`: which file drives, by its hash (it may hold secrets, so it is not copied).

    Modules beside it are not hashed: which of them it imports, and when, is not known.
    """
    if plan.locustfile is None:
        return None
    try:
        content = Path(plan.locustfile).read_bytes()
    except OSError as error:
        raise RunError(f"-f {plan.locustfile}: {error.strerror}, after it was checked") from error
    return {
        "path": plan.locustfile, "sha256": hashlib.sha256(content).hexdigest(), "classes": list(plan.user_classes),
    }  # fmt: skip


def changed_why(plan: SweepPlan, driving: Mapping[str, Any] | None) -> str | None:
    """Why the file is no longer the one that drives the run by evidence_of; modules beside it are not looked at."""
    if driving is None:
        return None
    try:
        now = evidence_of(plan)
    except RunError as error:
        return str(error)
    return None if now == driving else f"{plan.locustfile} was changed while it drove the run"


def ours() -> list[tuple[Path, str]]:
    """Each locustfile that comes with ha-sweep, and what it does in a line."""
    files = sorted(outdir.data_folder("locustfiles").glob("*.py"))
    return [(file, (ast.get_docstring(ast.parse(file.read_bytes())) or "").partition(".")[0]) for file in files]


def copy_ours(folder: Path) -> list[Path]:
    """Copies them into a folder, which is made. Raises PlanError rather than overwrite anything."""
    copies = {folder / file.name: file for file, _ in ours()}
    there = next((copy for copy in copies if copy.exists()), None)
    if there is not None:
        raise PlanError(f"{there} is there already and is not overwritten; give another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for copy, file in copies.items():
            with copy.open("xb") as new:
                new.write(file.read_bytes())
    except OSError as error:
        raise PlanError(f"{folder}: {error.strerror}; give a folder that can be written") from error
    return list(copies)


def _ended(code: int) -> str:
    if code < 0:
        return f"its import has not ended within {_CHECK_S:.0f} s, or was killed"
    return f"importing it ended the process ({code})"
