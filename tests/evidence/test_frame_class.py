"""The table of what each class of frames shows: every class has a row, and no row contradicts."""

from dataclasses import fields

import pytest

from watchtower.evidence.frames import TRAITS, ClassTraits, FrameClass

IMPLIED = [
    ("waits_for_ranks", "shows_wait_for_ranks"),
    ("waits_for_ranks", "may_spin_in_wait"),
    ("waits_for_ranks", "names_wait"),
    ("waits_if_asleep", "may_hide_collective"),
    ("hides_any_call", "may_hide_collective"),
    ("hides_any_call", "may_be_at_lock"),
    ("may_be_at_lock", "may_be_saving"),
    ("is_busy_elsewhere", "is_work"),
]

EXCLUDED = [
    # Frames that show a wait for ranks, or work without them, hide no collective.
    ("waits_for_ranks", "may_hide_collective"),
    ("is_busy_elsewhere", "may_hide_collective"),
    ("is_busy_elsewhere", "may_be_collective"),
    ("shows_purpose", "may_be_saving"),
    # Such a rank works, or waits inside its process.
    ("is_work", "waits_for_thread"),
    ("is_own_code", "shows_wait_for_ranks"),
]


def having(trait):
    return {each for each in FrameClass if getattr(each.traits, trait)}


def test_every_class_has_a_row():
    assert TRAITS.keys() == set(FrameClass)


@pytest.mark.parametrize("trait", [field.name for field in fields(ClassTraits)])
def test_every_trait_is_that_of_some_classes_only(trait):
    assert 0 < len(having(trait)) < len(FrameClass)


@pytest.mark.parametrize(("one", "other"), IMPLIED)
def test_a_trait_implies_another(one, other):
    assert having(one) <= having(other)


@pytest.mark.parametrize(("one", "other"), EXCLUDED)
def test_no_class_has_two_traits_that_contradict(one, other):
    assert not having(one) & having(other)


def test_a_collective_may_be_in_a_call_that_is_shown_or_in_a_wait_for_the_device():
    shown = having("shows_wait_for_ranks") | having("may_spin_in_wait")
    assert having("may_be_collective") == shown
