"""Steps every tenth of a second from the step FIRST on; with BAD_LOSS, rank 1 has a NaN loss from
step 5 on. It saves a checkpoint every ten steps with SAVES, has a /dev/shm of its own of 32 MiB with
SMALL_SHM, and lasts until it is killed."""

import os
import sys
import time

if os.environ.pop("SMALL_SHM", ""):  # as a container has
    mount = 'mount -t tmpfs -o size=32m none /dev/shm && exec "$@"'
    os.execvp("unshare", ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, __file__])

from watchtower_heartbeat import beat, declare, phase

first, rank = int(os.environ["FIRST"]), int(os.environ["RANK"])
if "DECLARED" in os.environ:
    declare(lr=0.2 if rank == 1 else 0.1, seed=rank)
if "LATE" in os.environ:  # a program that sets its variables one rank after the other
    time.sleep(rank / 2)
    os.environ["NCCL_BUFFSIZE"] = "65536"
is_bad = "BAD_LOSS" in os.environ and rank == 1
for step in range(first, 10_000):
    beat(step, loss=float("nan") if is_bad and step >= first + 5 else 0.5)
    time.sleep(0.1)
    if "SAVES" in os.environ and step % 10 == 0:
        with phase("checkpoint"):
            time.sleep(1.5)
