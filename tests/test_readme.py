"""The commands of README and docs/ are run as they stand there, and what they name exists.

A ```sh block is run by bash in an empty folder, with this environment's programs on PATH, and must exit 0. Two kinds
are not: one whose first line is `# not run …: reason`, of which the options are checked, and one that only calls make,
whose targets are checked (`.ci/run` runs them).
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest
from command import clean_environment, undisturbed

from sweep import outdir
from sweep.cli import cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {path: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
FENCED = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [block.strip() for text in PAGES.values() for block in FENCED.findall(text)]
NOT_RUN = re.compile(r"# not run\b[^:]*: (\S.*)")
DEADLINE_S = 240


def is_make(block: str) -> bool:
    return all(line.startswith("make ") for line in block.splitlines())


def is_not_run(block: str) -> bool:
    return NOT_RUN.fullmatch(block.splitlines()[0]) is not None


def title(block: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", block.splitlines()[0].lower())[:40]


def ha_sweep_calls(block: str) -> list[list[str]]:
    """The words after `ha-sweep` of each call; continued lines are one."""
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line.partition("ha-sweep ")[2], comments=True) for line in lines if "ha-sweep " in line]


RUN = [pytest.param(block, id=title(block)) for block in BLOCKS if not is_make(block) and not is_not_run(block)]


def test_the_blocks_are_found():
    """An expression that matches nothing would test nothing; all commands stand in blocks that are looked at."""
    assert ["make demo", "make test"] == [block for block in BLOCKS if is_make(block)]
    assert len(RUN) >= 2
    fences = {fence for text in PAGES.values() for fence in re.findall(r"^```([a-z]+)$", text, re.MULTILINE)}
    assert {"sh"} >= fences - {"text", "json", "toml", "python"}


@pytest.mark.slow
@pytest.mark.parametrize("block", RUN)
def test_a_block_runs(block, tmp_path):
    """From an empty folder to exit 0."""
    programs = str(Path(sys.executable).parent)
    environment = clean_environment(PATH=f"{programs}{os.pathsep}{os.environ['PATH']}")

    def attempt() -> subprocess.CompletedProcess[str]:
        folder = tempfile.mkdtemp(dir=tmp_path)
        with subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", block], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                output, _ = process.communicate(timeout=DEADLINE_S)
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)  # what a failed block left in the background
                except ProcessLookupError:
                    pass
        return subprocess.CompletedProcess(block, process.returncode, output)

    done = undisturbed(attempt)

    assert 0 == done.returncode, done.stdout


@pytest.mark.parametrize("block", BLOCKS)
def test_targets_and_options_exist(block):
    """Also in a block that is not run."""
    if is_make(block):
        for line in block.splitlines():
            subprocess.run(["make", "--dry-run", *shlex.split(line)[1:]], cwd=ROOT, check=True, capture_output=True)
    for name, *words in ha_sweep_calls(block):
        command = cli.commands[name]
        while isinstance(command, click.Group):
            command, words = command.commands[words[0]], words[1:]
        known = {option for parameter in command.params for option in parameter.opts}
        passes_on = command.context_settings.get("ignore_unknown_options", False)
        assert passes_on or {word.partition("=")[0] for word in words if word.startswith("--")} <= known, words


def test_every_file_of_out_dir_is_named():
    """The table keeps up with `outdir`."""
    files = (
        outdir.RUN, outdir.MARKS, outdir.SAMPLES, outdir.HEALTH, outdir.CONNECTIONS, outdir.RESULT,
        outdir.REPORT_HTML, outdir.SUMMARY_MD,
        outdir.JUNIT_XML, outdir.MANIFEST, outdir.SHA256SUMS, outdir.REQUESTS, outdir.GENERATOR, outdir.SNAPSHOTS,
        outdir.LOCUST, outdir.PLOTS,
    )  # fmt: skip

    assert [] == [name for name in files if f"`{name}" not in README]


def test_every_link_leads_somewhere():
    """Pictures and files of the repository."""
    links = {path: re.findall(r"\]\(([^)#]+)\)", text) for path, text in PAGES.items()}

    inside = [path.parent / link for path, each in links.items() for link in each if "://" not in link]
    assert [] == [str(path) for path in inside if not path.exists()]
