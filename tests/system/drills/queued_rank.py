"""One of two ranks on the backend `queued`: `queued_rank.py SCHEDULE ENGINE LOG SOCKET`.

Prints one JSON object for each part that it tries.
"""

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from watchtower.drills.launching import PROGRAMS

sys.path.insert(0, str(PROGRAMS))
from queued import install
from queued.install import LAUNCHES

SCHEDULE, ENGINE, LOG, SOCKET = sys.argv[1:]
KERNEL_S = 0.3
LONG_S = 2.0


def tell(part: str, **values: object) -> None:
    os.write(1, f"{json.dumps({'part': part, **values})}\n".encode())


def take_value(tensor: torch.Tensor) -> float:
    return tensor.item()


def innermost(ident: int) -> str:
    return sys._current_frames()[ident].f_code.co_name


def most_seen_in(work: Callable[[], object]) -> str:
    """Return the innermost function of this thread that another thread saw most while it works."""
    main, seen, is_over = threading.get_ident(), Counter[str](), threading.Event()

    def watch() -> None:
        while not is_over.wait(0.01):
            seen[innermost(main)] += 1

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    is_over.set()
    watcher.join()
    return seen.most_common(1)[0][0]


def train(model: nn.Module, steps: int = 3) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        batch = torch.rand(4, 8)
        loss = model(batch).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return take_value(loss)


torch.set_num_threads(1)
device = install(schedule=SCHEDULE, engine_thread=ENGINE == "engine", log=LOG)
dist.init_process_group("queued")
rank, size = dist.get_rank(), dist.get_world_size()
server = sys.modules["torch._C._distributed_c10d"]._WorkerServer(f"{SOCKET}-{rank}")

total = torch.tensor([rank + 1.0])
began = time.monotonic()
if rank == 0:
    device.run(device.compute, KERNEL_S)
dist.all_reduce(total)
tell("queued", seconds=time.monotonic() - began, value=total.tolist() and take_value(total))

device.run(device.compute, LONG_S)
tell("frame", name=most_seen_in(lambda: take_value(total)))

objects: list[object] = [None] * size
dist.all_gather_object(objects, {"rank": rank})
tell("objects", found=objects)

device.run(device.compute, KERNEL_S if rank == 0 else 0.0)
began = time.monotonic()
dist.barrier()
tell("barrier", seconds=time.monotonic() - began)

if rank == 0:
    dist.send(torch.ones(2), 1)
else:
    values = torch.empty(2)
    dist.recv(values, 0)
    tell("received", values=values.tolist())

layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
tell("ddp", finite=bool(torch.isfinite(torch.tensor(train(DistributedDataParallel(layers))))))
sharded = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
mesh = init_device_mesh("cpu", (size,))
tell("fsdp", finite=bool(torch.isfinite(torch.tensor(train(fully_shard(sharded, mesh=mesh))))))


def train_late() -> None:
    """Fill the queue, then train: something in it must wait for room."""
    for _ in range(2 * LAUNCHES):
        device.run(device.compute, LONG_S / LAUNCHES)
    layers(torch.rand(4, 8)).sum().backward()
    device.with_room(int)


began = time.monotonic()
frame = most_seen_in(train_late)
tell("backward", seconds=time.monotonic() - began, frame=frame)
names = []
for task in os.listdir("/proc/self/task"):
    with open(f"/proc/self/task/{task}/comm") as file:
        names.append(file.read().strip())
tell("threads", names=sorted(names))
dist.barrier()
tell("ready")
sys.stdin.read()  # the test reads the log now
if rank == 0:
    dist.all_reduce(total)  # the other rank never calls it
    sys.exit(7)
