"""Drives a prepared run: health watch, one Locust a step, marks, guards, and an orderly end.

Leaves evidence in OUT_DIR and judges nothing. Prints nothing: what there is to see goes to a Watcher.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from functools import partial
from typing import Protocol

import msgspec

from sweep import crew_options, guards, outdir, own_locustfile, prompt_file
from sweep.children import Child
from sweep.connections import ConnectionWatch, connection_watches
from sweep.endpoint import parse_endpoint
from sweep.errors import PlanError, RunError
from sweep.follow import GatewayProgress, StepProgress
from sweep.gateway import take_snapshot
from sweep.giving_up import GivingUp
from sweep.health import HealthWatch
from sweep.loaded import last_look
from sweep.marks import read_report
from sweep.observing import observe
from sweep.plan import WARMUP_FACTOR
from sweep.plan_steps import Step
from sweep.prepared import Prepared, add_hosts, step_row
from sweep.progress import Outlook, Progress, cooling, loading
from sweep.sequence import StepEnd, sequence_of
from sweep.settling import Settling
from sweep.step_files import ORDER_ENV, StepReport
from sweep.step_orders import order_of

_LOOK_S = 0.1
_WATCH_S = 1.0  # progress and guards
_LOCUST_GRACE_S = 10.0
_LOCUST_SLACK_S = 60.0  # to start, and to write its last lines
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_CYCLES_FOR_FLOORS = 3


class Watcher(Protocol):
    """Who looks on, and who may ask to stop: `stop_reason` gives (by, reason) once somebody did."""

    def progress(self, progress: Progress) -> None: ...
    def stop_reason(self) -> tuple[str, str] | None: ...


class _AbortError(Exception):
    """Ends the run early: by whom (as `verdict.ENDED_BY` names them) and why."""

    def __init__(self, by: str, reason: str) -> None:
        super().__init__(reason)
        self.by = by


class Runner:
    """One prepared run."""

    def __init__(self, prepared: Prepared, watcher: Watcher) -> None:
        self._run = prepared
        self._watcher = watcher
        samples = {name: prepared.out_dir / outdir.samples_file(name) for name in (None, *prepared.beside)}
        self._sampled = {name: GatewayProgress(file, os.sysconf("SC_CLK_TCK")) for name, file in samples.items()}
        self._sequence = sequence_of(prepared.plan, prepared.steps, prepared.out_dir)
        self._outlook = Outlook(self._sequence.known, prepared.preflight.estimate.load_s)
        health = [HealthWatch(prepared.probe, what, path, prepared.out_dir) for what, path in prepared.paths.asked]
        others = connection_watches(prepared.others.place, prepared.out_dir)
        self._watches: list[HealthWatch | ConnectionWatch] = [*health, *others]
        self._locustfile = own_locustfile.evidence_of(prepared.plan)
        self._given_up = GivingUp(prepared.beside)
        self._began_s = time.monotonic()
        self._step: Step | None = None

    def drive(self) -> None:
        """All steps. An end from outside, by a guard or by the target becomes an abort mark, not an exception.

        Raises what went wrong on our side, after an abort mark by `fault`; the evidence so far stays and says so.
        """
        try:
            try:
                for watch in self._watches:
                    watch.start()
                self._run_steps()
            except _AbortError as abort:
                self._mark_abort(abort.by, str(abort))
            finally:
                self._stop_watching()
            last = last_look(self._run.probe)
            if self._run.beside:
                last["beside"] = {name: last_look(each.probe) for name, each in self._run.beside.items()}
        except BaseException as error:
            by = "disk" if isinstance(error, OSError) and error.errno in NO_ROOM else "fault"
            self._mark_abort(by, str(error) or repr(error))
            raise
        finally:
            for each in self._run.everywhere:
                each.probe.close()
        self._run.marks.make("finish", sealed=True, **last)
        self._run.marks.close()

    def _run_steps(self) -> None:
        while (step := self._sequence.following()) is not None:
            if not self._given_up.skips(step):
                self._renew_key(step)
                self._step = step
                self._run_step(step, self._sequence.known.index(step) + 1)

    def _renew_key(self, step: Step) -> None:
        """Raises _AbortError when there is none to be had: that is our own set-up, not the target's failure."""
        self._step = None
        try:
            self._run.at(step).access.renew(self._check_stop)
        except PlanError as error:
            raise _AbortError("api_key", f"no key for step {step.id}: {error}") from error

    def _stop_watching(self) -> None:
        for watch in self._watches:
            watch.stop()
        for each in self._run.everywhere:
            if each.gateway is not None:
                each.gateway.stop_sampler()

    def _mark_abort(self, by: str, reason: str) -> None:
        step = self._step
        step_id, level = (None, None) if step is None else (step.id, str(step.level))
        self._run.marks.make("abort", step_id, sealed=True, by=by, reason=reason, level=level)

    def _run_step(self, step: Step, number: int) -> None:
        run = self._run
        self._check_stop()
        self._check_locustfile()
        at = run.at(step)
        key = at.access.key_number
        # A step that the search added stands in no run.json: its begin mark says what it was to be.
        planned = {} if step in run.steps else {"planned": step_row(step)}
        run.marks.make("begin", step.id, sealed=True, **({} if key is None else {"key": key}), **planned)
        take_snapshot(run.out_dir, f"{step.id}.before", at.gateway, at.probe, at.paths)
        if not step.level.value:
            self._observe_step(step, number)
            return
        locust = self._start_locust(step)
        abort: _AbortError | None = None
        tripped: str | None = None
        key_is_over = False
        try:
            tripped, key_is_over = self._watch_step(step, number, locust)
        except _AbortError as caught:
            abort = caught
            locust.ask_to_end()
        except BaseException:
            locust.end(grace_s=2.0)
            raise
        code = locust.wait(_LOCUST_GRACE_S)
        report = read_report(run.out_dir, step.id)
        if report is not None:
            run.marks.copy(report)
            add_hosts(run.out_dir, {each.worker: each.host for each in report.processes if each.host is not None})
        if abort is not None:
            raise abort
        self._check_locustfile()
        if report is None:
            log = run.out_dir / outdir.locust_log(step.id)
            raise RunError(f"{step.id}: Locust ended ({code}) without its report: {locust.last_words()}; see {log}")
        self._cool_down(step, number, report)
        told = self._sequence.took(step, StepEnd(report, tripped, key_is_over))
        run.marks.make("idle", step.id, sealed=True, **({} if tripped is None else {"guard": tripped}), **told)
        take_snapshot(run.out_dir, f"{step.id}.after", at.gateway, at.probe, at.paths, at.asked)

    def _observe_step(self, step: Step, number: int) -> None:
        """Level 0: no Locust, nothing sent; everything that looks on goes on looking."""
        run, seen = self._run, StepProgress(())
        tell = partial(self._tell_load, number, seen, None)
        left_s = self._began_s + run.plan.max_time_s - time.monotonic()
        run.marks.copy(report := observe(step, run.out_dir, left_s, self._check_stop, tell))
        self._cool_down(step, number, report)
        run.marks.make("idle", step.id, sealed=True, **self._sequence.took(step, StepEnd(report)))
        take_snapshot(run.out_dir, f"{step.id}.after", run.gateway, run.probe, run.paths, run.asked)

    def _start_locust(self, step: Step) -> Child:
        run, at, plan = self._run, self._run.at(step), self._run.at(step).plan
        folder = run.scratch / step.id  # empty: no locust.conf or pyproject.toml there can take the run over
        folder.mkdir()
        left_s = self._began_s + plan.max_time_s - time.monotonic()
        order = order_of(run, step, cap_s=max(0.0, left_s - step.warmup_s - step.cooldown_s))
        order_file = run.scratch / f"{step.id}.json"
        order_file.write_bytes(msgspec.json.encode(order))
        environment = own_locustfile.locust_environment(at.access.environment(sends=True), folder)
        arguments = (
            "-m", "locust", *own_locustfile.arguments(plan, step.mode, step.level.kind), "--headless", "--only-summary",
            "--host", plan.target, "-u", str(order.users), "-r", "100",
            *crew_options.arguments(plan, order.n_processes),
        )  # fmt: skip
        environment |= {ORDER_ENV: str(order_file)}
        return Child(arguments, run.out_dir / outdir.locust_log(step.id), environment, folder, at.access.masked)

    def _watch_step(self, step: Step, number: int, locust: Child) -> tuple[str | None, bool]:
        """Until Locust ends: (words of a guard that tripped while exploring, the key is over). Raises _AbortError."""
        access, sampled = self._run.at(step).access, self._sampled[step.target]
        seen = self._progress(step)
        hysteresis, key_hysteresis = guards.Hysteresis(), guards.Hysteresis()
        began = next_watch = time.monotonic()
        latest = began + WARMUP_FACTOR * step.warmup_s + step.max_step_s + step.drain_s + _LOCUST_SLACK_S
        while not locust.has_ended():
            time.sleep(_LOOK_S)
            self._check_stop()
            now = time.monotonic()
            if now > latest:
                raise RunError(f"{step.id}: Locust has not ended the step in time: {locust.last_words()}")
            if now < next_watch:
                continue
            next_watch = now + _WATCH_S
            self._tell_load(number, seen, step.target, now - began)
            refused = key_hysteresis.look(guards.key_troubles(seen.n_refused))
            if refused is not None:
                if not access.renews and not self._given_up.give_up(step):
                    raise _AbortError("api_key", f"{refused}; give one that lasts, or --api-key-cmd")
                locust.ask_to_end()  # no guard about the target; the next step may have another key
                return None, not access.renews
            tripped = hysteresis.look(guards.troubles(seen.recent, sampled.sample))
            if tripped is not None:
                if not self._given_up.give_up(step):
                    raise _AbortError("guard", f"{tripped} at level {step.level} ({step.mode})")
                locust.ask_to_end()
                return tripped, False
        return None, False

    def _cool_down(self, step: Step, number: int, report: StepReport) -> None:
        """Idle for exactly the cool-down, counted from the last request's end; at a cycle's end until sockets rest."""
        end_ns = time.monotonic_ns() if report.t_end_ns is None else report.t_end_ns
        over_ns = end_ns + int(step.cooldown_s * 1e9)
        seen = self._progress(step)
        next_watch = time.monotonic()
        settle = self._settling() if step.ends_cycle else None
        while time.monotonic_ns() < over_ns or (settle is not None and not settle.is_over(over_ns)):
            time.sleep(_LOOK_S)
            self._check_stop()
            if time.monotonic() >= next_watch:
                next_watch += _WATCH_S
                seen.look(time.monotonic_ns())
                self._sampled[step.target].look()
                idle_left_s = (over_ns - time.monotonic_ns()) / 1e9
                self._watcher.progress(cooling(self._outlook, number, seen, self._sampled[step.target], idle_left_s))

    def _tell_load(self, number: int, seen: StepProgress, target: str | None, elapsed_s: float) -> None:
        seen.look(time.monotonic_ns())
        sampled = self._sampled[target]
        sampled.look()
        told = loading(self._outlook, number, seen, sampled, elapsed_s, time.monotonic_ns())
        self._watcher.progress(told)

    def _progress(self, step: Step) -> StepProgress:
        plan, out_dir = self._run.plan, self._run.out_dir
        names = crew_options.names(crew_options.n_processes(plan, step.level))
        files = [out_dir / outdir.requests_file(step.id, name) for name in names]
        sends_key = self._run.at(step).access.sends_secrets
        return StepProgress(files, sends_key=sends_key, other_clocks=plan.expect_workers > 0)

    def _settling(self) -> Settling:
        gateway, plan = self._run.gateway, self._run.plan
        pid = None if gateway is None or plan.n_cycles < _CYCLES_FOR_FLOORS else gateway.pid
        return Settling(pid, parse_endpoint(plan.target).port)

    def _check_stop(self) -> None:
        """Raises _AbortError when somebody asked to stop, the target is gone, or evidence has no room any more."""
        out_dir = self._run.out_dir
        asked = self._watcher.stop_reason()
        if asked is not None:
            raise _AbortError(*asked)
        if (out_dir / outdir.STOP).exists():
            raise _AbortError("stop_file", f"{outdir.STOP} was put into OUT_DIR")
        if self._run.gateway is not None and self._run.gateway.is_gone():
            raise _AbortError("target", f"pid {self._run.gateway.pid} ended during the run")
        for each in self._run.everywhere:
            failure = None if each.gateway is None else each.gateway.sampler_failure()
            if failure is not None:
                raise RunError(f"the sampler ended during the run: {failure}; process evidence is incomplete")
        for watch in self._watches:
            if isinstance(watch.failure, OSError):
                raise _AbortError("disk", f"{watch.file} cannot be written: {watch.failure.strerror}")
            if watch.failure is not None:
                raise RunError(f"the watch that writes {watch.file} failed: {watch.failure!r}")
        free = shutil.disk_usage(out_dir).free
        if free < guards.MIN_FREE_BYTES:
            raise _AbortError("disk", f"only {free // 2**20} MiB are free where OUT_DIR is")

    def _check_locustfile(self) -> None:
        """Each step reads it anew, as it does the prompts: levels driven by different files are not to be compared."""
        changed = own_locustfile.changed_why(self._run.plan, self._locustfile)
        if changed is not None:
            raise _AbortError("locustfile", changed)
        changed = prompt_file.changed_why(self._run.plan, self._run.prompts)
        if changed is not None:
            raise _AbortError("prompts", changed)
