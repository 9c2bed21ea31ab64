"""Looks at a user's locustfile as Locust would, and says which classes it may start, or why none.

A process of its own (`python -P -m sweep.locustfile_check ANSWER FILE [CLASS…]`): importing the file runs it.
"""

from __future__ import annotations

import contextlib
import io
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec
from locust import User
from locust.argument_parser import get_parser
from locust.util.load_locustfile import load_locustfile

from sweep.children import die_with_parent
from sweep.llm_user import LlmUser
from sweep.open_loop import OpenLoopUser
from sweep.slo import did_you_mean

_OURS = f"{LlmUser.__module__}.{LlmUser.__name__}"


class _RefusedError(Exception):
    """Why the file cannot drive, in a line."""


def main(answer_file: str, path: str, names: Sequence[str]) -> None:
    """Writes {"classes": […], "refusal": null} or the refusal."""
    die_with_parent()
    classes: list[str] = []
    refusal = None
    try:
        classes = _classes(path, names)
    except _RefusedError as refused:
        refusal = str(refused)
    Path(answer_file).write_bytes(msgspec.json.encode({"classes": classes, "refusal": refusal}))


def _classes(path: str, names: Sequence[str]) -> list[str]:
    found, shapes = _load(path)
    if shapes:
        shape = type(shapes[0]).__name__
        raise _RefusedError(f"{shape} is a LoadTestShape, and the levels say how many users there are; take it out")
    own = [name for name, each in found.items() if issubclass(each, LlmUser)]
    for name in names:
        if name not in found:
            known = f"it holds {', '.join(found)}" if found else "it holds no class that Locust could start"
            raise _RefusedError(f"no class {name!r}{did_you_mean(name, found)}; {known}")
        if name not in own:
            raise _RefusedError(f"class {name} is not derived from {_OURS}, so its requests would not be measured")
    if not own:
        raise _RefusedError(f"no class in it is derived from {_OURS}; derive one and call self.ask(stream=…) in a task")
    strangers = [name for name in found if name not in own]
    if strangers and not names:
        raise _RefusedError(
            f"class {strangers[0]} is not derived from {_OURS}, and Locust would start it too; name the classes to "
            f"start: {' '.join(own)}"
        )
    chosen = list(names) or own
    scheduled = next((name for name in chosen if issubclass(found[name], OpenLoopUser)), None)
    if scheduled is not None:
        raise _RefusedError(
            f"class {scheduled} is an open loop, whose pace is no number of users; leave -f out and give levels like "
            "5/s, or run it with plain locust"
        )
    idle = next((name for name in chosen if not found[name].tasks), None)
    if idle is not None:
        raise _RefusedError(f"class {idle} has no task; mark a method that calls self.ask(stream=…) with @task")
    _check_options(path, chosen)
    return chosen


def _load(path: str) -> tuple[dict[str, type[User]], list[object]]:
    """The classes Locust would start, by name, and the shapes. Whatever the file raises becomes a refusal."""
    try:
        found, shapes = load_locustfile(path)
    except SyntaxError as error:
        raise _RefusedError(f"line {error.lineno} of {Path(error.filename or path).name}: {error.msg}") from error
    except (Exception, SystemExit) as error:  # the user's own, of any kind
        frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == path]
        where = f"line {frames[-1].lineno}: " if frames else ""
        hint = "; it runs in an empty folder: open files beside it by Path(__file__).parent"
        raise _RefusedError(
            f"{where}{type(error).__name__}: {error}{hint if isinstance(error, FileNotFoundError) else ''}"
        ) from error
    return found, shapes


def _check_options(path: str, names: Sequence[str]) -> None:
    """Locust options of the file's own must do with their defaults."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            get_parser(default_config_files=[]).parse_args(["-f", path, *names, "--headless"])
    except SystemExit as error:
        last = (said.getvalue().strip().splitlines() or ["no words"])[-1]
        raise _RefusedError(f"its own Locust options need a default: {last}") from error


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
