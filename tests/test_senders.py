"""Steps of the real Locust against a server that logs what it was sent: tenants, mixed modes, prompts, who leaves."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from fake_gateway import FakeGateway
from locust_step import run_step

from sweep.step_files import TenantOrder

KEYS = {"KEY_A": "key-of-a-0123456789", "KEY_B": "key-of-b-0123456789"}
PROMPTS = [f"private question number {i} of many" for i in range(60)]
TENANTS = [
    TenantOrder(name="a", key_env="KEY_A", users=3, weight=3.0),
    TenantOrder(name="b", key_env="KEY_B", users=1, weight=1.0),
]
PROFILE = {"ttft_s": 0.06, "gap_s": 0.004, "n_tokens": 12}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A mixed step of two tenants with prompts of a file, a fifth of whose clients leave; and the server's log."""
    folder = tmp_path_factory.mktemp("mixed")
    prompts = folder / "prompts.jsonl"
    lines = [{"prompt": text} if i % 2 else {"messages": [{"role": "user", "content": text}], "max_tokens": 5}
             for i, text in enumerate(PROMPTS)]  # fmt: skip
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch, FakeGateway(PROFILE, keep_asked=True) as server:
        for name, key in KEYS.items():
            patch.setenv(name, key)
        done = run_step(
            folder / "step", server.url, locustfile="by_share.py", step="s01-c4-mixed-k1", users=4, tenants=TENANTS,
            stream_share=0.7, cancel_ratio=0.3, prompts_file=str(prompts), duration_s=2.5,
            usual={"before_first": 0.06, "mid_stream": 12.0, "nonstream": 0.1},
        )  # fmt: skip
        server.log(len(done.records))
    return done, server, folder / "step" / "out"


def by_id(lines):
    return {line["request_id"]: line for line in lines}


@pytest.mark.slow
def test_clients_that_leave_close_the_connection_as_the_server_sees_it(mixed):
    """Each `left` is a client that is gone in the server's log, before its answer was over; no other is."""
    done, server, _ = mixed
    answers = by_id(server.log())
    gone = {each for each, line in answers.items() if line["ended"] == "client_gone"}
    left = {record.request_id: record for record in done.records if record.outcome == "left"}

    assert gone == set(left) and len(left) >= 10
    assert {"before_first", "mid_stream", "nonstream"} == {record.left_at for record in left.values()}
    for request_id, record in left.items():
        assert record.stream == (record.left_at != "nonstream") and record.t_end_ns is None
        n_sent, n_seen = answers[request_id]["n_tokens"], record.n_events
        if record.left_at == "mid_stream":
            assert 1 <= n_seen <= n_sent < 12 + 1
        else:
            assert 0 == n_seen and record.t_first_ns is None
    assert all(record.left_at is None for record in done.records if record.outcome != "left")


@pytest.mark.slow
def test_a_connection_that_was_left_is_not_used_again(mixed):
    """The next request of that user comes on a fresh one; without leaving it is the same."""
    done, server, _ = mixed
    opened = {each: line["t_conn_ns"] for each, line in by_id(server.log()).items()}
    of_user = defaultdict(list)
    for record in sorted(done.records, key=lambda each: each.t_start_ns):
        of_user[record.user].append(record)
    pairs = [pair for records in of_user.values() for pair in pairwise(records)]

    for before, after in pairs:
        same = opened[before.request_id] == opened[after.request_id]
        assert same == (before.outcome == "ok"), (before.outcome, after.outcome)
    assert {"left", "ok"} == {before.outcome for before, _ in pairs}


@pytest.mark.slow
def test_counts_agree_and_nothing_of_ours_is_an_error(mixed):
    """Locust does not count those that left; the pace of the user is not slowed by a pause for failures."""
    done, _, _ = mixed
    process = done.report.processes[0]
    outcomes = Counter(record.outcome for record in done.records)

    assert done.report.counts_agree, done.report.why
    assert {"ok", "left"} == set(outcomes)
    assert (outcomes["ok"], 0) == (process.locust_requests, process.locust_failures)
    assert 0.15 < outcomes["left"] / len(done.records) < 0.36


@pytest.mark.slow
def test_the_share_that_streams_is_the_one_asked_for(mixed):
    """Within two blocks of the draw, whatever took longer; the server was asked the same."""
    done, server, _ = mixed
    n = len(done.records)
    asked = by_id(server.log(kind="received"))

    assert abs(sum(record.stream for record in done.records) - 0.7 * n) <= 40
    assert 0.55 < sum(record.stream for record in done.records) / n < 0.85
    assert all(asked[record.request_id]["asked"]["stream"] == record.stream for record in done.records)


@pytest.mark.slow
def test_every_request_carries_its_tenants_key_and_no_evidence_holds_it(mixed):
    """Three users of a, one of b; the names stand in the records, the keys nowhere."""
    done, server, out = mixed
    asked = by_id(server.log(kind="received"))
    names = {f"Bearer {KEYS[tenant.key_env]}": tenant.name for tenant in TENANTS}

    assert all(names[asked[each.request_id]["authorization"]] == each.tenant for each in done.records)
    users = {name: {each.user for each in done.records if each.tenant == name} for name in ("a", "b")}
    assert [3, 1] == [len(users[name]) for name in ("a", "b")] and not users["a"] & users["b"]
    evidence = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file()) + done.output.encode()
    assert not any(key.encode() in evidence for key in KEYS.values())


@pytest.mark.slow
def test_prompts_come_shuffled_each_once_before_any_again(mixed):
    """As the server was sent them, with their own limits; the text is in no evidence."""
    done, server, out = mixed
    asked = by_id(server.log(kind="received"))
    order = [asked[each]["asked"] for each in sorted(asked)]
    texts = [each["messages"][-1]["content"] for each in order]

    assert len(texts) > 60 and set(PROMPTS) == set(texts[:60]) and PROMPTS != texts[:60]
    assert all(each["max_tokens"] == (16 if PROMPTS.index(text) % 2 else 5)
               for each, text in zip(order, texts, strict=True))  # fmt: skip
    evidence = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file()) + done.output.encode()
    assert b"private question" not in evidence


@pytest.mark.slow
def test_a_shared_prefix_is_the_same_in_every_request(tmp_path):
    """Four words of eight, then a nonce that is another each time; without tenants or a ratio nobody leaves."""
    with FakeGateway({"ttft_s": 0.01, "n_tokens": 2}, keep_asked=True) as server:
        done = run_step(tmp_path, server.url, shared_prefix_words=4, prefix_seed=7, duration_s=0.5, warmup_s=0.0)
        texts = [line["asked"]["messages"][0]["content"].split() for line in server.log(kind="received")]

    assert len(texts) >= 3 and {"ok", "cut"} >= {record.outcome for record in done.records}
    assert 1 == len({tuple(words[:4]) for words in texts}) and len(texts) == len({words[4] for words in texts})
    assert {None} == {record.tenant for record in done.records}


@pytest.mark.slow
def test_an_answer_that_failed_before_its_client_left_is_what_it_is(tmp_path):
    """A refusal, an error in mid-stream: nobody left, whatever was drawn."""
    said = "HTTP 500 application/json\n---\n{\"error\":{\"message\":\"broken\"}}"
    event = "HTTP 200 text/event-stream\n---\ndata: {\"error\":{\"message\":\"no\"}}\n\n<<SLEEP 2>>"
    with FakeGateway([said, event]) as server:
        done = run_step(
            tmp_path, server.url, cancel_ratio=0.9, cancel_at=["before_first"], usual={"before_first": 1.0},
            duration_s=0.5, warmup_s=0.0, drain_s=4.0,
        )  # fmt: skip

    assert {"http_5xx", "error_event"} == {record.outcome for record in done.records}
    assert done.report.counts_agree
