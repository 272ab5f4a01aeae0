"""One rank connects to a service that is not the store of its job: it accepts and never answers."""

import os
import socket

from common import CULPRIT, RANK, dist, torch

silent = socket.create_server(("127.0.0.1", 0))
port = silent.getsockname()[1] if RANK == CULPRIT else os.environ["MASTER_PORT"]
dist.init_process_group(
    "gloo",
    init_method=f"tcp://127.0.0.1:{port}",
    rank=RANK,
    world_size=int(os.environ["WORLD_SIZE"]),
)
while True:
    dist.all_reduce(torch.ones(1))
