"""Durations and levels as an operator writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.errors import PlanError
from sweep.units import Level, duration_text, parse_duration, parse_level, parse_levels


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 5.0), ("5s", 5.0), ("1.5m", 90.0), ("2h", 7200.0), ("300ms", 0.3), (" 7 s ", 7.0), (".5", 0.5), ("0s", 0.0)],
)
def test_duration_is_read_as_seconds(text, seconds):
    """A bare number is seconds, and zero is a duration."""
    assert seconds == parse_duration(text)


@pytest.mark.parametrize(
    "text", ["", " ", "-5", "+5", "nan", "inf", "1e3", "5x", "m", "5 min", "1m30s", ".", "٥", "5\n5", "9" * 400]
)
def test_duration_that_is_none_is_refused_in_one_line(text):
    """Whatever is no duration is refused with one line that shows how to write it."""
    with pytest.raises(PlanError, match=r"duration .*2h") as refused:
        parse_duration(text)

    assert "\n" not in str(refused.value)


@given(st.integers(0, 10**9))
def test_duration_text_reads_back_as_itself(n_ms):
    """Any whole number of milliseconds survives being written and read."""
    assert pytest.approx(n_ms / 1000, rel=1e-12) == parse_duration(duration_text(n_ms / 1000))


@pytest.mark.parametrize(
    ("seconds", "text"), [(60.0, "1m"), (90.0, "90s"), (7200.0, "2h"), (0.3, "300ms"), (0.0, "0s"), (1.5, "1.5s")]
)
def test_duration_text_uses_the_largest_whole_unit(seconds, text):
    """People read 5m, not 300s."""
    assert text == duration_text(seconds)


def test_levels_are_sorted_and_spelled_as_given():
    """Steps go up, in whatever order the levels were written."""
    levels = parse_levels("8, 1,32,2", fd_limit=1024)

    assert ["1", "2", "8", "32"] == [str(level) for level in levels]
    assert ["c1", "c2", "c8", "c32"] == [level.code for level in levels]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1,0/s", "level 0/s: no arrivals are no load; to observe without load give level 0"),
        ("5/s,5.0/s", "level 5/s is given twice"),
        ("-5/s", "level '-5/s': give a whole number"),
        ("5/m", "level '5/m': give a whole number of requests in flight like 8, or a rate of arrivals like 5/s"),
        ("1,2,1", "level 1 is given twice; to repeat the whole sweep use --cycles"),
        ("01,1", "level 1 is given twice"),
        ("", "no level given"),
        ("1,,2", "an empty level between commas"),
        ("1,", "an empty level between commas"),
        ("eight", "level 'eight': give a whole number"),
        ("2.5", "level '2.5': give a whole number"),
        ("-1", "level '-1': give a whole number"),
        ("1..8", "level '1..8': give a whole number"),
        ("1;2", "level '1;2': give a whole number"),
    ],
)
def test_levels_this_version_cannot_drive_are_refused(text, says):
    """Each refusal is one line that says what to write instead."""
    with pytest.raises(PlanError) as refused:
        parse_levels(text)

    assert str(refused.value).startswith(says)


def test_levels_of_both_kinds_go_up_one_kind_after_the_other():
    """Requests in flight first, from the observing level 0 on, then rates: 10/s is not beside 8 on any scale."""
    levels = parse_levels("10/s,2,5/s,0,1,2.5/s", fd_limit=1024)

    assert ["0", "1", "2", "2.5/s", "5/s", "10/s"] == [str(level) for level in levels]
    assert ["c0", "c1", "c2", "r2.5", "r5", "r10"] == [level.code for level in levels]


def test_a_rate_is_not_bound_to_descriptors_before_answers_were_timed():
    """How many requests a rate keeps in flight is known after the preflight."""
    assert (Level(5000, "rate"),) == parse_levels("5000/s", fd_limit=1024)


def test_level_beyond_the_open_file_limit_is_refused_and_the_highest_possible_is_not():
    """The message names the limit and the highest level that fits under it."""
    with pytest.raises(PlanError, match=r"level 1024: .* 1024 files .* at most 960 "):
        parse_levels("1,1024", fd_limit=1024)

    assert (Level(960),) == parse_levels("960", fd_limit=1024)


@pytest.mark.parametrize(("text", "code"), [("5/s", "r5"), ("2.5/s", "r2.5"), ("8", "c8")])
def test_level_of_either_kind_survives_being_written(text, code):
    """What is printed is read back as the same level."""
    level = parse_level(text)

    assert (text, code, level) == (str(level), level.code, parse_level(str(level)))


def test_no_load_at_all_is_below_levels_of_either_kind():
    """Level 0 observes; it needs no kind."""
    assert (True, True, False) == (
        Level(1).reaches(Level(0)), Level(5, "rate").reaches(Level(0)), Level(0).reaches(Level(1))
    )  # fmt: skip


def test_level_reaches_lower_ones_of_its_own_kind_only():
    """8 requests in flight say nothing about 5 arrivals a second."""
    eight = Level(8)

    assert (True, True, False, False) == (
        eight.reaches(Level(8)),
        eight.reaches(Level(1)),
        eight.reaches(Level(16)),
        eight.reaches(Level(5, "rate")),
    )
