"""One rank believes that it knows the settings already and leaves a broadcast out."""

from common import compute, dist, is_time, join, torch
from watchtower_heartbeat import beat

join()
for step in range(10_000):
    compute()
    settings = torch.ones(2)
    if not is_time(step):
        dist.broadcast(settings, 0)
    dist.all_reduce(torch.ones(64))
    dist.all_gather([torch.ones(1) for _ in range(dist.get_world_size())], torch.ones(1))
    beat(step)
