"""A pipeline of blocking sends and receives, forward and backward; one stage leaves a send out."""

from common import CULPRIT, LAST_GOOD, RANK, WORLD, compute, dist, join, torch
from watchtower_heartbeat import beat

FIRST, LAST = RANK == 0, RANK == WORLD - 1


class Stage:
    def forward(self, step):
        activations = torch.ones(4)
        if not FIRST:
            dist.recv(activations, RANK - 1)
        dropped = RANK == CULPRIT and step > LAST_GOOD
        if not LAST and not dropped:
            dist.send(activations + 1, RANK + 1)

    def backward(self):
        gradient = torch.ones(4)
        if not LAST:
            dist.recv(gradient, RANK + 1)
        if not FIRST:
            dist.send(gradient, RANK - 1)


join()
stage = Stage()
for step in range(10_000):
    compute()
    stage.forward(step)
    stage.backward()
    beat(step)
