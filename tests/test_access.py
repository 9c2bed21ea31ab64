"""Headers, keys and their command: what is refused, what is sent, who may know it, and that nothing is repeated."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import time

import msgspec
import psutil
import pytest
from command import ha_sweep

from sweep.access import Access
from sweep.access_refusals import check_access, check_tls
from sweep.errors import PlanError
from sweep.key_command import run_key_command
from sweep.masking import Masked, with_parts
from sweep.plan import SweepPlan
from sweep.request import access_headers
from sweep.step_files import StepOrder
from sweep.units import parse_levels

SECRET = "sk-hunter2-0123456789"
KEY = "sk-hunter2/abc"
TOKEN = "hf_hunter2abcdefGHIJKL"  # could be the name of a variable


def plan(**fields) -> SweepPlan:
    return SweepPlan(**({"target": "http://127.0.0.1:9", "levels": parse_levels("1"), "model": "m"} | fields))


@contextlib.contextmanager
def environment(**variables: str):
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"headers": {"X Team": "T"}}, "'X Team' is no name of an HTTP header"),
        ({"headers": {"Host": "T"}}, "--header Host: ha-sweep sets it, because the request itself decides it"),
        ({"headers": {"accept-encoding": "T"}}, "a compressed answer hides when a token came"),
        ({"headers_plain": {"X-Request-Id": "1"}}, "it finds a request in the gateway's log"),
        ({"headers": {"X-A": "T"}, "headers_plain": {"x-a": "1"}}, "--header-plain x-a is given twice"),
        ({"headers": {"X-A": "T", "x-A": "T"}}, "--header x-A is given twice"),
        ({"headers": {"Authorization": "T"}, "api_key_env": "K"}, "the API key goes into it"),
        ({"headers": {"X-Api-Key": "T"}, "api_key_env": "K", "key_style": "x-api-key"}, "the API key goes into it"),
        ({"headers": {"X-A": SECRET}}, "--header X-A: give the NAME of an environment variable"),
        ({"headers_plain": {"Authorization": SECRET}}, "give a key with --api-key-env, or --header Authorization=ENV"),
        ({"headers_plain": {"Cookie": SECRET}}, "would record a secret"),
        ({"headers_plain": {"X-Api-Token": SECRET}}, "--header-plain X-Api-Token would record a secret"),
        ({"headers_plain": {"Ocp-Apim-Subscription-Key": SECRET}}, "would record a secret"),
        ({"headers_plain": {"X-A": KEY}}, "--header-plain X-A would record a secret"),
        ({"headers": {"sk-hunter2": "T"}}, "--header: the name of its header looks like a key"),
        ({"headers": {f"{KEY}/": "T"}}, "is no name of an HTTP header"),
        ({"headers": {"X-A": TOKEN}}, "--header X-A: give the NAME of an environment variable"),
        ({"api_key_env": TOKEN}, "--api-key-env: give the NAME of an environment variable"),
        ({"metrics_key_env": TOKEN}, "--metrics-key-env: give the NAME of an environment variable"),
        ({"labels": {"team": KEY}}, "--label team: its value looks like a key"),
        ({"extra_body": {"api_key": "0123-hunter2"}}, "--extra-body: 'api_key' would record a secret"),
        ({"extra_body": {"a": [{"b": {"accessToken": "0123-hunter2"}}]}}, "--extra-body: 'accessToken' would record"),
        ({"extra_body": {"user": KEY}}, "--extra-body: 'user' would record a secret"),
        ({"headers_plain": {"X-A": "a\r\nX-B: " + SECRET}}, "characters no header can carry (a line end?)"),
        ({"headers_plain": {"X-A": "€"}}, "characters no header can carry"),
        ({"api_key_env": SECRET}, "--api-key-env: give the NAME of an environment variable"),
        ({"api_key_env": "K", "api_key_cmd": "token"}, "--api-key-cmd and --api-key-env both give the API key"),
        ({"api_key_cmd": f"echo '{SECRET}"}, "--api-key-cmd: No closing quotation"),
        ({"api_key_cmd": " "}, "--api-key-cmd is empty"),
        ({"key_style": "x-api-key"}, "there is no key; give one with --api-key-env or --api-key-cmd"),
        ({"key_style": "a b", "api_key_env": "K"}, "--key-style: write bearer, x-api-key, or the name"),
        ({"key_style": "sk-hunter2", "api_key_env": "K"}, "--key-style: write bearer, x-api-key, or the name"),
        ({"key_style": "host", "api_key_env": "K"}, "--key-style host: "),
        ({"ca_file": "ca.pem"}, "--ca-file is about TLS, and the target is http://"),
        ({"insecure": True}, "--insecure is about TLS"),
        ({"target": "https://h", "key": "k.pem"}, "--key without --cert"),
        ({"target": "https://h", "ca_file": "c.pem", "insecure": True}, "--insecure verifies nothing"),
    ],
)
def test_access_that_cannot_be_is_one_line_without_a_secret(fields, says):
    """What is wrong and what to write; the value is not repeated."""
    with pytest.raises(PlanError) as refused:
        check_access(plan(**fields))
        check_tls(plan(**fields))

    assert says in str(refused.value)
    assert "hunter2" not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"headers": {"Authorization": "T"}},
        {"headers": {"X-Token": "my_token_2"}, "headers_plain": {"X-Cache-Key": "sk-learn"}},
        {"extra_body": {"eos_token": "</s>", "max_tokens_total": "5", "session_id": "abcdef12", "seed": [1, {}]}},
        {"headers_plain": {"X-Org": "Müller & Söhne", "x-empty": ""}},
        {"api_key_env": "K", "key_style": "api-key", "headers": {"Authorization": "T"}},
        {"api_key_cmd": "vault read -field=token secret/gw"},
        {"target": "https://h", "cert": "both.pem"},
        {"target": "https://h", "insecure": True, "cert": "c.pem", "key": "k.pem"},
    ],
)
def test_access_as_people_have_it_is_accepted(fields):
    """The controls of the refusals."""
    check_access(plan(**fields))


def test_two_tenants_with_one_key_are_refused(monkeypatch):
    """They would be one tenant to the target, and served alike by nobody's doing."""
    for name, value in (("KEY_A", "hunter2-a"), ("KEY_B", "hunter2-b"), ("KEY_C", "hunter2-a")):
        monkeypatch.setenv(name, value)
    Access(plan(tenants=("a=KEY_A", "b=KEY_B")))

    with pytest.raises(PlanError, match="--tenant: KEY_A and KEY_C hold the same key; each tenant needs") as refused:
        Access(plan(tenants=("a=KEY_A", "b=KEY_B", "c=KEY_C")))
    assert "hunter2" not in str(refused.value)


def test_the_options_are_read_once_and_not_repeated(tmp_path):
    """On the command line: a name twice, a value without a name; the plan's own text is nowhere."""
    both = ("--header", "X-A=A", "--header", "X-A=B")
    twice = ha_sweep("run", "--levels", "1", "--target", "http://127.0.0.1:9", *both, cwd=tmp_path)
    bare = ha_sweep("run", "--levels", "1", "--target", "http://127.0.0.1:9", "--header", SECRET, cwd=tmp_path)
    unset = ha_sweep(
        "run", "--levels", "1", "--target", "http://127.0.0.1:9", "--header", "X-A=hunter2hunter2", cwd=tmp_path
    )

    assert [2, 2, 2] == [each.returncode for each in (twice, bare, unset)]
    assert "ha-sweep: --header X-A is given twice; drop one\n" == twice.stderr
    assert "ha-sweep: --header: write it like --header X-Team=TEAM_TOKEN\n" == bare.stderr
    assert "the environment variable it names is not set" in unset.stderr and "hunter2" not in unset.stderr


# -- what is sent, and who may know it --


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("bearer", {"Authorization": "Bearer sk-1"}),
        ("x-api-key", {"x-api-key": "sk-1"}),
        ("Ocp-Apim-Subscription-Key", {"Ocp-Apim-Subscription-Key": "sk-1"}),
    ],
)
def test_key_style(style, expected):
    """Which header carries the key; the others are sent beside it, and every secret is known to the mask."""
    order = StepOrder(
        step="s", worker="w", out_dir="", url="http://h", api="openai-chat", model="m", users=1, max_tokens=1,
        prompt_words=1, seed=1, api_key_env="K", key_style=style, headers={"X-Team": "T"}, headers_plain={"X-Org": "o"},
    )  # fmt: skip
    headers, secrets = access_headers(order, {"K": "sk-1", "T": "team-secret"})

    assert {"X-Team": "team-secret", "X-Org": "o", **expected} == headers
    assert {"sk-1", "team-secret"} == secrets


def test_a_child_that_sends_nothing_gets_no_secret():
    """The sampler's environment has none; that of a load process has those it sends, and the order holds names only."""
    with environment(A_KEY=SECRET, A_TEAM="team-secret", A_METRICS="sk-metrics"):
        access = Access(plan(api_key_env="A_KEY", headers={"X-Team": "A_TEAM"}, metrics_key_env="A_METRICS"))
        sampler, load = access.environment(sends=False), access.environment(sends=True)
    order = msgspec.json.encode(access.order()).decode()

    assert [] == [name for name in sampler if name in ("A_KEY", "A_TEAM", "A_METRICS")]
    assert (SECRET, "team-secret", None) == (load["A_KEY"], load["A_TEAM"], load.get("A_METRICS"))
    assert "hunter2" not in order and "team-secret" not in order and "A_KEY" in order
    assert "*** *** ***" == access.masked(f"{SECRET} team-secret sk-metrics")
    assert {**os.environ, "PATH": sampler["PATH"]} == os.environ  # ours is as it was


def printing(text: str, code: int = 0) -> str:
    """A command that prints this."""
    return shlex.join([sys.executable, "-S", "-c", f"print({text[::-1]!r}[::-1], end=''); raise SystemExit({code})"])


def test_every_key_of_the_command_reaches_load_and_mask(tmp_path):
    """Each run of it may give another: the newest is sent, the old ones stay masked, the plan is not touched."""
    count = tmp_path / "count"
    count.write_bytes(b"")
    script = f"p = {str(count)!r}; open(p, 'a').write('x'); print('token-number-' + str(len(open(p).read())))"
    access = Access(plan(api_key_cmd=shlex.join([sys.executable, "-S", "-c", script])))
    first = (access.key, access.key_number)
    access.renew()
    order = StepOrder(
        step="s", worker="w", out_dir="", url="http://h", api="openai-chat", model="m", users=1, max_tokens=1,
        prompt_words=1, seed=1, **access.order(),
    )  # fmt: skip
    headers, secrets = access_headers(order, access.environment(sends=True))

    assert ("token-number-1", 1) == first
    assert ("token-number-2", 2) == (access.key, access.key_number)
    assert {"Authorization": "Bearer token-number-2"} == headers
    assert {"token-number-1", "token-number-2"} == secrets
    assert "*** ***" == access.masked("token-number-1 token-number-2")
    assert "token-number" not in str(access.environment(sends=False))


def ends(pid: int, within_s: float = 5.0) -> bool:
    """A killed process takes a moment to be gone, or a zombie."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def test_the_same_key_again_is_no_new_one():
    """A static token behind a command counts once."""
    access = Access(plan(api_key_cmd=printing("sk-same")))
    access.renew()

    assert ("sk-same", 1) == (access.key, access.key_number)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (printing("sk-hunter2", 3), "ended with exit code 3"),
        (printing(""), "prints nothing"),
        (printing(" \n"), "prints nothing"),
        (printing("sk-hunter2\nsk-hunter2"), "prints several lines"),
        (printing("sk hunter2"), "characters no header can carry"),
        (printing("hunter2-€"), "characters no header can carry"),
        ("yes hunter2", "prints more than a key"),
        ("sk-hunter2-no-such-program", "cannot be run: No such file or directory"),
        ("/", "cannot be run: Permission denied"),
        (f"{sys.executable} -S -c 'print(\"sk-hunter2\")'", "holds the key itself"),
        (f"{sys.executable} -S -c 'import os; os.kill(os.getpid(), 9)'", "ended with signal SIGKILL"),
    ],
)
def test_a_command_that_gives_no_key_is_one_line(command, says):
    """Whatever it printed, and whatever stands in it, is not repeated."""
    with pytest.raises(PlanError) as refused:
        run_key_command(command, lambda: None)

    assert says in str(refused.value)
    assert "hunter2" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_signal_without_a_name_is_told_by_its_number():
    """Real-time signals have none."""
    with pytest.raises(PlanError, match="ended with signal 40; run it by hand"):
        run_key_command("sh -c 'kill -40 $$'", lambda: None)


def test_the_command_has_no_shell_no_input_and_its_words_go_nowhere(capfd):
    """Its standard error is dropped, its input is empty, $HOME stays a word, one line end is none of the key."""
    script = "import sys; sys.stderr.write('hunter2'); print(repr(sys.stdin.read()) + sys.argv[1])"
    key = run_key_command(shlex.join([sys.executable, "-S", "-c", script]) + " $HOME-1", lambda: None)

    assert "''$HOME-1" == key
    assert ("", "") == capfd.readouterr()


def test_a_command_that_does_not_end_is_ended_with_all_it_started(tmp_path):
    """Also when a program it left behind holds its output open."""
    pids = tmp_path / "pid"
    command = f"sh -c 'sleep 60 & echo $! > {shlex.quote(str(pids))}; echo sk-late; wait'"
    began = time.monotonic()
    with pytest.raises(PlanError, match=re.escape("has not ended within 2 s")):
        run_key_command(command, lambda: None, timeout_s=2)

    assert time.monotonic() - began < 5
    assert ends(int(pids.read_text()))


@pytest.mark.parametrize("holds", ["", ">/dev/null"])
def test_what_a_command_leaves_behind_is_ended(tmp_path, holds):
    """A leader that has ended already is no reason to leave its session running."""
    pids = tmp_path / "pid"
    command = f"sh -c 'sleep 60 {holds} & echo $! > {shlex.quote(str(pids))}; echo sk-$$'"
    if holds:
        assert run_key_command(command, lambda: None, timeout_s=5).startswith("sk-")
    else:
        with pytest.raises(PlanError, match=re.escape("has not ended within 2 s")):
            run_key_command(command, lambda: None, timeout_s=2)

    assert ends(int(pids.read_text()))


def test_a_stop_ends_the_command():
    """Somebody pressed Ctrl-C while it runs: it is not waited for."""

    class StopError(Exception):
        pass

    def look() -> None:
        raise StopError

    began = time.monotonic()
    with pytest.raises(StopError):
        run_key_command("sleep 60", look)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("value", "echoed"),
    [
        ("Bearer eyJhbGciOi.J9", "token eyJhbGciOi.J9 is old"),
        ("Basic b3BzOmh1bnRlcjI=", "password hunter2"),
        ("session=abcdef123456; theme=x", "no session abcdef123456"),
    ],
)
def test_a_part_of_a_header_s_value_is_masked_too(value, echoed):
    """Servers repeat the token without its scheme."""
    assert "***" in Masked(with_parts(value))(echoed)
    assert "no scheme" == Masked(with_parts("Basic !"))("no scheme")
