"""Access as people have it, in whole runs: behind TLS, an auth proxy, and tokens that expire."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time

import msgspec
import pytest
from asker import ask
from command import ha_sweep, marks_of, result_of
from fake_gateway import FakeGateway
from front_door import FrontDoor
from pem import Authority

from sweep import outdir
from sweep.records import Record, from_lines

pytestmark = pytest.mark.slow

QUICK = {"ttft_s": 0.02, "gap_s": 0.01, "n_tokens": 4}
PLAN = ("--mode", "stream", "--levels", "1", "--warmup", "0.3s", "--cooldown", "0.5s", "--max-tokens", "4",
        "--prompt-tokens", "16", "--model", "fake-1", "--out-dir", "run")  # fmt: skip


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("pem"))


def holding(folder, secrets) -> list[str]:
    """Files of the folder with one of the secrets in them."""
    files = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return [name for name, content in files.items() if any(secret.encode() in content for secret in secrets)]


def statuses(result) -> set[str]:
    return {finding["status"] for finding in result["findings"]}


def test_a_gateway_behind_tls_and_an_auth_proxy(tmp_path, authority):
    """Every request of load, preflight and probes brings certificate, key and headers; nothing secret is kept; the
    times are those of the server behind it."""
    secrets = {"MY_KEY": "sk-hunter2-key", "MY_TEAM": "team-hunter2-secret"}
    wanted = {"x-api-key": secrets["MY_KEY"], "x-team": secrets["MY_TEAM"], "x-org": "search"}

    def admits(method, path, headers) -> bool:
        needs = wanted if path.startswith("/v1/") else {"x-team": wanted["x-team"], "x-org": wanted["x-org"]}
        return all(headers.get(name) == value for name, value in needs.items())

    pems = authority.pems
    access = ("--ca-file", os.path.relpath(pems.ca, tmp_path), "--cert", pems.cert, "--key", pems.key, "--key-style",
              "x-api-key", "--api-key-env", "MY_KEY", "--header", "X-Team=MY_TEAM", "--header-plain", "X-Org=search")
    with FakeGateway(QUICK) as fake, FrontDoor(fake.port, admits, authority.server(wants_client=True)) as door:
        done = ha_sweep("run", "--target", f"https://127.0.0.1:{door.port}", *access, "--duration", "1s", "--max-step",
                        "2s", *PLAN, cwd=tmp_path, **secrets)  # fmt: skip
        log = {entry["request_id"]: entry for entry in fake.log()}

    assert 3 == done.returncode, done.stdout + done.stderr  # too few requests for a verdict, none failed
    result = result_of(tmp_path / "run")
    assert "fail" not in statuses(result) and result["steps"][0]["ok"] >= 3
    # The handshake, and the question which API it is: that goes without the key first.
    refused = {(each.method, each.path) for each in door.sent if not each.admitted}
    assert {("HEAD", "/"), ("GET", "/v1/models")} >= refused
    assert {"/v1/chat/completions", "/v1/models", "/healthz", "/readyz"} <= {each.path for each in door.sent}
    step = outdir.requests_file(result["steps"][0]["step"], "w01")
    records = from_lines(Record, outdir.read_lines(tmp_path / "run" / step)[0], step)
    for record in records:
        sends = log[record.request_id]["token_sends"]
        assert sends[0][0] < record.t_first_ns and sends[-1][0] < record.t_last_ns
    assert 3 == max(len(record.gaps_us) for record in records)  # the door between may put two into one read
    run = msgspec.json.decode((tmp_path / "run" / outdir.RUN).read_bytes())
    assert ({"X-Team": "MY_TEAM"}, {"X-Org": "search"}) == (run["plan"]["header"], run["plan"]["header_plain"])
    assert [] == holding(tmp_path / "run", secrets.values())
    for words in ("--header X-Team=MY_TEAM", "--header-plain X-Org=search", "--key-style x-api-key", "--ca-file "):
        assert words in result["next"]


def test_tokens_that_expire(tmp_path):
    """The second of four tokens dies under load: its step is invalid, the next step has another and is fine; the last
    step gets none, and the run ends from our side with its report."""
    count = tmp_path / "count"
    count.write_text("1")
    script = (
        f"import os; p = {str(count)!r}; n = int(open(p).read()); open(p, 'w').write(str(n + 1)); "
        "n < 4 or os._exit(7); print('tok' + 'en-hunter2-%d' % n)"
    )
    first_use: dict[str, float] = {}

    def admits(method, path, headers) -> bool:
        token = headers.get("authorization", "")
        if not path.startswith("/v1/"):
            return True
        began = first_use.setdefault(token, time.monotonic())
        is_good = token.startswith("Bearer token-hunter2-")
        return is_good and (not token.endswith("-2") or time.monotonic() - began < 1.5)

    with FakeGateway(QUICK) as fake, FrontDoor(fake.port, admits) as door:
        done = ha_sweep(
            "run", "--target", f"http://127.0.0.1:{door.port}", "--api-key-cmd",
            shlex.join([sys.executable, "-S", "-c", script]), "--cycles", "3", "--duration", "1s", "--max-step", "2.2s",
            *PLAN, cwd=tmp_path,
        )  # fmt: skip

    assert 4 == done.returncode and "Traceback" not in done.stderr, done.stdout + done.stderr
    result = result_of(tmp_path / "run")
    whys = [step["invalid_why"] for step in result["steps"]]
    assert "token expired at " in whys[0] and "refused with 401" in whys[0], whys
    assert 2 == len(whys) and "token" not in (whys[1] or ""), whys  # a busy machine may make our generator late
    assert "fail" not in statuses(result) and "INCONCLUSIVE" == result["verdict"]
    told = "stopped for want of a key (no key for step s03-c1-stream-k3: --api-key-cmd ended with exit code 7"
    assert result["status_reason"].startswith(told)
    begins = [mark["detail"]["key"] for mark in marks_of(tmp_path / "run") if mark["mark"] == "begin"]
    assert [2, 3] == begins
    assert [] == holding(tmp_path / "run", ["token-hunter2"])
    assert (tmp_path / "run" / outdir.REPORT_HTML).exists()


@pytest.mark.parametrize(
    ("good", "levels", "code", "steps"),
    [
        ("preflight", ("--levels", "4,5", "--duration", "30s"), 4, ["s01-c4-stream-k1"]),
        # The window must be longer than it takes to see it, and s01 lasts as long.
        ("preflight s01-", ("--levels", "1,4,5", "--sustain", "1", "--duration", "5s", "--max-step", "5s"), 3,
         ["s01-c1-stream-k1", "s02-c4-stream-k1"]),
    ],
)  # fmt: skip
def test_a_key_that_nothing_renews(tmp_path, good, levels, code, steps):
    """Refused at a level that is needed it ends the run, refused while exploring the exploring; the target has failed
    nothing either way, and the reason says what to give."""

    def admits(method, path, headers) -> bool:
        return method != "POST" or headers["x-request-id"].startswith(tuple(good.split()))

    with FakeGateway(QUICK) as fake, FrontDoor(fake.port, admits) as door:
        target = ("--target", f"http://127.0.0.1:{door.port}", "--api-key-env", "MY_KEY")
        done = ha_sweep("run", *target, *PLAN, *levels, cwd=tmp_path, MY_KEY="sk-1")
        n_refused = sum(not each.admitted for each in door.posts)

    assert code == done.returncode, done.stdout + done.stderr
    result = result_of(tmp_path / "run")
    whys = {step["step"]: step["invalid_why"] or "" for step in result["steps"]}
    assert steps == list(whys)
    assert [False, True][2 - len(steps) :] == ["token expired at " in why for why in whys.values()]
    assert "fail" not in statuses(result)
    assert 5 <= n_refused < 100
    if code == 4:
        assert "the API key is refused" in result["status_reason"] and "--api-key-cmd" in result["status_reason"]


def test_a_certificate_nobody_vouches_for_is_one_line_before_any_load(tmp_path, authority):
    """Exit 2, nothing left behind, no request sent."""
    with FakeGateway() as fake, FrontDoor(fake.port, context=authority.server()) as door:
        done = ha_sweep("run", "--target", f"https://127.0.0.1:{door.port}", *PLAN, cwd=tmp_path)

        assert [] == door.sent
    assert 2 == done.returncode and 1 == len(done.stderr.splitlines()), done.stderr
    assert "its certificate is not trusted" in done.stderr and "--ca-file" in done.stderr
    assert [] == list(tmp_path.iterdir())


def test_an_auth_proxy_that_refuses_names_the_option(tmp_path):
    """Whichever way the key came; its value and the command's words are not repeated."""
    with FakeGateway() as fake, FrontDoor(fake.port, lambda method, *_: method != "POST") as door:
        target = ("run", "--target", f"http://127.0.0.1:{door.port}", *PLAN)
        command = ha_sweep(*target, "--api-key-cmd", "printf sk-%s hunter2", cwd=tmp_path)
        header = ha_sweep(*target, "--header", "Authorization=MY_AUTH", cwd=tmp_path, MY_AUTH="Bearer hunter2")

    assert [2, 2] == [command.returncode, header.returncode]
    assert "the key that --api-key-cmd prints is refused" in command.stderr
    assert "what --header sends (Authorization) is refused" in header.stderr
    assert "hunter2" not in command.stderr + header.stderr


def test_the_load_verifies_as_it_was_told(authority):
    """--ca-file, a client certificate and --insecure hold for the load's own sockets; without them it connects not."""
    pems = authority.pems
    asked = [
        {"ca_file": pems.ca, "cert": pems.both}, {"insecure": True, "cert": pems.cert, "key": pems.key},
        {"ca_file": pems.ca}, {"ca_file": pems.other_ca, "cert": pems.both}, {},
    ]  # fmt: skip
    with FakeGateway(QUICK) as fake, FrontDoor(fake.port, context=authority.server(wants_client=True)) as door:
        url = f"https://127.0.0.1:{door.port}"
        found = ask([{"url": url, "modes": ["stream", "nonstream"], **each} for each in asked])

    outcomes = [[record["outcome"] for record in records] for records in found]
    assert [["ok", "ok"], ["ok", "ok"]] == outcomes[:2]
    assert [] == [each for each in outcomes[2:] if "ok" in each]
    assert [["connect", "connect"]] * 2 == outcomes[3:]


def test_plain_locust_has_the_key_style_too(tmp_path):
    """`--llm-key-style`: the model is looked up and every request sent with the key in that header."""
    with FakeGateway(QUICK) as fake, FrontDoor(fake.port, lambda *sent: sent[2].get("x-api-key") == "sk-1") as door:
        command = [
            sys.executable, "-P", "-m", "locust", "-f", str(outdir.data_folder("locustfiles") / "streaming.py"),
            "--headless", "--only-summary", "--host", f"http://127.0.0.1:{door.port}", "-u", "1", "-t", "1s",
            "--llm-key-env", "MY_KEY",
        ]  # fmt: skip
        env = dict(os.environ) | {"MY_KEY": "sk-1", "HOME": str(tmp_path)}
        settings = {"cwd": tmp_path, "env": env, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        good = subprocess.run([*command, "--llm-key-style", "x-api-key"], timeout=60, **settings)
        assert [True] * len(door.sent) == [each.admitted for each in door.sent] and door.posts, good.stderr
        wrong = subprocess.run([*command, "--llm-key-style", "a b"], timeout=60, **settings)

    assert 0 == good.returncode, good.stderr
    assert 2 == wrong.returncode and "--llm-key-style: write bearer" in wrong.stderr
