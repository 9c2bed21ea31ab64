"""Text in columns: wide and combining characters counted as a terminal does, words wrapped, nothing lost in silence."""

from hypothesis import given
from hypothesis import strategies as st

from sweep.screen_text import columns, fitted, shortened, wrapped

TEXT = st.text(st.sampled_from("ab 模…́-"), min_size=1, max_size=60)


def test_columns_are_those_of_a_terminal():
    """An East Asian wide character takes two, a combining one none."""
    assert (3, 4, 1, 2) == (columns("a b"), columns("模型"), columns("o\u0301"), columns("🙂"))


@given(TEXT, st.integers(2, 30))
def test_no_line_is_wider_than_it_may_be_and_no_character_is_lost(text, width):
    """Also where a word is longer than a line."""
    lines = wrapped(text, width)

    assert all(columns(line) <= width for line in lines)
    assert text.replace(" ", "") == "".join(lines).replace(" ", "")


@given(st.lists(TEXT, min_size=1, max_size=5), st.integers(25, 40), st.integers(1, 4), st.sampled_from([" · ", "\n"]))
def test_what_has_no_room_is_counted_or_cut_with_a_sign(parts, width, most, join):
    """A reader always sees that there is more."""
    lines = [line for paragraph in fitted(parts, join, width, most) for line in paragraph]
    text = "".join("".join(lines).split())

    assert len(lines) <= most
    assert all(columns(line) <= width for line in lines)
    if not all("".join(part.split()) in text for part in parts):
        assert "more" in text or "…" in text


def test_an_option_stays_with_its_value():
    """A command line is read by its options."""
    assert ["run it with", "--slo 'a<=1'"] == wrapped("run it with --slo 'a<=1'", 17)


def test_a_name_that_is_too_long_keeps_both_ends():
    """They tell it apart."""
    assert "abc…hij" == shortened("abcdefghij", 7)
    assert "模…型" == shortened("模模模模型", 6)
    assert "as it is" == shortened("as it is", 8)
