"""junit.xml tells a CI the same as the exit code does."""

from xml.etree import ElementTree as ET

from build_result import HOSTILE, judged, make_finding, make_result

from sweep.junit import junit


def cases(result):
    return list(ET.fromstring(junit(result)).iter("testcase"))


def test_each_finding_is_one_case_and_the_verdict_is_the_last():
    """Nothing is left out, and a run that was stopped shows even when no finding failed."""
    result = make_result()
    found = cases(result)

    assert len(result["findings"]) + 1 == len(found)
    assert ("ha_sweep.verdict", "run") == (found[-1].get("classname"), found[-1].get("name"))


def test_each_status_becomes_what_a_ci_understands():
    """Unknown is an error, for a CI shows a skipped test in green."""
    by_status = {}
    for status in ("pass", "warn", "assumed", "skipped", "unknown", "fail"):
        (case, _) = cases(make_result(findings=[make_finding(status=status)], verdict="PASS"))
        by_status[status] = [child.tag for child in case]

    assert {
        "pass": [], "warn": ["system-out"], "assumed": ["system-out"], "skipped": ["skipped"], "unknown": ["error"],
        "fail": ["failure"],
    } == by_status  # fmt: skip


def test_a_failure_while_exploring_does_not_turn_a_ci_red():
    """The verdict does not count it, so neither may the CI; its text stays."""
    case, _ = cases(make_result(findings=[make_finding(status="fail", required=False, exploring=True)], verdict="PASS"))

    assert ["skipped"] == [child.tag for child in case]
    assert case[0].get("message").startswith("fail, exploring: ")


def test_what_only_warns_in_the_verdict_only_warns_in_a_ci():
    """A failure that no one requires, and a level whose pooled gate decides."""
    findings = [make_finding(status="fail", required=False), make_finding(status="unknown", required=False)]
    warns, beside, _ = cases(make_result(findings=findings, verdict="WARN"))

    assert [["system-out"], ["skipped"]] == [[child.tag for child in case] for case in (warns, beside)]
    assert warns[0].text.startswith("fail, warns only: ")


def test_names_hold_no_measured_value():
    """A CI follows a test by its name over runs."""
    one, other = (
        [
            (case.get("classname"), case.get("name"))
            for case in cases(make_result(findings=[make_finding(observed=value)]))
        ]
        for value in (judged(412.3, 320, 398, 455), judged("inf", 7))
    )

    assert one == other
    assert ("ha_sweep.slo", "8.stream") == one[0]


def test_two_findings_of_one_name_stay_two_cases():
    """Two SLOs on one level and mode are two tests."""
    names = [case.get("name") for case in cases(make_result(findings=[make_finding(), make_finding()]))]

    assert ["8.stream", "8.stream#2", "run"] == names


def test_labels_are_properties_of_the_suite():
    """A CI finds the run by them; without one there is no empty element."""
    found = ET.fromstring(junit(make_result(labels={"team": "search", "issue": "7"}))).findall("properties/property")

    assert {"label.team": "search", "label.issue": "7"} == {each.get("name"): each.get("value") for each in found}
    assert None is ET.fromstring(junit(make_result(labels={}))).find("properties")


def test_the_counts_of_the_suite_are_those_of_its_cases():
    """A CI that reads only the suite comes to the same end."""
    suite = ET.fromstring(junit(make_result()))
    counted = {tag: str(len(list(suite.iter(tag)))) for tag in ("failure", "error", "skipped")}

    assert counted == {"failure": suite.get("failures"), "error": suite.get("errors"), "skipped": suite.get("skipped")}
    assert str(len(list(suite.iter("testcase")))) == suite.get("tests")


def test_hostile_text_gives_xml_that_parses():
    """Control characters are not legal XML; markup stays text."""
    result = make_result(findings=[make_finding(status="fail", reason=HOSTILE, gate=HOSTILE)], sentence=HOSTILE)
    case, verdict = cases(result)

    assert ["failure"] == [child.tag for child in case]
    assert [] == list(case[0])
    assert "\\x1b[31m\\u202e" in case[0].text
    assert "<script>alert(1)</script>" in verdict[0].text


def test_the_value_stands_beside_its_limit():
    """A failure's text is enough to see why."""
    case, _ = cases(
        make_result(findings=[make_finding(status="fail", observed=judged(0.995, 12, 0.9, 1.2), limit=1.0, unit="")])
    )

    assert "observed: 0.995 (0.900–1.200), n 12, 59 needed\nlimit: 1.000" in case[0].text


def test_a_failure_counts_once():
    """The verdict's own case fails only where no gate's did: in a run that was stopped."""
    failed, verdict = cases(make_result(findings=[make_finding(status="fail")], verdict="FAIL"))
    passed, stopped = cases(make_result(findings=[make_finding()], verdict="INCONCLUSIVE"))

    assert [["failure"], ["system-out"]] == [[child.tag for child in case] for case in (failed, verdict)]
    assert [[], ["error"]] == [[child.tag for child in case] for case in (passed, stopped)]


def test_a_class_name_holds_no_space():
    """CIs split and link by it."""
    case, _ = cases(make_result(findings=[make_finding(gate="slo stream.ttft_ms.p95<=500 @8")]))

    assert "ha_sweep.slo_stream_ttft_ms_p95_500_8" == case.get("classname")
