"""A pipeline with torch.distributed.pipelining, as pytorch/examples has it, with torch 2.13:
each rank builds its stage by hand, and a schedule moves micro-batches.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from script import Script
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

WIDTH = 16
CHUNKS = 4
BATCH = 8


def main():
    script = Script()
    torch.set_num_threads(1)
    dist.init_process_group(backend="gloo")
    script.visit("joined")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    part = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())
    stage = PipelineStage(part, rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, CHUNKS, loss_fn=F.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
    for step in range(script.steps):
        script.begin_step(step)
        train_step(schedule, optimizer, rank, world_size)
        script.end_step(step, 0.0)
    script.visit("exit")
    dist.barrier()
    dist.destroy_process_group()


def train_step(schedule, optimizer, rank, world_size):
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(torch.randn(BATCH, WIDTH))
    elif rank == world_size - 1:
        schedule.step(target=torch.zeros(BATCH, WIDTH), losses=[])
    else:
        schedule.step()
    optimizer.step()


if __name__ == "__main__":
    main()
