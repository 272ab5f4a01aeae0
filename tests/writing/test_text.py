from hypothesis import given
from hypothesis import strategies as st

from watchtower.writing.text import (
    capitalise,
    clean,
    count_ranks,
    format_count,
    format_duration,
    join_words,
)


def test_control_characters_colours_and_line_breaks_do_not_get_through():
    assert clean("a\x1b[31mb\nc\td\x00e") == "a [31mb c d e"


def test_direction_marks_do_not_get_through():
    assert clean("safe\u202egnp.exe") == "safe gnp.exe"


def test_backticks_become_apostrophes():
    assert clean("`rm -rf`") == "'rm -rf'"


def test_long_text_ends_in_an_ellipsis():
    assert clean("x" * 50, 10) == "x" * 9 + "…"


@given(st.text(), st.integers(1, 40))
def test_cleaned_text_is_one_bounded_printable_line(text, limit):
    cleaned = clean(text, limit)
    assert len(cleaned) <= limit
    assert cleaned.isprintable()
    assert clean(cleaned, limit) == cleaned


def test_durations_are_as_exact_as_a_reader_needs():
    lines = [format_duration(seconds) for seconds in (0.2, 9.4, 119, 240, 7200)]
    assert lines == ["0 s", "9 s", "119 s", "4 min", "2 h"]


def test_words_are_joined():
    lines = [join_words(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])]
    assert lines == ["", "a", "a and b", "a, b and c"]


def test_only_the_first_letter_is_raised():
    assert capitalise("has NCCL") == "Has NCCL"
    assert capitalise("") == ""


def test_a_number_of_things_has_digits_and_a_plural():
    assert [format_count(number, "step") for number in (0, 1, 7)] == [
        "0 steps",
        "1 step",
        "7 steps",
    ]
    assert count_ranks(1) == "1 rank"
