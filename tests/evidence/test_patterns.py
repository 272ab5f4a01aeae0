import re
import sys
import time

import pytest

from tests.evidence.pattern_attacks import (
    Use,
    attacks,
    find_literals,
    find_new_syntax,
    find_unnamed,
    find_uses,
)
from watchtower.evidence.facts import MAX_END, cut, part, whole

LENGTHS = (256, 1024, 2048, 4096, 8192)
"""Compared with twice as much; what is not linear is found at the first length that shows it."""

FLOOR_S = 0.008
"""A pattern that needs less for a text of twice this length harms nothing: texts are cut to a
fiftieth of it. Growth is measured above this alone, where it is no noise."""

MOST_GROWTH = 3.0
"""Of the time when the text doubles: 2 is linear, 4 is quadratic."""

USES = find_uses()


def cpu_s(use, text):
    began = time.thread_time()
    use.run(text)
    return time.thread_time() - began


def grows_too_fast(use, short, long):
    """Compare the least times of turns: what slows the machine down for a while hits both."""
    turns = [(cpu_s(use, short), cpu_s(use, long)) for _ in range(5)]
    least_short, least_long = map(min, zip(*turns, strict=True))
    return least_long > FLOOR_S and least_long > MOST_GROWTH * least_short


def is_hard(use, text, length):
    short, long = text(length), text(2 * length)
    # A pattern that is not linear shows it each time.
    return cpu_s(use, long) > FLOOR_S and all(grows_too_fast(use, short, long) for _ in range(3))


def find_hard_texts(use, lengths):
    """Yield words of which twice as many need far more than twice the time."""
    for text in attacks(use.pattern):
        yield from (f"{text(99)!r}, repeated" for length in lengths if is_hard(use, text, length))


@pytest.mark.long
@pytest.mark.parametrize("use", USES, ids=[use.name for use in USES])
def test_a_pattern_takes_time_in_proportion_to_the_text(use):
    assert next(find_hard_texts(use, LENGTHS), "") == ""


def test_every_pattern_has_a_name_so_that_it_is_timed():
    allowed = "watchtower/evidence/facts/__init__.py"
    assert [place for place in find_unnamed() if not place.startswith(allowed)] == []


def test_no_pattern_is_possessive_or_atomic():
    # Python 3.10 does not have them, and 3.11.0 to 3.11.3 match them wrong.
    patterns = {use.name: use.pattern for use in USES} | find_literals()
    assert len(patterns) > 100
    found = {name: find_new_syntax(pattern) for name, pattern in patterns.items()}
    assert {name: kinds for name, kinds in found.items() if kinds} == {}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no such patterns")
@pytest.mark.parametrize("pattern", ["a++", r"(?P<x>\"(?:[^\"])*+)", "a|b(?>.*c)d", "(?=(a{2,}+))"])
def test_possessive_and_atomic_patterns_are_found(pattern):
    assert find_new_syntax(pattern)


def test_patterns_of_facts_and_of_modules_are_found():
    found = {use.name.partition(" ")[0] for use in USES}
    assert found >= {
        "watchtower.evidence.frames.PATTERNS",
        "watchtower.evidence.kernel._WAITS",
        "watchtower.evidence.kernel._TARGETS",
        "watchtower.evidence.threads._CALLED",
        "watchtower.diagnosis.bystanders.FROM_PROCESSES",
        "watchtower.evidence.error_texts.ERROR_TEXTS",
        "watchtower.evidence.collective_log._SHAPE.sub",
        "agent.dumpers.source_child._TOKEN.search",
        "watchtower.readers.canonical._PACKAGES.search",
        "watchtower.readers.kernel_lines._ROWS",
    }


@pytest.mark.long
@pytest.mark.parametrize(("pattern", "length"), [(r"\w*lock\w*", 1024), (r"[a-z]+:\d+", 2048)])
def test_a_pattern_that_is_not_linear_is_found(pattern, length):
    compiled = re.compile(pattern)
    assert next(find_hard_texts(Use("bad", pattern, compiled.search), (length,)), "")


def test_of_a_long_text_both_ends_are_matched():
    long = "loader_" + "x" * 10_000 + "/data.py"
    assert len(cut(long)) == 2 * MAX_END
    assert part(r"^loader.*/data\.py$").matches(long)
    assert not part(r"x{300}").matches(long)
    assert whole(r"loader.*").matches(long + "\n")
