"""A guard against a bad loss calls a collective on the rank that saw it, and on no other."""

import math

from common import compute, dist, is_time, join, torch
from watchtower_heartbeat import beat


def forward(step):
    compute()
    return math.inf if is_time(step) else 0.5


def agree_to_skip():
    votes = torch.ones(1)
    dist.broadcast(votes, 0)
    dist.barrier()


join()
step = 0
while step < 10_000:
    loss = forward(step)
    if not math.isfinite(loss):
        agree_to_skip()
    gradients = torch.full((64,), loss)
    dist.all_reduce(gradients)
    step += 1
    beat(step)
