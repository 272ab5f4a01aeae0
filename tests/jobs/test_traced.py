"""Which ranks of an incident are traced, and when their series are ordered again."""

from __future__ import annotations

from tests.jobs.scenes import World
from watchtower.jobs.tracing import (
    AGAIN_S,
    MAX_SUSPECTS,
    MAX_TRIES,
    PEERS,
    Tracing,
    choose_peers,
    choose_suspects,
)
from watchtower.wire.series import MAX_TRACED
from watchtower.wire.verdict import Alternative, Cause, Status, Suspect, Verdict


def a_world(size: int = 16, per_node: int = 2) -> World:
    world = World(size=size, per_node=per_node)
    world.report()
    return world


def a_verdict(*ranks: int, alternative: tuple[int, ...] = ()) -> Verdict:
    return Verdict(
        job="llama",
        generation=1,
        status=Status.HUNG,
        summary="",
        suspects=tuple(
            Suspect(rank=rank, node="n0", cause=Cause.UNKNOWN, why="") for rank in ranks
        ),
        alternatives=(Alternative(cause=Cause.BUSY_LOOP, suspects=alternative, confidence=0.3),),
    )


def started(world: World, *suspects: int) -> Tracing:
    tracing = Tracing()
    tracing.begin("i1", suspects, world.attempt)
    return tracing


def test_the_suspects_of_a_verdict_or_of_its_first_alternative():
    assert choose_suspects(a_verdict(5, 2, alternative=(9,))) == (5, 2)
    assert choose_suspects(a_verdict(alternative=(9, 3))) == (9, 3)
    assert choose_suspects(a_verdict()) == ()
    assert len(choose_suspects(a_verdict(*range(100)))) == MAX_SUSPECTS


def test_peers_are_on_other_nodes_each_on_its_own():
    world = a_world()
    assert choose_peers(world.attempt, [3]) == [0, 4, 6]


def test_peers_have_the_same_place_on_their_node():
    world = a_world()
    for rank, record in world.attempt.ranks.items():
        object.__setattr__(record.vitals, "local_rank", rank % 2)
    assert choose_peers(world.attempt, [3]) == [1, 5, 7]


def test_on_one_node_the_peers_are_neighbours():
    assert choose_peers(a_world(4, 4).attempt, [1]) == [0, 2, 3]
    assert choose_peers(a_world(2, 2).attempt, [1]) == [0]


def test_ended_ranks_and_suspects_are_not_peers():
    world = a_world(6, 1)
    world.end(0)
    world.report()
    assert choose_peers(world.attempt, [1]) == [2, 3, 4]
    assert choose_peers(world.attempt, range(6)) == []


def test_peers_of_a_large_job_are_chosen_quickly():
    world = a_world(1024, 8)
    assert len(choose_peers(world.attempt, [5])) == PEERS


def take_due(tracing: Tracing, world: World, now: float) -> dict[str, tuple[int, ...]]:
    """Return the ranks to order by node, and its launch if there is one."""
    due = tracing.take_due(world.attempt, now)
    return {f"{key.node} {key.id}".strip(): ranks for key, ranks in due.items()}


def test_each_launch_of_a_node_has_an_order_of_its_own():
    world = a_world()
    for rank in (0, 3):
        world.ranks[rank].launch = "l1"
    world.report()
    tracing = started(world, 2, 3)
    due = take_due(tracing, world, 100.0)
    assert due == {"n1": (2,), "n1 l1": (3,), "n0 l1": (0,), "n2": (4,), "n3": (6,)}


def test_every_traced_rank_is_ordered_from_its_node_once():
    world = a_world()
    tracing = started(world, 2, 3)
    assert tracing.is_due(100.0)
    assert take_due(tracing, world, 100.0) == {"n1": (2, 3), "n0": (0,), "n2": (4,), "n3": (6,)}
    assert not tracing.is_due(100.0 + AGAIN_S - 1)
    tracing.take((2, 3, 0, 4, 6))
    assert not tracing.is_due(1000.0)


def test_what_does_not_come_is_ordered_again_a_few_times():
    world = a_world()
    tracing, now, orders = started(world, 2), 100.0, []
    for _ in range(10):
        if tracing.is_due(now):
            orders.append(take_due(tracing, world, now))
            tracing.take((0, 4, 6))
        now += AGAIN_S
    assert orders[1:] == [{"n1": (2,)}] * (MAX_TRIES - 1)


def test_another_suspect_is_ordered_with_what_its_node_sent_before():
    world = a_world()
    tracing = started(world, 2)
    take_due(tracing, world, 100.0)
    tracing.take((2, 0, 4, 6))
    tracing.begin("i1", (3,), world.attempt)
    assert take_due(tracing, world, 101.0) == {"n1": (2, 3)}


def test_an_incident_whose_verdicts_keep_changing_traces_a_bounded_number_of_ranks():
    world = a_world(64)
    tracing = Tracing()
    for suspect in range(64):
        tracing.begin("i1", (suspect,), world.attempt)
    assert len(tracing.wanted) == MAX_TRACED


def test_a_new_incident_begins_again():
    world = a_world()
    tracing = started(world, 2)
    tracing.take((2, 0, 4, 6))
    tracing.begin("i2", (2,), world.attempt)
    assert tracing.is_due(100.0)


def test_a_resumed_incident_is_not_ordered_again():
    tracing = Tracing()
    tracing.resume("i1", (2,))
    assert not tracing.is_due(1e9)


def test_ranks_that_no_agent_reports_are_not_ordered():
    world = a_world()
    tracing = started(world, 99)
    assert "" not in take_due(tracing, world, 100.0)
