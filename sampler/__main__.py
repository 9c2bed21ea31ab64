"""ha-sampler: the command line. The only place of this program that prints and chooses an exit code.

Exit codes: 0 ended by a signal, by --for or with the process · 2 usage, or the process cannot be sampled ·
5 our own fault, a full disk included.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
import sys

from sampler import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

    from sampler.loop import Line, Sampler

USAGE = 2
FAULT = 5
SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
MIN_INTERVAL_S = 0.01


def main(argv: Optional[List[str]] = None) -> int:
    """Runs one command; returns the exit code (2 for bad options is raised as SystemExit by argparse)."""
    arguments = sys.argv[1:] if argv is None else argv
    bare = not arguments and "GATEWAY_PID" in os.environ and "OUT_DIR" in os.environ
    if bare or (arguments and arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")):
        arguments = ["run", *arguments]
    options = _parser().parse_args(arguments)
    if options.command is None:
        return _fail(USAGE, "say what to do: run, once, fields or check; or set GATEWAY_PID and OUT_DIR (--help)")
    try:
        return _run_command(options)
    except BrokenPipeError:          # `ha-sampler fields | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def duration(text: str) -> float:
    """`5`, `500ms`, `5s`, `1.5m`, `2h` as seconds; a bare number is seconds. Raises ArgumentTypeError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 5, 5s, 1.5m or 2h")
    return float(found[1]) * SECONDS[found[2]]


def _interval(text: str) -> float:
    seconds = duration(text)
    if seconds < MIN_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"{text!r} is below {MIN_INTERVAL_S * 1000:.0f}ms")
    return seconds


def _pid(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no process id; give the gateway's, a number from 1")
    return int(text)


def _subject(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]*[A-Za-z0-9_-]", text):  # no folder either
        raise argparse.ArgumentTypeError(f"{text!r}: a name is made of letters, digits, dot, - and _")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ha-sampler", description="Records /proc evidence of one process and its descendants, reading only.",
        epilog="With GATEWAY_PID and OUT_DIR set, bare `ha-sampler` is `ha-sampler run`.",
    )
    parser.add_argument("--version", action="version", version=f"ha-sampler {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="{run,once,fields,check}")

    common = argparse.ArgumentParser(add_help=False)
    pid = os.environ.get("GATEWAY_PID") or None
    common.add_argument("--pid", type=_pid, default=pid, required=pid is None, help="process (env GATEWAY_PID)")
    common.add_argument("--subject", type=_subject, default="gateway", help="its name in the lines (default: gateway)")
    common.add_argument("--procfs", default="/proc", metavar="ROOT", help="where /proc is (default: /proc)")
    common.add_argument("--cgroupfs", metavar="ROOT", help="where cgroups are (default: as mounted)")

    run = commands.add_parser("run", parents=[common], help="a line a tick into OUT_DIR/samples.jsonl until it ends")
    out = os.environ.get("OUT_DIR") or None
    run.add_argument("--out-dir", default=out, required=out is None, help="folder for samples.jsonl (env OUT_DIR)")
    run.add_argument("--file", type=_subject, default="samples.jsonl", metavar="NAME",
                     help="name of that file, for a second process into the same folder (default: samples.jsonl)")
    run.add_argument("--interval", type=_interval, default=1.0, help="time between samples (default: 1s)")
    run.add_argument("--for", type=duration, dest="for_s", metavar="TIME", help="end after this time (default: never)")
    run.add_argument("--parent-fd", type=int, metavar="N", help="read end of a pipe; its end of file ends the sampler")

    once = commands.add_parser("once", parents=[common], help="one sample as JSON on standard output")
    once.add_argument("--ps", action="store_true", help="with what `ps` says of process, threads and tree")
    commands.add_parser("fields", help="every field: unit, kind, tier, source, meaning")
    commands.add_parser("check", parents=[common], help="who the process is and what of it this user can read")
    return parser


def _run_command(options: argparse.Namespace) -> int:
    if options.command == "fields":
        from sampler import fields

        print(fields.table(), end="")
        return 0
    from sampler.attach import Refused
    from sampler.loop import Sampler

    os.umask(0o077)
    try:
        if options.command == "run" and options.parent_fd is not None:
            _check_parent_fd(options.parent_fd)
        sampler = Sampler(options.pid, options.procfs, options.cgroupfs, options.subject)
        command = {"run": _run, "once": _once, "check": _check}[options.command]
        return command(sampler, options)
    except Refused as refused:
        return _fail(USAGE, str(refused))
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - a fault of ours must not look like exit 1, a judgement
        return _fail(FAULT, f"internal error: {_where(error)}; please report it")


def _run(sampler: Sampler, options: argparse.Namespace) -> int:
    from sampler.loop import Loop
    from sampler.output import SampleFile

    file = SampleFile(options.out_dir, options.file)
    failed = Loop(sampler, file, options.interval, options.for_s, options.parent_fd).run()
    path = os.path.join(options.out_dir, options.file)
    if failed is not None:
        return _fail(FAULT, f"{path}: {failed.strerror}; the lines before it are whole, make room and start again")
    if options.parent_fd is None:    # a parent knows where it put the evidence, and may have gone
        _say(f"{path}: {sampler.n_samples} sample{'' if sampler.n_samples == 1 else 's'}")
    return 0


def _once(sampler: Sampler, options: argparse.Namespace) -> int:
    import json

    line, description = _look(sampler)
    found = {"sample": line, "identity": description["identity"], "visibility": description["visibility"],
             "why": description["why"], "ps": None}
    if options.ps:
        from sampler import ps

        found["ps"] = ps.snapshot(options.pid, [row["pid"] for row in line["tree"]])
    print(json.dumps(found, separators=(",", ":")))
    return 0


def _check(sampler: Sampler, options: argparse.Namespace) -> int:
    line, description = _look(sampler)
    for name, value in description["identity"].items():
        why = description["why"].get(f"identity.{name}")
        if name not in ("limits", "cgroup"):
            print(f"{name:<16} {f'unknown ({why})' if value is None else value}")
    print(f"{'descendants':<16} {len(line['tree'])}\n\nsource                 readable  why")
    for row in description["visibility"]:
        print(f"{row['source']:<22} {'yes' if row['readable'] else 'no':<9} {row['why'] or ''}".rstrip())
    return 0


def _look(sampler: Sampler) -> tuple[Line, Line]:
    """One sample and the description. Raises Refused when the process ended meanwhile."""
    from sampler.attach import Refused

    line = sampler.sample(1)
    if line is not None:
        try:
            return line, sampler.describe(line)
        except OSError:
            pass
    raise Refused("the process ended while it was read; give the new pid")


def _check_parent_fd(fd: int) -> None:
    import fcntl

    from sampler.attach import Refused

    try:
        is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode) or stat.S_ISSOCK(os.fstat(fd).st_mode)
        if not is_pipe or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            raise Refused(f"--parent-fd {fd} is not the read end of a pipe; give the inherited one's number")
        os.set_inheritable(fd, False)
    except (OSError, OverflowError):
        raise Refused(f"--parent-fd {fd} is not open here; give the number of an inherited pipe's read end") from None


def _where(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
    return f"{type(error).__name__}{place}"


def _say(text: str) -> None:
    """A last line for a person; the evidence is whole, so nobody listening is no fault."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(code: int, text: str) -> int:
    print(f"ha-sampler: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
