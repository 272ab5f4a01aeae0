"""Joins a process group by arguments: join_by_number.py FILE RANK WORLD_SIZE."""

import sys
import time

import torch.distributed as dist

path, rank, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world_size)
print("ready", flush=True)
time.sleep(600)
