"""--tenant as it is written: who gets what of each level, and what is refused before any load."""

from __future__ import annotations

from collections import Counter

import pytest

from sweep import refusals
from sweep.dry_run import describe
from sweep.errors import PlanError
from sweep.plan import SweepPlan, parse_levels
from sweep.plan_steps import steps
from sweep.preflight import tenant_orders
from sweep.senders import Senders
from sweep.step_files import StepOrder
from sweep.tenants import parts_of, tenants_of, told
from sweep.units import Level

SECRET = "sk-0123456789abcdef"


def plan_of(*tenants: str, levels: str = "4,8", **given) -> SweepPlan:
    return SweepPlan(target="http://127.0.0.1:9", levels=parse_levels(levels), tenants=tenants, **given)


def users(plan: SweepPlan) -> list[list[int]]:
    return [[part.users for part in parts_of(plan, level)] for level in plan.levels]


def test_weights_share_each_level():
    plan = plan_of("a=KEY_A:3", "b=KEY_B", levels="4,8,10")
    refusals.check(plan)

    assert [[3, 1], [6, 2], [8, 2]] == users(plan)
    assert [("a", "KEY_A", 3.0), ("b", "KEY_B", 1.0)] == [(t.name, t.key_env, t.weight) for t in tenants_of(plan)]


def test_a_tenant_with_numbers_of_its_own_stands_beside_the_level():
    """The level's number is what the others share: 1 steady user beside 4 and 8 noisy ones."""
    plan = plan_of("steady=KEY_S@1,1", "noisy=KEY_N")
    refusals.check(plan)

    assert [[1, 4], [1, 8]] == users(plan)
    assert "steady 1/1, its own number beside the level's; noisy 4/8 (at level 4/8)" == told(plan)
    more, alone = steps(plan), steps(plan_of())
    assert more[0].max_requests * alone[-1].max_requests > 0
    # Warm-up requests of the steady user are in the caps too.
    assert more[0].max_requests / sum(s.max_requests for s in more) > (
        alone[0].max_requests / sum(s.max_requests for s in alone)
    )


def test_arrivals_are_shared_by_weight():
    plan = plan_of("a=KEY_A", "b=KEY_B:3")

    assert [(0, 1.25), (0, 3.75)] == [(part.users, part.weight) for part in parts_of(plan, Level(5, "rate"))]


def test_each_user_is_one_tenants_and_each_arrival_is_drawn():
    """Of 4 users 3 and 1, of 400 arrivals 300 and 100."""
    plan = plan_of("a=KEY_A:3", "b=KEY_B")
    order = {"step": "s", "worker": "w01", "out_dir": "", "url": "", "api": "", "model": "", "users": 4,
             "max_tokens": 1, "prompt_words": 1, "seed": 5}  # fmt: skip
    keys = {"KEY_A": "one", "KEY_B": "two"}
    closed = Senders(StepOrder(**order, tenants=tenant_orders(plan, Level(4))), keys)
    opened = Senders(StepOrder(**order, tenants=tenant_orders(plan, Level(4, "rate"))), keys)

    assert ["a", "a", "a", "b"] == [closed.tenant_of(user) for user in range(4)]
    drawn = Counter(opened.tenant_of(0) for _ in range(400))
    assert {"a": 300, "b": 100} == drawn
    assert {"Authorization": "Bearer two"} == closed.headers["b"] and {"one", "two"} == closed.secrets
    assert Senders(StepOrder(**order), {}).tenant_of(0) is None


def test_the_dry_run_tells_parts_and_variables():
    """Names of variables, no keys."""
    lines = describe(plan_of("a=KEY_A:3", "b=KEY_B"))

    (line,) = (line for line in lines if line.startswith("tenants: "))
    assert "a 3/6; b 1/2 (at level 4/8)" in line
    assert "a's key from environment variable KEY_A" in line
    assert any("tenants (shown, not judged)" in line for line in lines)


@pytest.mark.parametrize(
    ("tenants", "given", "says"),
    [
        (("a", "b=KEY_B"), {}, "write it like --tenant search=SEARCH_KEY"),
        (("a=", "b=KEY_B"), {}, "give the NAME of an environment variable"),
        ((f"a={SECRET}", "b=KEY_B"), {}, "give the NAME of an environment variable"),
        ((f"{SECRET}=KEY_A", "b=KEY_B"), {}, "write it like"),
        (("a=KEY_A:0", "b=KEY_B"), {}, "its weight must be a number above 0"),
        (("a=KEY_A:inf", "b=KEY_B"), {}, "its weight must be a number above 0"),
        (("a=KEY_A:", "b=KEY_B"), {}, "its weight must be a number above 0"),
        (("a=KEY_A:nan", "b=KEY_B"), {}, "its weight must be a number above 0"),
        (("a=KEY_A", "a=KEY_B"), {}, "a is given twice"),
        (("a=KEY_A", "b=KEY_A"), {}, "KEY_A holds the key of two tenants"),
        (("a=KEY_A:1e308", "b=KEY_B:1e308"), {"levels": "4/s"}, "its weight must be a number above 0"),
        (("a=KEY_A",), {}, "one tenant is nothing to compare"),
        (("a=KEY_A@1,1", "b=KEY_B@2,2"), {}, "nobody shares the levels"),
        (("a=KEY_A@1", "b=KEY_B"), {}, "1 numbers after @ for 2 levels"),
        (("a=KEY_A@1,x", "b=KEY_B"), {}, "write a whole number for each level"),
        (("a=KEY_A@0,0", "b=KEY_B"), {}, "its number is 0 at every level"),
        (("a=KEY_A", "b=KEY_B", "c=KEY_C"), {"levels": "2,8"}, "level 2 is below the number of tenants"),
        (("a=KEY_A:99", "b=KEY_B"), {}, "its weight gives it no user at level 4"),
        (("a=KEY_A", "b=KEY_B"), {"api_key_cmd": "cat key"}, "--tenant and --api-key-cmd do not go together"),
        (("a=KEY_A", "b=KEY_B"), {"locustfile": "f.py", "mode": "user"}, "--tenant and -f do not go together"),
        (("a=KEY_A", "b=KEY_B"), {"beside": {"d": "http://127.0.0.1:8"}}, "--beside and --tenant do not go together"),
        (("a=KEY_A", "b=KEY_B"), {"processes": 2}, "--tenant and --processes do not go together"),
        (("a=KEY_A", "b=KEY_B"), {"headers": {"Authorization": "H"}}, "its key goes into Authorization"),
    ],
)  # fmt: skip
def test_tenants_that_cannot_be_shared_out_are_refused(tenants, given, says):
    """In one line that says what to write, and never repeats what may be a key."""
    with pytest.raises(PlanError, match=says) as refused:
        refusals.check(plan_of(*tenants, **given))

    assert SECRET not in str(refused.value) and "\n" not in str(refused.value)
