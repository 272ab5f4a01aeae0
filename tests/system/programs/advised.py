"""Steps every tenth of a second from the step FIRST on, until it is killed.

With BAD_LOSS, rank 1 has a NaN loss from step 5 on. With SAVES it saves a checkpoint every ten
steps, with LAST none after this step, and with FILE it writes this file all the time. With
SMALL_SHM it has a /dev/shm of its own of 32 MiB, with CARD a card of InfiniBand open. With LOG it
writes this line as NCCL does.
"""

import os
import sys
import time

if os.environ.pop("SMALL_SHM", ""):  # as a container has
    mount = 'mount -t tmpfs -o size=32m none /dev/shm && exec "$@"'
    os.execvp("unshare", ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, __file__])
if os.environ.pop("CARD", ""):  # a device that answers nothing, by the name of a card
    mount = (
        "mount -t tmpfs none /dev && mkdir /dev/infiniband && mknod /dev/null c 1 3 && "
        'mknod /dev/infiniband/uverbs0 c 1 3 && exec "$@" 9</dev/infiniband/uverbs0'
    )
    os.execvp("unshare", ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, __file__])

from watchtower_heartbeat import beat, declare, phase

first, rank = int(os.environ["FIRST"]), int(os.environ["RANK"])
if "DECLARED" in os.environ:
    declare(lr=0.2 if rank == 1 else 0.1, seed=rank)
if "LATE" in os.environ:  # a program that sets its variables one rank after the other
    time.sleep(rank / 2)
    os.environ["NCCL_BUFFSIZE"] = "65536"
if "LOG" in os.environ:
    path = f"{os.environ['TMPDIR']}/{os.environ['WATCHTOWER_JOB']}-{rank}.log"
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    print(
        f"gpu-0:{os.getpid()}:{os.getpid()} [0] NCCL INFO Channel 00/0 : {os.environ['LOG']}",
        flush=True,
    )
if "FILE" in os.environ:
    with phase("checkpoint"), open(os.environ["FILE"], "wb") as file:
        for step in range(first, 10_000):
            beat(step)
            file.write(b"weights")
            time.sleep(0.1)
last = int(os.environ.get("LAST", "10000"))
is_bad = "BAD_LOSS" in os.environ and rank == 1
for step in range(first, 10_000):
    beat(step, loss=float("nan") if is_bad and step >= first + 5 else 0.5)
    time.sleep(0.1)
    if "SAVES" in os.environ and step % 10 == 0 and step <= last:
        with phase("checkpoint"):
            time.sleep(1.5)
