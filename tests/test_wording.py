"""Printed numbers keep their unit, their digits and their relation to the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep import wording
from sweep.cli import _refuse

NUMBER = st.floats(min_value=-1e9, max_value=1e9, allow_nan=False).map(lambda x: round(x, 12))


@pytest.mark.parametrize(
    ("expected", "value", "unit"),
    [
        ("–", None, "ms"),
        ("0 ms", 0.0, "ms"),
        ("412 ms", 412.371, "ms"),
        ("1,234 ms", 1234.5, "ms"),
        ("3.07 ms", 3.0701, "ms"),
        ("∞ ms", "inf", "ms"),
        ("≥ 1,235 ms", {"ge": 1234.7}, "ms"),
        ("0.854 %", 7 / 820, "ratio"),
        ("100 %", 1.0, "ratio"),
        ("12.5/s", 12.5, "1/s"),
        ("173 MiB", 181_403_648, "bytes"),
        ("24", 24.0, ""),
        ("20,000", 20_000, ""),
        ("yes", True, ""),
        ("proved", "proved", ""),
    ],
)
def test_a_value_prints_with_its_unit_and_three_digits(expected, value, unit):
    """Missing is a dash, infinite is ∞, a censored rank is "at least"."""
    assert expected == wording.number(value, unit)


@pytest.mark.parametrize(
    ("expected", "value", "limit", "unit"),
    [
        (("0.995", "1.000"), 0.995, 1.0, ""),
        (("0.99996", "1.00000"), 0.99996, 1, ""),
        (("1.00001 %", "1.00000 %"), 0.0100001, 0.01, "ratio"),
        (("500 ms", "500 ms"), 500.0, 500, "ms"),
        (("500.004 ms", "500.000 ms"), 500.004, 500, "ms"),
        (("∞ ms", "500 ms"), "inf", 500, "ms"),
        (("≥ 612 ms", "500 ms"), {"ge": 611.9}, 500, "ms"),
        (("–", "0.1 %"), None, 0.001, "ratio"),
    ],
)
def test_a_value_and_its_limit_print_with_the_same_digits(expected, value, limit, unit):
    """0.995 against 1.0 does not print as equal, and an equal pair does."""
    printed = wording.beside({"v": value}, limit, unit)

    assert expected == (printed.v, printed.limit)


@given(NUMBER, NUMBER)
def test_the_printed_relation_is_the_real_one(value, limit):
    """Whatever the two numbers, reading them back compares as they do."""
    printed = wording.beside({"v": value}, limit, "")
    read = [float(text.replace(",", "")) for text in (printed.v, printed.limit)]

    assert ((value > limit) - (value < limit)) == ((read[0] > read[1]) - (read[0] < read[1]))


def test_the_bounds_keep_their_side_of_the_limit_too():
    """A pass rests on the upper bound, so that one must not print as the limit either."""
    printed = wording.beside({"v": 0.5, "lo": 0.4, "hi": 0.99999}, 1, "")

    assert ("0.50000", "0.40000–0.99999", "1.00000") == printed


def test_an_unknown_end_of_an_interval_is_a_question_mark():
    """A bound that does not exist for this n is not the value itself."""
    assert ("398–? ms", "344–∞ ms", "") == (
        wording.interval(398.2, None, "ms"),
        wording.interval(344.2, "inf", "ms"),
        wording.interval(None, None, "ms"),
    )


def test_hidden_characters_are_shown():
    """Escape sequences and text that reorders a line print as what they are."""
    assert r"a\x1b[31m\u202e\ufffeé" == wording.visible("a\x1b[31m\u202e\ufffeé")


@pytest.mark.parametrize(
    ("expected", "seconds"), [("45.2 s", 45.2), ("4 min 12 s", 252.4), ("2 h 05 min", 7505), ("–", None)]
)
def test_durations_read_as_a_person_says_them(expected, seconds):
    """Seconds, minutes or hours, never more digits than matter."""
    assert expected == wording.duration(seconds)


def test_text_of_others_is_one_visible_line(capsys):
    """However long, and whatever it would tell a terminal to do; both ends stay."""
    text = "target \x1b]0;pwn\x07 said:\r\nREADY\u202e " + "\x1b" * 300_000 + " give --model"
    assert 2 == _refuse(text, 2)
    line = capsys.readouterr().err.removesuffix("\n")

    assert len(line) <= 500 and line.isprintable()
    assert line.startswith("ha-sweep: target \\x1b]0;pwn\\x07 said: READY\\u202e") and line.endswith(" give --model")
