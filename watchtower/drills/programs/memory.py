"""Objects that refer to each other, and the garbage collector that visits all of them."""

import gc
import time

OBJECTS = 400_000


class Node:
    def __init__(self, following):
        self.following = following


def collect_garbage(seconds):
    """Collect for this many seconds: a large heap, with cycles that are garbage."""
    heap = chain(OBJECTS)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        chain(OBJECTS // 10)
        gc.collect()
    heap.following = None


def chain(length):
    first = last = Node(None)
    for _ in range(length):
        last = Node(last)
    first.following = last
    return first
