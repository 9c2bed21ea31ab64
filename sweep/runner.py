"""Drives a prepared run: health watch, one Locust a step, marks, guards, and an orderly end.

Leaves evidence in OUT_DIR and judges nothing. Prints nothing: what there is to see goes to a Watcher.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import zlib
from typing import Protocol

import msgspec

from sweep import guards, outdir, own_locustfile
from sweep.children import Child
from sweep.clocks import boot_id
from sweep.connections import ConnectionWatch, connection_watches
from sweep.endpoint import parse_endpoint
from sweep.errors import EvidenceError, PlanError, RunError
from sweep.follow import GatewayProgress, StepProgress
from sweep.gateway import take_snapshot
from sweep.health import HealthWatch
from sweep.loaded import last_look
from sweep.plan import WARMUP_FACTOR, Step
from sweep.preflight import WORKER
from sweep.prepare import Prepared
from sweep.progress import Outlook, Progress, cooling, loading
from sweep.settling import Settling
from sweep.step_files import ORDER_ENV, StepOrder, StepReport

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
    """Ends the run early: by whom (signal, stop_file, disk, target, guard, api_key, locustfile, fault) and why."""

    def __init__(self, by: str, reason: str) -> None:
        super().__init__(reason)
        self.by = by


class Runner:
    """One prepared run."""

    def __init__(self, prepared: Prepared, watcher: Watcher) -> None:
        self._run = prepared
        self._watcher = watcher
        self._sampled = GatewayProgress(prepared.out_dir / outdir.SAMPLES, os.sysconf("SC_CLK_TCK"))
        self._outlook = Outlook(prepared.steps, prepared.preflight.estimate.load_s)
        health = [HealthWatch(prepared.probe, what, path, prepared.out_dir) for what, path in prepared.paths.asked]
        others = connection_watches(prepared.others.place, prepared.out_dir)
        self._watches: list[HealthWatch | ConnectionWatch] = [*health, *others]
        self._locustfile = own_locustfile.evidence_of(prepared.plan)
        self._exploring_over = False
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
        except BaseException as error:
            by = "disk" if isinstance(error, OSError) and error.errno in NO_ROOM else "fault"
            self._mark_abort(by, str(error) or repr(error))
            raise
        finally:
            self._run.probe.close()
        self._run.marks.make("finish", sealed=True, **last)
        self._run.marks.close()

    def _run_steps(self) -> None:
        for number, step in enumerate(self._run.steps, 1):
            if not (step.exploring and self._exploring_over):
                self._renew_key(step)
                self._step = step
                self._run_step(step, number)

    def _renew_key(self, step: Step) -> None:
        """Raises _AbortError when there is none to be had: that is our own set-up, not the target's failure."""
        self._step = None
        try:
            self._run.access.renew(self._check_stop)
        except PlanError as error:
            raise _AbortError("api_key", f"no key for step {step.id}: {error}") from error

    def _stop_watching(self) -> None:
        for watch in self._watches:
            watch.stop()
        if self._run.gateway is not None:
            self._run.gateway.stop_sampler()

    def _mark_abort(self, by: str, reason: str) -> None:
        step = self._step
        step_id, level = (None, None) if step is None else (step.id, str(step.level))
        self._run.marks.make("abort", step_id, sealed=True, by=by, reason=reason, level=level)

    def _run_step(self, step: Step, number: int) -> None:
        run = self._run
        self._check_stop()
        self._check_locustfile()
        key = run.access.key_number
        run.marks.make("begin", step.id, sealed=True, **({} if key is None else {"key": key}))
        take_snapshot(run.out_dir, f"{step.id}.before", run.gateway, run.probe, run.paths)
        locust = self._start_locust(step)
        abort: _AbortError | None = None
        tripped: str | None = None
        try:
            tripped = self._watch_step(step, number, locust)
        except _AbortError as caught:
            abort = caught
            locust.ask_to_end()
        except BaseException:
            locust.end(grace_s=2.0)
            raise
        code = locust.wait(_LOCUST_GRACE_S)
        report = self._read_report(step)
        if report is not None:
            run.marks.copy(report)
        if abort is not None:
            raise abort
        self._check_locustfile()
        if report is None:
            log = run.out_dir / outdir.locust_log(step.id)
            raise RunError(f"{step.id}: Locust ended ({code}) without its report: {locust.last_words()}; see {log}")
        self._cool_down(step, number, report)
        run.marks.make("idle", step.id, sealed=True, **({} if tripped is None else {"guard": tripped}))
        take_snapshot(run.out_dir, f"{step.id}.after", run.gateway, run.probe, run.paths, run.asked)

    def _start_locust(self, step: Step) -> Child:
        run, plan = self._run, self._run.plan
        folder = run.scratch / step.id  # empty: no locust.conf or pyproject.toml there can take the run over
        folder.mkdir()
        order = StepOrder(
            step=step.id, worker=WORKER, out_dir=str(run.out_dir.resolve()), url=plan.target, api=plan.api or "",
            **run.access.order(),
            model=plan.model or "", users=int(step.level.value), max_tokens=plan.max_tokens,
            prompt_words=run.preflight.prompt_words, seed=(run.seed + zlib.crc32(step.id.encode())) % 2**32,
            extra_body=dict(plan.extra_body), keep_headers=list(plan.keep_headers),
            first_timeout_s=plan.first_byte_timeout_s, idle_timeout_s=plan.idle_timeout_s, timeout_s=plan.timeout_s,
            warmup_s=step.warmup_s, duration_s=step.duration_s, max_step_s=step.max_step_s,
            min_early_s=step.min_early_s, drain_s=step.drain_s, n_wanted=step.n_wanted, n_early=step.n_early,
            n_by_mode=dict(step.n_by_mode), locustfile_folder=own_locustfile.folder_of(plan),
            max_requests=step.max_requests, max_output_tokens=step.max_output_tokens,
            cap_s=max(0.0, self._began_s + plan.max_time_s - time.monotonic() - step.warmup_s - step.cooldown_s),
        )  # fmt: skip
        order_file = run.scratch / f"{step.id}.json"
        order_file.write_bytes(msgspec.json.encode(order))
        inherited = run.access.environment(sends=True)
        environment = own_locustfile.locust_environment(inherited, folder) | {ORDER_ENV: str(order_file)}
        arguments = (
            "-m", "locust", *own_locustfile.arguments(plan, step.mode), "--headless", "--only-summary",
            "--host", plan.target, "-u", str(order.users), "-r", "100", "--expect-workers-max-wait", "30",
        )  # fmt: skip
        return Child(arguments, run.out_dir / outdir.locust_log(step.id), environment, folder, run.access.masked)

    def _watch_step(self, step: Step, number: int, locust: Child) -> str | None:
        """Until Locust ends. Raises _AbortError; the words of a guard that tripped while exploring, which ends that."""
        access = self._run.access
        requests = self._run.out_dir / outdir.requests_file(step.id, WORKER)
        seen = StepProgress(requests, sends_key=access.sends_secrets)
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
            seen.look(time.monotonic_ns())
            self._sampled.look()
            self._watcher.progress(
                loading(self._outlook, number, seen, self._sampled, now - began, time.monotonic_ns())
            )
            refused = key_hysteresis.look(guards.key_troubles(seen.n_refused))
            if refused is not None and not access.renews and not step.exploring:
                raise _AbortError("api_key", f"{refused}; give one that lasts, or --api-key-cmd")
            if refused is not None:
                self._exploring_over = self._exploring_over or not access.renews
                locust.ask_to_end()  # no guard about the target; the next step may have another key
                return None
            tripped = hysteresis.look(guards.troubles(seen.recent, self._sampled.sample))
            if tripped is not None and not step.exploring:
                raise _AbortError("guard", f"{tripped} at level {step.level} ({step.mode})")
            if tripped is not None:
                self._exploring_over = True
                locust.ask_to_end()
                return tripped
        return None

    def _cool_down(self, step: Step, number: int, report: StepReport) -> None:
        """Idle for exactly the cool-down, counted from the last request's end; at a cycle's end until sockets rest."""
        end_ns = time.monotonic_ns() if report.t_end_ns is None else report.t_end_ns
        over_ns = end_ns + int(step.cooldown_s * 1e9)
        seen = StepProgress(self._run.out_dir / outdir.requests_file(step.id, WORKER))
        next_watch = time.monotonic()
        settle = self._settling() if number % self._run.steps_per_cycle == 0 else None
        while time.monotonic_ns() < over_ns or (settle is not None and not settle.is_over(over_ns)):
            time.sleep(_LOOK_S)
            self._check_stop()
            if time.monotonic() >= next_watch:
                next_watch += _WATCH_S
                seen.look(time.monotonic_ns())
                self._sampled.look()
                idle_left_s = (over_ns - time.monotonic_ns()) / 1e9
                self._watcher.progress(cooling(self._outlook, number, seen, self._sampled, idle_left_s))

    def _settling(self) -> Settling:
        gateway, plan = self._run.gateway, self._run.plan
        pid = None if gateway is None or plan.cycles < _CYCLES_FOR_FLOORS else gateway.pid
        return Settling(pid, parse_endpoint(plan.target).port)

    def _check_stop(self) -> None:
        """Raises _AbortError when somebody asked to stop, the target is gone, or evidence has no room any more."""
        out_dir, gateway = self._run.out_dir, self._run.gateway
        asked = self._watcher.stop_reason()
        if asked is not None:
            raise _AbortError(*asked)
        if (out_dir / outdir.STOP).exists():
            raise _AbortError("stop_file", f"{outdir.STOP} was put into OUT_DIR")
        if gateway is not None:
            if gateway.is_gone():
                raise _AbortError("target", f"pid {gateway.pid} ended during the run")
            failure = gateway.sampler_failure()
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
        """Each step imports it anew: levels driven by different files are not to be compared."""
        changed = own_locustfile.changed_why(self._run.plan, self._locustfile)
        if changed is not None:
            raise _AbortError("locustfile", changed)

    def _read_report(self, step: Step) -> StepReport | None:
        """What Locust counted; None when it ended without saying. Raises EvidenceError."""
        path = self._run.out_dir / outdir.locust_json(step.id)
        if not path.exists():
            return None
        try:
            report = msgspec.json.decode(path.read_bytes(), type=StepReport)
        except msgspec.DecodeError as error:
            raise EvidenceError(f"{path}: {error}; the file was damaged") from error
        if report.boot_id != boot_id():
            raise EvidenceError(f"{path}: its instants are of another boot")
        return report
