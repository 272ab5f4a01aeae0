"""A job of torch whose ranks meet, and work without heartbeats.

FAULT: "fails", rank 0 ends before they meet; "waits", the ranks wait for each other before their
first step, with heartbeat files.
"""

import importlib
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

FAULT, RANK = os.environ.get("FAULT", ""), int(os.environ["RANK"])

if FAULT == "fails" and RANK == 0:
    raise SystemExit("bad setting")
if FAULT == "waits":
    importlib.import_module("watchtower_heartbeat")  # it makes the file
torch.set_num_threads(1)
dist.init_process_group("gloo")
if FAULT == "waits":
    # A library that sets up communication for one rank more than there are.
    store, count = dist.distributed_c10d._get_default_store(), dist.get_world_size() + 1
    dist.distributed_c10d._store_based_barrier(RANK, store, "more", count, timedelta(hours=1))
while True:
    dist.all_reduce(torch.zeros(4))
    time.sleep(0.2)
