"""result.json -> JUnit XML, so that a CI shows each gate. Pure.

A CI must come to the same end as the exit code: what the verdict does not count (a failure while exploring) is
`skipped` with its text. One last test case carries the verdict itself; it fails only where no gate did, as in a run
that was stopped, so that a gate's failure counts once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

from sweep import gate_view, wording

Json = Mapping[str, Any]

_NO_WORD = re.compile(r"[^A-Za-z0-9_]+")
TAGS = {"fail": "failure", "unknown": "error", "skipped": "skipped"}  # a CI shows a skipped test in green


def junit(result: Json) -> str:
    """One test case a finding (`ha_sweep.GATE`, `LEVEL.MODE` or `run`), and `ha_sweep.verdict`."""
    suite = ET.Element("testsuite", name="ha-sweep")
    seen: Counter[tuple[str, str]] = Counter()
    for finding in result["findings"]:
        name = _name(finding)
        seen[finding["gate"], name] += 1
        times = seen[finding["gate"], name]
        _case(suite, finding["gate"], name if times == 1 else f"{name}#{times}", _outcome(finding), _text(finding))
    verdict = gate_view.VERDICT_STATUS[result["verdict"]]
    tag = TAGS.get(verdict)
    is_said = tag is not None and any(child.tag == tag for case in suite for child in case)
    told = "\n".join([result["sentence"], *result["why"]])
    _case(suite, "verdict", "run", "warn" if is_said else verdict, told)
    counts = Counter(child.tag for case in suite for child in case)
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(counts[tag]))
    suite.set("tests", str(len(suite)))
    if result["target"]["started_at"]:
        suite.set("timestamp", _clean(result["target"]["started_at"]))
    if result["labels"]:
        properties = ET.Element("properties")
        for key, value in result["labels"].items():
            ET.SubElement(properties, "property", name=_clean(f"label.{key}"), value=_clean(value))
        suite.insert(0, properties)
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _name(finding: Json) -> str:
    level = "run" if finding["level"] is None else str(finding["level"])
    return f"{level}.{finding['mode']}" if finding["mode"] else level


def _outcome(finding: Json) -> str:
    """What a CI is told, to come to the same end as the verdict."""
    return {"exploring": "skipped", "not required": "skipped", "warns only": "warn"}.get(
        gate_view.remark(finding), str(finding["status"])
    )


def _text(finding: Json) -> str:
    printed = wording.beside(finding["observed"], finding["limit"], finding["unit"] or "")
    said = ", ".join(filter(None, [finding["status"], gate_view.remark(finding)]))
    lines = [f"{said}: {finding['reason'] or finding['rule']}", f"rule: {finding['rule']}"]
    if finding["observed"].get("v") is not None:
        interval = f" ({printed.interval})" if printed.interval else ""
        lines.append(", ".join(filter(None, [f"observed: {printed.v}{interval}", gate_view.counted(finding)])))
    if finding["limit"] is not None:
        lines.append(f"limit: {printed.limit}")
    if finding["evidence"]:
        lines.append("evidence: " + ", ".join(finding["evidence"]))
    return "\n".join(lines)


def _case(suite: ET.Element, gate: str, name: str, outcome: str, text: str) -> None:
    # Its views split a class name at dots, and some trip over other signs.
    case = ET.SubElement(suite, "testcase", classname=f"ha_sweep.{_NO_WORD.sub('_', gate)}", name=_clean(name))
    text = _clean(text)
    tag = TAGS.get(outcome)
    if tag is not None:
        ET.SubElement(case, tag, message=text.split("\n", 1)[0]).text = text
    elif outcome in ("warn", "assumed"):
        ET.SubElement(case, "system-out").text = text


def _clean(text: str) -> str:
    """Characters that XML 1.0 forbids, or that reorder a terminal's text, as escapes."""
    return wording.visible(text)
