"""The ring of the standard-library programs: real sockets, ranks in threads."""

import importlib.util
import socket
from array import array
from concurrent.futures import ThreadPoolExecutor

import pytest

from watchtower.drills.launching import PROGRAMS

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
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]

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
