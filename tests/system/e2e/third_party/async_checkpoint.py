"""torch saves in a thread of its own; the file of one rank is never opened by another process."""

import os
import tempfile

import torch.distributed.checkpoint as dcp
from common import RANK, compute, dist, is_time, join, torch
from watchtower_heartbeat import beat

EVERY = 5
PORT = os.environ["MASTER_PORT"]
FOLDER = os.path.join(tempfile.gettempdir(), f"async-checkpoints-{PORT}")


def begin_saving(step, group, **how):
    path = os.path.join(FOLDER, str(step))
    os.makedirs(path, exist_ok=True)
    if is_time(step):
        fifo = os.path.join(path, f"__{RANK}_0.distcp")
        if os.path.lexists(fifo):  # of an earlier job with this port
            os.unlink(fifo)
        os.mkfifo(fifo)
    state = {"model": model.state_dict(), f"own_{RANK}": torch.rand(8)}
    writer = dcp.FileSystemWriter(path)
    return dcp.async_save(state, storage_writer=writer, process_group=group, **how)


def train(make_group=dist.new_group, **how):
    join()
    savers, saving = make_group(), None
    for step in range(10_000):
        compute()
        total = model(torch.rand(4, 8)).sum().detach()
        dist.all_reduce(total)
        if step % EVERY == 0:
            if saving is not None:
                saving.result()
            saving = begin_saving(step, savers, **how)
        beat(step)


model = torch.nn.Linear(8, 1)
if __name__ == "__main__":
    train()
