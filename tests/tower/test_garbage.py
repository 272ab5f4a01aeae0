"""Full garbage collections are delayed; small ones are not."""

import gc
import weakref

import pytest

from watchtower.service.daemon import YOUNG_AFTER, put_off_full_collections


@pytest.fixture
def put_off():
    before = gc.get_threshold()
    put_off_full_collections()
    yield
    gc.set_threshold(*before)


class Node:
    """An object that accepts weak references."""


def count_full_collections() -> int:
    return gc.get_stats()[2]["collections"]


@pytest.mark.usefixtures("put_off")
def test_a_growing_live_state_is_not_walked_through():
    before = count_full_collections()
    alive = [[number] for number in range(300_000)]
    assert count_full_collections() == before
    assert len(alive) == 300_000


@pytest.mark.usefixtures("put_off")
def test_young_garbage_in_cycles_is_still_collected():
    node = Node()
    node.itself = node
    watched = weakref.ref(node)
    del node
    alive = [[number] for number in range(2 * YOUNG_AFTER)]
    assert watched() is None
    assert alive
