"""One rank of a small gloo job: imports as told, joins the job, then does what it is told.

IMPORT is "client first", "torch first" or "client later", as training programs have it.
"""

import os
import sys

if os.environ["IMPORT"] == "client first":
    import watchtower_heartbeat

import torch
import torch.distributed as dist
from torch.distributed import recv, send

if os.environ["IMPORT"] == "torch first":
    import watchtower_heartbeat  # noqa: F401

dist.init_process_group(
    "gloo",
    init_method=os.environ["STORE"],
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
)
names = {"dist": dist, "os": os, "recv": recv, "send": send, "torch": torch}
names["ones"] = torch.ones(4)
print("ready", flush=True)
for line in sys.stdin:
    exec(line, names)
    print("done", flush=True)
