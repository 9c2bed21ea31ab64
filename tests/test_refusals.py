"""Plans that must not run: each is refused with one line that says what to change."""

import subprocess
import sys

import pytest

from sweep import outdir, refusals
from sweep.errors import PlanError
from sweep.option_types import parse_json_object
from sweep.plan import DEMO_TARGET, Level, SweepPlan, parse_levels
from sweep.refusals import check, is_loopback
from sweep.slo import parse_slo


def make_plan(levels="1,2,4,8", slos=(), target="http://127.0.0.1:8080", **given_fields):
    return SweepPlan(
        target=target, levels=parse_levels(levels), slos=tuple(parse_slo(text) for text in slos), **given_fields
    )


@pytest.mark.parametrize(
    "given_fields",
    [
        {},
        {"target": "http://localhost:8080/prefix", "sustain": Level(4), "slos": ["ttft_ms.p95<=500@8"]},
        {"target": "https://[::1]:8443", "gateway_listen": "[::1]:8080"},
        {"target": DEMO_TARGET, "demo": True, "duration_s": 6.0, "warmup_s": 2.0, "cooldown_s": 3.0, "max_tokens": 16},
        {"target": "https://GW.example", "allow_hosts": ("gw.example",), "acknowledge_load": "ops: release 1.4"},
        {"extra_body": {"temperature": 0, "options": {"num_ctx": 4096}}, "drain_s": 0.0, "cooldown_s": 0.0},
        {"labels": {"team": "search & rescue", "a.b-c_1": "ü" * 200, "empty": ""}},
        {"mode": "stream", "slos": ["error_ratio<=1%", "e2e_ms.p95<=9s"]},
        {"levels": "0"},
        {"levels": "0,1,5/s,10/s", "sustain": Level(5, "rate"), "slos": ["ttft_ms.p95<=500@10/s"], "think_time_s": 1.0},
        {"levels": "2.5/s", "arrivals": "constant", "ramp_s": 300.0},
    ],
)
def test_sound_plan_passes(given_fields):
    """The refusals below must be able not to refuse."""
    check(make_plan(**given_fields))


@pytest.mark.parametrize(
    ("given_fields", "says"),
    [
        ({"sustain": Level(3)}, "--sustain 3 is not among --levels 1,2,4,8"),
        ({"duration_s": 600.0}, "--duration 10m is longer than --max-step 5m"),
        ({"duration_s": 0.0}, "--duration 0: give a number above 0"),
        ({"duration_s": float("nan")}, "--duration nan: give a number above 0"),
        ({"warmup_s": -1.0}, "--warmup -1: give 0 or more"),
        ({"warmup_s": 400.0}, "--warmup 400s is longer than --max-step 5m"),
        ({"ramp_s": 301.0}, "--ramp 301s is longer than --max-step 5m; shorten it"),
        ({"ramp_s": -1.0}, "--ramp -1: give 0 or more"),
        ({"think_time_s": -1.0}, "--think-time -1: give 0 or more"),
        ({"levels": "5/s", "think_time_s": 1.0}, "--think-time: arrivals do not wait for anybody; give levels of"),
        ({"levels": "0", "think_time_s": 1.0}, "--think-time: arrivals do not wait"),
        (
            {"levels": "1,5/s", "locustfile": "own.py", "mode": "user"},
            "level 5/s: the tasks of -f own.py set their own pace; give numbers of users",
        ),
        ({"levels": "0", "slos": ["ttft_ms.p95<=500"]}, "SLO 'ttft_ms.p95<=500': level 0 asks nothing; add a level"),
        ({"levels": "0,1", "slos": ["ttft_ms.p95<=500@0"]}, "SLO 'ttft_ms.p95<=500@0': level 0 asks nothing, so"),
        ({"levels": "0,1", "sustain": Level(0)}, "--sustain 0: level 0 asks nothing; name a level with load"),
        ({"levels": "5000/s", "max_requests": 9000}, "--max-requests 9000: the 2 steps need 10000 for one"),
        ({"cycles": 0}, "--cycles 0: give a number above 0"),
        ({"max_tokens": 0}, "--max-tokens 0"),
        ({"timeout_s": 0.0}, "--timeout 0"),
        ({"gateway_pid": 0}, "--gateway-pid 0: give the number of a process"),
        ({"api": "openai"}, "--api 'openai' is unknown (did you mean openai-chat?); known: openai-chat, openai-comp"),
        ({"api": "zzz"}, "--api 'zzz' is unknown; known: "),
        ({"name": "a b"}, "--name 'a b': it becomes a file name"),
        ({"name": "../x"}, "--name '../x': it becomes a file name"),
        ({"name": ""}, "--name ''"),
        ({"name": "ok\n"}, "--name 'ok\\n'"),
        ({"name": "x" * 101}, "use at most 100 of"),
        ({"model": " "}, "--model is empty"),
        ({"labels": {"a b": "c"}}, "--label 'a b': its key is no word"),
        ({"labels": {"": "c"}}, "--label '': its key is no word"),
        ({"labels": {"k": "a\nb"}}, "--label k: its value must be one printable line"),
        ({"labels": {"k": "a\u202eb"}}, "--label k: its value must be one printable line"),
        ({"labels": {"k": "x" * 201}}, "at most 200 characters"),
        ({"model": "\udcff"}, "--model holds a zero byte, or bytes that are no UTF-8"),
        ({"ca_file": "a\0b"}, "--ca-file holds a zero byte"),
        ({"labels": {"k": "\udcff"}}, "--label holds a zero byte"),
        ({"extra_body": {"a": [float("inf")]}}, "--extra-body holds a number that is not finite"),
        ({"extra_body": {"a": {"b": float("nan")}}}, "--extra-body holds a number that is not finite"),
        ({"extra_body": {"a": "\ud800"}}, "--extra-body holds a character that is none"),
        ({"health_path": "healthz"}, "--health-path 'healthz': give a path of the target that starts with /"),
        ({"metrics_path": "http://x/metrics"}, "--metrics-path 'http://x/metrics'"),
        ({"target": "127.0.0.1:8080"}, "--target '127.0.0.1:8080' is no http or https URL; write it like http://"),
        ({"target": "ftp://127.0.0.1"}, "is no http or https URL"),
        ({"target": "http://"}, "is no http or https URL"),
        ({"target": "http://127.0.0.1:99999"}, "write it like http://127.0.0.1:8080"),
        ({"target": "http://[::1"}, "write it like http://127.0.0.1:8080"),
        ({"target": "http://127.0.0.1:80\n80"}, "is no http or https URL"),
        ({"target": "http://127.0.0.1:0"}, "port 0 is none"),
        ({"gateway_listen": "8080"}, "--gateway-listen '8080': write HOST:PORT"),
        ({"gateway_listen": "h:70000"}, "--gateway-listen 'h:70000': write HOST:PORT"),
        ({"gateway_listen": "::1:8080"}, "--gateway-listen '::1:8080': write HOST:PORT"),
        ({"acknowledge_load": "yes"}, "--acknowledge-load: write who agreed to the load and why"),
        ({"acknowledge_load": "ops: "}, "--acknowledge-load: write who"),
        ({"acknowledge_load": ": why"}, "--acknowledge-load: write who"),
        ({"extra_body": {"stream": False}}, "--extra-body: 'stream' would change what is measured; use --mode"),
        ({"extra_body": {"model": "m"}}, "use --model"),
        ({"extra_body": {"messages": []}}, "'messages' would change"),
        ({"extra_body": {"prompt": ""}}, "'prompt' would change"),
        ({"extra_body": {"stream_options": {}}}, "'stream_options' would change"),
        ({"extra_body": {"max_tokens": 9}}, "use --max-tokens"),
        ({"extra_body": {"max_output_tokens": 9}}, "use --max-tokens"),
        ({"extra_body": {"input": ""}}, "'input' would change"),
        ({"extra_body": {"state": ""}}, "'state' would change"),
        ({"extra_body": {"store": True}}, "keep anything"),
        ({"extra_body": {"options": {"num_predict": 9}}}, "'options.num_predict' would change"),
        ({"slos": ["ttft_ms.p95<=5@16"]}, "SLO 'ttft_ms.p95<=5@16': level 16 is not among --levels 1,2,4,8"),
        ({"slos": ["ttft_ms.p95<=5@8/s"]}, "level 8/s is not among"),
        ({"slos": ["stream.e2e_ms.p95<=5"], "mode": "nonstream"}, "is about stream requests, and --mode nonstream"),
        ({"slos": ["ttft_ms.p95<=5"], "mode": "nonstream"}, "is about stream requests, and --mode nonstream"),
        ({"slos": ["tpot_ms.p95<=5"], "max_tokens": 1}, "needs two tokens an answer; raise --max-tokens 1"),
        ({"slos": ["error_ratio<=1%"] * 2}, "is given twice"),
        ({"max_requests": 29}, "--max-requests 29: the 8 steps need 30 for one a user"),
        ({"max_output_tokens": 3839}, "--max-output-tokens 3839: the 8 steps need 3840"),
        ({"cycles": 11}, "88 steps of warm-up, duration and cool-down take 124.7 min, over --max-time 2h"),
    ],
)
def test_unsound_plan_is_refused_with_what_to_change(given_fields, says):
    """One line, no load sent, and the option to change is named."""
    with pytest.raises(PlanError) as refused:
        check(make_plan(**given_fields))

    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("changed", [{"max_requests": 30}, {"max_output_tokens": 3840}, {"cycles": 10}])
def test_bound_that_is_just_met_is_accepted(changed):
    """The caps refuse below their limit, not at it."""
    check(make_plan(**changed))


@pytest.mark.parametrize(
    "secret_field",
    [
        {"target": "http://user:hunter2@127.0.0.1:8080"},
        {"target": "http://hunter2@127.0.0.1:bad"},
        {"target": "http://127.0.0.1:8080/?key=hunter2"},
        {"target": "http://127.0.0.1:8080/#hunter2"},
        {"api_key_env": "sk-hunter2"},
        {"metrics_key_env": "sk-hunter2"},
    ],
)
def test_refusal_never_repeats_a_secret(secret_field):
    """A key or password that landed in the wrong option is not spread into terminals and logs."""
    with pytest.raises(PlanError, match="--") as refused:
        check(make_plan(**secret_field))

    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("consent", "missing"),
    [
        ({}, 'add --allow-host gw.example and --acknowledge-load "who: why"'),
        ({"allow_hosts": ("gw.example",)}, 'add --acknowledge-load "who: why"'),
        ({"acknowledge_load": "ops: release"}, "add --allow-host gw.example"),
        ({"allow_hosts": ("other.example",), "acknowledge_load": "ops: release"}, "add --allow-host gw.example"),
        ({"allow_hosts": ("example",), "acknowledge_load": "ops: release"}, "add --allow-host gw.example"),
    ],
)
def test_target_elsewhere_needs_both_consents_and_is_told_which(consent, missing):
    """Neither half alone lets load leave this machine."""
    with pytest.raises(PlanError) as refused:
        check(make_plan(target="https://gw.example", **consent))

    assert str(refused.value).endswith(missing)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST", True),
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("::1", True),
        ("[::1]", True),
        ("127.0.0.1.example", False),
        ("127.1", False),
        ("127.0.0.256", False),
        ("127.0.0.x", False),
        ("127.0.0.", False),
        ("128.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback_is_told_by_the_text_alone(host, expected):
    """A name that may resolve anywhere is not loopback, however much it looks like it."""
    assert expected is is_loopback(host)


def test_name_rule_is_the_one_of_evidence_files():
    """Two patterns for one rule must not drift apart."""
    assert outdir.NAME.pattern == refusals.NAME.pattern


def test_plan_modules_load_nothing_heavy():
    """They sit on the path of `ha-sweep --help` and in every Locust process: a little of the standard library."""
    code = (
        "import sys; before = set(sys.modules); import sweep.estimate, sweep.refusals;"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)));"
        "print(*sorted({'difflib', 'tempfile', 'asyncio', 'socket', 'subprocess'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)

    assert "sweep\n\n" == done.stdout


def nested(depth: int) -> str:
    return '{"a":' + "[" * depth + "]" * depth + "}"


@pytest.mark.parametrize("text", [nested(100_000), nested(500), '{"a": 1e400}', '{"a": NaN}'])
def test_a_body_that_could_not_come_back_is_refused(text):
    """Nested without end, or with a number that JSON does not have: a line, no fault of ours."""
    with pytest.raises(PlanError, match="--extra-body"):
        check(make_plan(extra_body=parse_json_object(text)))
