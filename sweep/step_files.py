"""What the runner tells a Locust process (StepOrder) and gets back from it (StepReport, locust/<step>.json). Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from sweep.records import UNFIRED, column
from sweep.units import Mode

ORDER_ENV = "HA_SWEEP_STEP"
KEY_ENV = "HA_SWEEP_API_KEY"  # the key that --api-key-cmd printed
OLD_KEYS_ENV = "HA_SWEEP_OLD_API_KEYS"  # those it printed before, one a line: masked, not sent
ClosedBy = Literal["duration", "n_early", "max_step", "cap", "signal", "locustfile", "worker"]


class TenantOrder(msgspec.Struct, kw_only=True):
    """One tenant's part of a step, and the variable that holds its key. weight: its users, or its arrivals a second."""

    name: str
    key_env: str
    users: int
    weight: float = 1.0


class StepOrder(msgspec.Struct, kw_only=True):
    """One step, or the preflight, for one Locust process. Holds names of secrets, never secrets."""

    step: str
    worker: str
    out_dir: str
    url: str
    api: str
    model: str
    users: int
    max_tokens: int
    prompt_words: int
    seed: int
    think_s: float = 0.0  # between two tasks of a class without a wait_time of its own
    locustfile_folder: str | None = None  # where an own locustfile finds modules beside it
    extra_body: dict[str, Any] = {}
    api_key_env: str | None = None
    key_style: str = "bearer"
    headers: dict[str, str] = {}  # name -> environment variable
    headers_plain: dict[str, str] = {}
    ca_file: str | None = None
    cert: str | None = None
    key: str | None = None
    insecure: bool = False
    keep_headers: list[str] = []
    connect_timeout_s: float = 5.0
    first_timeout_s: float = 120.0
    idle_timeout_s: float = 30.0
    timeout_s: float = 600.0
    warmup_s: float = 0.0
    duration_s: float = 0.0
    max_step_s: float = 0.0
    cap_s: float | None = None
    min_early_s: float = 0.0
    drain_s: float = 0.0
    n_wanted: int = 1
    n_early: int = 1
    n_by_mode: dict[Mode, int] = {}  # beside n_wanted, of each mode that is sent at all
    max_requests: int = 1
    max_output_tokens: int = 1
    rate_per_s: float | None = None  # open loop; None: closed loop of `users`
    arrivals: Literal["poisson", "constant"] = "poisson"
    stream_share: float | None = None  # of a step of mode `mixed`
    ramp_s: float | None = None  # users start over so long, the rate grows so long; None: half the warm-up
    cancel_ratio: float = 0.0
    cancel_at: list[str] = []
    keepalive: bool = True
    tenants: list[TenantOrder] = []
    usual: dict[str, float] = {}  # phase of --cancel-at -> seconds, or token events, until it, as the preflight saw
    prompts_file: str | None = None
    shared_prefix_words: int = 0
    prefix_seed: int = 0  # of the run: the same for all steps
    n_processes: int = 1  # on all machines
    index: int = 0  # of this one among them
    agreed: dict[str, str | None] = {}  # keys of the body that the target refuses -> other name; null: left out


class ProcessReport(msgspec.Struct, kw_only=True):
    """What one Locust process counted by itself, to be compared with the lines it wrote and with Locust's figures."""

    worker: Annotated[str, column("", "process, as in file names")]
    started: Annotated[int, column("", "requests handed to the client, counted before connecting")]
    due: Annotated[int | None, column("", "requests the schedule wanted (open loop only)")] = None
    sent: Annotated[int, column("", "requests whose bytes were handed to the kernel")]
    outcomes: Annotated[dict[str, int], column("", "records written, by outcome")]
    locust_requests: Annotated[int, column("", "requests Locust's own statistics hold")]
    locust_failures: Annotated[int, column("", "failures Locust's own statistics hold")]
    ended: Annotated[bool, column("", "its last record is written")]
    host: Annotated[str | None, column("", "machine it ran on; null: the master's")] = None
    t_window_ns: Annotated[int | None, column("ns", "on its machine's clock; null: the master's instants hold")] = None
    t_close_ns: Annotated[int | None, column("ns", "on its machine's clock; null: the master's instants hold")] = None


class StepReport(msgspec.Struct, kw_only=True):
    """Instants of one step, by the process that drove it; null: not reached."""

    step: Annotated[str, column("", "step")]
    t_open_ns: Annotated[int, column("ns", "first user may start")]
    t_window_ns: Annotated[int | None, column("ns", "the measured window opens")] = None
    t_close_ns: Annotated[int | None, column("ns", "the window closes, nothing starts any more")] = None
    t_end_ns: Annotated[int | None, column("ns", "nothing in flight, or the drain is over")] = None
    clocks: Annotated[dict[str, int], column("ns", "three clocks read together at the end")]
    boot_id: Annotated[str | None, column("", "boot of the machine that drove")]
    closed_by: Annotated[ClosedBy | None, column("", "what closed the window")] = None
    users_wanted: Annotated[int, column("", "users of the level")]
    users_min: Annotated[int | None, column("", "fewest users alive during the window")] = None
    processes: Annotated[list[ProcessReport], column("", "one row a Locust process")]
    counts_agree: Annotated[bool, column("", "every count above agrees")]
    why: Annotated[str | None, column("", "what does not agree, or failed on our side")] = None


def disagreement(report: ProcessReport) -> str | None:
    """Why the counts of one process cannot all be true, or None."""
    lines = sum(report.outcomes.values())
    if lines != report.started:
        return f"{report.started} requests started but {lines} records written"
    unfired = sum(report.outcomes.get(name, 0) for name in UNFIRED)
    if lines - unfired != report.locust_requests:
        return f"{lines - unfired} finished records but Locust counted {report.locust_requests}"
    failed = lines - unfired - report.outcomes.get("ok", 0)
    if failed != report.locust_failures:
        return f"{failed} failed records but Locust counted {report.locust_failures} failures"
    return None
