"""The options of `ha-sweep run`: one row each, its default the plan's own. Read by click, into fields of SweepPlan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from sweep.errors import PlanError
from sweep.gateway_kinds import KINDS
from sweep.option_types import AUTO, OneOfEnvironment, Parsed, levels, of_targets, pair, parse_json_object
from sweep.plan import APIS, DEMO_API, DEMO_TARGET, SweepPlan
from sweep.search import FIRST, HIGHEST
from sweep.slo import parse_slo
from sweep.units import duration_text, parse_duration, parse_level

if TYPE_CHECKING:
    from sweep.plan_file import PlanFile

_MAX_DIGITS = 10
_PLAN_FILE = "sweep.plan_file"
_DEFAULTS = {each.name: each.default for each in fields(SweepPlan)}
_TABLES = ("labels", "headers", "headers_plain", "beside", "beside_models", "beside_key_envs")


def _take_plan_file(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
    """Its values become the defaults of what neither flag nor environment gives; `plan_file_of` gives the file."""
    if path is not None:
        from sweep.plan_file import read_plan_file

        ctx.meta[_PLAN_FILE] = file = read_plan_file(path, ctx.command.params)
        ctx.default_map = dict(file.values)


def plan_file_of(ctx: click.Context) -> Mapping[str, str] | None:
    """What run.json says of the file of --plan."""
    file: PlanFile | None = ctx.meta.get(_PLAN_FILE)
    return None if file is None else file.as_json()


# A longer number stays a text: Python reads none of thousands of digits.
_PROCESS = OneOfEnvironment(
    "PROCESS", lambda text: int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else text
)
_DURATION = Parsed("DURATION", parse_duration)
_JSON = Parsed("JSON", parse_json_object)


def _option(*names: str, field: str, help: str, **settings: Any) -> Callable[[Any], Any]:
    """A click option for a field of SweepPlan. Its default is the plan's own: shown in the help, not given to click."""
    default = _DEFAULTS[field]
    shown = duration_text(default) if field.endswith("_s") and isinstance(default, (int, float)) else default
    if isinstance(default, (int, float, str)) and not isinstance(default, bool):
        help = f"{help} [default: {shown}]"
    return click.option(*names, field, default=None, help=help, **settings)


# fmt: off
_RUN_OPTIONS = (
    click.option("--plan", expose_value=False, is_eager=True, callback=_take_plan_file, metavar="FILE",
                 help="TOML file of these options, long names with _; a flag wins over the environment, that over the "
                      "file. Relative paths in it count from the working folder. See `ha-sweep plan init`."),
    click.option("--levels", type=Parsed("LEVELS", levels), metavar="1,2,4,8|5/s,10/s|auto",
                 help="Requests in flight, or arrivals a second like 5/s, one step a level and mode; 0 observes "
                      "without load; with -f users, one step a level; required. auto: the highest that meets every "
                      "--slo is searched for, doubling from --sustain or 1."),
    _option("--sustain", field="sustain", type=Parsed("LEVEL", parse_level),
            help="Level production needs; levels above it explore. [default: the highest]"),
    click.option("--target", default=None, metavar="URL",
                 help="Where clients send requests, like http://127.0.0.1:8080. [default: the port of --gateway-pid]"),
    _option("--gateway-listen", field="gateway_listen", metavar="HOST:PORT",
            help="Where the gateway's PID listens, if a proxy stands in between. [default: the target]"),
    _option("--api", field="api", metavar="|".join(APIS),
            help="API to speak. [default: the one the target speaks]"),
    _option("--model", field="model", help="Model to ask for. [default: the only one the target lists]"),
    _option("--mode", field="mode", type=click.Choice(["both", "stream", "nonstream", "mixed"]),
            help="Answers to ask for; with -f the tasks say it."),
    _option("--duration", field="duration_s", type=_DURATION, help="Least time of a step's measured window."),
    _option("--max-step", field="max_step_s", type=_DURATION,
            help="Longest window; a step goes on until it has the requests its gates need, at most so long."),
    _option("--warmup", field="warmup_s", type=_DURATION, help="Time before the window; at least two requests a user."),
    _option("--drain", field="drain_s", type=_DURATION,
            help="Time to finish what is in flight at a step's end. [default: --timeout, at most 2m]"),
    _option("--cooldown", field="cooldown_s", type=_DURATION, help="Idle time after each step."),
    _option("--cycles", field="cycles", type=int, help="How often all steps are run; idle floors after each."),
    _option("--max-tokens", field="max_tokens", type=int, help="Output tokens asked for."),
    _option("--prompt-tokens", field="prompt_tokens", type=int, help="Prompt tokens aimed at."),
    _option("--extra-body", field="extra_body", type=_JSON, help="More keys of the request body, as a JSON object."),
    click.option("--slo", "slos", type=Parsed("SLO", parse_slo), multiple=True,
                 help="Objective, like 'stream.ttft_ms.p95<=500' or 'error_ratio<=0.5%@8'; repeatable, all must hold."),
    _option("--gateway-pid", field="gateway_pid", type=_PROCESS, envvar="GATEWAY_PID", show_envvar=True,
            multiple=True, callback=of_targets("beside_pids"),
            metavar="[NAME=]N|port:N|pidfile:PATH|unit:NAME|container:ID",
            help="Process to watch; without it the verdict is about the client's side only. NAME=… is that of a "
                 "--beside; repeatable."),
    _option("--out-dir", field="out_dir", envvar="OUT_DIR", show_envvar=True,
            help="Folder for the evidence; must be new or empty. [default: out/<UTC time>-<name>]"),
    _option("--name", field="name", help="Name of the run, part of file names."),
    _option("--api-key-env", field="api_key_env", metavar="NAME", help="Environment variable that holds the API key."),
    _option("--health-path", field="health_path", help="Liveness path. [default: looked for]"),
    _option("--ready-path", field="ready_path", help="Readiness path. [default: looked for]"),
    _option("--metrics-path", field="metrics_path", help="Prometheus text page. [default: /metrics if there]"),
    _option("--metrics-key-env", field="metrics_key_env", metavar="NAME",
            help="Environment variable that holds the key of the metrics path. [default: the API key]"),
    click.option("--allow-host", "allow_hosts", multiple=True,
                 help="Host other than this machine, or reached through a tunnel, that may be loaded; repeatable."),
    _option("--acknowledge-load", field="acknowledge_load", metavar='"WHO: WHY"',
            help="Who agreed to load a target that is another machine, behind a tunnel or used by others, and why; "
                 "recorded."),
    _option("--timeout", field="timeout_s", type=_DURATION, help="Longest time of one request."),
    _option("--connect-timeout", field="connect_timeout_s", type=_DURATION, help="Longest time to connect."),
    _option("--first-byte-timeout", field="first_byte_timeout_s", type=_DURATION,
            help="Longest wait for a stream's first token."),
    _option("--idle-timeout", field="idle_timeout_s", type=_DURATION, help="Longest silence within an answer."),
    _option("--load-timeout", field="load_timeout_s", type=_DURATION,
            help="Longest wait for the first answer of a cold model, in the preflight."),
    _option("--max-requests", field="max_requests", type=int, help="Cap on all requests of the run."),
    _option("--max-output-tokens", field="max_output_tokens", type=int, help="Cap on all output tokens asked for."),
    _option("--max-time", field="max_time_s", type=_DURATION, help="Cap on the time of the whole plan."),
    _option("--seed", field="seed", type=int, help="Seed of the prompts; recorded. [default: drawn]"),
    click.option("--strict", is_flag=True, help="READY WITH WARNINGS exits 1."),
    click.option("--quiet", is_flag=True, help="Only the verdict, why, and the report's path."),
    _option("--gateway", field="gateway", metavar="|".join(kind.name for kind in KINDS),
            help="Kind of gateway: fills in its API and paths; other options win."),
    click.option("--label", "labels", **pair("--label", "team=search"), metavar="KEY=VALUE",
                 help="Recorded with the run and shown in the report; repeatable."),
    click.option("--header", "headers", **pair("--header", "X-Team=TEAM_TOKEN"), metavar="NAME=ENV",
                 help="Header to send; its value is read from the environment variable ENV, never recorded; "
                      "repeatable."),
    click.option("--header-plain", "headers_plain", **pair("--header-plain", "X-Team=search"), metavar="NAME=VALUE",
                 help="Header to send whose value is no secret; recorded; repeatable."),
    _option("--key-style", field="key_style", metavar="bearer|x-api-key|NAME", help="Header that carries the API key."),
    _option("--api-key-cmd", field="api_key_cmd", metavar="CMD",
            help="Command that prints the API key; run before each step, its output is never kept. The command itself "
                 "is recorded and shown: it must hold no secret."),
    _option("--ca-file", field="ca_file", metavar="PEM", help="Certificates to trust beside the system's."),
    _option("--cert", field="cert", metavar="PEM", help="Client certificate."),
    _option("--key", field="key", metavar="PEM", help="Key of the client certificate."),
    click.option("--insecure", is_flag=True, help="Do not verify the target's certificate; recorded, warns."),
    _option("-f", "--locustfile", field="locustfile", metavar="FILE", help="Your own locustfile; its classes drive."),
    _option("--subject", field="subject", metavar="NAME@VERSION", help="What the gateway is; checked when it answers."),
    _option("--subject-digest", field="subject_digest", metavar="sha256:HEX",
            help="Digest of its program, compared with the running one; an image's cannot be seen and is assumed."),
    click.option("--keep-header", "keep_headers", multiple=True, metavar="NAME",
                 help="Response header to keep in the records; repeatable."),
    _option("--quiet-check", field="quiet_check_s", type=_DURATION,
            help="Time to look, before the first request, whether someone else uses the target; 0 and --demo: none."),
    _option("--arrivals", field="arrivals", type=click.Choice(["poisson", "constant"]),
            help="Spacing of levels like 5/s: drawn from the seed, or even."),
    _option("--stream-share", field="stream_share", type=float,
            help="Share of streaming requests in --mode mixed, 0 to 1."),
    _option("--think-time", field="think_time_s", type=_DURATION,
            help="Pause of each user between two requests; levels like 5/s have none."),
    _option("--ramp", field="ramp_s", type=_DURATION,
            help="Time over which a step's users start, or its rate grows. [default: half of --warmup]"),
    _option("--cancel-ratio", field="cancel_ratio", type=float,
            help="Share of the requests whose client leaves before the answer ends, 0 to 1."),
    click.option("--cancel-at", "cancel_at", multiple=True,
                 type=click.Choice(["before_first", "mid_stream", "nonstream"]),
                 help="When such a client leaves; repeatable. [default: all that the mode has]"),
    click.option("--no-keepalive", is_flag=True, help="A new connection for every request."),
    _option("--auto-max", field="auto_max", type=Parsed("LEVEL", lambda text: levels(text)[0]),
            help=f"Highest level that --levels auto may try. [default: {HIGHEST}]"),
    _option("--auto-steps", field="auto_steps", type=int, help="Levels that --levels auto may try in all."),
    _option("--leak-cycles", field="leak_cycles", type=int,
            help="Further cycles of the sustained level alone, for the leak rule."),
    click.option("--tenant", "tenants", multiple=True, metavar="NAME=ENV[:WEIGHT]|NAME=ENV@N,N,…",
                 help="Tenant whose key the variable ENV holds; its share of every level by weight, or its own number "
                      "at each level; repeatable."),
    _option("--prompts", field="prompts", metavar="FILE",
            help='Prompts to send, one JSON object a line: {"prompt": …} or {"messages": […]}.'),
    _option("--shared-prefix", field="shared_prefix", type=int,
            help="Prompt tokens that every request begins with, for gateways that cache prefixes."),
    click.option("--beside", "beside", **pair("--beside", "direct=http://127.0.0.1:9000"), metavar="NAME=URL",
                 help="Another target that gets every step too, in turns with the first; repeatable."),
    click.option("--beside-model", "beside_models", **pair("--beside-model", "direct=llama3"), metavar="NAME=MODEL",
                 help="Its model, if not --model; repeatable."),
    click.option("--beside-key-env", "beside_key_envs", **pair("--beside-key-env", "direct=UPSTREAM_KEY"),
                 metavar="NAME=ENV", help="Variable with its API key, if not --api-key-env; repeatable."),
    _option("--processes", field="processes", type=int, help="Load processes on this machine."),
    _option("--expect-workers", field="expect_workers", type=int,
            help="Load processes of `ha-sweep worker` on other machines to wait for."),
    _option("--master-bind", field="master_bind", metavar="HOST[:PORT]",
            help="Where those workers connect. [default: this machine only]"),
    click.option("--demo", is_flag=True, help="Run against the embedded gateway."),
)
# fmt: on


def plan_of(ctx: click.Context, given: Mapping[str, Any]) -> SweepPlan:
    """The plan of the options given; what was not given keeps the plan's own default. Raises PlanError."""
    kept = plan_fields(given)
    if "levels" not in kept:
        raise PlanError("no levels; give --levels 1,2,4,8, or levels = [1, 2, 4, 8] in a --plan file")
    if given["demo"]:
        for name in ("target", "gateway_pid", "model", "gateway_listen"):
            # What the environment says, or a plan file that --demo tries out, gives way.
            with_demo = {click.core.ParameterSource.COMMANDLINE, ctx.get_parameter_source("demo")}
            if kept.pop(name, None) is not None and ctx.get_parameter_source(name) in with_demo:
                raise PlanError(f"--demo brings its own gateway; leave out --{name.replace('_', '-')}")
        kept = {"api": DEMO_API, **kept, "target": DEMO_TARGET}
    elif "target" not in kept:
        raise PlanError("no target; give --target http://HOST:PORT of the gateway, or --demo")
    return SweepPlan(**_with_search(kept))


def _with_search(kept: dict[str, Any]) -> dict[str, Any]:
    """The fields of --levels auto: its first level, which production needs or is 1, and its highest."""
    if kept["levels"] == AUTO:
        first = kept.get("sustain", FIRST)
        return kept | {"levels": (first,), "auto_max": kept.get("auto_max", HIGHEST)}
    for name in ("auto_max", "auto_steps"):
        if name in kept:
            raise PlanError(f"--{name.replace('_', '-')} is of --levels auto; leave it out, or write --levels auto")
    return kept


def plan_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of SweepPlan; what was not given is left out."""
    kept = {name: value for name, value in given.items() if value is not None and value != ()}
    for field in _TABLES:
        if field in kept:
            kept[field] = dict(kept[field])
    return kept


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command all of them."""
    command = click.argument("user_classes", nargs=-1, metavar="[USER_CLASS...]")(command)
    for add in reversed(_RUN_OPTIONS):
        command = add(command)
    return command
