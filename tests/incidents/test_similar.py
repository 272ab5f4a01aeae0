"""Properties that two incidents share, and which incidents are chosen."""

from __future__ import annotations

from watchtower.incidents.incident_filter import Position
from watchtower.incidents.similar import MAX_SUBJECTS, Likeness, Traits, choose, compare, traits_of
from watchtower.wire.verdict import Cause, Suspect

ONE = Traits(nodes=("a", "b"), lines=("data.py:88",), cause=Cause.GPU_FAULT)


def at(number: float) -> Position:
    return Position(opened_at=number, id=f"{number}")


def like(count: int) -> Likeness:
    return Likeness(nodes=("a",) * (count > 0), lines=("x",) * (count > 1), cause=count > 2)


def test_what_is_the_same_in_two_incidents():
    assert compare(ONE, ONE) == Likeness(nodes=("a", "b"), lines=("data.py:88",), cause=True)
    other = Traits(nodes=("b",), lines=("data.py:89",), cause=Cause.NODE_LOST)
    assert compare(ONE, other) == Likeness(nodes=("b",), lines=(), cause=False)
    assert compare(ONE, Traits()).count == 0


def test_an_unknown_cause_and_an_unknown_place_are_never_the_same():
    nowhere = Suspect(rank=1, node="", cause=Cause.UNKNOWN, why="")
    assert traits_of(Cause.UNKNOWN, (nowhere,)) == Traits()
    assert compare(Traits(), Traits()).count == 0


def test_incidents_with_more_in_common_are_chosen_and_shown_newest_first():
    found = [
        (at(1), like(3)),
        (at(2), like(1)),
        (at(3), like(1)),
        (at(4), like(2)),
        (at(5), like(0)),
    ]
    assert choose(found, 3) == [at(4), at(3), at(1)]
    assert choose(found, 9) == [at(4), at(3), at(2), at(1)]


def test_the_history_of_few_nodes_is_searched():
    many = Traits(nodes=tuple(map(str, range(500))))
    assert many.subjects().nodes == ("0", "1", "2")
    assert MAX_SUBJECTS == 3
