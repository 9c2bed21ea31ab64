"""The plan of a run: every option with its default, frozen. Pure. Its steps: plan_steps; in run.json: plan_json.

What a plan must not be is in `refusals`; what it will cost, and how it is told to a person, in `estimate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sweep.slo import Slo
from sweep.units import EITHER, MODES, PHASES
from sweep.units import Level as Level
from sweep.units import Mode as Mode
from sweep.units import duration_text as duration_text
from sweep.units import parse_duration as parse_duration
from sweep.units import parse_levels as parse_levels

APIS = (
    "openai-chat", "openai-completions", "openai-responses", "openai-embeddings", "ollama-chat", "ollama-generate",
    "anthropic-messages", "ollaya-decide", "systemone",
)  # fmt: skip
DEMO_API = "openai-chat"  # it speaks all of them
DEMO_TARGET = "http://127.0.0.1:0"  # a plan with `demo`; the gateway's real port replaces it when it listens
ERROR_LIMIT = 0.01  # of errors, and of refusals, pooled up to the sustained level (built-in policy, design §8)
N_INTEGRITY = 100  # stream integrity passes on none seen in this many (built-in policy, design §8)
EARLY_FACTOR = 10  # a step with this many times what its gates need closes before its duration is over (design §6a)
DRAIN_LIMIT_S = 120.0  # default of --drain is the total time-out, at most this (design §8)
WARMUP_REQUESTS = 2  # each user finishes so many before the window opens (design §6a)
# Fields that hold what a repeatable option gives, and its name.
SINGULAR = {
    "slos": "slo", "allow_hosts": "allow_host", "labels": "label", "headers": "header",
    "headers_plain": "header_plain", "keep_headers": "keep_header", "user_classes": "user_class",
    "tenants": "tenant", "beside_models": "beside_model", "beside_key_envs": "beside_key_env",
}  # fmt: skip
BLOCKS = 4  # of each target in a step that several share: the fewest whose paired interval is of any use (t: 3.2 s/√4)
WARMUP_FACTOR = 3  # …but the warm-up lasts at most so many times --warmup (design §6a)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """Every option of `ha-sweep run`; None is "not given". Ends of names are units; the option has none of them.

    Build it, then `refusals.check` it. `replace(plan, model=…)` for what is guessed later.
    """

    target: str
    levels: tuple[Level, ...]
    sustain: Level | None = None
    gateway_listen: str | None = None
    api: str | None = None  # None: asked before the load
    model: str | None = None
    mode: Literal["both", "stream", "nonstream", "mixed", "user"] = "both"
    duration_s: float = 60.0
    max_step_s: float = 300.0
    warmup_s: float = 10.0
    drain_s: float | None = None
    cooldown_s: float = 15.0
    cycles: int = 1
    max_tokens: int = 128
    prompt_tokens: int = 256
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    slos: tuple[Slo, ...] = ()
    gateway_pid: int | None = None
    gateway_pid_given: str | None = None  # the form it was given in, like unit:ollama; None: as a number
    out_dir: str | None = None
    name: str = "sweep"
    api_key_env: str | None = None
    health_path: str | None = None
    ready_path: str | None = None
    metrics_path: str | None = None
    metrics_key_env: str | None = None
    allow_hosts: tuple[str, ...] = ()
    acknowledge_load: str | None = None
    timeout_s: float = 600.0
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 120.0
    idle_timeout_s: float = 30.0
    load_timeout_s: float = 300.0
    max_requests: int = 20_000
    max_output_tokens: int = 5_000_000
    max_time_s: float = 7200.0
    seed: int | None = None  # None: drawn by the run and recorded; a fixed one would repeat prompts between runs
    strict: bool = False
    quiet: bool = False
    demo: bool = False
    gateway: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)  # name -> environment variable that holds its value
    headers_plain: Mapping[str, str] = field(default_factory=dict)  # name -> value
    key_style: str = "bearer"
    api_key_cmd: str | None = None
    ca_file: str | None = None
    cert: str | None = None
    key: str | None = None
    insecure: bool = False
    locustfile: str | None = None
    user_classes: tuple[str, ...] = ()
    subject: str | None = None
    subject_digest: str | None = None
    keep_headers: tuple[str, ...] = ()
    quiet_check_s: float = 10.0
    # load shapes
    arrivals: Literal["poisson", "constant"] = "poisson"  # of levels like 5/s
    stream_share: float = 0.5  # of --mode mixed
    think_time_s: float = 0.0
    ramp_s: float | None = None  # None: half the warm-up
    cancel_ratio: float = 0.0
    cancel_at: tuple[str, ...] = ()
    no_keepalive: bool = False
    auto_max: Level | None = None  # of --levels auto; not None: `levels` holds the first probe
    auto_steps: int = 12
    leak_cycles: int = 0
    # who and what is sent
    tenants: tuple[str, ...] = ()
    prompts: str | None = None
    shared_prefix: int = 0  # tokens
    # side by side: name -> value
    beside: Mapping[str, str] = field(default_factory=dict)
    beside_pids: Mapping[str, str] = field(default_factory=dict)  # of --gateway-pid NAME=…
    beside_models: Mapping[str, str] = field(default_factory=dict)
    beside_key_envs: Mapping[str, str] = field(default_factory=dict)
    # scale
    processes: int = 1
    expect_workers: int = 0
    master_bind: str | None = None

    @property
    def sustained(self) -> Level:
        """The level production needs: the one given, else the highest."""
        return self.levels[-1] if self.sustain is None else self.sustain

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Modes driven, in the order of the steps."""
        return MODES if self.mode == "both" else (self.mode,)

    @property
    def sent_modes(self) -> tuple[Mode, ...]:
        """Modes that requests may have: the tasks of an own locustfile choose, or the draw of --stream-share."""
        return MODES if self.mode in EITHER else self.modes

    def share_of(self, mode: Mode) -> float:
        """Share of a mixed step's requests that are of this mode."""
        return self.stream_share if mode == "stream" else round(1 - self.stream_share, 12)

    def leaving(self, mode: Mode) -> float:
        """Share of the requests of this mode whose client leaves before the answer ends."""
        return self.cancel_ratio if set(PHASES[mode]) & set(self.cancel_at or PHASES[mode]) else 0.0

    @property
    def drain_or_default_s(self) -> float:
        return min(self.timeout_s, DRAIN_LIMIT_S) if self.drain_s is None else self.drain_s

    def modes_at(self, level: Level) -> tuple[Mode, ...]:
        """Modes of a level's steps; level 0 sends nothing in one."""
        return self.modes if level.value else ("observe",)

    @property
    def asks(self) -> bool:
        """Whether any level sends requests: one of level 0 alone only observes."""
        return any(level.value for level in self.levels)

    @property
    def lead_s(self) -> float:
        """Time before the window: the warm-up, and the ramp where that is longer."""
        return max(self.warmup_s, self.ramp_s or 0.0)

    @property
    def is_auto(self) -> bool:
        """Levels are found while running (`search`); `levels` then holds the first one."""
        return self.auto_max is not None

    @property
    def n_cycles(self) -> int:
        """Cycles of the whole sweep, and those of --leak-cycles after them."""
        return self.cycles + self.leak_cycles

    @property
    def n_blocks(self) -> int:
        """Steps that each level, mode and cycle takes: with other targets beside, so many turns of each."""
        return BLOCKS * (1 + len(self.beside)) if self.beside else 1

    @property
    def n_steps(self) -> int:
        """Steps of the plan; of --levels auto, as many as it may try."""
        swept = sum(len(self.modes_at(level)) for level in self.levels)
        swept *= self.auto_steps if self.is_auto else self.cycles
        return (swept + self.leak_cycles * len(self.modes_at(self.sustained))) * self.n_blocks

    def is_exploring(self, level: Level) -> bool:
        return not self.sustained.reaches(level)
