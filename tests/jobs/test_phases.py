"""Marked phases: the time without a step counts anew when a rank enters or leaves one."""

from __future__ import annotations

import pytest

from tests.jobs.scenes import World
from tests.jobs.story import Story, a_diagnosis, plain, stalled
from tests.properties import is_thorough
from watchtower.jobs.attempt import Checkpoints
from watchtower.jobs.condition import ConditionKind
from watchtower.jobs.pace import Pause
from watchtower.jobs.stall_context import StallContext, stall_context_of
from watchtower.wire.report import EXIT_PHASE, Beat
from watchtower.wire.verdict import Cause, Status


def stepped() -> World:
    """A job of steps of 1 s, whose ranks are suspect after 5 s without one."""
    world = World()
    world.step(10)
    return world


def evaluate(world: World, seconds: float) -> None:
    for rank in world.ranks.values():
        rank.phase, rank.cpu_cores = "evaluation", 1.0
    world.report(seconds)
    for rank in world.ranks.values():
        rank.phase, rank.cpu_cores = "", 0.0


def test_the_time_after_a_phase_counts_from_its_end():
    world = stepped()
    evaluate(world, 300)
    assert world.report(4).kind is ConditionKind.STEPPING
    condition = world.report(3)
    assert condition.kind is ConditionKind.STALLED
    assert condition.stall is not None
    assert world.now - 8 <= condition.stall.since <= world.now - 5


def test_a_phase_inside_a_phase_has_its_own_time():
    world = stepped()
    world.pauses.learn(Pause(phase="checkpoint", frame_class="user", length_s=8.0))
    evaluate(world, 100)
    for rank in world.ranks.values():
        rank.phase, rank.cpu_cores = "checkpoint", 1.0
    assert world.report(10).kind is ConditionKind.STEPPING
    for rank in world.ranks.values():
        rank.phase, rank.phase_at = "evaluation", world.now - 110
    assert world.report(30).kind is ConditionKind.STEPPING


def test_a_first_report_shows_when_the_phase_began():
    world = World()
    for rank in world.ranks.values():
        rank.step, rank.beat_at = 7, world.now - 500
        rank.phase, rank.phase_at, rank.cpu_cores = "evaluation", world.now - 400, 1.0
    world.report(5)
    changed = {record.phase_changed_at for record in world.attempt.ranks.values()}
    assert changed == {world.now - 405}


def change_phases(world: World, inside: int, outside: int, seconds: int) -> float | None:
    """All ranks work in a phase and outside in turns. Returns after how long the job stalls."""
    began = world.now
    while world.now - began < seconds:
        for phase, length in (("checkpoint", inside), ("", outside)):
            for rank in world.ranks.values():
                rank.phase, rank.phase_at, rank.cpu_cores = phase, world.now, 1.0
            for _ in range(length):
                world.now += 1
                if world.report().kind is ConditionKind.STALLED:
                    return world.now - began
    return None


@pytest.mark.long
def test_a_job_that_only_enters_and_leaves_phases_is_suspect_in_the_end():
    world = stepped()
    stalled_after_s = change_phases(world, inside=3, outside=3, seconds=3600)
    assert stalled_after_s is not None
    assert world.policy.phase_patience_s < stalled_after_s < 4 * world.policy.phase_patience_s


@pytest.mark.long
@pytest.mark.thorough
def test_a_long_evaluation_that_marks_each_batch_is_not_suspect():
    assert (
        change_phases(stepped(), inside=10, outside=1, seconds=3600 if is_thorough() else 1800)
        is None
    )


def evaluated(seconds: float) -> Story:
    """A suspect that worked in a phase for so many seconds, and is blocked since it left it."""
    story = Story()
    story.see(stalled(), phase="evaluation")
    story.hear(a_diagnosis(suspects_moving=True))
    story.see(stalled(), seconds=seconds, phase="evaluation")
    story.hear(a_diagnosis())
    return story


def test_a_suspect_that_has_left_its_phase_gets_the_usual_patience_from_then():
    story = evaluated(60)
    left_at = story.now
    story.see(stalled())
    while story.watch.status is Status.SUSPECT:
        story.see(stalled(), seconds=1)
    assert story.now == left_at + 10


def test_a_suspect_that_stops_moving_in_a_phase_gets_its_patience_from_then():
    story = evaluated(200)
    story.see(stalled(), seconds=59, phase="evaluation")
    assert story.watch.status is Status.SUSPECT
    story.see(stalled(), seconds=1, phase="evaluation")
    assert story.watch.status is Status.HUNG


def test_phases_without_end_extend_a_suspicion_only_up_to_the_patience_with_phases():
    story = evaluated(0)
    seconds = 0
    while story.watch.status is Status.SUSPECT and seconds < 1000:
        story.see(stalled(), seconds=1, phase="" if seconds % 2 else "evaluation")
        seconds += 1
    assert seconds == story.watch.policy.phase_patience_s


def test_a_suspect_that_cannot_continue_gets_no_time_for_its_phase():
    story = evaluated(60)
    story.hear(a_diagnosis(cause=Cause.PROCESS_STOPPED))
    story.see(stalled(), phase="evaluation")
    assert story.watch.status is Status.HUNG


def test_a_pause_that_began_in_a_phase_is_learned_as_one_of_this_phase():
    story = evaluated(60)
    story.see(stalled(), seconds=1)
    story.see(plain(ConditionKind.STEPPING))
    learned = [(pause.phase, pause.frame_class) for pause in story.watch.pauses.all()]
    assert learned == [("evaluation", "dataloader")]


def world_of_finished(*finished: int) -> World:
    """Return four ranks after ten steps, of which some have finished."""
    world = World()
    world.step(10)
    for rank in finished:
        world.ranks[rank].phase, world.ranks[rank].phase_at = EXIT_PHASE, world.now
    return world


def context_after(world: World, seconds: float) -> StallContext:
    stall = world.report(seconds).stall
    assert stall is not None
    return stall_context_of(
        world.attempt, world.fleet.nodes, world.detector, stall, None, world.now
    )


def test_a_slow_exit_is_not_overdue() -> None:
    world = world_of_finished(0, 1, 2, 3)
    assert world.report(50).kind is ConditionKind.STEPPING


def test_an_exit_in_which_nothing_moves_for_long_is_a_stall() -> None:
    world = world_of_finished(0, 1, 2, 3)
    assert world.report(world.policy.phase_still_s + 5).kind is ConditionKind.STALLED


def test_finished_ranks_say_nothing_about_a_rank_that_is_not_finished() -> None:
    assert not context_after(world_of_finished(1, 2, 3), 20).all_still
    assert context_after(world_of_finished(2, 3), 20).all_still


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
