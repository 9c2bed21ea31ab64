"""What an address speaks and what is chosen of it: real servers, asked as an operator's would be."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from demo_process import demo
from fake_gateway import FakeGateway
from test_wire_tls import tls as tls

from sweep.access import Access
from sweep.asking import ask, embeds_only, knock
from sweep.choosing import (
    Choice,
    Guess,
    choose_api_and_model,
    choose_model,
    choose_scheme,
    choose_target,
    find_all_paths,
    guess_lines,
    with_kind,
)
from sweep.endpoint import parse_endpoint
from sweep.errors import PlanError
from sweep.listeners import Listener
from sweep.masking import Masked
from sweep.options import run_options
from sweep.plan import SweepPlan, parse_levels
from sweep.probe import Probe

GONE = "HTTP 404 text/plain\n---\nno"
DENIED = "HTTP 401 application/json\n---\n{}"


def answers(content: object) -> str:
    kind = "text/plain" if isinstance(content, str) else "application/json"
    return f"HTTP 200 {kind}\n---\n{content if isinstance(content, str) else json.dumps(content)}"


def tags(*names: str) -> str:
    return answers({"models": [{"name": name, "model": name, "details": {"families": ["llama"]}} for name in names]})


VERSION = answers({"version": "0.33.0"})
MODELS = answers({"object": "list", "data": [{"id": "m"}]})
NOTHING = {"/": answers("Welcome"), "/api/version": GONE, "/api/tags": GONE, "/v1/models": GONE}
OPENAI = NOTHING | {"/v1/models": MODELS}
OLLAMA = NOTHING | {"/": answers("Ollama is running"), "/api/version": VERSION, "/api/tags": tags("m")}
OLLAYA = OLLAMA | {"/": answers("Ollaya is running"), "/v1/models": answers({"models": [{"name": "laya:en"}]})}


OPENED: dict[tuple, Probe] = {}


def open_probe(url: str, key: str | None = None) -> Probe:
    """One a URL, as a run has them."""
    if (url, key) not in OPENED:
        OPENED[url, key] = Probe(parse_endpoint(url), key, None, Masked(filter(None, [key])))
    return OPENED[url, key]


@pytest.fixture(autouse=True)
def end_of_test():
    yield
    end_of_run()


def end_of_run() -> None:
    while OPENED:
        OPENED.popitem()[1].close()


def make_plan(target: str = "http://127.0.0.1:9", **given: object) -> SweepPlan:
    return SweepPlan(target=target, levels=parse_levels("1"), **given)


def spoken(routes: dict):
    with FakeGateway(routes=routes) as fake:
        return ask(knock(fake.url, open_probe, may_switch=False), open_probe)


def chosen_of(choice: Choice, found: tuple | list, opener) -> Choice:
    return choose_api_and_model(choose_scheme(choice, opener, Access(choice.plan).shake_hands), found, opener)


def chosen(routes: dict, **given: object) -> Choice:
    with FakeGateway(routes=routes) as fake:
        return chosen_of(Choice(make_plan(fake.url, **given)), (), open_probe)


def refusal(routes: dict, **given: object) -> str:
    with pytest.raises(PlanError) as caught:
        chosen(routes, **given)
    return str(caught.value)


def listener(url: str, is_own: bool = True, is_loopback: bool = True) -> Listener:
    port = int(url.rpartition(":")[2])
    return Listener(url, f"127.0.0.1:{port}", port, is_loopback, 7, "gw", is_own)


@pytest.mark.parametrize(
    ("routes", "apis"),
    [
        (OPENAI, ("openai-chat",)),
        (OLLAMA, ("ollama-chat",)),
        (OLLAMA | {"/v1/models": MODELS}, ("ollama-chat", "openai-chat")),
        (OLLAMA | {"/": answers("A gateway"), "/v1/models": MODELS}, ("openai-chat", "ollama-chat")),
        (OLLAMA | {"/": answers("A gateway")}, ("ollama-chat",)),
        (OLLAMA | {"/api/version": GONE}, ("ollama-chat",)),
        (OLLAMA | {"/": answers("A gateway"), "/api/version": GONE}, ()),
        (OLLAYA, ("ollaya-decide", "systemone")),
        (NOTHING, ()),
        (NOTHING | {"/v1/systemone": "HTTP 405 text/plain; allow: POST\n---\nno"}, ("systemone",)),
        (NOTHING | {"/v1/systemone": "HTTP 405 text/plain; allow: PUT\n---\nno"}, ()),
        (NOTHING | {"/v1/models": answers("<html>"), "/api/tags": answers({"models": 3})}, ()),
    ],
)
def test_what_is_spoken_is_told_by_the_lists(routes, apis):
    """OpenAI's first, but Ollama's own of Ollama itself; Ollaya, which lists models too, decides."""
    assert apis == spoken(routes).apis


def test_what_was_left_out_is_guessed_with_its_reason():
    """API and model, each as it could have been given; what was given is no guess."""
    found = chosen(OLLAMA)
    assert {
        "api": Guess("ollama-chat", "/api/tags lists models"),
        "model": Guess("m", "the only one that /api/tags lists"),
    } == found.guesses
    assert ("ollama-chat", "m") == (found.plan.api, found.plan.model)
    assert "guessed: --model m (the only one that /api/tags lists)" in guess_lines(found.guesses)
    assert {} == chosen(OLLAMA, api="ollama-generate", model="m").guesses


@pytest.mark.parametrize(
    ("routes", "given", "words"),
    [
        (NOTHING, {}, ["speaks no API known", "/v1/models answers 404", "--api"]),
        (NOTHING | {"/v1/models": DENIED}, {}, ["/v1/models answers 401", "--api-key-env"]),
        (OLLAMA | {"/api/tags": tags("a", "b")}, {}, ["2 models (a, b)", "--model"]),
        (OLLAMA | {"/api/tags": tags()}, {}, ["0 models (none)", "--model"]),
        (OLLAMA | {"/api/tags": tags("a", "b", "nomic-embed-text")}, {},
         ["2 models (a, b), and nomic-embed-text for embeddings"]),
        (NOTHING, {"api": "openai-chat"}, ["lists no models", "--model"]),
    ],
)  # fmt: skip
def test_several_or_none_is_one_line_with_the_option(routes, given, words):
    """What there is, and what to give."""
    line = refusal(routes, **given)

    assert [] == [word for word in words if word not in line]


def test_a_model_for_embeddings_is_no_candidate():
    """It is named as left aside; the one that is left is taken."""
    found = chosen(OLLAMA | {"/api/tags": tags("llama3", "nomic-embed-text")})

    how = "the only one that /api/tags lists beside nomic-embed-text for embeddings"
    assert Guess("llama3", how) == found.guesses["model"]


def test_a_name_of_the_target_prints_no_line_of_its_own():
    """A CI log that is searched for a verdict finds none in a model's name, and a terminal obeys none."""
    name = "a\x1b[2J\n\nREADY for 99 concurrent\u202e" + "x" * 10_000
    (line,) = guess_lines({"model": Guess(name, "the only one\rthat lists")})

    assert len(line) <= 500 and line.isprintable()
    assert line.startswith("guessed: --model a\\x1b[2J READY for 99") and line.endswith("x (the only one that lists)")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"name": "bge-m3", "details": {"family": "bert", "families": ["bert"]}}, True),
        ({"name": "llama3", "details": {"family": "llama", "families": None}}, False),
        ({"id": "text-embedding-3-small"}, True),
        ({"id": "gpt-4o"}, False),
        ({"id": "x-embed", "capabilities": ["completion", "embedding"]}, False),
        ({"id": "x", "capabilities": ["embedding"]}, True),
        ({"id": "x", "type": "embeddings"}, True),
        ({"id": "x", "type": "model", "capabilities": {}}, False),
        ("x", False),
    ],
)
def test_embeddings_only_is_told_by_the_row(row, expected):
    """Capabilities decide, then the family, then the name."""
    assert expected is embeds_only(row)


def test_the_only_port_is_taken_unasked():
    """Nothing is sent for it."""
    found = choose_target(Choice(make_plan()), [listener("http://127.0.0.1:9")], None)

    assert {"target": Guess("http://127.0.0.1:9", "pid 7 gw listens on 127.0.0.1:9")} == found.guesses


def test_of_several_ports_the_one_that_speaks_is_taken():
    """A page of metrics and a port that says nothing in HTTP are none."""
    with FakeGateway(routes=NOTHING) as metrics, FakeGateway(routes=OPENAI) as api, mute() as silent:
        ports = [listener(url) for url in (metrics.url, api.url, silent)]
        found = choose_target(Choice(make_plan(metrics.url)), ports, open_probe)
        assert api.url == found.plan.target
        end_of_run()
        assert "m" == chosen_of(found, ports, open_probe).plan.model
        end_of_run()
        assert f"{api.port} of pid 7 gw: the only one that speaks an API" in found.guesses["target"].how
        with pytest.raises(PlanError, match="none of them speaks an API known here: choose with --target"):
            choose_target(Choice(make_plan()), [ports[0], ports[2]], open_probe)
        with pytest.raises(PlanError, match="--dry-run asks none of them"):
            choose_target(Choice(make_plan()), ports, None)


def test_several_ports_that_speak_are_listed():
    """Unless --api tells them apart, or the process itself holds one and its children the others."""
    with FakeGateway(routes=OPENAI) as one, FakeGateway(routes=OLLAMA) as two:
        ports = [listener(one.url), listener(two.url)]
        with pytest.raises(PlanError) as caught:
            choose_target(Choice(make_plan()), ports, open_probe)
        end_of_run()
        told = choose_target(Choice(make_plan(api="ollama-generate")), ports, open_probe)
        end_of_run()
        own = choose_target(Choice(make_plan()), [listener(one.url, is_own=False), ports[1]], open_probe)

    assert f"127.0.0.1:{one.port} (pid 7 gw), 127.0.0.1:{two.port} (pid 7 gw); 2 of them" in str(caught.value)
    assert [two.url] * 2 == [told.plan.target, own.plan.target]
    assert "its own of those that speak an API" in own.guesses["target"].how


@contextlib.contextmanager
def keeps_requests(status: int):
    """A port that answers everything with this status; yields its URL and the headers it was sent."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            seen.append(str(self.headers))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()


def test_ports_that_may_be_anything_get_no_secret(monkeypatch):
    """A debug port of the gateway is none's to give the key to; of its ports the one that asks for one is chosen."""
    monkeypatch.setenv("GATEWAY_KEY", "sk-chosen-only")
    monkeypatch.setenv("TEAM_TOKEN", "tok-chosen-only")
    with keeps_requests(404) as (debug, at_debug), keeps_requests(401) as (api, at_api):
        plan = make_plan(api_key_env="GATEWAY_KEY", headers={"X-Team": "TEAM_TOKEN"}, headers_plain={"X-Env": "ci"})
        access = Access(plan)
        ports = [listener(debug), listener(api)]
        found = choose_target(Choice(plan), ports, lambda url: access.bare_probe(parse_endpoint(url)))
        with contextlib.closing(access.probe(parse_endpoint(api))) as probe:
            n_gets = sum(probe.n_gets().values())
        with pytest.raises(PlanError, match="it wants a key: name its environment variable with --api-key-env"):
            choose_target(Choice(make_plan()), ports, open_probe)

    assert api == found.plan.target
    assert "the only one that speaks an API or asks for the key" in found.guesses["target"].how
    sent = at_debug[:5] + at_api[:5]
    assert 5 == n_gets and all("X-Env: ci" in each and "-chosen-only" not in each for each in sent)


@pytest.mark.parametrize(("name", "told"), [("m-sk-secret-1", "repeats a secret"), ("a\n\nREADY", "no printable")])
def test_a_models_name_that_cannot_be_recorded_is_not_chosen(name, told):
    """An echo of the key, or a line of its own: neither goes into evidence, a command or a terminal."""
    with FakeGateway(routes=OPENAI | {"/v1/models": answers({"data": [{"id": name}]})}) as fake:
        probe = open_probe(fake.url, "sk-secret-1")
        with pytest.raises(PlanError, match=told) as caught:
            choose_model(make_plan(fake.url, api="openai-chat"), probe)
        listed = choose_model(make_plan(fake.url, api="openai-chat", model="m"), probe)[2]

    assert "sk-secret-1" not in str(caught.value) + str(listed)


def test_a_key_that_is_wanted_is_asked_for():
    """A 401 to every question: with the key the answers come."""
    with demo("--api-key-env", "DEMO_KEY", env=dict(os.environ) | {"DEMO_KEY": "right"}) as gateway:
        plan = make_plan(f"http://127.0.0.1:{gateway.port}")
        with pytest.raises(PlanError, match="it wants a key: name its environment variable with --api-key-env"):
            chosen_of(Choice(plan), (), open_probe)
        found = chosen_of(Choice(plan), (), lambda url: open_probe(url, "right"))

    assert ("openai-chat", "demo-1") == (found.plan.api, found.plan.model)


def test_tls_is_told_from_http(tls):
    """A given scheme is refused with the right one; a guessed target is asked by https, its certificate checked."""
    context, _ = tls
    with tls_port(context) as port, demo() as plain:
        with pytest.raises(PlanError, match=f"the port speaks TLS; give --target https://127.0.0.1:{port}"):
            knock(f"http://127.0.0.1:{port}", open_probe, may_switch=False)
        plan = make_plan(f"http://127.0.0.1:{port}")
        guessed = Choice(plan, {"target": Guess(plan.target, "listens")})
        with pytest.raises(PlanError, match=r"certificate is not trusted .*--ca-file"):
            choose_scheme(guessed, open_probe, Access(plan).shake_hands)
        plain_plan = make_plan(f"https://127.0.0.1:{plain.port}")
        with pytest.raises(PlanError, match="it does not speak TLS there; write the target with http://"):
            choose_scheme(Choice(plain_plan), open_probe, Access(plain_plan).shake_hands)


def test_each_kind_is_known_by_its_row():
    """The help lists them all; a near name is offered; other options win."""
    (gateway,) = [each for each in run_options(lambda: None).__click_params__ if each.name == "gateway"]
    assert "fair-gateway|ollaya|ollama|litellm|vllm|llama-server" == gateway.metavar
    assert {"api": Guess("openai-chat", "--gateway vllm")} == with_kind(make_plan(gateway="vllm")).guesses
    assert {} == with_kind(make_plan(gateway="vllm", api="ollama-chat")).guesses
    assert None is with_kind(make_plan(gateway="fair-gateway")).plan.api
    with pytest.raises(PlanError, match="did you mean litellm"):
        with_kind(make_plan(gateway="litelm"))
    assert "ollaya-decide" == with_kind(make_plan(gateway="ollaya")).plan.api
    assert "openai-chat" == with_kind(make_plan(gateway="ollaya", api="openai-chat")).plan.api


def test_paths_of_a_kind_that_are_not_there_are_left_out():
    """Each with a line; one that is given is not looked at, and one that was left out is looked for as ever."""
    routes = {"/healthz": GONE, "/livez": GONE, "/health/": answers("alive"), "/health/readiness": DENIED,
              "/metrics": answers("<html>"), "/r": answers("ready")}  # fmt: skip
    with FakeGateway(routes=routes) as fake:
        found = find_all_paths(make_plan(gateway="litellm"), open_probe(fake.url))
        given = find_all_paths(make_plan(gateway="litellm", ready_path="/r", health_path="/"), open_probe(fake.url))

    assert ("/health/liveliness", None, None) == (found.health, found.ready, found.metrics)
    assert (
        "/health/readiness of --gateway litellm: it answers 401",
        "/metrics of --gateway litellm: no Prometheus text",
    ) == found.why
    assert ("/", "/r", found.why[1:]) == (given.health, given.ready, given.why)


@contextlib.contextmanager
def mute():
    """A port that greets in something that is no HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        client.sendall(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f")

        with served(server, serve):
            yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def tls_port(context):
    """Shakes hands with whoever comes, and hangs up on who does not speak TLS."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    client.settimeout(5)
                    with contextlib.suppress(OSError), client, context.wrap_socket(client, server_side=True) as secure:
                        secure.recv(1)

        with served(server, serve):
            yield server.getsockname()[1]


@contextlib.contextmanager
def served(server: socket.socket, serve):
    """In a thread, until the end of the block."""
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
