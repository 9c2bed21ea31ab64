"""The command line: options in, exit code out. The only room that exits. What is said goes through stdout.py
and terminal.py.

Exit codes: 0 PASS (and WARN without --strict) · 1 FAIL, the target failed a required gate · 2 usage or plan, no load
was sent · 3 INCONCLUSIVE · 4 stopped from our side before it was complete · 5 evidence invalid, or a fault of ours.
Heavy modules are imported inside the command that needs them, so that --help is quick.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sweep import __version__
from sweep.errors import EvidenceError, PlanError, RunError, SweepError, keep_traceback
from sweep.locustfiles_command import locustfiles
from sweep.options import plan_file_of, plan_of, run_options
from sweep.plan import SweepPlan
from sweep.secret_names import without_keys
from sweep.stdout import refuse, say
from sweep.worker_command import worker

if TYPE_CHECKING:
    from sweep.listeners import Listener
    from sweep.terminal import Terminal

EXIT_USAGE, EXIT_STOPPED, EXIT_FAULT = 2, 4, 5


@click.group(commands=[locustfiles, worker], context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ha-sweep")
def cli() -> None:
    """Tells truthfully whether an LLM inference gateway may go to production."""


@cli.command(short_help="Drive levels through a gateway and judge it.")
@run_options
@click.option("--dry-run", is_flag=True, help="Print the whole plan and its bounds; send nothing.")
@click.pass_context
def run(ctx: click.Context, /, dry_run: bool, **given: Any) -> int:
    """Drive levels of inference through a gateway, watch its process, judge both.

    \b
    ha-sweep run --demo --levels 1,2,4,8
    GATEWAY_PID=1234 ha-sweep run --levels 1,2,4,8 --slo 'stream.ttft_ms.p95<=500'
    """
    from sweep import own_locustfile, refusals
    from sweep.api_fit import fitted
    from sweep.listeners import locate

    file = plan_file_of(ctx)
    try:
        found = locate(given)
        plan = own_locustfile.as_user_plan(plan_of(ctx, given), given["mode"])
        plan = fitted(plan)
        refusals.check(plan, target_is_given=not found)
        plan = own_locustfile.checked(plan)
        if plan.prompts is not None:
            from sweep.prompt_file import check_prompts

            check_prompts(plan)
    except PlanError as error:
        raise error if file is None else PlanError(f"{error} (with the plan file {file['path']})") from error
    if dry_run:
        return _dry_run(plan, found)
    from sweep.terminal import Terminal

    with tempfile.TemporaryDirectory(prefix="ha-sweep-") as scratch:
        terminal = Terminal(plan.quiet)
        if not plan.demo:
            return _sweep(plan, found, Path(scratch), terminal, file)
        from sweep.demo import MODEL, demo_gateway

        with demo_gateway(Path(scratch)) as (url, pid):
            plan = replace(plan, target=url, gateway_pid=pid, model=MODEL)
            return _sweep(plan, found, Path(scratch), terminal, file)


@cli.command(short_help="Judge a run again and write its report.")
@click.argument("out_dir", type=click.Path(path_type=Path))
def report(out_dir: Path) -> int:
    """Judge OUT_DIR again and write its report, also for a run that was killed.

    Evidence that was changed since it was sealed is refused.
    """
    from sweep import outdir
    from sweep.terminal import Terminal
    from sweep.verify import changed_evidence

    if not (out_dir / outdir.RUN).is_file():
        raise PlanError(f"{out_dir} holds no {outdir.RUN}; give the OUT_DIR of a run")
    changed = changed_evidence(out_dir)
    if changed:
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise EvidenceError(f"{changed[0]}{more}; not judged again: bring the sealed files back")
    return _report(out_dir, Terminal(quiet=False))


@cli.command(short_help="Check a run's files, seals and verdict.")
@click.argument("out_dir", type=click.Path(path_type=Path))
def verify(out_dir: Path) -> int:
    """Check that OUT_DIR is as it was sealed, and that its evidence gives its verdict."""
    from sweep.verify import verify as faults_of

    if not out_dir.is_dir():
        raise PlanError(f"{out_dir} is no folder; give the OUT_DIR of a run")
    faults = faults_of(out_dir)
    lines = [f"evidence: {fault}" for fault in faults.evidence] + [f"judgement: {fault}" for fault in faults.judgement]
    if lines:
        say("\n".join(lines))
        return EXIT_FAULT
    say("evidence intact, verdict recomputed and the same; integrity only, who made it is not proven")
    return 0


@cli.group("plan", short_help="Write a plan file for `run --plan`.")
def plan_group() -> None:
    """Plan files for `ha-sweep run --plan`."""


@plan_group.command("init", short_help="Write a commented plan file of the options given.")
@run_options
@click.option("--to", metavar="FILE", help="File to write; one that exists is refused. [default: stdout]")
@click.pass_context
def plan_init(ctx: click.Context, /, to: str | None, **given: Any) -> int:
    """Write a commented TOML plan: every option of `run`, those given set, the others commented out.

    What the environment says is not written.

    \b
    ha-sweep plan init --target http://127.0.0.1:8080 --levels 1,2,4 --to plan.toml
    ha-sweep run --plan plan.toml --dry-run
    """
    from sweep.plan_init import checked_plan_text, write_new

    text = checked_plan_text(ctx, given)
    if to is not None:
        write_new(to, text)
        text = f"wrote {to}; next: ha-sweep run --plan {to} --dry-run"
    say(text)
    return 0


@cli.command(
    "demo-gateway",
    short_help="Run the embedded gateway by itself.",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo_gateway_command(arguments: tuple[str, ...]) -> int:
    """Run the embedded gateway by itself; `ha-sweep demo-gateway --help` lists its options."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "sweep.demo_gateway", *arguments])


def main(argv: Sequence[str] | None = None) -> None:
    """Console entry: exits with a code of the table above, whatever signal comes before or after."""
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop_before_load)
    code = _exit_code(argv)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _exit_code(argv: Sequence[str] | None) -> int:
    try:
        code: int | None = cli.main(args=None if argv is None else list(argv), standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return EXIT_USAGE
    except click.ClickException as error:
        return _refuse(without_keys(error.format_message()), EXIT_USAGE)
    except (click.Abort, _StoppedError):
        return _refuse("stopped before any load was sent", EXIT_STOPPED)
    except PlanError as error:
        return _refuse(without_keys(str(error)), EXIT_USAGE)
    except SweepError as error:
        return _refuse(str(error), EXIT_FAULT)
    except Exception as error:  # noqa: BLE001 - a bug of ours: one line here, the traceback in a file
        return _refuse(f"a fault of ours: {error!r}; please report it with {keep_traceback()}", EXIT_FAULT)
    return code or 0


def _refuse(message: str, code: int) -> int:
    refuse(message)
    return code


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _StoppedError(Exception):
    """A signal came before the load."""


def _stop_before_load(number: int, _: object) -> None:
    raise _StoppedError


def _dry_run(plan: SweepPlan, found: tuple[Listener, ...]) -> int:
    from sweep.choosing import choose_target, guess_lines, with_kind
    from sweep.dry_run import describe

    chosen = choose_target(with_kind(plan), found, None)
    say("\n".join([*guess_lines(chosen.guesses), *describe(chosen.plan)]))
    return 0


def _sweep(
    plan: SweepPlan,
    found: tuple[Listener, ...],
    scratch: Path,
    terminal: Terminal,
    plan_file: Mapping[str, str] | None,
) -> int:
    """Prepares, drives, judges, reports. What goes wrong on our side while driving still gets its report."""
    from sweep import outdir
    from sweep.prepare import prepare
    from sweep.runner import NO_ROOM, Runner

    tempfile.tempdir = str(scratch)  # what libraries put aside goes with it, however the run ends
    run_name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{plan.name}"
    out_dir = (Path(plan.out_dir) if plan.out_dir is not None else Path("out") / run_name).absolute()
    signals = _Signals(terminal, scratch)
    terminal.preparing(plan, target_is_given=not found)
    prepared = prepare(plan, found, out_dir, run_name, scratch, plan_file)
    signals.before_load = False
    for line in terminal.planned(prepared.preflight.estimate.lines, prepared.warnings, prepared.guesses):
        say(line)
    fault: Exception | None = None
    try:
        Runner(prepared, terminal).drive()
    except Exception as error:  # noqa: BLE001 - whatever it is, the evidence so far must get its report first
        fault = error
    finally:
        terminal.close()
    code = _report(out_dir, terminal)
    if fault is None or (isinstance(fault, OSError) and fault.errno in NO_ROOM):
        return code
    if isinstance(fault, SweepError):
        raise fault
    (out_dir / outdir.TRACEBACK).write_text("".join(traceback.format_exception(fault)))
    raise RunError(f"a fault of ours: {fault!r}; please report it with {out_dir / outdir.TRACEBACK}") from fault


def _report(out_dir: Path, terminal: Terminal) -> int:
    """Judges, writes every rendering and the manifest, says the verdict. Returns the judged exit code."""
    from sweep import first_screen, outdir
    from sweep.report import write_report
    from sweep.seal import write_manifest

    result = write_report(out_dir)
    write_manifest(out_dir)
    for line in terminal.verdict(result, first_screen.lines(result)):
        say(line)
    say(str(out_dir / outdir.REPORT_HTML))
    code: int = result["exit_code"]
    return code


class _Signals:
    """SIGINT, SIGTERM, SIGHUP: the first ends the run in order, a second at once; the kernel then ends our children.

    One that is ignored (SIGHUP under nohup) stays ignored.
    """

    def __init__(self, terminal: Terminal, scratch: Path) -> None:
        self.before_load = True
        self._terminal = terminal
        self._scratch = scratch
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        if self._terminal.stop is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            os._exit(EXIT_STOPPED)
        self._terminal.stop = ("signal", signal.Signals(number).name)
        if self.before_load:
            raise _StoppedError
