"""How the embedded gateway ends: it drains on a signal, at once on a second one, and with its parent."""

from __future__ import annotations

import json
import os
import signal

import pytest
from demo_process import ask, demo
from loopback import CHAT, DEADLINE_S, reads, wait_for


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_drains_open_streams_and_refuses_new_requests(number):
    """Readiness and new inference say 503 at once, the open stream and the waiting one end well, status 0."""
    with demo("--slots", "1", "--per-token", "5ms") as gateway:
        with gateway.begin(CHAT, ask(80)) as serving, gateway.begin(CHAT, ask(3)) as waiting:
            gateway.until("queued", 1)
            gateway.process.send_signal(number)
            wait_for(lambda: gateway.call("GET", "/readyz")[0].status == 503, "not ready")
            refused, body = gateway.call("POST", CHAT, ask(2))
            answers = [b"".join(data for _, data in reads(client)) for client in (serving, waiting)]
        out, err = gateway.process.communicate(timeout=DEADLINE_S)

    assert (
        refused.status,
        json.loads(body)["error"]["code"],
        refused.headers["Connection"],
    ) == (503, "stopping", "close")
    assert [answer.count(b'"content":" ') for answer in answers] == [80, 3]
    assert all(b"[DONE]" in answer and answer.endswith(b"0\r\n\r\n") for answer in answers)
    assert (gateway.process.returncode, out, err) == (0, b"", b"gateway stopped\n")


def test_a_second_signal_ends_it_at_once():
    """Open streams are cut, and the status says that the end was not clean."""
    with demo("--per-token", "100ms") as gateway, gateway.begin(CHAT, ask(4000)):
        gateway.until("in_flight", 1)
        gateway.process.terminate()
        wait_for(lambda: gateway.call("GET", "/readyz")[0].status == 503, "not ready")
        gateway.process.terminate()

        assert gateway.process.wait(DEADLINE_S) == 1


def test_drain_is_bounded():
    """A stream that outlasts the drain is cut, counted in the log, and the end is still clean."""
    with demo("--per-token", "100ms", "--drain", "100ms") as gateway, gateway.begin(CHAT, ask(4000)):
        gateway.until("in_flight", 1)
        gateway.process.terminate()
        _, err = gateway.process.communicate(timeout=DEADLINE_S)

        assert (gateway.process.returncode, err) == (0, b"1 requests cut at the end of the drain\ngateway stopped\n")


def test_it_dies_with_the_holder_of_the_pipe():
    """The end of --parent-fd ends it, open streams or not."""
    read_end, write_end = os.pipe()
    with demo("--per-token", "100ms", "--parent-fd", str(read_end), pass_fds=(read_end,)) as gateway:
        os.close(read_end)
        with gateway.begin(CHAT, ask(4000)):
            gateway.until("in_flight", 1)
            os.close(write_end)

            assert gateway.process.wait(DEADLINE_S) == 1
