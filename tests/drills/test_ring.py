"""The ring of the standard-library programs: real sockets, ranks in threads."""

import importlib.util
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor

import pytest

from watchtower.drills.launching import PROGRAMS, free_port

HOST = "127.0.0.1"
DEADLINE_S = 20


@pytest.fixture(scope="module")
def ring():
    spec = importlib.util.spec_from_file_location("drill_ring", PROGRAMS / "ring.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_every_rank(ring, world_size, work):
    """Run `work(group)` on every rank; the results in rank order."""
    port = free_port()  # one that no connection of another test gets by chance

    def run(rank):
        group = ring.init_process_group(rank, world_size, HOST, port)
        try:
            return work(group)
        finally:
            group.close()

    with ThreadPoolExecutor(world_size) as pool:
        running = [pool.submit(run, rank) for rank in reversed(range(world_size))]
        return [one.result(DEADLINE_S) for one in reversed(running)]


@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize("length", [1, 8, 13])
def test_all_reduce_gives_every_rank_the_sum(ring, world_size, length):
    def work(group):
        return list(group.all_reduce(array("d", [group.rank + index for index in range(length)])))

    ranks = sum(range(world_size))
    expected = [ranks + world_size * index for index in range(length)]
    assert on_every_rank(ring, world_size, work) == [expected] * world_size


def test_broadcast_hands_on_what_the_root_has(ring):
    def work(group):
        return list(group.broadcast(array("d", [float(group.rank)] * 3), root=0))

    assert on_every_rank(ring, 4, work) == [[0.0] * 3] * 4


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_all_gather_gives_every_rank_what_each_has(ring, world_size):
    def work(group):
        return [list(values) for values in group.all_gather([float(group.rank), 7.0])]

    expected = [[float(rank), 7.0] for rank in range(world_size)]
    assert on_every_rank(ring, world_size, work) == [expected] * world_size


def test_groups_of_some_ranks_sum_apart_from_each_other(ring):
    def work(world):
        first = world.rank - world.rank % 2
        pair = ring.new_group(world, range(first, first + 2))
        others = ring.new_group(world, range(world.rank % 2, 4, 2))
        mine = array("d", [float(world.rank)])
        try:
            return [group.all_reduce(mine)[0] for group in (pair, others, world)]
        finally:
            pair.close()
            others.close()

    sums = on_every_rank(ring, 4, work)
    assert sums == [[1.0, 2.0, 6.0], [1.0, 4.0, 6.0], [5.0, 2.0, 6.0], [5.0, 4.0, 6.0]]


def test_a_collective_that_the_others_do_not_call_waits_and_takes_nothing_of_theirs(ring):
    """As on NCCL and gloo: no bytes of one collective end up in another."""
    inside = threading.Barrier(3)

    def work(group):
        for link in (group._previous, group._following):
            link.settimeout(0.3)
        values = array("d", [1.0] * 3)
        enter = group.barrier if group.rank == 1 else lambda: group.all_reduce(values)
        with pytest.raises(TimeoutError):
            enter()
        inside.wait(DEADLINE_S)
        return "waited"

    assert on_every_rank(ring, 3, work) == ["waited"] * 3


def test_another_size_is_an_error_and_no_hang(ring):
    def work(group):
        with pytest.raises((ValueError, ConnectionError)):
            group.all_reduce(array("d", [1.0] * (6 if group.rank == 1 else 3)))
        return "raised"

    assert on_every_rank(ring, 3, work) == ["raised"] * 3


def train_on(group):
    for _ in range(100):
        group.barrier()


def test_survivors_of_a_lost_peer_raise(ring):
    def work(group):
        if group.rank == 1:
            return None
        with pytest.raises(ConnectionError):
            train_on(group)
        return "raised"

    assert on_every_rank(ring, 4, work) == ["raised", None, "raised", "raised"]
