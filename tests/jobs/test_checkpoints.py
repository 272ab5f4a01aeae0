"""The last complete checkpoint of a job."""

from __future__ import annotations

from watchtower.jobs.generation import Checkpoints
from watchtower.wire.report import Beat


def at(step: int, phase: str = "", exception: str = "") -> Beat:
    return Beat(step=step, age_s=0.0, phase=phase, exception_type=exception)


def test_a_checkpoint_is_complete_when_no_rank_is_in_it():
    checkpoints = Checkpoints()
    saving, training = at(40, "checkpoint"), at(40)
    assert checkpoints.find_last([saving, saving]) is None
    checkpoints.note(saving, training)
    assert checkpoints.find_last([training, saving]) is None
    checkpoints.note(saving, training)
    assert checkpoints.find_last([training, training]) == 40


def test_the_one_before_counts_while_the_next_is_written():
    checkpoints = Checkpoints()
    checkpoints.note(at(40, "checkpoint"), at(41))
    assert checkpoints.find_last([at(41)]) == 40
    assert checkpoints.find_last([at(80, "checkpoint"), at(80)]) == 40
    checkpoints.note(at(80, "save checkpoint"), at(81))
    assert checkpoints.find_last([at(81), at(80, "checkpoint")]) == 40
    assert checkpoints.find_last([at(81), at(81)]) == 80


def test_a_checkpoint_that_an_exception_ended_is_not_complete():
    checkpoints = Checkpoints()
    checkpoints.note(at(40, "checkpoint"), at(40, exception="OSError"))
    assert checkpoints.find_last([at(40)]) is None


def test_other_phases_are_no_checkpoints():
    checkpoints = Checkpoints()
    checkpoints.note(at(40, "eval"), at(41))
    checkpoints.note(None, at(41, "checkpoint"))
    checkpoints.note(at(41, "checkpoint"), None)
    assert checkpoints.find_last([at(41), None]) is None
