"""One rank of a gloo job of two that hangs: `gloo_job.py RANK FOLDER`. Says where its records are.

Both make two groups of the same members and use them; then rank 0 enters an all_reduce that rank 1
never comes to. Needs nothing of ours: the list of groups is written as its documentation says.
"""

import json
import os
import struct
import sys
import time

import torch
import torch.distributed as dist

rank, folder = int(sys.argv[1]), sys.argv[2]
path = os.path.join(folder, f"records-{rank}")
server = torch._C._distributed_c10d._WorkerServer(path)
os.chmod(path, 0o666)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
pair = dist.new_group([0, 1], group_desc="pair")
unused = dist.new_group([0, 1], group_desc="unused")

text = b"0\tdefault_pg\t0-1\n1\tpair\t0-1\n2\tunused\t0-1\n"
groups = os.memfd_create("watchtower-groups")
os.pwrite(groups, text, 64)
os.pwrite(groups, struct.pack("=8s2q", b"WTGROUP\0", 1, len(text)), 0)

for _ in range(3):
    dist.all_reduce(torch.ones(256))
dist.all_reduce(torch.ones(2, 3, dtype=torch.bfloat16), group=pair)
dist.barrier()
print(json.dumps({"record_socket": path, "groups_descriptor": groups}), flush=True)
print("ready", flush=True)
sys.stdin.readline()
if rank == 0:
    dist.all_reduce(torch.ones(5, dtype=torch.int64))
time.sleep(600)
