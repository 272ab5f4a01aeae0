"""A job of torch whose ranks meet, and work without heartbeats.

FAULT: "fails", rank 0 ends before they meet; "waits", the ranks wait for each other before their
first step, with heartbeat files; "closed", the port of the store refuses the culprit, which has a
network of its own; "waits_later", as "waits", after `STEPS` steps; "sleeps_later", the culprit
sleeps then.
"""

import ctypes
import importlib
import os
import subprocess
import time
from datetime import timedelta

import torch
import torch.distributed as dist

STEPS = 40
"""More than the collectors need for a first reading: they count from it."""

FAULT, RANK = os.environ.get("FAULT", ""), int(os.environ["RANK"])

if FAULT == "fails" and RANK == 0:
    raise SystemExit("bad setting")
if FAULT == "closed" and int(os.environ["CULPRIT"]) == RANK:
    CLONE_NEWNET = 0x40000000
    assert ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
client = (
    importlib.import_module("watchtower_heartbeat")
    if FAULT.startswith(("waits", "sleeps"))
    else None
)
"""It makes the heartbeat file."""
torch.set_num_threads(1)
dist.init_process_group("gloo")
for step in range(STEPS if FAULT.endswith("_later") else 0):
    dist.all_reduce(torch.zeros(4))
    time.sleep(0.4)
    client.beat(step)
if FAULT == "sleeps_later" and int(os.environ["CULPRIT"]) == RANK:
    time.sleep(3600)
if FAULT.startswith("waits"):
    # A library that sets up communication for one rank more than there are.
    store, count = dist.distributed_c10d._get_default_store(), dist.get_world_size() + 1
    dist.distributed_c10d._store_based_barrier(RANK, store, "more", count, timedelta(hours=1))
while True:
    dist.all_reduce(torch.zeros(4))
    time.sleep(0.2)
