"""What a run leaves behind is told from its evidence: who was charged, what is loaded, what stands on this machine."""

from __future__ import annotations

import contextlib
from collections import Counter

import msgspec
import pytest
from build import make_record, write_run
from command import QUICK, ha_sweep, result_of
from fake_gateway import FakeGateway

from sweep import evidence
from sweep.endpoint import parse_endpoint
from sweep.left_behind import left_behind
from sweep.loaded import ask_loaded, last_look
from sweep.masking import Masked
from sweep.probe import Probe
from sweep.windows import plan_of

OK = "HTTP 200 application/json\n---\n"
SOON, LATER, NEVER = "2026-12-01T00:05:00.123456789Z", "2026-12-01T02:10:00+02:00", "2318-06-01T00:00:00Z"
PROFILE = {"ttft_s": 0.005, "gap_s": 0.0, "n_tokens": 2}
STAYS = "(--extra-body), which sets how long the model stays"
AT_SOON, AT_LATER = "(until 2026-12-01T00:05:00Z)", "(until 2026-12-01T00:10:00Z)"


def told(tmp_path, change=lambda run: None, **plan) -> list[str]:
    ev = evidence.read(write_run(tmp_path / "out", change, **plan))
    return left_behind(ev, plan_of(ev.run))


def model(name: str = "m:1", **fields) -> dict:
    return {"name": name, **fields}


def models_told(tmp_path, before, after) -> list[str]:
    """before, after: entries, or why there are none."""

    def change(run):
        for mark, found in ((run.marks[0], before), (run.marks[-1], after)):
            mark.detail["loaded"] = {"models": None, "why": found} if isinstance(found, str) else {"models": found}

    return [line for line in told(tmp_path, change) if line.startswith("model")]


def test_requests_and_tokens_are_told_by_the_keys_name(tmp_path):
    """With those before the first level, and the ones that gave no count."""

    def change(run):
        run.steps[0].records[:4] = run.steps[0].make(4, outcome="truncated")
        run.steps[0].records[4:6] = run.steps[0].make(2, t_sent_ns=None, outcome="connect")
        for record in run.steps[0].records[6:10]:
            record.token_source = "events"

    first = told(tmp_path, change, api_key_env="GATEWAY_KEY")[0]

    assert first == (
        "318 openai-chat requests, 3,768 prompt and 1,240 output tokens, 16 more output tokens by counted events, and "
        "those of 4 requests that gave no count, charged to the key in GATEWAY_KEY"
    )


def test_tokens_that_nobody_counted_are_unknown_not_none(tmp_path):
    """A server without usage: events are told as events, and what has neither is not 0."""

    def change(run, source):
        for record in (record for step in run.steps for record in step.records):
            record.n_in, record.token_source = None, source
            record.n_out = None if source is None else record.n_out

    by_events = told(tmp_path / "a", lambda run: change(run, "events"))[0]
    untold = told(tmp_path / "b", lambda run: change(run, None))[0]

    assert ", unknown prompt and unknown output tokens, 1,280 output tokens by counted events, charged" in by_events
    assert ", unknown prompt and unknown output tokens, and those of 320 requests that gave no count," in untold


def test_requests_before_the_first_level_and_each_api_are_told(tmp_path):
    """The preflight costs too; an own locustfile may speak several APIs."""

    def change(run):
        for record in run.steps[1].records:
            record.api = "ollama-chat"
        run.steps[0].records.pop()

    out = write_run(tmp_path / "out", change)
    early = make_record(step="preflight", api="ollama-chat")
    preflight = out / "requests" / "preflight.w01.jsonl"
    preflight.write_bytes(msgspec.json.encode(early) + b"\n")
    ev = evidence.read(out)

    assert [
        "159 openai-chat requests, 1,908 prompt and 636 output tokens, charged to no key (none was sent)",
        "161 ollama-chat requests (1 before the first level), 1,932 prompt and 644 output tokens, charged to no key "
        "(none was sent)",
    ] == sorted(left_behind(ev, plan_of(ev.run))[:2])


@pytest.mark.parametrize(
    ("models", "why"),
    [(None, "for how long the model was to stay is not known"), ([], "for nothing was loaded"),
     ([{"name": "m:1", "expires_at": None}], "as the model was found")],
)  # fmt: skip
def test_an_api_without_tokens_is_charged_for_its_prompts(tmp_path, models, why):
    """No output token is missed where none is made; the keep-alive that was sent is told, and why that one."""

    def change(run):
        run.marks[0].detail["loaded"] = {"models": models, "why": "/api/ps answers 404"}
        run.run |= {"preflight": {"kept": {"keep_alive": -1}}, "dialect": {"streams": False, "has_tokens": False}}
        for record in run.steps[0].records + run.steps[1].records:
            record.api, record.n_out, record.token_source = "ollaya-decide", None, None

    said = told(tmp_path, change)

    assert "320 ollaya-decide requests, 3,840 prompt tokens, charged to no key (none was sent)" == said[0]
    assert f"each request carried keep_alive -1, {why}" in said


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"api_key_cmd": "secret-tool get x"}, "charged to the keys that --api-key-cmd gave"),
        ({"headers": {"X-Team": "TEAM"}}, "charged to no key, sent with header X-Team from TEAM"),
        ({"headers": {"X-T": "T"}, "api_key_env": "K"}, "charged to the key in K, sent with header X-T from T"),
    ],
)
def test_the_account_is_named_by_where_its_secret_comes_from(tmp_path, plan, words):
    """Never by the secret, and never by a command that may hold one."""
    first = told(tmp_path, **plan)[0]

    assert first.endswith(words)


def test_gets_beside_the_load_are_counted(tmp_path):
    """By path, from the mark at the end; a killed run knows only its health lines."""

    def change(run):
        run.marks[-1].detail["gets"] = {"/api/ps": 2, "/healthz": 1200}

    assert "beside the load 1,202 GETs: 1,200 of /healthz, 2 of /api/ps" in told(tmp_path, change)
    killed = told(tmp_path / "killed", lambda run: run.marks.pop())
    assert any(line.startswith("beside the load at least ") for line in killed)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([], [], "models: none was loaded before this run, none is now: as found"),
        ([], [model(expires_at=SOON)],
         f"model m:1 was not loaded before; it is now {AT_SOON}, and was left loaded: others may use it"),
        ([], [model(expires_at=NEVER)],
         "model m:1 was not loaded before; it is now (pinned for ever), and was left loaded: others may use it"),
        ([model(expires_at=SOON)], [model(expires_at=LATER)],
         f"model m:1 was loaded before and is now {AT_LATER}: as found"),
        ([model(expires_at=None)], [model(expires_at=NEVER)],
         "model m:1 was loaded before and is now (pinned for ever): as found"),
        ([model(expires_at=None)], [model(expires_at=SOON)],
         f"model m:1 lost its pin: it was pinned for ever before and is now loaded {AT_SOON}: not restored"),
        ([model(expires_at=SOON)], [model(expires_at=None)],
         f"model m:1 was loaded before {AT_SOON} and is now (pinned for ever): not restored"),
        ([model(expires_at=SOON)], [],
         f"model m:1 was loaded before {AT_SOON} and is not now, unloaded by its timer or to make room: not restored"),
        ([model()], [model()], "model m:1 was loaded before and is now (until when is not told): as found"),
        ([model(expires_at="soon")], [model(expires_at=5)],
         "model m:1 was loaded before and is now (until when is not told): as found"),
        ([model(context_length=4096)], [model(context_length=8192)],
         "model m:1 was loaded before and is now with another context length (until when is not told): not restored"),
        ([model(digest="a")], [model(digest="b")],
         "model m:1 was loaded before and is now with other bytes under its name (until when is not told): "
         "not restored"),
        ("/api/ps answers 404", "/api/ps answers 404", "models: which are loaded is not known (/api/ps answers 404)"),
        ([model()], "/api/ps: ConnectError",
         "models: m:1 loaded before; now not known (/api/ps: ConnectError): may not be restored"),
        ("/api/ps: ReadTimeout", [model()],
         "models: m:1 loaded now; before not known (/api/ps: ReadTimeout): may not be restored"),
    ],
)  # fmt: skip
def test_models_found_and_left(tmp_path, before, after, said):
    """Each change of what the target holds in memory is a sentence that says whether the state found was restored."""
    assert [said] == models_told(tmp_path, before, after)


def test_a_model_that_had_to_make_room_is_told_beside_the_one_that_took_it(tmp_path):
    """The load may evict what somebody else loaded."""
    lines = models_told(tmp_path, [model("theirs")], [model("ours", expires_at=SOON)])

    assert ["model ours was not loaded before", "model theirs was loaded before"] == [
        line.partition(";")[0].partition(" (")[0] for line in lines
    ]


def test_more_models_than_a_page_holds_are_counted(tmp_path):
    """A target may list hundreds."""
    many = [model(f"m{i:02d}") for i in range(30)]

    assert (11, "and 20 more models; see the start and finish marks") == (
        len(lines := [line for line in told_with(tmp_path, many) if "model" in line]), lines[-1]
    )  # fmt: skip


def told_with(tmp_path, entries: list[dict]) -> list[str]:
    def change(run):
        for mark in (run.marks[0], run.marks[-1]):
            mark.detail["loaded"] = {"models": entries}

    return told(tmp_path, change)


def test_evidence_of_runs_that_did_not_ask_says_so(tmp_path):
    """Older runs, and one that was killed."""
    assert "models: which are loaded is not known (it was not asked before the run)" in told(tmp_path)


@pytest.mark.parametrize(
    ("extra_body", "said"),
    [
        ({"keep_alive": -1}, [f"each request carried keep_alive -1 {STAYS}"]),
        ({"keep_alive": None}, [f"each request carried keep_alive null {STAYS}"]),
        ({"store": True}, ["each request carried store true (--extra-body), which the server may obey"]),
        ({"store": False, "top_k": 1}, []),
    ],
)  # fmt: skip
def test_what_the_requests_asked_to_be_kept_is_told(tmp_path, extra_body, said):
    """Nothing of ours asks for it; a body of the user's may."""
    assert said == [line for line in told(tmp_path, extra_body=extra_body) if line.startswith("each request")]


def test_a_killed_run_does_not_claim_to_have_cleaned_up(tmp_path):
    """Neither a finish nor an abort mark: nobody removed the scratch files."""
    assert ["files: none outside OUT_DIR (scratch files in the temporary folder are removed at the end)",
            "processes and connections: none"] == told(tmp_path)[-2:]  # fmt: skip
    killed = told(tmp_path / "killed", lambda run: run.marks.pop())
    assert ["files: scratch files (ha-sweep-*) may still stand in the temporary folder: the run was killed"] == [
        line for line in killed if line.startswith(("files", "processes"))
    ]


def test_what_an_own_locustfile_started_is_told_as_far_as_it_was_looked_for(tmp_path):
    (line,) = [line for line in told(tmp_path, locustfile="f.py", mode="user") if line.startswith("processes")]
    assert "none of ours" in line and "a session of its own (setsid) was not looked for" in line


def asked(route: str, key: str | None = None) -> tuple[dict, int, int]:
    """What was found, GETs counted by us and by the server."""
    with FakeGateway(routes={"/api/ps": route}) as fake:
        masked = Masked(filter(None, [key]))
        with contextlib.closing(Probe(parse_endpoint(f"{fake.url}/v1"), key, None, masked, 0.5)) as probe:
            found = last_look(probe)
            n_gets = found["gets"]["/api/ps"]
            return found["loaded"], n_gets, len(fake.log(n_gets, "received"))  # it writes its log when it has time


@pytest.mark.parametrize(
    ("route", "found"),
    [
        (OK + '{"models":[]}', {"models": [], "why": None}),
        (OK + '{"models":[{"name":"m:1","size":5,"expires_at":null,"context_length":4096,"details":{"a":[1]}}]}',
         {"models": [{"name": "m:1", "expires_at": None, "context_length": 4096}], "why": None}),
        (OK + '{"models":[{"name":"k-secret","digest":{"a":1},"expires_at":"k-secret"}]}',
         {"models": [{"name": "***", "expires_at": "***"}], "why": None}),
        (OK + '{"models":[{"digest":"x"}]}', {"models": None, "why": "/api/ps answers no list of models"}),
        (OK + "<html>", {"models": None, "why": "/api/ps answers no list of models"}),
        ("HTTP 404 text/plain\n---\nno", {"models": None, "why": "/api/ps answers 404"}),
        (OK + "{<<SLEEP 3>>}", {"models": None, "why": "/api/ps: ReadTimeout"}),
    ],
)  # fmt: skip
def test_asking_what_is_loaded_keeps_what_is_told_and_fails_as_data(route, found):
    """Bounded in time; no key of ours is kept, whatever the server echoes; each GET is counted as the server does."""
    loaded, counted, received = asked(route, "k-secret")

    assert found == loaded
    assert counted == received


def test_a_target_that_is_gone_is_no_error():
    """The run may end because it is."""
    with contextlib.closing(Probe(parse_endpoint("http://127.0.0.1:9"), None, None, Masked([]))) as probe:
        assert {"models": None, "why": "/api/ps: ConnectError"} == ask_loaded(probe)


@pytest.mark.slow
def test_a_real_run_asks_once_before_and_once_after(tmp_path):
    """A server like Ollama that loads a model at the first request; it saw every GET that the report counts."""
    loaded = [OK + '{"models":[]}', OK + '{"models":[{"name":"m","expires_at":"2318-01-01T00:00:00Z"}]}']
    health = OK + '{"status":"ok"}'
    with FakeGateway(PROFILE, routes={"/api/ps": loaded, "/healthz": health}, last_stays=True) as fake:
        done = ha_sweep(
            "run", "--target", fake.url, "--api", "ollama-chat", "--model", "m", "--levels", "1", "--mode", "stream",
            "--extra-body", '{"keep_alive":-1}', *QUICK, "--max-step", "3s", "--out-dir", "run", cwd=tmp_path,
        )  # fmt: skip
        seen = Counter(entry["path"] for entry in fake.log())
    said = result_of(tmp_path / "run")["left_behind"]

    assert done.returncode in (0, 3), done.stderr
    assert said[0].startswith(f"{seen['/api/chat']:,} ollama-chat requests (1 before the first level), ")
    assert (2, True) == (seen["/api/ps"], "2 of /api/ps" in said[1])
    assert f"{seen['/healthz']:,} of /healthz" in said[1]
    assert "model m was not loaded before; it is now (pinned for ever), and was left loaded: others may use it" in said
    assert f"each request carried keep_alive -1 {STAYS}" in said
    assert said[2][:40] in (tmp_path / "run" / "summary.md").read_text()
