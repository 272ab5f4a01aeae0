"""One rank of a small gloo job: imports as told, joins the job, then does what it is told.

IMPORT is "client first", "torch first" or "client later", as training programs have it. With
"no variables" the rank is only an argument, as in mp.spawn.
"""

import os
import sys

if os.environ["IMPORT"] == "client first":
    import watchtower_heartbeat

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if os.environ["IMPORT"] == "no variables":
    del os.environ["RANK"], os.environ["WORLD_SIZE"]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed import recv, send  # noqa: E402

if os.environ["IMPORT"] == "torch first":
    import watchtower_heartbeat  # noqa: F401

dist.init_process_group(
    "gloo",
    init_method=os.environ["STORE"],
    rank=rank,
    world_size=world_size,
)
names = {"dist": dist, "os": os, "recv": recv, "send": send, "torch": torch}
names["ones"] = torch.ones(4)
print("ready", flush=True)
for line in sys.stdin:
    exec(line, names)
    print("done", flush=True)
