"""Plan files: what they may hold, who wins, what is refused and how, and that `plan init` writes what flags meant."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from pathlib import Path

import click
import msgspec
import pytest
from command import ha_sweep, result_of

from sweep import outdir
from sweep.cli import cli
from sweep.options import plan_fields
from sweep.plan import SweepPlan
from sweep.plan_init import plan_text
from sweep.plan_json import as_json, option

TARGET = 'target = "http://127.0.0.1:9"\n'
# Every option of `run`, as flags; each but the levels differs from its default.
FLAGS = {
    "levels": "2,4", "sustain": "2", "target": "http://127.0.0.1:9/p", "gateway-listen": "127.0.0.1:8",
    "api": "ollama-chat", "model": 'a "b" \\ ü\t', "mode": "stream", "duration": "1.5m", "max-step": "301s",
    "warmup": "250ms", "drain": "7.125", "cooldown": "0", "cycles": "2", "max-tokens": "9", "prompt-tokens": "8",
    "extra-body": '{"temperature": 0.5, "stop": ["a", "\\u007f"], "x y": {"k": true, "n": 123456789012}}',
    "slo": ["stream.ttft_ms.p95<=500", "error_ratio<=0.5%@2"], "gateway-pid": "77", "out-dir": "some where",
    "name": "n", "api-key-env": "K", "health-path": "/h", "ready-path": "/r", "metrics-path": "/m",
    "metrics-key-env": "MK", "allow-host": ["a", "b"], "acknowledge-load": "me: why", "timeout": "601",
    "connect-timeout": "6", "first-byte-timeout": "6", "idle-timeout": "6", "load-timeout": "6",
    "max-requests": "19999", "max-output-tokens": "4999999", "max-time": "3h", "seed": "5", "strict": None,
    "quiet": None, "gateway": "ollama", "label": ["team=search", "a.b=c=d"], "header": ["X-A=ENV_A", "X-B=ENV_B"],
    "header-plain": ["X-C=some text"], "key-style": "x-api-key", "api-key-cmd": "vault read 'k'", "ca-file": "ca.pem",
    "cert": "c.pem", "key": "k.pem", "insecure": None, "locustfile": "mine.py", "subject": "g@1.2",
    "subject-digest": "sha256:" + "0" * 64, "keep-header": ["X-D"], "quiet-check": "3s",
    "arrivals": "constant", "stream-share": "0.25", "think-time": "1.5s", "ramp": "2s", "cancel-ratio": "0.125",
    "cancel-at": ["mid_stream"], "no-keepalive": None, "auto-max": "64", "auto-steps": "9", "leak-cycles": "5",
    "tenant": ["a=KEY_A:2", "b=KEY_B"], "prompts": "prompts.jsonl", "shared-prefix": "64",
    "beside": ["direct=http://127.0.0.1:7"], "beside-model": ["direct=m"], "beside-key-env": ["direct=UP"],
    "processes": "2", "expect-workers": "1", "master-bind": "127.0.0.1",
}  # fmt: skip
CLASSES = ["Reader", "Writer"]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    """Calls that are parsed in this process."""
    for name in ("GATEWAY_PID", "OUT_DIR"):
        monkeypatch.delenv(name, raising=False)


def argv(flags: dict) -> list[str]:
    words = []
    for name, values in flags.items():
        for value in values if isinstance(values, list) else [values]:
            words += [f"--{name}"] if value is None else [f"--{name}", value]
    return words


def planned(*arguments: str) -> dict:
    """The plan as run.json would hold it, of a call that is only parsed."""
    context = cli.commands["run"].make_context("run", list(arguments))
    return as_json(SweepPlan(**plan_fields({k: v for k, v in context.params.items() if k != "dry_run"})))


def written(*arguments: str) -> str:
    """The plan file of a call; not asked whether `run` would take these options together."""
    context = cli.commands["plan"].commands["init"].make_context("init", list(arguments))
    return plan_text(plan_fields({k: v for k, v in context.params.items() if k != "to"}), context.command.params)


def write(folder: Path, text: str, name: str = "plan.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def refused(folder: Path, text: str, *more: str) -> str:
    """The one line of a real run with this file; exit 2, nothing made."""
    write(folder, text)
    done = ha_sweep("run", "--plan", "plan.toml", *more, cwd=folder)
    assert (2, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines())), done.stderr
    assert ["plan.toml"] == os.listdir(folder)
    return done.stderr.strip()


def test_every_option_has_the_key_of_its_long_name():
    """One grammar for flags, plan files and run.json's plan; and the tests below leave no option out."""
    options = [each for each in cli.commands["run"].params if isinstance(each, click.Option)]
    keys = {option(str(each.name)): each.opts for each in options if each.name not in ("plan", "dry_run", "demo")}

    assert [] == [key for key, names in keys.items() if "--" + key.replace("_", "-") not in names]
    assert sorted(keys) == sorted(name.replace("-", "_") for name in FLAGS)
    assert set(keys) | {"demo", "user_class"} <= set(planned("--levels", "1", "--target", "http://127.0.0.1:9"))


def test_plan_init_writes_what_the_flags_meant(tmp_path):
    """Every option there is: the file of these flags gives the plan of these flags, and each has its help."""
    text = written(*argv(FLAGS), *CLASSES)
    file = write(tmp_path, text)

    assert planned(*argv(FLAGS), *CLASSES) == planned("--plan", file)
    assert text == written("--plan", file)
    for parameter in cli.commands["run"].params:
        if isinstance(parameter, click.Option) and parameter.name not in ("plan", "dry_run"):
            assert str(parameter.help).split()[0] in text


def test_plan_init_comments_out_what_was_not_given(tmp_path):
    """Uncommented as it stands, a default changes nothing; the environment is not written; stdout is the file."""
    done = ha_sweep("plan", "init", "--levels", "1", cwd=tmp_path, GATEWAY_PID="4711", OUT_DIR="elsewhere")
    defaults = planned("--levels", "1", "--target", "http://127.0.0.1:9")
    off = [line for line in done.stdout.splitlines() if line.startswith("# ") and " = " in line]
    offered = {line[2:].partition(" = ")[0]: line[2:] for line in off if not line.startswith("# A plan")}
    shown = {key: line for key, line in offered.items() if key != "drain" and defaults.get(key) not in (None, [], {})}

    assert 0 == done.returncode
    assert {"levels": [1]} == tomllib.loads(done.stdout)
    assert {"demo", "user_class", *(name.replace("-", "_") for name in FLAGS)} - {"levels"} == set(offered)
    assert "4711" not in done.stdout and "elsewhere" not in done.stdout
    tomllib.loads("\n".join(offered.values()))  # each is TOML
    del shown["target"]
    file = write(tmp_path, TARGET + "levels = 1\n" + "\n".join(shown.values()))
    assert len(shown) > 15
    assert defaults == planned("--plan", file)


def test_a_dry_run_of_the_file_prints_what_the_flags_print(tmp_path):
    """The real command, twice; `plan init` refuses to overwrite, and what `run` would refuse."""
    flags = ["--target", "http://127.0.0.1:9", "--levels", "1,2", "--duration", "6s", "--slo", "ttft_ms.p95<=500@2",
             "--label", "team=search", "--extra-body", '{"a": [1, null]}', "--strict"]  # fmt: skip
    assert 0 == ha_sweep("plan", "init", *flags, "--to", "plan.toml", cwd=tmp_path).returncode
    before = (tmp_path / "plan.toml").read_bytes()
    by_flags = ha_sweep("run", *flags, "--dry-run", cwd=tmp_path)
    by_file = ha_sweep("run", "--plan", "plan.toml", "--dry-run", cwd=tmp_path)
    again = ha_sweep("plan", "init", *flags, "--to", "plan.toml", cwd=tmp_path)
    secret = ha_sweep("plan", "init", "--api-key-env", "sk-123", "--to", "other.toml", cwd=tmp_path)

    assert 0 == by_file.returncode
    assert "labels: team=search" in by_flags.stdout
    assert by_flags.stdout == by_file.stdout
    assert (2, "ha-sweep: --to plan.toml is there already; remove it or give another name\n") == (
        again.returncode, again.stderr,
    )  # fmt: skip
    assert before == (tmp_path / "plan.toml").read_bytes()
    assert (2, False) == (secret.returncode, "sk-123" in secret.stderr)
    assert ["plan.toml"] == os.listdir(tmp_path)


NATURAL = """
levels = [1, 2, 4]
duration = 6.5
warmup = 2
cooldown = "300ms"
sustain = 2
gateway_pid = 77
name = 7
slo = "error_ratio<=1%"
allow_host = ["a", "b"]
user_class = ["Reader"]
header = ["X-A=ENV"]
[label]
team = "search"
build = 12
[header_plain]
"X B" = "v=w"
[extra_body]
seed = 4
temperature = 0.5
[extra_body.options]
num_ctx = 4096
"""


def test_values_are_written_as_toml_has_them(tmp_path):
    """Numbers, lists, sections; a single value where an option repeats; levels as a text too."""
    found = planned("--plan", write(tmp_path, TARGET + NATURAL))

    expected = {
        "levels": ["1", "2", "4"], "duration": 6.5, "warmup": 2.0, "cooldown": 0.3, "sustain": "2",
        "name": "7", "slo": ["error_ratio<=1%"], "allow_host": ["a", "b"], "user_class": ["Reader"],
        "header": {"X-A": "ENV"}, "label": {"team": "search", "build": "12"}, "header_plain": {"X B": "v=w"},
        "extra_body": {"seed": 4, "temperature": 0.5, "options": {"num_ctx": 4096}},
    }  # fmt: skip
    assert expected == {key: found[key] for key in expected}
    assert "77" == str(found["gateway_pid"])
    assert ["1", "2"] == planned("--plan", write(tmp_path, TARGET + 'levels = "2,1"'))["levels"]
    assert {"a": None} == planned("--plan", write(tmp_path, TARGET + "levels = 1\nextra_body = '{\"a\": null}'"))[
        "extra_body"
    ]


def test_flag_before_environment_before_file_before_default(tmp_path, monkeypatch):
    """A flag replaces the file's whole list."""
    file = write(tmp_path, TARGET + 'levels = [1]\nout_dir = "file"\nmax_tokens = 5\nlabel = ["a=1", "b=2"]')
    by_file = planned("--plan", file)
    monkeypatch.setenv("OUT_DIR", "environment")
    by_environment = planned("--plan", file)
    by_flag = planned("--max-tokens", "6", "--label", "c=3", "--out-dir", "flag", "--plan", file, "--levels", "3")

    assert ("file", 5, 256, {"a": "1", "b": "2"}) == tuple(
        by_file[key] for key in ("out_dir", "max_tokens", "prompt_tokens", "label")
    )
    assert ("environment", 5) == (by_environment["out_dir"], by_environment["max_tokens"])
    assert ("flag", 6, {"c": "3"}, ["3"]) == tuple(by_flag[key] for key in ("out_dir", "max_tokens", "label", "levels"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-tokens = 5", ["plan.toml: unknown key max-tokens", "did you mean max_tokens or "]),
        ('"sk-abc123/x" = 5', ["plan.toml: unknown key (not repeated: it looks like a key)"]),
        ('gateway_pid = "sk-abc123"', ["--gateway-pid", "not repeated"]),
        ('user_class = ["sk-abc123"]', ["is no option", "not repeated"]),
        ('levels = "sk-abc123"', ["plan.toml: levels: ", "not repeated"]),
        ("zzz = 5", ["plan.toml: unknown key zzz", "plan init"]),
        ('api_key = "sk-abc123"', ["plan.toml: unknown key api_key", "did you mean api_key_env or api_key_cmd?"]),
        ('api_key_env = "sk-abc123"', ["--api-key-env: give the NAME", "plan.toml"]),
        ("api_key = sk-abc123", ["plan.toml is no TOML", "line 2"]),
        ('header = ["sk-abc123"]', ["plan.toml: header: ", "write it like"]),
        ("[run]\nlevels = 1", ["plan.toml: unknown section [run]", "without a section"]),
        ('[label]\nteam = "a"\nduration = "5s"', ["plan.toml: label: duration stands within", "above"]),
        ("levels = [1,", ["plan.toml is no TOML", "(at end of document)"]),
        ('name = "a"\nmodel = b', ["plan.toml is no TOML", "line 3"]),
        ('duration = "fast"', ["plan.toml: duration: ", "'fast'", "1.5m"]),
        ("duration = true", ["plan.toml: duration: ", "'90s'", "it is true or false"]),
        ("duration = 1979-05-27", ["plan.toml: duration: ", "a date or time"]),
        ('strict = "yes"', ["plan.toml: strict: write true or false; it is a text"]),
        ("model = 1.10", ["plan.toml: model: write a text in quotes", "a number"]),
        ("max_tokens = 1.5", ["plan.toml: max_tokens: ", "1.5"]),
        ("max_tokens = -1", ["--max-tokens -1", "plan.toml"]),
        ("levels = [1, [2]]", ["plan.toml: levels: ", "it is a list"]),
        ("label = { a = true }", ["plan.toml: label: a = …", "true or false"]),
        ('label = ["a=1", "a=2"]', ["plan.toml: label: a is given twice"]),
        ("extra_body = { a = 1979-05-27 }", ["plan.toml: extra_body: ", "date"]),
        ("dry_run = true", ["plan.toml: dry_run belongs on the command line"]),
        ('plan = "other.toml"', ["plan.toml: plan belongs on the command line"]),
        ("demo = true", ["leave out --target", "plan.toml"]),
    ],
)
def test_what_cannot_be_is_one_line_that_names_file_and_key(tmp_path, text, words):
    """Exit 2; a secret put there by mistake is not repeated."""
    line = refused(tmp_path, TARGET + text, *([] if "levels" in text else ["--levels", "1"]))

    assert [] == [word for word in words if word not in line], line
    assert "sk-abc123" not in line


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    """Not there, a folder, no text."""
    (tmp_path / "binary").write_bytes(b"levels = '\xff'")
    lines = [ha_sweep("run", "--plan", name, cwd=tmp_path) for name in ("gone.toml", ".", "binary")]

    assert [2, 2, 2] == [done.returncode for done in lines]
    assert ["No such file", "Is a directory", "no UTF-8"] == [
        word for word, done in zip(("No such file", "Is a directory", "no UTF-8"), lines, strict=True)
        if word in done.stderr and 1 == len(done.stderr.splitlines())
    ]  # fmt: skip


DEMO_PLAN = """
levels = [1]
mode = "stream"
duration = "1s"
warmup = 0.3
cooldown = "500ms"
max_tokens = 4
prompt_tokens = 64
max_requests = 40
target = "http://127.0.0.1:9"
model = "of-production"
[label]
team = "search & rescue"
"""


@pytest.mark.slow
def test_a_run_of_a_plan_file_records_it_and_its_labels(tmp_path):
    """--demo tries out a plan meant for another target; run.json has path and hash, every rendering the label."""
    write(tmp_path, DEMO_PLAN)
    done = ha_sweep("run", "--demo", "--plan", "./plan.toml", "--out-dir", "run", cwd=tmp_path)
    out_dir = tmp_path / "run"
    run = msgspec.json.decode((out_dir / outdir.RUN).read_bytes())

    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert {"path": "./plan.toml", "sha256": hashlib.sha256(DEMO_PLAN.encode()).hexdigest()} == run["plan_file"]
    assert ({"team": "search & rescue"}, ["1"], "demo-1") == tuple(run["plan"][k] for k in ("label", "levels", "model"))
    assert {"team": "search & rescue"} == result_of(out_dir)["labels"]
    assert re.search("team(=|: )search &amp; rescue", (out_dir / outdir.REPORT_HTML).read_text())
    assert "team=search" in (out_dir / outdir.SUMMARY_MD).read_text().replace("\\", "")
    assert '<property name="label.team" value="search &amp; rescue" />' in (out_dir / outdir.JUNIT_XML).read_text()
    warned = [line.removeprefix("warning: ") for line in done.stdout.splitlines() if line.startswith("warning: ")]
    assert warned and warned == run["warnings"] == result_of(out_dir)["warnings"]
    # The estimate is of the prompts to come: they have the tokens asked for within a few, as the server counts them.
    (line,) = [line for line in run["preflight"]["estimate"] if line.startswith("in all:")]
    n_requests, n_prompt = (int(line.split("~")[i].split()[0].replace(",", "")) for i in (1, 3))
    records = [msgspec.json.decode(each) for each in outdir.read_lines(next((out_dir / "requests").glob("s01-*")))[0]]
    assert n_prompt / n_requests == pytest.approx(records[0]["n_in"], rel=0.06)
