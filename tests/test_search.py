"""The search of --levels auto as pure rules, its refusals, and that both halves decide a level alike."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from build import MS, T0, BuiltRun, S, fail_some, make_generator, make_mark
from hypothesis import given
from hypothesis import strategies as st

from sweep import evidence, first_screen, search
from sweep.errors import PlanError
from sweep.finding import Facts
from sweep.judge import facts_of, judge
from sweep.plan import SweepPlan
from sweep.plan_steps import probe_caps, steps
from sweep.records import HealthLine
from sweep.refusals import check
from sweep.request_gates import REQUEST_GATES
from sweep.search import Tried, following
from sweep.slo import parse_slo
from sweep.slo_decision import Part, decide
from sweep.slo_gates import SLO_GATES
from sweep.units import Level
from sweep.verdict import meets_all

SLO = "stream.ttft_ms.p95<=500"


def plan_of(*slos: str, **changes) -> SweepPlan:
    made = {"mode": "stream", "auto_max": Level(64), "levels": (Level(1),)} | changes
    return SweepPlan(target="http://127.0.0.1:9", slos=tuple(map(parse_slo, slos or (SLO,))), **made)


def searched(capacity: int, first: int = 1, highest: int = 256, n: int = 30) -> tuple[list[int], str]:
    """Levels tried on a target that holds up to `capacity`, and how it ended."""
    tried: list[Tried] = []
    while isinstance(level := following(tried, Level(first), Level(highest), n), Level):
        tried.append(Tried(level, "met" if level.value <= capacity else "not met", ""))
    return [int(each.level.value) for each in tried], level


def test_it_doubles_and_then_halves():
    """Until the ends of the bracket are neighbours."""
    assert ([1, 2, 4, 8, 16, 12, 14, 13], "bracketed") == searched(12)
    assert ([12, 24, 18, 15, 13], "bracketed") == searched(12, first=12)
    assert ([16, 8, 12, 10, 9], "bracketed") == searched(8, first=16)
    assert ([1], "bracketed") == searched(0)
    assert ([1, 2, 4, 6], "highest") == searched(99, highest=6)
    assert ([1, 2, 4], "levels") == searched(99, n=3)


@given(capacity=st.integers(0, 300), first=st.integers(1, 256), n=st.integers(1, 30))
def test_the_bracket_always_holds_the_capacity(capacity, first, n):
    """Whatever it begins with; no level twice, never more than allowed, and ends within a tenth of each other."""
    levels, ended = searched(capacity, first, 256, n)
    low = max((level for level in levels if level <= capacity), default=0)
    high = min((level for level in levels if level > capacity), default=None)

    assert len(levels) == len(set(levels)) <= n
    assert all(1 <= level <= 256 for level in levels)
    if ended == "bracketed":
        assert low <= capacity < high <= max(low + 1, low * 1.1)
    if ended == "highest":
        assert 256 == low


def test_an_invalid_level_ends_it():
    """It says nothing about the target: neither higher nor lower is tried."""
    tried = [Tried(Level(1), "met", ""), Tried(Level(2), "invalid", "the generator was late")]

    assert "invalid" == following(tried, Level(1), Level(64), 9)
    assert (Level(1), None) == (search.met(tried), search.not_met(tried))


def test_an_undecided_level_counts_as_not_met():
    """It was not shown to hold."""
    tried = [Tried(Level(4), "met", ""), Tried(Level(8), "undecided", "")]

    assert Level(6) == following(tried, Level(4), Level(64), 9)


@pytest.mark.parametrize(
    ("changes", "slos", "said"),
    [
        ({}, ("error_ratio<=1%",), "--levels auto needs a latency to search by"),
        ({}, (SLO, "request_rate_per_s>=5"), "a rate grows with the level"),
        ({}, (f"{SLO}@8",), "leave out @8"),
        ({"cycles": 3}, (SLO,), "--leak-cycles"),
        ({"levels": (Level(99),), "sustain": Level(99)}, (SLO,), "--auto-max 64 is below the first level 99"),
        ({"auto_steps": 0}, (SLO,), "--auto-steps 0"),
        ({"max_time_s": 30.0}, (SLO,), "over --max-time 30s"),
        ({"max_requests": 100}, (SLO,), "raise --max-requests"),
        ({"tenants": ("a=A", "b=B")}, (SLO,), "--tenant"),
        ({"beside": {"old": "http://127.0.0.1:8"}}, (SLO,), "--beside"),
    ],
)
def test_what_cannot_be_searched_is_refused(changes, slos, said):
    """In one line, before any load."""
    check(plan_of())
    with pytest.raises(PlanError) as refused:
        check(plan_of(*slos, **changes))

    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_probe_has_the_requests_its_slos_need_and_no_more_than_is_left():
    """Each level is the one in question, so an SLO without @ speaks of it; caps are shared out over what may come."""
    plan = plan_of("stream.ttft_ms.p99<=500", mode="both", auto_steps=10, max_requests=20_000)
    first = steps(plan)

    assert ["s01-c1-stream-k1", "s02-c1-nonstream-k1"] == [step.id for step in first]
    assert 299 == first[0].n_wanted
    assert all(step.exploring for step in first)
    assert not any(step.exploring for step in steps(replace(plan, sustain=Level(1))))
    assert sum(step.max_requests for step in first) <= 20_000 // 10
    assert (50, 80 * 128) == probe_caps(plan, Level(1), 50, 80 * 128, 3)


def test_leak_cycles_repeat_the_sustained_level_alone():
    """In every mode, one cycle after the other, each with an end of its own; caps are shared out over them too."""
    plan = SweepPlan(
        target="http://127.0.0.1:9", levels=(Level(1), Level(2), Level(4)), sustain=Level(2), leak_cycles=2
    )
    made = steps(plan)

    assert plan.n_steps == len(made) == 3 * 2 + 2 * 2
    assert ["s07-c2-stream-k2", "s08-c2-nonstream-k2", "s09-c2-stream-k3", "s10-c2-nonstream-k3"] == [
        step.id for step in made[6:]
    ]
    assert [6, 8, 10] == [number for number, step in enumerate(made, 1) if step.ends_cycle]
    assert sum(step.max_requests for step in made) <= plan.max_requests
    assert not any(step.exploring for step in made[6:])


# -- both halves decide alike --

LEVELS = ",".join(map(str, range(1, 13)))
SLOS = (SLO, "ttfa_ms.p90<=300", "tpot_ms.p90<=32", "gap_ms.p90<=34", "e2e_ms.p95<=400", "shed_ratio<=6%",
        "error_ratio<=6%", "goodput>=80%")  # fmt: skip


def disturb(run: BuiltRun, seed: int) -> None:
    """Every step in its own way: slower, some failed, refused, cut, or without what a latency needs."""
    draw = random.Random(seed)
    for step in run.steps:
        factor = draw.choice([0.5, 1.0, 2.0, 3.5, 4.5])
        for record in step.records:
            spread = factor * draw.uniform(0.6, 1.4)
            for name in ("t_first_ns", "t_answer_ns", "t_last_ns", "t_end_ns", "t_over_ns"):
                at = getattr(record, name)
                if at is not None:
                    setattr(record, name, record.t_start_ns + int((at - record.t_start_ns) * spread))
            record.gaps_us = [int(gap * spread) for gap in record.gaps_us]
            if draw.random() < 0.03:
                record.n_out = draw.choice([1, None])
        for outcome in draw.sample(["http_5xx", "shed", "cut", "truncated", "left"], draw.choice([0, 0, 1, 2])):
            fail_some(step, draw.choice([1, 3, 12]), outcome)


def judged_answers(facts: Facts) -> dict[tuple[str, str], bool]:
    """By step and SLO ("all": every one): met by the judge's gates of requests and SLOs."""
    gates = (*REQUEST_GATES, *SLO_GATES)
    findings = [replace(each, is_target=gate.is_target) for gate in gates for each in gate.judge(facts, gate)]
    met = {}
    for step, level, mode in facts.planned_steps:
        mine = [each for each in findings if (each.level, each.mode) == (level, mode)]
        is_failed = any(each.status == "fail" and not each.gate.startswith("slo") for each in mine)
        alone = replace(facts, planned=((level, mode),))
        met[step, "all"] = not is_failed and meets_all(alone, mine, level)
        for slo in (each for each in mine if each.gate.startswith("slo ")):
            met[step, slo.gate.removeprefix("slo ")] = not is_failed and meets_all(alone, [slo], level)
    return met


def test_both_halves_decide_a_level_alike(tmp_path):
    """24 steps, each disturbed in its own way: what steers the search is what the judge finds, with other code."""
    run = BuiltRun(LEVELS, n=90, slos=SLOS, mode="both", sustain="1")
    disturb(run, 1)
    theirs = judged_answers(facts_of(evidence.read(run.write(tmp_path / "out")), run.plan))
    ours = {}
    for step in run.steps:
        for name in ("all", *SLOS[:-1]):  # goodput counts by the other SLOs
            slos = run.plan.slos if name == "all" else (parse_slo(name),)
            if name == "all" or step.mode in slos[0].modes:
                answer, _ = decide(slos, step.mode, [Part(step.records, step.t_window_ns, step.t_close_ns)])
                ours[step.id, name] = answer == "met"

    assert ours == {key: met for key, met in theirs.items() if key in ours}
    assert {True, False} == {met for (_, name), met in ours.items() if name == "all"}
    for name in SLOS[:-1]:
        assert True in {met for (_, slo), met in ours.items() if slo == name}


# -- a level that the generator could not deliver --


def spoil(step, how: str, far: float) -> None:
    """far: how far beyond its limit, 0 to 1."""
    lines = step.generator
    if how == "cpu":
        step.generator = [make_generator(line.t_mono_ns, cpu_share=0.71 + far) for line in lines]
    elif how == "lag":
        step.generator = [make_generator(line.t_mono_ns, lag_p99_ms=20.5 + 900 * far) for line in lines]
    elif how == "ports":
        left = int(2800 * (1 - far))
        step.generator = [make_generator(line.t_mono_ns, ports=28232, ports_left=left) for line in lines]
    elif how == "silent":
        step.generator = lines[: int(len(lines) * 0.6 * (1 - far))]
    elif how == "users":
        step.report["users_min"] = int(int(step.level) * 0.99 * (1 - far))
    elif how == "lost":
        step.process["started"] = len(step.records) + 1 + int(50 * far)
    else:
        step.report |= {"counts_agree": False, "why": "the counts disagree"}


@pytest.mark.parametrize("how", ["cpu", "lag", "ports", "silent", "users", "lost", "counts"])
def test_a_level_the_generator_could_not_deliver_never_passes(tmp_path, how):
    """However good its numbers look, whichever level up to the sustained one it is, and however little it missed."""
    draw = random.Random(how)
    for number in range(2):
        far, which = (0.0, draw.random())[number], draw.randrange(3)
        run = BuiltRun("2,4,8", n=110)
        spoil(run.steps[which], how, far)
        result = judge(run.write(tmp_path / str(number)))
        level = next(row for row in result["levels"] if row["level"] == run.steps[which].level)

        assert ("INCONCLUSIVE", False) == (result["verdict"], level["valid"]), (how, far)
        assert level["invalid_why"]
    if how == "ports":
        assert "ephemeral ports" in level["generator"]["why"]


# -- evidence of a search --


def built_search(capacity_answers: dict[int, str]) -> BuiltRun:
    """A run of one search with these answers, in order; its steps are in the marks as the runner writes them."""
    levels = list(capacity_answers)
    run = BuiltRun(",".join(map(str, sorted(levels))), n=110)
    run.steps.sort(key=lambda step: levels.index(int(step.level)))
    begin = run.steps[0].t_begin_ns
    for number, step in enumerate(run.steps):
        old = step.id
        step.id, step.t_begin_ns = f"s{number + 1:02d}-c{step.level}-stream-k1", begin + number * 30 * S
        step.records = step.make(110)
        if capacity_answers[int(step.level)] == "not met":
            for record in step.records:
                record.t_first_ns += 900 * MS
                record.t_answer_ns, record.t_last_ns = record.t_first_ns, record.t_first_ns + 30 * MS
                record.t_end_ns = record.t_over_ns = record.t_last_ns
        step.generator = [make_generator(step.t_open_ns + i * S) for i in range(1, 17)]
        assert old
    run.t_finish_ns = run.steps[-1].t_idle_ns + S
    run.plan = replace(run.plan, levels=(Level(levels[0]),), auto_max=Level(64), auto_steps=len(levels))
    run.run = run._run(None)
    rows = run.run["steps"]
    run.run["steps"] = rows[:1]
    run.samples, run.starts, run.ends = [], [], []
    run.health = [
        HealthLine(t_mono_ns=t_ns, what=what, status=200, ms=2.0)
        for t_ns in range(T0, run.t_finish_ns, S) for what in ("live", "ready")
    ]  # fmt: skip
    run.marks = run._marks()
    for mark in run.marks:
        row = next((row for row in rows if row["step"] == mark.step), None)
        if mark.mark == "begin" and row not in (None, rows[0]):
            mark.detail["planned"] = row
        if mark.mark == "idle":
            told = {"level": str(row["level"]), "answer": capacity_answers[row["level"]], "why": "", "ended": None}
            mark.detail["search"] = told
    tried = [Tried(Level(level), answer, "") for level, answer in capacity_answers.items()]
    ended = following(tried, Level(levels[0]), Level(64), len(levels))
    run.marks[-2].detail["search"] |= {"ended": ended, "leak_cycles": 0}
    return run


ANSWERS = {1: "met", 2: "met", 4: "not met", 3: "met"}


def test_the_level_found_is_the_one_that_is_judged(tmp_path):
    """The highest that was met; what lies above explores and fails nothing."""
    result = judge(built_search(ANSWERS).write(tmp_path / "out"))

    assert ("COMPLETE", "WARN") == (result["run_status"], result["verdict"]), result["why"]
    assert (3, True, 3, 4) == (
        result["sustain"], result["sustain_default"], result["search"]["meets"], result["search"]["fails"],
    )  # fmt: skip
    assert "--levels auto: meets at 3, fails at 4" in result["sentence"]
    assert (3, 4, True) == tuple(result["capacity"][key] for key in ("level", "failed_at", "bracketed"))


def test_no_level_met_is_a_failure(tmp_path):
    """Of the lowest that was tried."""
    result = judge(built_search({1: "not met"}).write(tmp_path / "out"))

    assert ("FAIL", 1) == (result["verdict"], result["sustain"])
    assert "no level tried meets every SLO, fails at 1" == result["search"]["text"]


def test_a_search_that_was_not_over_says_so(tmp_path):
    """The number of levels was used up: at least so much, and nothing above it is known."""
    result = judge(built_search({1: "met", 2: "met"}).write(tmp_path / "out"))

    assert "meets at 2, then --auto-steps are used up" == result["search"]["text"]
    assert (2, False) == (result["capacity"]["level"], result["capacity"]["bracketed"])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("a wrong answer", lambda run: run.marks[-2].detail["search"].update(answer="not met", ended="bracketed")),
        ("met where nothing was", lambda run: _of_level(run, 4).update(answer="met")),
        ("no end", lambda run: run.marks[-2].detail["search"].update(ended=None)),
        ("an end too early", lambda run: _of_level(run, 2).update(ended="bracketed", leak_cycles=0)),
        ("no time left that was", lambda run: _cut_short(run, "time")),
        ("no room left that was", lambda run: _cut_short(run, "caps")),
        ("a key that was not refused", lambda run: _cut_short(run, "api_key")),
        ("an unknown word", lambda run: _of_level(run, 2).update(answer="splendid")),
        ("a level nobody asked for", lambda run: _of_level(run, 2).update(level="7")),
        ("more leak cycles than ran", lambda run: run.marks[-2].detail["search"].update(leak_cycles=2)),
    ],
)  # fmt: skip
def test_answers_that_do_not_fit_never_pass(tmp_path, name, change):
    """Marks that contradict the evidence or each other: unknown or damage, but no PASS."""
    run = built_search(ANSWERS)
    change(run)
    result = judge(run.write(tmp_path / "out"))

    assert "INCONCLUSIVE" == result["verdict"], name


def _cut_short(run: BuiltRun, ended: str) -> None:
    """The last level is taken out with all its evidence, and the one before says what ended the search."""
    gone = run.steps.pop()
    run.marks = [mark for mark in run.marks if mark.step != gone.id]
    _of_level(run, 4).update(ended=ended, leak_cycles=0)


def _of_level(run: BuiltRun, level: int) -> dict:
    return next(m.detail["search"] for m in run.marks if m.detail.get("search", {}).get("level") == str(level))


def test_a_killed_search_is_aborted_with_what_it_tried(tmp_path):
    """No finish mark: the steps so far are shown, and none is missed."""
    run = built_search(ANSWERS)
    third = run.steps[2].t_begin_ns
    run.marks = [mark for mark in run.marks if mark.t_mono_ns <= third]
    run.steps = run.steps[:2]
    run.marks.append(make_mark("abort", third + S, None, by="signal", reason="SIGINT"))
    run.marks = [mark for mark in run.marks if not (mark.mark == "begin" and mark.t_mono_ns == third)]
    result = judge(run.write(tmp_path / "out"))

    assert ("ABORTED", "INCONCLUSIVE") == (result["run_status"], result["verdict"])
    assert "meets at 2, the run ended before the search" == result["search"]["text"]


def test_the_command_that_runs_it_again_searches_again(tmp_path):
    """It does not give as wanted what was only found."""
    run = built_search(ANSWERS)
    run.steps[0].report["users_min"] = 0
    result = judge(run.write(tmp_path / "out"))

    assert "--levels auto" in result["next"]
    assert "--auto-max 64" in result["next"]
    assert "--sustain" not in result["next"]
    assert not any("wanted" in line for line in first_screen.lines(result))


def test_the_command_that_runs_a_search_again_asks_for_its_leak_cycles(tmp_path):
    """Those that found no room are asked for again, with the bounds that are raised."""
    run = built_search(ANSWERS)
    run.steps[0].report["users_min"] = 0
    run.run["plan"] |= {"leak_cycles": 2}
    result = judge(run.write(tmp_path / "out"))

    assert "--leak-cycles 2" in result["next"]


def test_a_search_that_its_time_ended(tmp_path):
    """The same marks are sound where the plan had no more time."""
    run = built_search(ANSWERS)
    _cut_short(run, "time")
    run.plan = replace(run.plan, max_time_s=60.0)
    run.run["plan"] |= {"max_time": 60.0}
    result = judge(run.write(tmp_path / "out"))

    assert "meets at 2, fails at 4, then --max-time left no room for another level" == result["search"]["text"]
    assert (2, "COMPLETE") == (result["sustain"], result["run_status"])
