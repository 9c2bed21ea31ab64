"""A user's own locustfile: under `ha-sweep run -f`, under plain Locust, refused where it cannot drive."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from command import QUICK, clean_environment, ha_sweep, result_of, undisturbed
from demo_process import demo
from locust_step import DEADLINE_S, lines, run_step

from sweep import outdir
from sweep.errors import PlanError
from sweep.own_locustfile import as_user_plan, changed_why, checked, evidence_of
from sweep.plan import SweepPlan, parse_levels
from sweep.records import Record

SECRET_TEXT = "Name three rivers"
OWN = '''
from locust import between, events, tag, task
from sweep.llm_user import LlmUser

import texts


@events.init_command_line_parser.add_listener
def _(parser):
    parser.add_argument("--my-length", type=int, default=6)


class Reader(LlmUser):
    weight = 3
    wait_time = between(0.02, 0.04)

    def on_start(self):
        self.length = self.environment.parsed_options.my_length
        self.number = self.user = "a name of the user's own"

    def on_stop(self):
        self.ask(stream=True)

    @tag("a")
    @task(3)
    def read_along(self):
        self.ask(stream=True, prompt=texts.RIVERS, max_tokens=self.length)

    @task
    def wait_for_all(self):
        import late_texts

        talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": late_texts.RIVERS}]
        self.ask(stream=False, messages=talk, max_tokens=5, extra_body={"temperature": 0}, name="brief")


class Talker(LlmUser):
    @task
    def talk(self):
        self.ask(stream=True)


class _Unused(LlmUser):
    abstract = True
'''


SWALLOWS = """
from locust import task
from sweep.llm_user import LlmUser

class Swallows(LlmUser):
    @task
    def talk(self):
        while True:
            try:
                self.ask(stream=True)
            except BaseException:
                pass
"""


def write_own(folder: Path, content: str = OWN, name: str = "my_locustfile.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for texts in ("texts.py", "late_texts.py"):
        (folder / texts).write_text(f'RIVERS = "{SECRET_TEXT}"\n')
    (folder / name).write_text(content)
    return folder / name


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise RuntimeError('no login with ' + os.environ['SKEY'] + 'x' * 9000)", "RuntimeError: no login with ***"),
        ("print('no login with ' + os.environ['SKEY'], flush=True); os._exit(0)", "last words: no login with ***"),
    ],
)
def test_a_key_in_what_the_file_says_is_masked(tmp_path, monkeypatch, code, said):
    monkeypatch.setenv("SKEY", "sk-0123456789abcdef")
    own = write_own(tmp_path, f"import os\n{OWN}\n{code}")
    plan = SweepPlan(target="http://127.0.0.1:9", levels=parse_levels("1"), locustfile=str(own), api_key_env="SKEY")
    with pytest.raises(PlanError) as refused:
        checked(plan)
    assert said in str(refused.value) and "0123" not in str(refused.value)
    assert len(str(refused.value)) < 700


def set_traps(folder: Path) -> dict[str, str]:
    """What takes over any Locust that is started here; the environment that belongs to it."""
    home = folder / "home"
    home.mkdir()
    trap = "headless = true\nusers = 3\nspawn-rate = 3\nrun-time = 2s\n"
    (folder / "locust.conf").write_text(trap)
    (home / ".locust.conf").write_text(trap)
    toml = "[tool.locust]\nheadless = true\nusers = 3\nspawn-rate = 3\nrun-time = '2s'\n"
    (folder / "pyproject.toml").write_text(toml)
    return {"HOME": str(home)}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """An own locustfile swept from another folder, full of Locust's configuration: the folder, and what was said."""
    folder = tmp_path_factory.mktemp("working")
    own = write_own(tmp_path_factory.mktemp("elsewhere"))
    traps = set_traps(folder) | {"LOCUST_USERS": "40", "LOCUST_RUN_TIME": "1s", "LOCUST_LLM_API": "ollama-chat"}

    def attempt() -> subprocess.CompletedProcess[str]:
        shutil.rmtree(folder / "run", ignore_errors=True)
        return ha_sweep(
            "run", "--demo", "-f", str(own), "--levels", "4", "--duration", "2s", "--warmup", "0.5s",
            "--cooldown", "0.5s", "--max-tokens", "8", "--prompt-tokens", "16", "--slo", "stream.ttft_ms.p95<=2000",
            "--out-dir", "run", cwd=folder, **traps,
        )  # fmt: skip

    done = undisturbed(attempt)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    return folder / "run", own, done


def records_of(out_dir: Path) -> list[Record]:
    return lines(out_dir / outdir.requests_file("s01-c4-user-k1", "w01"), Record)


@pytest.mark.slow
def test_own_classes_drive_a_level(swept):
    """One step, LEVEL users over the classes by weight, each mode a row of its own, valid whatever users pause."""
    out_dir, own, _ = swept
    result = result_of(out_dir)

    assert f"for 4 users of openai-chat with model demo-1 by Reader and Talker of {own.name}" in result["sentence"]
    assert [("4", "stream"), ("4", "nonstream")] == [(row["level"], row["mode"]) for row in result["levels"]]
    assert ["s01-c4-user-k1"] == [step["step"] for step in result["steps"]]
    assert all(row["valid"] and row["ok"] for row in result["levels"]), result["steps"]
    assert 4 == result["levels"][0]["generator"]["users_min"]
    assert 0 < sum(row["in_flight"]["v"] for row in result["levels"]) < 4
    log = (out_dir / outdir.locust_log("s01-c4-user-k1")).read_text()
    assert '"Reader": 3, "Talker": 1' in log
    statuses = {(each["gate"], each["mode"]): each["status"] for each in result["findings"]}
    assert statuses["slo stream.ttft_ms.p95<=2000", "stream"] in ("pass", "unknown")
    assert "pass" == statuses["counts agree", "user"]


@pytest.mark.slow
def test_a_task_says_what_its_requests_ask_for(swept):
    """Own prompt, messages and max_tokens arrive; without them the plan's. The server's counts say so."""
    records = [record for record in records_of(swept[0]) if record.outcome == "ok"]

    assert {(True, 6), (True, 8), (False, 5)} == {(record.stream, record.n_out) for record in records}
    n_in = {record.n_out: record.n_in for record in records}
    assert n_in[6] < n_in[5] < n_in[8], n_in  # three words; two more; the plan's prompt


@pytest.mark.slow
def test_users_start_evenly_without_the_classes_help(swept):
    """on_start that calls no super() changes nothing: no two users begin in the same instant."""
    firsts: dict[int, int] = {}
    for record in sorted(records_of(swept[0]), key=lambda record: record.t_start_ns):
        firsts.setdefault(record.user, record.t_start_ns)
    starts = [firsts[user] for user in range(4)]

    assert all(b - a >= 0.04e9 for a, b in itertools.pairwise(starts))


@pytest.mark.slow
def test_the_locustfile_is_known_by_its_hash(swept):
    """Name, hash and classes are evidence; its text and what it asks are not."""
    out_dir, own, _ = swept
    run = msgspec.json.decode((out_dir / outdir.RUN).read_bytes())

    digest = hashlib.sha256(own.read_bytes()).hexdigest()
    assert {"path": str(own), "sha256": digest, "classes": ["Reader", "Talker"]} == run["locustfile"]
    assert ("user", ["Reader", "Talker"]) == (run["plan"]["mode"], run["plan"]["user_class"])
    assert [] == [path for path in out_dir.rglob("*") if path.is_file() and SECRET_TEXT.encode() in path.read_bytes()]


class _Repeats(BaseHTTPRequestHandler):
    """Refuses each request by repeating it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        body = json.dumps({"error": {"message": f"cannot take: {asked}", "code": asked}}).encode()
        self.send_response(400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.slow
def test_a_task_s_own_prompt_that_an_error_repeats_is_not_kept(tmp_path):
    """ask says of prompts that they are never kept in evidence."""
    own = tmp_path / "own.py"
    own.write_text(
        "from locust import task\nfrom sweep.llm_user import LlmUser\n\n\nclass Reader(LlmUser):\n    @task\n"
        f"    def read(self):\n        self.ask(stream=False, prompt={SECRET_TEXT!r})\n"
    )
    gateway = ThreadingHTTPServer(("127.0.0.1", 0), _Repeats)
    threading.Thread(target=gateway.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{gateway.server_port}"
        run_step(tmp_path / "run", url, locustfile=str(own), max_step_s=1.0)
    finally:
        gateway.shutdown()
        gateway.server_close()

    records = lines(tmp_path / "run" / "out" / outdir.requests_file("s01-c1-stream-k1", "w01"), Record)
    assert {("http_4xx", "***", "cannot take: ***")} == {(r.outcome, r.error_code, r.error_text) for r in records}


@pytest.mark.slow
def test_the_report_of_own_classes_verifies(swept):
    """The judgement is the same again, and its renderings hold both rows."""
    out_dir, _, _ = swept

    assert 0 == ha_sweep("verify", "run", cwd=out_dir.parent).returncode
    summary = (out_dir / outdir.SUMMARY_MD).read_text()
    assert "4 stream (one step with the other mode)" in summary
    assert "4 nonstream (one step with the other mode)" in summary


@pytest.mark.slow
def test_configuration_in_the_way_changes_nothing_without_a_file(tmp_path):
    """LEVEL users and our own end of the step, whatever locust.conf, pyproject.toml and LOCUST_USERS say."""
    traps = set_traps(tmp_path) | {"LOCUST_USERS": "40", "LOCUST_RUN_TIME": "1s"}
    more = ("--levels", "2", "--mode", "stream", "--duration", "2s")
    done = ha_sweep("run", "--demo", *QUICK, *more, "--out-dir", "run", cwd=tmp_path, **traps)

    assert done.returncode in (0, 3), done.stderr
    (step,) = result_of(tmp_path / "run")["steps"]
    assert step["valid"] and step["window_s"] >= 2
    assert 2 == result_of(tmp_path / "run")["levels"][0]["generator"]["users_min"]


@pytest.mark.slow
def test_the_same_file_runs_under_plain_locust(tmp_path):
    """From another folder, whose locust.conf plain Locust does obey; its --llm-… options, weights and tasks count."""
    traps = set_traps(tmp_path)
    # What is imported in a task, Locust itself finds only in the working folder.
    own = write_own(tmp_path / "elsewhere", OWN.replace("import late_texts", "late_texts = texts"))
    with demo() as gateway:
        command = [
            sys.executable, "-m", "locust", "-f", str(own), "--host", f"http://127.0.0.1:{gateway.port}",
            "--csv", "stats", "--my-length", "4", "--llm-max-tokens", "9", "--llm-think-time", "0.5",
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=tmp_path, env=clean_environment(**traps), capture_output=True, text=True, timeout=60
        )

    assert 0 == done.returncode, done.stderr
    assert '{"Reader": 2, "Talker": 1}' in done.stderr
    header, *rows = (tmp_path / "stats_stats.csv").read_text().splitlines()
    counts = {}
    for row in rows:
        values = dict(zip(header.split(","), row.split(","), strict=True))
        counts[values["Type"], values["Name"]] = int(values["Request Count"])
        assert "0" == values["Failure Count"]
    assert {("stream", "openai-chat"), ("nonstream", "brief"), ("", "Aggregated")} == set(counts)


@pytest.mark.slow
def test_think_time_of_the_option_counts_where_a_class_has_none(tmp_path):
    """One user of 0.5 s pauses sends at most five requests in two seconds."""
    with demo() as gateway:
        command = [
            sys.executable, "-m", "locust", "-f", str(outdir.data_folder("locustfiles") / "streaming.py"), "--headless",
            "-u", "1", "-t", "2s", "--host", f"http://127.0.0.1:{gateway.port}", "--llm-max-tokens", "2",
            "--llm-think-time", "0.5",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        n_tokens = gateway.metric("tokens_total")

    assert 0 == done.returncode, done.stderr
    assert 2 <= n_tokens <= 2 * 5


RAISES = '''
from locust import task
from sweep.llm_user import LlmUser


class Checker(LlmUser):
    @task
    def check(self):
        record = self.ask(stream=True)
        {body}
'''


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise KeyError('colour')", "Checker raised KeyError('colour') in raises.py, line 10"),
        ("self.ask(stream=True, prompt='a', messages=[])", "ValueError('ask: give a prompt or messages, not both')"),
        ("self.ask(stream=True, extra_body={'model': 'x'})", "extra_body may not hold 'model'"),
        ("self.environment.runner.quit()", "Locust was ended during the step, not by ha-sweep"),
    ],
)
def test_a_step_whose_own_code_fails_says_so(tmp_path, body, words):
    """The step ends at once and is no evidence; the reason names class and line, and calls it no fault of ours."""
    own = write_own(tmp_path / "own", RAISES.format(body=body), "raises.py")
    with demo() as gateway:
        done = run_step(
            tmp_path / "step", f"http://127.0.0.1:{gateway.port}", locustfile=str(own), model="demo-1",
            locustfile_folder=str(own.parent), max_tokens=2,
        )  # fmt: skip

    assert not done.report.counts_agree
    assert words in (done.report.why or ""), done.report.why
    assert "reader" not in (done.report.why or "")
    assert done.report.processes[0].started == len(done.records) >= 1


@pytest.mark.slow
def test_users_that_end_are_missing_in_the_window(tmp_path):
    """StopUser is no error, but fewer users than the level were alive: the step ends and is not of its level."""
    body = "from locust.exception import StopUser; raise StopUser"
    own = write_own(tmp_path / "own", RAISES.format(body=body), "stops.py")
    with demo() as gateway:
        done = run_step(
            tmp_path / "step", f"http://127.0.0.1:{gateway.port}", locustfile=str(own), model="demo-1", users=2,
            locustfile_folder=str(own.parent), max_tokens=2, duration_s=0.3,
        )  # fmt: skip

    assert (0, 2, "locustfile") == (done.report.users_min, done.report.users_wanted, done.report.closed_by)
    assert "users of the locustfile ended before the step did" == done.report.why


# -- what is refused ---------------------------------------------------------------------------------------------------

GOOD = "class Good(LlmUser):\n    @task\n    def t(self):\n        self.ask(stream=True)\n"
PLAIN = "class Plain(User):\n    @task\n    def t(self):\n        pass\n"
WAVES = "class Waves(LoadTestShape):\n    def tick(self):\n        return None\n"
HEAD = "from locust import LoadTestShape, User, events, task\nfrom sweep.llm_user import LlmUser\n"


def plan_for(path: Path | str, *classes: str) -> SweepPlan:
    plan = SweepPlan(
        target="http://127.0.0.1:9", levels=parse_levels("1"), locustfile=str(path), user_classes=classes
    )
    return as_user_plan(plan, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "classes", "words"),
    [
        (HEAD + GOOD + PLAIN, (), ["Plain is not derived", "name the classes to start: Good"]),
        (HEAD + GOOD + PLAIN, ("Plain",), ["class Plain is not derived from sweep.llm_user.LlmUser"]),
        (HEAD + GOOD, ("Goot",), ["'Goot'", "did you mean Good?", "it holds Good"]),
        (HEAD + PLAIN, (), ["no class in it is derived"]),
        (HEAD + "class Idle(LlmUser):\n    pass\n", (), ["Idle has no task", "@task"]),
        (HEAD + GOOD + WAVES, (), ["Waves is a LoadTestShape"]),
        (
            "from sweep.open_loop import OpenLoopUser\n" + HEAD + GOOD.replace("LlmUser", "OpenLoopUser"), (),
            ["class Good is an open loop", "give levels like 5/s"],
        ),
        ("x = (\n", (), ["line 1", "never closed"]),
        ("\nimport nothing_there\n", (), ["line 2", "ModuleNotFoundError", "nothing_there"]),
        ("open('p.txt')\n", (), ["line 1", "FileNotFoundError", "empty folder", "Path(__file__)"]),
        ("import os\nos._exit(7)\n", (), ["ended the process (7)"]),
    ],
)
def test_a_file_that_cannot_drive_is_refused(tmp_path, content, classes, words):
    """One line that names the class or the line; the file is never imported by us."""
    with pytest.raises(PlanError) as refused:
        checked(plan_for(write_own(tmp_path, content, "own_file.py"), *classes))

    assert [] == [word for word in words if word not in str(refused.value)], str(refused.value)
    assert "\n" not in str(refused.value)
    assert not {"own_file", "locust", "gevent"} & set(sys.modules)


@pytest.mark.slow
def test_classes_are_chosen_as_locust_does(tmp_path):
    """All that can start, or those named; an option of the file's own without a default is refused."""
    own = write_own(tmp_path)
    needs = HEAD + GOOD + "@events.init_command_line_parser.add_listener\ndef _(parser):\n"
    needs += "    parser.add_argument('--town', required=True)\n"

    assert ("Reader", "Talker") == checked(plan_for(own)).user_classes
    assert ("Talker",) == checked(plan_for(own, "Talker")).user_classes
    with pytest.raises(PlanError, match=r"its own Locust options need a default.*--town"):
        checked(plan_for(write_own(tmp_path, needs, "needs.py")))


def test_what_means_nothing_with_a_file_is_refused(tmp_path):
    """--mode beside -f, a class without -f, and a file that is none."""
    plan = SweepPlan(target="http://127.0.0.1:9", levels=parse_levels("1"))
    for wrong, mode, words in (
        (plan_for_fields(plan, locustfile="x.py"), "both", "--mode"),
        (plan_for_fields(plan, user_classes=("Reader",)), None, "'Reader' is no option"),
    ):
        with pytest.raises(PlanError, match=words):
            as_user_plan(wrong, mode)
    for name in ("nowhere.py", str(tmp_path), "a,b.py"):
        with pytest.raises(PlanError, match="give the path of one locustfile"):
            checked(plan_for(name))


def plan_for_fields(plan: SweepPlan, **changes: object) -> SweepPlan:
    from dataclasses import replace

    return replace(plan, **changes)


@pytest.mark.slow
def test_a_refusal_sends_nothing_and_leaves_nothing(tmp_path):
    """Through the command line: exit 2, one line, no OUT_DIR."""
    write_own(tmp_path, HEAD + PLAIN, "plain.py")
    before = sorted(tmp_path.iterdir())
    done = ha_sweep("run", "--demo", "--levels", "1", "-f", "plain.py", "Plain", cwd=tmp_path)

    assert (2, 1) == (done.returncode, len(done.stderr.splitlines())), done.stderr
    assert "ha-sweep: -f plain.py: class Plain is not derived" in done.stderr
    assert before == sorted(tmp_path.iterdir())


# -- ours --------------------------------------------------------------------------------------------------------------


def test_ours_are_printed_and_copied(tmp_path):
    """Folder, names and a line each; a copy is whole and never overwrites."""
    shown = ha_sweep("locustfiles", cwd=tmp_path).stdout
    folder = outdir.data_folder("locustfiles")
    names = sorted(path.name for path in folder.glob("*.py"))

    assert str(folder) in shown and all(name in shown for name in names)
    copied = ha_sweep("locustfiles", "mine/here", cwd=tmp_path)
    assert [f"copied {Path('mine/here') / name}" for name in names] == copied.stdout.splitlines()
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "mine" / "here" / name).read_bytes()
    again = ha_sweep("locustfiles", "mine/here", cwd=tmp_path)
    assert (2, "") == (again.returncode, again.stdout)
    assert "is not overwritten" in again.stderr


def test_nobody_who_reads_the_list_is_no_judgement_about_a_target(tmp_path):
    """`ha-sweep locustfiles | head -0`: exit 0, since 1 says that a target failed."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-P", "-m", "sweep", "locustfiles"]
        done = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(writer)

    assert (0, b"") == (done.returncode, done.stderr)


@pytest.mark.slow
def test_users_that_swallow_the_end_of_the_step_make_it_invalid_and_hold_nothing_up(tmp_path):
    own = write_own(tmp_path / "own", SWALLOWS)
    with demo() as gateway:
        began = time.monotonic()
        done = run_step(
            tmp_path / "step", f"http://127.0.0.1:{gateway.port}", locustfile=str(own), users=2, model="demo-1",
            max_step_s=2.0, drain_s=1.0, locustfile_folder=str(own.parent),
        )  # fmt: skip
    assert "do not end" in done.report.why and "except Exception" in done.report.why
    assert time.monotonic() - began < DEADLINE_S / 2


def test_a_file_changed_or_gone_while_it_drives_is_told(tmp_path):
    own = write_own(tmp_path)
    plan = SweepPlan(target="http://127.0.0.1:9", levels=parse_levels("1"), locustfile=str(own))
    driving = evidence_of(plan)
    assert changed_why(plan, driving) is None
    own.write_text(OWN + "# more\n")
    assert f"{own} was changed while it drove the run" == changed_why(plan, driving)
    own.unlink()
    assert "No such file" in changed_why(plan, driving)
    assert changed_why(plan, None) is None
