"""Epochs over shards of unequal length; the ranks meet after each."""

from common import CULPRIT, LAST_GOOD, RANK, compute, dist, join, torch
from watchtower_heartbeat import beat


class Learner:
    def __init__(self):
        self.done = 0

    def learn(self, batch):
        compute()
        dist.all_reduce(batch)
        self.done += 1
        beat(self.done)

    def fit(self, batches):
        for batch in batches:
            self.learn(batch)
        dist.barrier()


join()
learner = Learner()
learner.fit(torch.ones(4) for _ in range(LAST_GOOD))
learner.fit(torch.ones(4) for _ in range(9 if RANK == CULPRIT else 10))
