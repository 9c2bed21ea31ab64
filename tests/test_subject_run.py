"""A whole run against the embedded gateway, declared as another version than it answers."""

from __future__ import annotations

import platform

import msgspec
import pytest
from command import QUICK, ha_sweep, result_of
from demo_process import demo

from sweep import __version__, outdir
from sweep.records import Record, from_lines

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(finished process, its OUT_DIR): demo-gateway@9.9.9, two headers kept."""
    folder = tmp_path_factory.mktemp("subject")
    with demo("--ttft", "5ms", "--per-token", "1ms") as gateway:
        done = ha_sweep(
            "run", "--target", f"http://127.0.0.1:{gateway.port}", "--gateway-pid", str(gateway.pid), "--levels", "1",
            "--mode", "stream", *QUICK, "--quiet-check", "0s", "--subject", "demo-gateway@9.9.9",
            "--keep-header", "Content-Type", "--keep-header", "X-Served-By", "--out-dir", "run", cwd=folder,
        )  # fmt: skip
    return done, folder / "run"


def test_declared_as_another_version_than_answered_is_not_ready(ran):
    """Exit 1, said before the load and in the verdict."""
    done, out_dir = ran
    reason = f"declared demo-gateway@9.9.9, but GET /api/version answers Demo gateway {__version__}"

    assert 1 == done.returncode, done.stdout + done.stderr
    assert f"{reason}: the gate `subject` will fail" in done.stdout + done.stderr
    result = result_of(out_dir)
    [finding] = [each for each in result["findings"] if each["gate"] == "subject"]
    assert ("fail", True, reason) == (finding["status"], finding["required"], finding["reason"])
    assert any(reason in line for line in result["why"])
    assert ["pass"] == [each["status"] for each in result["findings"] if each["gate"] == "same build"]


def test_what_was_seen_is_in_the_evidence_and_the_report(ran):
    """Each with its source; the declaration stands with the process."""
    _, out_dir = ran
    run = msgspec.json.decode((out_dir / outdir.RUN).read_bytes())
    subject = result_of(out_dir)["subject"]
    seen = {row["what"]: row for row in subject["seen"]}

    assert "demo-gateway@9.9.9" == run["subjects"][0]["declared"] == run["plan"]["subject"]
    assert platform.machine() == seen["architecture"]["value"]
    assert 64 == len(seen["program sha256"]["value"])
    assert "python" in seen["program"]["value"]
    assert f"Demo gateway {__version__}" == seen["version answered"]["value"]
    assert all(row["source"] for row in subject["seen"])
    page = (out_dir / outdir.REPORT_HTML).read_text()
    assert seen["program sha256"]["value"] in page
    assert f"answers {__version__}, declared demo-gateway@9.9.9" == subject["text"]


def test_kept_headers_are_in_every_record_and_counted(ran):
    """The one the gateway sends by its value, the other as absent."""
    _, out_dir = ran
    source = outdir.requests_file("s01-c1-stream-k1", "w01")
    records = from_lines(Record, outdir.read_lines(out_dir / source)[0], source)
    told = result_of(out_dir)["levels"][0]["told"]

    assert records
    assert {"text/event-stream"} == {(record.headers or {}).get("content-type") for record in records}
    assert [["text/event-stream", told["answers"]]] == told["headers"]["content-type"]["values"]
    assert ([], told["answers"]) == tuple(told["headers"]["x-served-by"][key] for key in ("values", "absent"))
