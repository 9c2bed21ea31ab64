"""Several targets in one plan: whose turn it is, what each block gets, what is refused, who may know which key."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import click
import pytest

from sweep import outdir
from sweep.access import Access
from sweep.beside_plan import plan_beside, turns
from sweep.cli import cli
from sweep.errors import PlanError
from sweep.giving_up import GivingUp
from sweep.next_command import command
from sweep.options import plan_of, run_options
from sweep.plan import BLOCKS, SweepPlan
from sweep.plan_file import read_plan_file
from sweep.plan_init import plan_text
from sweep.plan_steps import steps
from sweep.refusals import check
from sweep.sequence import FixedSteps, StepEnd
from sweep.step_files import StepReport
from sweep.units import parse_level, parse_levels

TWO = {"direct": "http://127.0.0.1:9000"}


def make_plan(levels="1,4", beside=TWO, **given):
    return SweepPlan(target="http://127.0.0.1:8080", levels=parse_levels(levels), beside=beside, **given)


def read(arguments, monkeypatch, env=None):
    """The plan that a command line gives."""

    @click.command()
    @run_options
    @click.pass_context
    def run(ctx, /, **given):
        return plan_of(ctx, given)

    monkeypatch.delenv("GATEWAY_PID", raising=False)
    if env is not None:
        monkeypatch.setenv("GATEWAY_PID", env)
    return run.main(["--target", "http://127.0.0.1:1", "--levels", "1", *arguments], standalone_mode=False)


def test_two_targets_take_turns_as_abba():
    """Neither is always first, and the step ends with the one that is judged."""
    order = "".join("A" if name is None else "B" for _, name in turns(["direct"]))

    assert "BAABABBA" == order
    assert [1, 1, 2, 2, 3, 3, 4, 4] == [block for block, _ in turns(["direct"])]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_every_target_is_as_early_as_late(n):
    """The mean place is the same for all, so that a steady drift is nobody's; each has its blocks, one a round."""
    order = list(turns([f"t{i}" for i in range(n)]))
    places = {name: [place for place, (_, each) in enumerate(order) if each == name] for _, name in order}

    assert {BLOCKS} == {len(found) for found in places.values()}
    assert 1 == len({sum(found) for found in places.values()})
    assert {1} == set(Counter(order).values())
    assert order[-1] == (BLOCKS, None)


def test_a_step_is_split_into_blocks_of_its_time_and_caps():
    """Each has a name of its own that can be a file's, and together they are no longer and send no more."""
    plan = make_plan(mode="stream", levels="4", max_requests=4000)
    blocks = steps(plan)
    mine = [block for block in blocks if block.target is None]
    (whole,) = steps(replace(plan, beside={}))

    assert plan.n_steps == len(blocks) == 2 * BLOCKS
    assert [f"s01-c4-stream-k1.b{i}" for i in range(1, 5)] == [block.id for block in mine]
    assert "s01-c4-stream-k1-direct.b1" == blocks[0].id
    assert all(outdir.NAME.fullmatch(outdir.requests_file(each.id, "w01").rpartition("/")[2]) for each in blocks)
    assert len(blocks) == len({block.id for block in blocks})
    assert whole.duration_s == sum(block.duration_s for block in mine)
    assert sum(block.n_wanted for block in mine) >= whole.n_wanted
    assert sum(block.max_requests for block in blocks) <= plan.max_requests
    assert plan.cooldown_s == blocks[-1].cooldown_s > blocks[0].cooldown_s
    assert {whole.exploring} == {block.exploring for block in blocks}


def test_the_longest_time_counts_every_block():
    """--max-time bounds them all together, drains included."""
    plan = make_plan(max_time_s=3600.0, drain_s=5.0)
    longest = sum(3 * each.warmup_s + each.max_step_s + each.drain_s + each.cooldown_s for each in steps(plan))

    assert longest <= 3600
    assert longest > 1800  # it is used, too


def test_process_ids_are_told_apart_by_their_names(monkeypatch):
    """The plain one is the first target's, in any order; the environment's stays its own beside named flags."""
    named = ("--beside", "direct=http://127.0.0.1:2", "--gateway-pid", "direct=port:9000")
    both = read([*named, "--gateway-pid", "pidfile:/a=b/x y"], monkeypatch)
    from_environment = read(named, monkeypatch, env="pidfile:/my file")

    assert ("pidfile:/a=b/x y", {"direct": "port:9000"}) == (both.gateway_pid, both.beside_pids)
    assert ("pidfile:/my file", {"direct": "port:9000"}) == (from_environment.gateway_pid, from_environment.beside_pids)
    assert (7, {}) == ((plain := read(["--gateway-pid", "7"], monkeypatch)).gateway_pid, plain.beside_pids)
    assert read([], monkeypatch).gateway_pid is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--gateway-pid", "7", "--gateway-pid", "8"], "--gateway-pid is given twice"),
        (["--gateway-pid", "a=7", "--gateway-pid", "a=8"], "--gateway-pid a=… is given twice"),
        (["--beside", "a=http://h", "--beside", "a=http://i"], "--beside a is given twice"),
    ],
)
def test_a_name_stands_once(flags, says, monkeypatch):
    with pytest.raises(click.UsageError, match=says):
        read(flags, monkeypatch)


def test_the_command_that_runs_it_again_and_the_plan_file_hold_all_of_it(monkeypatch):
    """Names with their processes, models and keys."""
    flags = ["--gateway-pid", "7", "--gateway-pid", "direct=9", "--beside", "direct=http://127.0.0.1:2",
             "--beside-model", "direct=m2", "--beside-key-env", "direct=UP"]  # fmt: skip
    plan = read(flags, monkeypatch)
    again = command(plan)

    for option, value in zip(flags[::2], flags[1::2], strict=True):
        assert f"{option} {value}" in again
    assert "beside-pids" not in again


def test_a_plan_file_holds_every_process(tmp_path):
    """Written by `plan init` as one list, and read back."""
    parameters = cli.commands["run"].params
    file = tmp_path / "plan.toml"
    file.write_text(plan_text({"gateway_pid": 7, "beside": TWO, "beside_pids": {"direct": "port:9"}}, parameters))
    values = read_plan_file(str(file), parameters).values

    assert (7, "direct=port:9") == values["gateway_pid"]
    assert tuple(TWO.items()) == values["beside"]


def test_a_plan_of_two_targets_passes():
    """The refusals below must be able not to refuse."""
    check(make_plan(beside_pids={"direct": "7"}, beside_models={"direct": "m"}, beside_key_envs={"direct": "UP_KEY"}))
    check(make_plan(beside={"same": "http://127.0.0.1:8080"}))  # against itself: shows what the noise is
    check(make_plan(beside={"tls": "https://localhost:1"}, ca_file="ca.pem"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"beside": {"a.b": "http://127.0.0.1:1"}}, "--beside 'a.b': its name becomes part of file names"),
        ({"beside": {"../x": "http://127.0.0.1:1"}}, "its name becomes part of file names"),
        ({"beside": {"Target": "http://127.0.0.1:1"}}, "--beside Target: that is what the first target is called"),
        ({"beside": {"a": "http://127.0.0.1:1", "A": "http://127.0.0.1:2"}}, "--beside a is given twice, but for"),
        ({"beside": {f"t{i}": "http://127.0.0.1:1" for i in range(5)}}, "at most 4 take turns"),
        ({"beside": {"a": "http://gw.example"}}, "--beside a gw.example is not this machine, so its load"),
        ({"beside": {"a": "http://me:secret@127.0.0.1:1"}}, "--beside a holds a user name or password"),
        ({"beside": {"a": "http://127.0.0.1:1?key=secret"}}, "--beside a holds a query or fragment"),
        ({"beside": {"a": "127.0.0.1:1"}}, "--beside a '127.0.0.1:1' is no http or https URL"),
        ({"beside": {"a": "http://127.0.0.1:0"}}, "--beside a http://127.0.0.1:0: port 0 is none"),
        ({"beside_pids": {"old": "7"}}, "--gateway-pid old=…: no --beside has that name; known: direct"),
        ({"beside_pids": {"target": "7"}}, "the first target's process is given without a name"),
        ({"beside": {}, "beside_models": {"old": "m"}}, "--beside-model old=…: no --beside has that name; add "),
        ({"beside_models": {"direct": " "}}, "--beside-model direct= is empty"),
        ({"beside_key_envs": {"direct": "sk-1234567890abcdef1234567890abcdef"}}, "--beside-key-env direct"),
        ({"beside_key_envs": {"direct": "UP"}, "headers": {"Authorization": "GW"}}, "goes into Authorization, which"),
        ({"locustfile": "f.py", "mode": "user"}, "--beside and -f do not go together"),
        ({"tenants": ("a=A",)}, "--beside and --tenant do not go together"),
        ({"leak_cycles": 8}, "--beside and --leak-cycles do not go together"),
        ({"duration_s": 2.0, "max_step_s": 400.0}, "--duration 2s is 500ms for each of the 4 blocks"),
        ({"max_time_s": 400.0, "duration_s": 60.0}, "32 steps of warm-up"),
        ({"max_requests": 79}, "--max-requests 79: the 32 steps need 80 for one a user"),
    ],
)
def test_what_cannot_take_turns_is_refused_in_one_line(given, says):
    with pytest.raises(PlanError) as refused:
        check(make_plan(**given))

    assert says in str(refused.value)
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value) and "sk-1" not in str(refused.value)


def test_each_target_has_its_own_key_and_knows_no_other(monkeypatch):
    """In requests, and in the environment of the process that sends them."""
    for name in ("FRONT", "UP", "METRICS"):
        monkeypatch.setenv(name, f"key-of-{name}")
    plan = make_plan(api_key_env="FRONT", metrics_key_env="METRICS", beside={**TWO, "old": "http://127.0.0.1:3"},
                     beside_key_envs={"direct": "UP"})  # fmt: skip
    first, direct, old = (Access(each) for each in (plan, plan_beside(plan, "direct"), plan_beside(plan, "old")))

    assert ["key-of-FRONT", "key-of-UP", "key-of-FRONT"] == [each.key for each in (first, direct, old)]
    for access, known in ((first, "FRONT"), (direct, "UP"), (old, "FRONT")):
        sent = access.environment(sends=True)
        assert {known} == {name for name in ("FRONT", "UP", "METRICS") if name in sent}, known
        assert set() == {"FRONT", "UP", "METRICS"} & set(access.environment(sends=False))
    assert "UP" == direct.order()["api_key_env"]


def test_another_key_is_no_business_of_a_command(monkeypatch):
    """--api-key-cmd is the first target's; one with a key of its own does not run it."""
    monkeypatch.setenv("UP", "key-of-up")
    plan = make_plan(api_key_cmd="cat no-such-file", beside_key_envs={"direct": "UP"})

    assert "key-of-up" == Access(plan_beside(plan, "direct")).key


class Stub:
    """A target beside the first one, as far as it matters here: whether its process has ended."""

    def __init__(self) -> None:
        self.ended = False

    def is_gone(self) -> bool:
        return self.ended


@pytest.mark.parametrize("how", ["a guard tripped", "its process ended"])
def test_a_target_beside_that_is_given_up_gets_no_more_blocks(how):
    """And takes nobody along: the first one and the other go on, at every level."""
    plan = make_plan(beside={**TWO, "old": "http://127.0.0.1:3"}, sustain=parse_level("1"))
    direct, order = Stub(), steps(plan)
    given_up = GivingUp({"direct": direct, "old": Stub()})
    block = next(step for step in order if step.target == "direct")
    before = [step for step in order if given_up.skips(step)]
    if how == "a guard tripped":
        assert given_up.give_up(block)
    else:
        direct.ended = True

    assert [] == before
    assert [step for step in order if step.target == "direct"] == [step for step in order if given_up.skips(step)]


def test_only_exploring_may_be_given_up_at_the_first_target():
    """At a level that production needs a guard ends the run; above it the exploring, and with it the others' blocks.

    A guard in a block of another target ends that of nobody else.
    """
    order = steps(make_plan(levels="1,4,8", sustain=parse_level("1"), mode="stream"))
    given_up = GivingUp({"direct": Stub()})
    needed = next(step for step in order if step.target is None and not step.exploring)
    explored = next(step for step in order if step.target is None and step.exploring)
    other = next(step for step in order if step.target == "direct" and step.exploring)

    assert not given_up.give_up(needed) and given_up.give_up(explored) and given_up.give_up(other)
    assert list(order) == run_through(order, other)
    assert list(order[: order.index(explored) + 1]) == run_through(order, explored)


def run_through(order, tripped_in):
    """Steps that are run when a guard trips in one of them."""
    sequence, ran = FixedSteps(order), []
    report = StepReport(
        step="s", t_open_ns=0, clocks={}, boot_id=None, users_wanted=1, processes=[], counts_agree=True
    )  # fmt: skip
    while (step := sequence.following()) is not None:
        ran.append(step)
        sequence.took(step, StepEnd(report, "a guard" if step == tripped_in else None))
    return ran


def test_blocks_of_an_arrival_rate_have_room_for_all_that_is_due():
    """Each may send what its warm-up and window ask for."""
    for block in steps(make_plan(levels="5/s", mode="stream")):
        assert block.max_requests >= 5 * (block.warmup_s + block.duration_s)


def test_the_window_of_a_block_opens_after_the_ramp():
    """Half of the warm-up is too short where the ramp is longer: a rate that still grows is not the level's."""
    given = make_plan(levels="5/s", warmup_s=4.0)

    assert {6.0} == {block.warmup_s for block in steps(replace(given, ramp_s=6.0))}
    assert {2.0} == {block.warmup_s for plan in (given, replace(given, ramp_s=1.0)) for block in steps(plan)}


def test_a_cycle_ends_with_its_last_block():
    """There its sockets come to rest and its floor is taken, once; a block of both modes wants its part of each."""
    plan = make_plan(mode="mixed", levels="1,4", cycles=2)
    found = steps(plan)

    assert ["s02-c4-mixed-k1.b4", "s04-c4-mixed-k2.b4"] == [step.id for step in found if step.ends_cycle]
    mine = [step for step in found if step.target is None]
    wanted = {mode: sum(step.n_by_mode[mode] for step in mine) for mode in ("stream", "nonstream")}
    whole = {mode: sum(step.n_by_mode[mode] for step in steps(replace(plan, beside={}))) for mode in wanted}
    assert all(whole[mode] <= wanted[mode] < whole[mode] + BLOCKS * len(found) for mode in wanted), (whole, wanted)
    assert wanted["stream"] < 2 * whole["stream"]
