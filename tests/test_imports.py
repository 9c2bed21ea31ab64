"""The house's plan: which room may import which, what each loads, and how large a module may be.

A new module goes into the one room of ROOMS it belongs to.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_MODULE, MAX_FUNCTION = 300, 50

ROOMS = {
    "package": "__init__",
    # plan and evidence file formats: what the halves share
    "shared": "left_open errors units slo plan plan_steps plan_json estimate records step_files outdir seal wording "
    "subject secret_names request_counters gateway_kinds crew_messages arrivals draws tenants sending bounds "
    "lateness search slo_decision beside_plan",
    "call": "negotiation clocks child_log children endpoint dialects dialect_types dialect_chat "
    "dialect_completions dialect_responses dialect_embeddings dialect_ollama dialect_messages "
    "dialect_decisions error_bodies masking stream exchange timeouts outcomes request told tls prompts senders "
    "ports",
    "load": "wire load recording driver load_process crew_master crew_worker llm_user ask locustfile_check "
    "open_loop leaving generator_health",
    # only in the embedded gateway's process
    "gateway": "demo_gateway demo_app demo_answers demo_typed demo_whole demo_asks demo_defects demo_memory "
    "demo_waits",
    "running": "prepared step_orders api_fit answered demo follow gateway guards health machine marks ownership "
    "preflight prepare probe refusals runner terminal loaded standstill dry_run progress sockets connections others "
    "asking choosing deadline listeners pid_forms access access_refusals key_command settling "
    "own_locustfile crew_options crew_refusals worker_loop observing sender_refusals prompt_file sequence "
    "probing search_refusals beside_refusals beside_target giving_up holdable",
    "judging": "cells evidence sample_lines windows stats latency token_rate level_table step_table process_table "
    "run_table answer_table subject_table identity_gates who_view health_table next_command next_step "
    "knee finding request_gates slo_gates run_gates gates verdict judge verify plots plot_levels "
    "plot_process plot_style plot_ttft glossary view gate_view screen_text first_screen tested_view junit "
    "report left_behind others_table others_gates others_view expiry run_shape other_clocks punctual "
    "arrivals_view tenant_table tenant_view search_table search_gates paired beside_evidence beside_table "
    "beside_view",
    "top": "cli options option_types plan_file plan_init __main__ locustfiles_command worker_command stdout",
}
ARROWS = {
    "package": "",
    "shared": "package",
    "call": "package shared",
    "load": "package shared call",
    "gateway": "package",
    "running": "package shared call",
    "judging": "package shared",
    "top": "package shared running judging",
}
# The sampler's table of fields drives the reader too: a field is declared once (design §5).
SAMPLERS_TABLE = ("sampler.fields",)
# Who may import what of others' packages; a package that is not named here, any room may.
LIBRARIES = {
    "pandas": "judging", "numpy": "judging", "matplotlib": "judging", "jinja2": "judging", "markupsafe": "judging",
    "locust": "load", "gevent": "load gateway", "httptools": "call", "httpx": "running", "psutil": "running",
    "prometheus_client": "running", "rich": "running", "scipy": "", "hypothesis": "", "requests": "",
}  # fmt: skip
NOT_FOR_RUNNING = ("pandas", "numpy", "matplotlib", "jinja2", "scipy", "locust", "gevent")


def room_of(module: str) -> str | None:
    """The room of `sweep.plan`; `sampler` for all of that; None when ROOMS does not name it."""
    package, _, name = module.partition(".")
    if package == "sampler":
        return "sampler"
    return next((room for room, names in ROOMS.items() if (name or "__init__") in names.split()), None)


def modules(root: Path) -> dict[str, Path]:
    """Every module of both packages by its full name."""
    found = {}
    for package in ("sweep", "sampler"):
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(path: Path, ours: dict[str, Path], tree: ast.AST | None = None) -> set[str]:
    """Full names of what a module imports anywhere, in functions and for types too; `ours` by module."""
    found: set[str] = set()
    for node in ast.walk(tree or ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the full name"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inside & set(ours) or {node.module}
            if inside - set(ours) and node.module in ours:
                found.add(node.module)
    return found


def faults(root: Path) -> list[str]:
    """Every broken rule of the tree, one sentence each."""
    ours = modules(root)
    arrows = {name: imports(path, ours) for name, path in ours.items()}
    return [
        *(fault for name, targets in arrows.items() for target in targets if (fault := wrong_arrow(name, target))),
        *cycle({name: {each for each in targets if each in ours} - {name} for name, targets in arrows.items()}),
        *(fault for path in ours.values() for fault in shape(path)),
    ]


def wrong_arrow(module: str, target: str) -> str | None:
    room, package = room_of(module), target.partition(".")[0]
    if room is None:
        return f"{module} is in no room of ROOMS"
    if room == "sampler":
        allowed = package == "sampler" or package in sys.stdlib_module_names
    elif target in SAMPLERS_TABLE:
        allowed = room == "judging"
    elif package in ("sweep", "sampler"):
        allowed = room_of(target) in (room, *ARROWS[room].split())
    else:
        allowed = package not in LIBRARIES or room in LIBRARIES[package].split()
    return None if allowed else f"{module} ({room}) may not import {target}"


def cycle(arrows: dict[str, set[str]]) -> Iterator[str]:
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        yield f"in a circle: {', '.join(sorted(set(error.args[1])))}"


def shape(path: Path) -> Iterator[str]:
    text = path.read_text()
    tree, n_lines = ast.parse(text), len(text.splitlines())
    if not ast.get_docstring(tree):
        yield f"{path.name} has no docstring"
    if n_lines > MAX_MODULE:
        yield f"{path.name} has {n_lines} lines, more than {MAX_MODULE}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION:
                yield f"{path.name}:{node.lineno}: {node.name} has {length} lines, more than {MAX_FUNCTION}"


def loaded(code: str, *options: str) -> set[str]:
    """Top-level packages and modules of ours that a fresh Python holds after running the code."""
    program = f"{code}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-P", *options, "-c", program], capture_output=True, text=True, check=True, timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    names = json.loads(done.stdout.splitlines()[-1])
    return {name if name.startswith("sweep.") else name.partition(".")[0] for name in names}


def importing(*rooms: str) -> str:
    return "\n".join(f"import sweep.{name}" for room in rooms for name in ROOMS[room].split())


def test_the_tree_keeps_the_rules():
    """No wrong arrow, no circle, no module without docstring, none too long."""
    assert [] == faults(ROOT)


def test_the_rooms_name_every_module_once_and_no_other():
    """A module that is gone, or stands in two rooms, would leave the rules without force."""
    named = [f"sweep.{name}".removesuffix(".__init__") for names in ROOMS.values() for name in names.split()]

    assert sorted(name for name in modules(ROOT) if name.startswith("sweep")) == sorted(named)


def test_the_sampler_needs_nothing_but_the_standard_library():
    """Loaded without site-packages; nothing of ours but itself; every file is Python 3.9."""
    names = loaded("import sampler.__main__", "-S")

    assert set() == {name for name in names if name not in sys.stdlib_module_names} - {"__main__", "sampler"}
    for path in (ROOT / "sampler").glob("*.py"):
        ast.parse(path.read_bytes(), feature_version=(3, 9))


def test_the_running_half_loads_no_frames_plots_or_locust():
    """All of it at once; the positive control: the judging half does."""
    assert set() == loaded(importing("shared", "call", "running")) & set(NOT_FOR_RUNNING)
    assert {"pandas", "numpy", "matplotlib", "jinja2"} <= loaded(importing("judging"))


def test_a_locust_process_loads_no_frames_or_plots():
    """Its start is paid at every step."""
    names = loaded("import sweep.llm_user")

    assert {"locust", "gevent"} <= names
    assert set() == names & {"pandas", "numpy", "matplotlib", "scipy", "httpx"}


def test_the_judging_half_loads_no_client_and_no_locust():
    """Judging is offline: it can also run where nothing can be sent."""
    assert set() == loaded(importing("judging")) & {"locust", "gevent", "httpx", "httptools"}


def test_help_loads_nothing_heavy():
    """Only Click and what declares the options."""
    code = "import contextlib, io, sweep.cli\nwith contextlib.redirect_stdout(io.StringIO()):\n"
    names = loaded(code + "    sweep.cli.cli.main(['run', '--help'], standalone_mode=False)")

    ours = {name for name in names if name.startswith("sweep.")}
    others = names - ours - set(sys.stdlib_module_names) - {"sweep"}
    declared = {
        "cli", "gateway_kinds", "locustfiles_command", "plan", "slo", "units", "errors", "options",
        "option_types", "search", "secret_names", "stdout", "worker_command",
    }  # fmt: skip
    assert {f"sweep.{name}" for name in declared} == ours
    assert {"click"} == {name for name in others if not name.startswith("_")} - {"sitecustomize", "usercustomize"}


@pytest.mark.parametrize(
    ("name", "code", "fault"),
    [
        ("sampler/made_up.py", "import msgspec", "sampler.made_up (sampler) may not import msgspec"),
        ("sampler/made_up.py", "from sweep import plan", "sampler.made_up (sampler) may not import sweep.plan"),
        ("sweep/runner.py", "def f():\n    import sweep.stats", "sweep.runner (running) may not import sweep.stats"),
        ("sweep/runner.py", "import pandas as pd", "sweep.runner (running) may not import pandas"),
        ("sweep/runner.py", "import sweep.llm_user", "sweep.runner (running) may not import sweep.llm_user"),
        ("sweep/runner.py", "from gevent import sleep", "sweep.runner (running) may not import gevent"),
        ("sweep/stats.py", "from sweep.runner import Runner", "sweep.stats (judging) may not import sweep.runner"),
        ("sweep/stats.py", "import locust.env", "sweep.stats (judging) may not import locust.env"),
        ("sweep/stats.py", "import sampler.loop", "sweep.stats (judging) may not import sampler.loop"),
        ("sweep/runner.py", "import sampler.fields", "sweep.runner (running) may not import sampler.fields"),
        ("sweep/plan.py", "from sweep.cli import main", "sweep.plan (shared) may not import sweep.cli"),
        ("sweep/plan.py", "from sweep.outdir import NAME", "in a circle: sweep.outdir, sweep.plan"),
        ("sweep/made_up.py", "import os", "sweep.made_up is in no room of ROOMS"),
        ("sweep/plan.py", "#\n" * 299 + "import os", "plan.py has 301 lines, more than 300"),
        ("sweep/plan.py", "def f():\n" + "    pass\n" * 50, "plan.py:2: f has 51 lines, more than 50"),
    ],
)
def test_a_broken_rule_is_found(tmp_path, name, code, fault):
    """The control: in a tree of three good modules, one bad line is the one fault."""
    good = {"plan": "", "outdir": "from sweep import plan", "stats": "import numpy, sweep.plan"}
    for each, content in ({f"sweep/{module}.py": text for module, text in good.items()} | {name: code}).items():
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_text(f'"""Made up."""\n{content}\n')

    assert [fault] == faults(tmp_path)


def test_a_module_without_docstring_is_found(tmp_path):
    """The control of the last rule."""
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "plan.py").write_text("import os\n")

    assert ["plan.py has no docstring"] == faults(tmp_path)
