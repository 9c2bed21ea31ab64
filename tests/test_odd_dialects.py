"""The hostile kinds of answer, as each API that has them would send them, over a real socket and however cut.

The kinds are those of data/odd_cases.json, which holds most of them for chat.completions only.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re

import pytest
from asker import ask
from fake_gateway import FakeGateway

from sweep.dialects import BY_NAME, Ask

LIMITS = {"first_timeout_s": 5.0, "idle_timeout_s": 0.6, "timeout_s": 20.0}
SPLITS = ("whole", "frame", "byte")


def typed(kind: str, **more: object) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n"


def plain(**more: object) -> str:
    return f"data: {json.dumps(more)}\n\n"


# Of each API: what opens a stream, two tokens of answer text, one of thinking, one of a tool call, the events between
# the last token and the end, the terminal event, an error event, and another shape of it without its type.
PARTS = {
    "openai-completions": {
        "open": "", "a": plain(choices=[{"text": "A"}]), "b": plain(choices=[{"text": "B"}]),
        "thought": plain(choices=[{"text": "", "reasoning_content": "t"}]),
        "last": plain(choices=[{"text": "", "finish_reason": "stop"}],
                      usage={"prompt_tokens": 3, "completion_tokens": 2}),
        "end": "data: [DONE]\n\n",
        "error": plain(error={"message": "engine died", "code": "E"}),
        "whole": {"choices": [{"text": "AB", "finish_reason": "stop"}],
                  "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        "finish": "stop", "no_end": ("ok", ["no_done"]),
    },
    "openai-responses": {
        "open": typed("response.created", sequence_number=0, response={"id": "r", "status": "in_progress"}),
        "a": typed("response.output_text.delta", sequence_number=1, delta="A"),
        "b": typed("response.output_text.delta", sequence_number=2, delta="B"),
        "thought": typed("response.reasoning_text.delta", delta="t"),
        "tool": typed("response.function_call_arguments.delta", delta="{"),
        "last": typed("response.output_text.done", text="AB"),
        "end": typed("response.completed",
                     response={"status": "completed", "usage": {"input_tokens": 3, "output_tokens": 2}}),
        "error": typed("error", code="E", message="engine died", sequence_number=2),
        "whole": {"status": "completed", "output": [{"type": "message", "content": [{"text": "AB"}]}],
                  "usage": {"input_tokens": 3, "output_tokens": 2}},
        "finish": "completed", "no_end": ("truncated", []),
    },
    "anthropic-messages": {
        "open": typed("message_start", message={"id": "m", "usage": {"input_tokens": 3, "output_tokens": 1}})
                + typed("content_block_start", content_block={"type": "text", "text": ""}),
        "a": typed("content_block_delta", delta={"type": "text_delta", "text": "A"}),
        "b": typed("content_block_delta", delta={"type": "text_delta", "text": "B"}),
        "thought": typed("content_block_delta", delta={"type": "thinking_delta", "thinking": "t"}),
        "tool": typed("content_block_delta", delta={"type": "input_json_delta", "partial_json": "{"}),
        "last": typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}),
        "end": typed("message_stop"),
        "error": typed("error", error={"type": "E", "message": "engine died"}),
        "whole": {"content": [{"type": "text", "text": "AB"}], "stop_reason": "end_turn",
                  "usage": {"input_tokens": 3, "output_tokens": 2}},
        "finish": "end_turn", "no_end": ("truncated", []),
    },
}  # fmt: skip
HEAD = "HTTP 200 text/event-stream\n---\n"


def streams(api: str) -> dict[str, tuple[str, str, list[str], int, dict]]:
    """kind -> (script, outcome, flags, token events, more of the record)."""
    p = PARTS[api]
    first, good = p["open"] + p["a"], p["open"] + p["a"] + p["b"] + p["last"]
    ping = typed("ping") if api == "anthropic-messages" else ": ping\n\n"
    counted = {"n_in": 3, "n_out": 2, "token_source": "usage", "finish": p["finish"]}
    died = {"error_code": "E", "error_text": "engine died", "status": 200}
    kinds = {
        "good": (good + p["end"], "ok", [], 2, counted),
        "crlf": ((good + p["end"]).replace("\n", "\r\n"), "ok", [], 2, counted),
        "no-space": (re.sub("(event|data): ", r"\1:", good + p["end"]), "ok", [], 2, counted),
        "no-event-lines": (re.sub("event: .*\n", "", good + p["end"]), "ok", [], 2, counted),
        "no-empty-line": ((good + p["end"]).removesuffix("\n\n"), "ok", [], 2, counted),
        "ping-before-token": (ping + "<<SLEEP 0.3>>" + ping + "<<SLEEP 0.3>>" + good + p["end"], "ok", [], 2, counted),
        "thought-first": (p["open"] + p["thought"] + "<<SLEEP 0.4>>" + p["a"] + p["last"] + p["end"], "ok", [], 2,
                          counted),
        "thoughts-only": (p["open"] + p["thought"] + p["last"] + p["end"], "ok", ["no_answer"], 1,
                          counted | {"t_answer_ns": None}),
        "error-first": (p["error"], "error_event", [], 0, died | {"t_first_ns": None}),
        "error-after-token": (first + p["error"], "error_event", [], 1, died),
        "error-without-type": (first + plain(error={"message": "engine died", "code": "E"}), "error_event", [], 1,
                               died),
        "error-after-end": (good + p["end"] + p["error"], "error_event", [], 2, died),
        "late-token": (good + p["end"] + p["b"], "ok", ["late_tokens"], 2, counted),
        "no-end": (good, *p["no_end"], 2, {"status": 200}),
        "truncated": (first + p["b"], "truncated", [], 2, {"t_end_ns": None}),
        "cut-in-event": (first + p["b"][:-9] + "<<CUT>>", "truncated", [], 1, {"t_end_ns": None}),
        "reset": (first + "<<SLEEP 0.2>><<RST>>", "reset", [], 1, {"t_end_ns": None}),
        "stall": (first + "<<SLEEP forever>>", "stalled", [], 1, {"t_end_ns": None}),
        "malformed": (first + 'data: {"type":"\n\n' + p["last"] + p["end"], "bad_body", [], 1, {}),
        "done-twice": (good + p["end"] + "data: [DONE]\n\n", "ok", [], 2, counted),
    }  # fmt: skip
    if "tool" in p:
        tool_first = p["open"] + p["tool"] + "<<SLEEP 0.4>>" + p["a"] + p["last"] + p["end"]
        kinds["tool-call"] = (tool_first, "ok", [], 2, counted)
        kinds["done-instead"] = (good + "data: [DONE]\n\n", "truncated", [], 2, {})
    return {kind: (HEAD + script, *rest) for kind, (script, *rest) in kinds.items()}


RESPONSES = "openai-responses"
SWAPPED = PARTS[RESPONSES]["open"] + PARTS[RESPONSES]["b"] + PARTS[RESPONSES]["a"] + PARTS[RESPONSES]["end"]
DROPPED = PARTS[RESPONSES]["open"] + PARTS[RESPONSES]["b"] + PARTS[RESPONSES]["end"]
STREAMS = {(api, kind): row for api in PARTS for kind, row in streams(api).items()} | {
    (api, "json-reply"): (f"HTTP 200 application/json\n---\n{json.dumps(PARTS[api]['whole'])}",
                          "ok", ["not_streamed"], 0,
                          {"n_in": 3, "n_out": 2, "t_first_ns": None, "finish": PARTS[api]["finish"]})
    for api in PARTS
} | {
    (RESPONSES, "swapped"): (HEAD + SWAPPED, "bad_body", [], 1, {"error_text": "sequence number 1 after 2: events came "
                                                                               "twice or out of order"}),
    (RESPONSES, "dropped"): (HEAD + DROPPED, "ok", ["lost_events"], 1, {"n_out": 2}),
    (RESPONSES, "failed"): (HEAD + PARTS[RESPONSES]["open"] + typed(
        "response.failed", response={"status": "failed", "error": {"code": "E", "message": "engine died"}}),
        "error_event", [], 0, {"error_code": "E", "error_text": "engine died"}),
    (RESPONSES, "incomplete"): (HEAD + PARTS[RESPONSES]["a"] + typed(
        "response.incomplete", response={"incomplete_details": {"reason": "max_output_tokens"}}),
        "ok", [], 1, {"finish": "max_output_tokens", "n_out": 1, "token_source": "events"}),
    ("anthropic-messages", "no-stop-reason"): (HEAD + PARTS["anthropic-messages"]["a"] + typed("message_stop"),
                                               "ok", ["no_finish"], 1, {"n_out": 1, "token_source": "events"}),
}  # fmt: skip

DECISION = {
    "model": "m", "usage": {"input_tokens": 80, "output_tokens": 0}, "done_reason": "decide", "load_duration": 0,
    "total_duration": 9_000_000, "eval_duration": 8_000_000,
    "answers": {
        "page_oncall": {"type": "noul", "noul": 0.03},
        "outcome": {"type": "choice", "choice": "ok", "confidence": 0.85,
                    "probabilities": {"ok": 0.9, "partial": 0.07, "failed": 0.03}},
        "urgency": {"type": "score", "score": 0.5, "confidence": 0.4, "probabilities": {"0": 0.6, "1": 0.3, "2": 0.1}},
    },
}  # fmt: skip
WHOLE = {
    "openai-embeddings": {"model": "m", "data": [{"embedding": [0.5, -0.25]}], "usage": {"prompt_tokens": 80}},
    "ollaya-decide": DECISION,
    "systemone": DECISION,
}
WRONG = {
    "openai-embeddings": (r'"embedding": \[', '"nothing": [', None),
    "ollaya-decide": ('"noul": 0.03', '"noul": 1.03', "answer page_oncall: noul is not in [0, 1]"),
    "systemone": ('"confidence": 0.85', '"confidence": 0.9',
                  "answer outcome: confidence does not follow from the probabilities"),
}  # fmt: skip


OTHERS = {  # good in itself, but of another request: known only from what was asked
    "openai-embeddings": (r'"data": \[', '"data": [{"embedding": [1]}, '),
    "ollaya-decide": ('"urgency":', '"hurry":'),
    "systemone": ('"partial": 0.07, "failed": 0.03', '"failed": 0.03, "partial": 0.07'),
}


def bodies(api: str) -> dict[str, tuple[str, str, list[str], int, dict]]:
    head, body = "HTTP 200 application/json\n---\n", json.dumps(WHOLE[api])
    was, becomes, reason = WRONG[api]
    good = {"n_in": 80, "n_out": None, "token_source": None, "stream": False, "t_first_ns": None, "model_served": "m"}
    return {
        "good": (head + body, "ok", [], 0, good),
        "called-a-stream": (HEAD + body, "ok", [], 0, good),
        "wrong": (head + re.sub(was, becomes, body), "bad_body", [], 0,
                  {} if reason is None else {"error_code": reason}),
        "not-what-was-asked": (head + re.sub(*OTHERS[api], body), "bad_body", [], 0, {}),
        "error-in-200": (head + '{"error":{"message":"engine died","code":"E"}}', "error_event", [], 0,
                         {"error_code": "E", "error_text": "engine died"}),
        "queue-full": ('HTTP 503 application/json; retry-after: 1\n---\n{"error":"busy","code":"QUEUE_FULL"}',
                       "shed", [], 0, {"error_code": "QUEUE_FULL", "retry_after_s": 1.0}),
        "not-found": ('HTTP 404 application/json\n---\n{"error":"no such model","code":"MODEL_NOT_FOUND"}',
                      "http_4xx", [], 0, {"error_code": "MODEL_NOT_FOUND"}),
        "cut": (head + body[:-5] + "<<CUT>>", "truncated", [], 0, {"t_end_ns": None}),
        "reset": (head + body[:40] + "<<RST>>", "reset", [], 0, {}),
        "stall": (head + body[:40] + "<<SLEEP forever>>", "stalled", [], 0, {}),
        "html": ("HTTP 200 text/html\n---\n<html>", "bad_body", [], 0, {"error_text": "<html>"}),
    }  # fmt: skip


PLAYED = STREAMS | {(api, kind): row for api in WHOLE for kind, row in bodies(api).items()}


@pytest.fixture(scope="module")
def played() -> dict[tuple[str, str, str], dict]:
    """(api, kind, split) -> the client's record; a server for each API and split, one client."""
    with contextlib.ExitStack() as stack:
        fakes, jobs = {}, {}
        for (api, split), each in itertools.groupby(
            sorted((api, split, kind) for (api, kind), split in itertools.product(PLAYED, SPLITS)), lambda key: key[:2]
        ):
            kinds = [kind for _, _, kind in each]
            behaviour = {"split": split, **({"split_delay_s": 0.01} if split == "frame" else {})}
            routes = {f"/{kind}/": {"script": PLAYED[api, kind][0]} | behaviour for kind in kinds}
            fake = fakes[api, split] = stack.enter_context(FakeGateway(routes=routes))
            for kind in kinds:
                url = f"{fake.url}/{kind}"
                jobs[api, kind, split] = {"url": url, "api": api, "modes": ["stream"], **LIMITS}
        records = [found[0] for found in ask(list(jobs.values()), at_once=16)]
        # each once: nothing was sent again
        assert len(jobs) == sum(fake.requests_received for fake in fakes.values())
    return dict(zip(jobs, records, strict=True))


@pytest.mark.slow  # 250 conversations with sleeps
@pytest.mark.parametrize("key", PLAYED, ids="-".join)
def test_record_of_an_odd_answer(played, key):
    """Outcome, flags and counts, alike for each split; that all came in one read is another test's business."""
    _, outcome, flags, n_events, more = PLAYED[key]
    for split in SPLITS:
        record = played[*key, split]

        assert outcome == record["outcome"], (split, record)
        # A reset throws away what the kernel still holds, so a late reader misses what came just before it.
        assert n_events == record["n_events"] or (outcome == "reset" and record["n_events"] < n_events), split
        assert sorted(flags) == sorted(set(record["flags"]) - {"buffered"}), split
        assert more == {name: record[name] for name in more}, split


@pytest.mark.slow
@pytest.mark.parametrize(
    ("api", "kind", "start", "end"),
    [(api, "ping-before-token", "event", "first") for api in PARTS]
    + [(api, kind, "first", "answer") for api, kind in STREAMS if kind in ("thought-first", "tool-call")],
)
def test_pause_of_the_server_is_where_it_belongs(played, api, kind, start, end):
    """A ping is no token; a thought and a tool's arguments are the first one, but no answer."""
    for split in SPLITS:
        record = played[api, kind, split]

        assert 0.2 < (record[f"t_{end}_ns"] - record[f"t_{start}_ns"]) / 1e9 < 2, split


def test_every_api_meets_every_kind():
    """A row that is added must be played here, or stand in data/odd_cases.json."""
    kinds = {api: {kind for each, kind in PLAYED if each == api} for api in {api for api, _ in PLAYED}}

    assert set(BY_NAME) == set(kinds) | {"openai-chat", "ollama-chat", "ollama-generate"}
    assert all({"good", "reset", "stall"} <= kinds[api] for api in kinds)
    for api, kind in itertools.product(PARTS, ("error-after-token", "truncated", "no-end", "ping-before-token")):
        assert kind in kinds[api]
    assert set(DECISION["answers"]) == set(BY_NAME["systemone"].body(Ask("m", "s", 1, False, {}))["questions"])
