"""The policy: all gates, and facts -> findings. Pure.

The built-in policy of design §8. What it does not gate (leaks, capacity, tenants, drills) is named as not tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sweep.finding import Facts, Finding
from sweep.identity_gates import IDENTITY_GATES
from sweep.others_gates import OTHERS_GATES
from sweep.request_gates import REQUEST_GATES
from sweep.run_gates import RUN_GATES
from sweep.search_gates import SEARCH_GATES
from sweep.slo_gates import SLO_GATES


def judge_findings(facts: Facts) -> list[Finding]:
    """Findings of every gate, in the order of the policy; of a run that only observed, none about requests."""
    if not facts.plan.asks:
        gates = [gate for gate in GATES if gate not in (*REQUEST_GATES, *SLO_GATES)]
        return [NOTHING_ASKED, *(finding for gate in gates for finding in gate.judge(facts, gate))]
    return [replace(finding, is_target=gate.is_target) for gate in GATES for finding in gate.judge(facts, gate)]


def not_tested(findings: Sequence[Finding]) -> list[str]:
    """How the verdict names the gates that were skipped."""
    skipped = {finding.gate for finding in findings if finding.status == "skipped"}
    return [gate.not_tested for gate in GATES if gate.not_tested and gate.name in skipped]


NOTHING_ASKED = Finding(
    "nothing asked", "warn", "level 0 only observes: no request was sent, so nothing is known of answers",
    "a level with load", required=False,
)  # fmt: skip
GATES = (*REQUEST_GATES, *SLO_GATES, *SEARCH_GATES, *RUN_GATES, *IDENTITY_GATES, *OTHERS_GATES)
