"""The moments at which a drill can have its fault."""

from __future__ import annotations

import pytest

from watchtower.drills.catalogue import find_drill
from watchtower.drills.errors import DrillError
from watchtower.drills.moments import MOMENTS, find_moment
from watchtower.drills.runner import Request, choose_step
from watchtower.drills.settings import Config, DrillSettings
from watchtower.drills.setup import Variables

DRILL = find_drill("dataloader_sleep")
EVENT = {"act": "slow_storage", "arguments": {}, "rank": 1}


def move(name: str) -> dict[str, object]:
    moment = find_moment(name)
    variables = Variables(settings=DrillSettings(), rank=1, ranks=4, step=moment.step)
    return moment.move(DRILL.plan(variables))


def test_a_moment_between_steps_leaves_the_event_where_the_drill_has_it() -> None:
    assert move("step_2") == {"events": [{**EVENT, "when": "before_step", "step": 2}]}
    assert move("phase") == {
        "events": [{**EVENT, "when": "before_step", "step": 15}],
        "phase_at": 15,
    }


def test_a_place_without_a_step_takes_the_event() -> None:
    assert move("setup") == {"events": [{**EVENT, "when": "setup", "step": 0}]}
    assert move("exit") == {"events": [{**EVENT, "when": "exit", "step": 0}], "steps": 14}


def test_the_wait_for_the_fault_at_exit_is_as_long_as_the_steps_before_it() -> None:
    moment = find_moment("exit")
    assert (
        choose_step(Request(drill=DRILL, moment=moment, config=Config())) == move("exit")["steps"]
    )


def test_an_epoch_ends_with_an_evaluation_just_before_the_fault() -> None:
    plan = move("epoch_end")
    assert plan["evaluation"] == {"every": 15, "seconds": 5.0}
    assert plan["events"] == [{**EVENT, "when": "before_step", "step": 16}]


def test_a_rank_that_hangs_before_all_have_joined_may_be_stuck_in_set_up() -> None:
    answers = {moment.name: moment.expect(DRILL.expected).or_causes for moment in MOMENTS}
    assert {name for name, causes in answers.items() if causes} == {"setup", "first_collective"}
    assert answers["setup"] == ("init_stuck",)


def test_a_moment_names_its_step_and_excludes_another() -> None:
    moment = find_moment("middle")
    assert choose_step(Request(drill=DRILL, moment=moment, config=Config())) == 40
    with pytest.raises(DrillError, match="give one"):
        Request(drill=DRILL, moment=moment, step=3, config=Config())
    with pytest.raises(DrillError, match="allowed is setup, first_collective"):
        find_moment("noon")
