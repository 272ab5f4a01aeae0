"""torch's pipeline schedule, whose stages use isend() and irecv(); one stage waits at a lock."""

import threading

from common import RANK, WORLD, compute, is_time, join, torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from watchtower_heartbeat import beat

lock, step = threading.Lock(), 0


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, batch):
        lock.acquire()
        if not is_time(step):
            lock.release()
        return self.linear(batch)


def loss_of(outputs, target):
    return (outputs - target).square().mean()


join()
layer, batch = Layer(), torch.ones(8, 8)
stage = PipelineStage(layer, RANK, WORLD, torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_of)
while True:
    compute()
    first = (batch,) if RANK == 0 else ()
    schedule.step(*first, **({"target": batch} if RANK == WORLD - 1 else {}))
    beat(step)
    step += 1
