"""Ranks whose program has finished, while the process is still shutting down."""

from tests.jobs.scenes import World
from watchtower.jobs.condition import ConditionKind
from watchtower.jobs.stall_context import StallContext, stall_context_of
from watchtower.wire.report import EXIT_PHASE


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
    return stall_context_of(world.gen, world.fleet.nodes, world.detector, stall, None, world.now)


def test_a_slow_exit_is_not_overdue() -> None:
    world = world_of_finished(0, 1, 2, 3)
    assert world.report(50).kind is ConditionKind.STEPPING


def test_an_exit_in_which_nothing_moves_for_long_is_a_stall() -> None:
    world = world_of_finished(0, 1, 2, 3)
    assert world.report(world.policy.phase_still_s + 5).kind is ConditionKind.STALLED


def test_finished_ranks_say_nothing_about_a_rank_that_is_not_finished() -> None:
    assert not context_after(world_of_finished(1, 2, 3), 20).all_still
    assert context_after(world_of_finished(2, 3), 20).all_still
