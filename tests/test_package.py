"""The wheel and the editable install, each in an otherwise empty environment, used from another folder."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from sweep import __version__, outdir

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
TREE = ("sweep", "sampler", "locustfiles", "templates", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE")
QUICK = ("--levels", "1", "--duration", "3s", "--warmup", "0.5s", "--cooldown", "0.5s", "--max-tokens", "4")
# What an empty Python takes to start is the unit, so that a slow machine slows both sides. Measured here: 5 to 6.
MAX_HELP_RATIO = 10.0


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """What is published, copied to a folder with a space in its name."""
    folder = tmp_path_factory.mktemp("a check out")
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, tree]
    done = subprocess.run(build, capture_output=True, text=True)
    assert 0 == done.returncode, done.stdout + done.stderr
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def empty(tmp_path_factory) -> Path:
    """An environment that holds pip and nothing else."""
    folder = tmp_path_factory.mktemp("an environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin"


@pytest.fixture(scope="module", params=["wheel", "editable"])
def programs(request, empty, tree) -> Path:
    """The folder of the installed programs. The second way replaces the first; what both depend on stays."""
    what = [request.getfixturevalue("wheel")] if request.param == "wheel" else ["--editable", tree]
    install = [empty / "python", "-m", "pip", "install", "--quiet", *what]
    done = subprocess.run(install, capture_output=True, text=True, env=environment(), timeout=600)
    assert 0 == done.returncode, done.stderr
    return empty


def environment() -> dict[str, str]:
    """Ours without what would lead Python or an option astray."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "GATEWAY_PID", "OUT_DIR", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if name not in dropped}


def call(programs: Path, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [programs / command[0], *command[1:]], cwd=cwd, env=environment(), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_the_wheel_holds_two_packages_and_their_data(wheel):
    """Nothing lands beside them; locustfiles and templates travel inside `sweep`, whole."""
    names = zipfile.ZipFile(wheel).namelist()

    assert {"sweep", "sampler", f"ha_sweep-{__version__}.dist-info"} == {name.partition("/")[0] for name in names}
    assert f"ha_sweep-{__version__}-py3-none-any.whl" == wheel.name
    for folder in ("locustfiles", "templates"):
        ours = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*") if path.is_file()}
        there = {name.removeprefix("sweep/") for name in names if name.startswith(f"sweep/{folder}/")}
        assert {name for name in ours if "__pycache__" not in name} == there
    assert not [name for name in names if "__pycache__" in name or "tests" in name]
    assert f"ha_sweep-{__version__}.dist-info/licenses/LICENSE" in names


def test_versions(programs, tmp_path):
    """Both programs say the version of the project, from any folder."""
    for name in ("ha-sweep", "ha-sampler"):
        done = call(programs, name, "--version", cwd=tmp_path)
        assert (0, __version__) == (done.returncode, done.stdout.split()[-1]), done.stderr


def test_a_dry_run_leaves_nothing(programs, tmp_path):
    """The plan is printed, nothing is written."""
    done = call(programs, "ha-sweep", "run", "--dry-run", "--demo", "--levels", "1", cwd=tmp_path)

    assert 0 == done.returncode, done.stderr
    assert "step s01-c1-stream-k1: " in done.stdout
    assert [] == [*tmp_path.iterdir()]


def test_a_run_gives_a_report(programs, tmp_path):
    """Gateway, sampler, Locust, tables, templates and plots are all found; `report` makes it again."""
    (tmp_path / "sampler.py").write_text("raise SystemExit('the working folder was imported')")
    done = call(programs, "ha-sweep", "run", "--demo", *QUICK, "--out-dir", "run", cwd=tmp_path)

    assert done.returncode in (0, 3), done.stdout + done.stderr
    report = Path(done.stdout.splitlines()[-1])
    assert tmp_path / "run" / outdir.REPORT_HTML == report
    assert "<svg" in report.read_text() and "<style" in report.read_text()
    result = json.loads((tmp_path / "run" / outdir.RESULT).read_bytes())
    assert ("COMPLETE", "proved") == (result["run_status"], result["target"]["gateway"]["ownership"])
    assert all(row["ok"] > 10 for row in result["levels"])
    again = call(programs, "ha-sweep", "report", "run", cwd=tmp_path)
    assert done.returncode == again.returncode, again.stderr


def test_the_locustfiles_are_found(programs, tmp_path):
    """The folder that `outdir` gives holds them, and Locust takes them by path."""
    code = "from sweep import outdir; print(outdir.data_folder('locustfiles'))"
    folder = Path(call(programs, "python", "-c", code, cwd=tmp_path).stdout.strip())

    assert {path.name for path in (ROOT / "locustfiles").glob("*.py")} == {path.name for path in folder.glob("*.py")}
    done = call(programs, "locust", "-f", str(folder / "streaming.py"), "--list", cwd=tmp_path)
    assert 0 == done.returncode, done.stderr


def test_help_is_quick(programs, tmp_path):
    """Beside the start of an empty Python in the same minute; a wheel's bytecode was compiled by its installation."""
    commands = {"help": ("ha-sweep", "run", "--help"), "empty": ("python", "-I", "-c", "pass")}
    times_s: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(15):
        for name, command in commands.items():
            started = time.perf_counter()
            assert 0 == call(programs, *command, cwd=tmp_path).returncode
            times_s[name].append(time.perf_counter() - started)

    help_s, empty_s = (statistics.median(times_s[name]) for name in commands)
    print(f"help {help_s * 1e3:.0f} ms, empty {empty_s * 1e3:.0f} ms, ratio {help_s / empty_s:.1f}")
    assert help_s / empty_s <= MAX_HELP_RATIO
