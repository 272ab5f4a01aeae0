"""Two process groups of the same ranks, entered in another order by one of them."""

from common import WORLD, compute, dist, is_time, join, torch
from watchtower_heartbeat import beat

join()
experts = dist.new_group(list(range(WORLD)), group_desc="experts")
tensors = dist.new_group(list(range(WORLD)), group_desc="tensors")


def route():
    dist.all_reduce(torch.ones(4), group=experts)


def reduce():
    dist.all_reduce(torch.ones(8), group=tensors)


for step in range(10_000):
    compute()
    for part in (reduce, route) if is_time(step) else (route, reduce):
        part()
    beat(step)
