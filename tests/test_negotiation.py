"""Parameters that a target refuses: changed once before the load, recorded, and never negotiated under it."""

from __future__ import annotations

import msgspec
import pytest
from command import QUICK, ha_sweep, result_of
from picky_server import picky

from sweep import outdir
from sweep.negotiation import refused_parameter, with_agreed

UNSUPPORTED = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)
BODY = {"model": "m", "max_tokens": 9, "stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("status", "said", "agreed", "change"),
    [
        (400, UNSUPPORTED, {}, {"max_tokens": "max_completion_tokens"}),
        (422, "body.stream_options: Extra inputs are not permitted", {}, {"stream_options": None}),
        (400, "unknown field stream_options", {"max_tokens": "max_completion_tokens"}, {"stream_options": None}),
        (400, UNSUPPORTED, {"max_tokens": "max_completion_tokens"}, {}),  # once each
        (400, "max_tokens 9: this model gives 1 to 4 tokens", {}, {}),
        (400, "unsupported parameter: temperature", {}, {}),
        (400, "unknown field my_stream_options", {}, {}),
        (500, UNSUPPORTED, {}, {}),
        (None, "", {}, {}),
    ],
)
def test_what_a_refusal_asks_to_change(status, said, agreed, change):
    """Only a 400 or 422 that calls a parameter of ours unknown; a limit that is only too high is the user's to mend."""
    assert change == refused_parameter(status, said, BODY, agreed)


def test_a_change_keeps_all_else():
    """Renamed in its place, or left out."""
    agreed = {"max_tokens": "max_completion_tokens", "stream_options": None}

    assert [("model", "m"), ("max_completion_tokens", 9), ("stream", True)] == [*with_agreed(BODY, agreed).items()]


@pytest.mark.slow
def test_a_target_that_refuses_both_is_swept_with_what_it_takes(tmp_path):
    """Two refusals before the load, none in it; what is sent instead is recorded and said with its consequence."""
    refusals = {"stream_options": (400, "Unknown parameter: stream_options"), "max_tokens": (400, UNSUPPORTED)}
    with picky(refusals) as server:
        done = ha_sweep("run", "--target", server.url, "--levels", "1", *QUICK, "--max-step", "1s", "--out-dir", "run",
                        cwd=tmp_path)  # fmt: skip

    assert done.returncode in (0, 3), done.stdout + done.stderr
    run = msgspec.json.decode((tmp_path / "run" / outdir.RUN).read_bytes())
    assert {"stream_options": None, "max_tokens": "max_completion_tokens"} == run["preflight"]["agreed"]
    refused = [body for body in server.bodies if {"max_tokens", "stream_options"} & {*body}]
    assert 2 == len(refused) and refused == [server.bodies[0], server.bodies[2]]
    assert all(body["max_completion_tokens"] == 4 for body in server.bodies if body not in refused)
    said = " ".join(done.stdout.split())
    assert "refuses stream_options" in said and "token counts come from events" in said
    assert "refuses max_tokens; max_completion_tokens is sent instead" in said
    levels = {row["mode"]: row for row in result_of(tmp_path / "run")["levels"]}
    assert ("events", {}) == (levels["stream"]["token_source"], without_ok(levels["stream"]))
    assert {} == without_ok(levels["nonstream"])


def without_ok(row: dict) -> dict:
    return {name: n for name, n in row["outcomes"].items() if name not in ("ok", "cut")}


def test_a_refusal_that_no_change_mends_is_one_line(tmp_path):
    """The new name is refused too: the target's own words, exit 2, no load."""
    refusals = {"max_tokens": (400, UNSUPPORTED), "max_completion_tokens": (400, "max_completion_tokens is too odd")}
    with picky(refusals) as server:
        done = ha_sweep("run", "--target", server.url, "--levels", "1", *QUICK, cwd=tmp_path)

    assert (2, 3) == (done.returncode, len(server.bodies))  # one each mode, and one with the new name
    assert "max_completion_tokens is too odd" in done.stderr and 1 == len(done.stderr.splitlines())
