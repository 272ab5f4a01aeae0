"""An object that never finishes pickling, inside the call that gathers objects."""

from common import WORLD, compute, dist, is_time, join
from watchtower_heartbeat import beat


class Vocabulary:
    def __init__(self, step):
        self.grows = is_time(step)

    def __getstate__(self):
        merges = 0
        while self.grows:
            merges += 1
        return {"grows": False}


join()
for step in range(10_000):
    compute()
    gathered = [None] * WORLD
    dist.all_gather_object(gathered, Vocabulary(step))
    beat(step)
