"""One rank of a job that makes every call of torch on gloo, and prints its records after each.

Arguments: rank, world size, folder, names of the calls to make.
"""

import contextlib
import datetime
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace_json

PATIENCE_S = 20.0


def ones(count=4):
    return torch.ones(count)


def reduce_all(group=None):
    dist.all_reduce(ones(), group=group)


def monitored_barrier():
    reduce_all()
    dist.monitored_barrier()
    dist.monitored_barrier(wait_all_ranks=True)
    reduce_all()


def collectives():
    size = dist.get_world_size()
    parts = [ones() for _ in range(size)]
    is_root = dist.get_rank() == 0
    dist.reduce(ones(), 0)
    dist.broadcast(ones(), 0)
    dist.barrier()
    dist.all_gather(parts, ones())
    dist.all_gather_into_tensor(ones(4 * size), ones())
    dist.gather(ones(), parts if is_root else None)
    dist.scatter(ones(), parts if is_root else None)
    dist.reduce_scatter(ones(), parts)
    dist.reduce_scatter_tensor(ones(), ones(4 * size))
    dist.all_to_all_single(ones(size), ones(size))
    dist.all_to_all([ones(1) for _ in range(size)], [ones(1) for _ in range(size)])
    dist.all_reduce_coalesced([ones(2), ones(3)])


def objects():
    size, rank = dist.get_world_size(), dist.get_rank()
    dist.all_gather_object([None] * size, {"rank": rank})
    dist.broadcast_object_list([1] if rank == 0 else [None])
    dist.gather_object(rank, [None] * size if rank == 0 else None)
    dist.scatter_object_list([None], list(range(size)) if rank == 0 else None)
    if rank < 2:
        other = dist.send_object_list if rank == 0 else dist.recv_object_list
        other([1], 1 - rank)


def messages():
    rank = dist.get_rank()
    reduce_all()
    if rank < 2:
        for work in (dist.isend(ones(), 1 - rank), dist.irecv(ones(), 1 - rank)):
            work.wait()
        both = (dist.isend, dist.irecv)
        for work in dist.batch_isend_irecv([dist.P2POp(op, ones(), 1 - rank) for op in both]):
            work.wait()
        if rank == 0:
            dist.send(ones(), 1)
        else:
            dist.recv(ones())
    reduce_all()


def late_waits():
    works = [dist.all_reduce(ones(), async_op=True) for _ in range(4)]
    reduce_all()
    for work in works:
        work.wait()
    dist.all_reduce(ones(), async_op=True)
    dist.barrier()


def new_groups():
    first, second = dist.new_group(), dist.new_group([0, 1])
    reduce_all(first)
    if dist.get_rank() < 2:
        reduce_all(second)
    dist.monitored_barrier(first)
    reduce_all(first)
    dist.destroy_process_group(first)
    reduce_all(dist.new_group())


def failed_calls():
    group = dist.new_group(timeout=datetime.timedelta(seconds=0.5))
    with contextlib.suppress(RuntimeError):
        if dist.get_rank() != 0:
            reduce_all(group)
    reduce_all()
    dist.destroy_process_group(group)


def join_anew():
    folder = sys.argv[3]
    reduce_all()
    dist.monitored_barrier()
    reduce_all()
    dist.destroy_process_group()
    join(os.path.join(folder, "again"))
    reduce_all()


def many_calls():
    dist.monitored_barrier()
    for _ in range(25):
        reduce_all()


def hole_and_hang():
    """Rank 0 sleeps in its own code after the barrier, and the others wait for it."""
    reduce_all()
    dist.monitored_barrier()
    if dist.get_rank() != 0:
        dist.all_reduce(ones(), async_op=True)


def join(path):
    dist.init_process_group(
        "gloo", init_method=f"file://{path}", rank=int(sys.argv[1]), world_size=int(sys.argv[2])
    )


def read(name):
    """Return the records, when no call that this rank has left is open any more.

    The library marks a call as over soon after it has returned.
    """
    hangs = name == "hole_and_hang" and dist.get_rank() != 0
    deadline = time.monotonic() + PATIENCE_S
    while True:
        text = _dump_fr_trace_json().decode()
        entries = json.loads(text).get("entries", [])
        left = entries[:-1] if hangs else entries
        if all(entry["retired"] for entry in left) or time.monotonic() > deadline:
            return text
        time.sleep(0.02)


def wait_for_all():
    """Wait until every rank has read its records: the end of a process ends open calls."""
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    with open(os.path.join(folder, f"read-{rank}"), "w", encoding="utf-8"):
        pass
    deadline = time.monotonic() + PATIENCE_S
    paths = [os.path.join(folder, f"read-{each}") for each in range(size)]
    while not all(map(os.path.exists, paths)) and time.monotonic() < deadline:
        time.sleep(0.02)


def main():
    join(os.path.join(sys.argv[3], "store"))
    for name in sys.argv[4:]:
        globals()[name]()
        print(json.dumps({"call": name, "records": read(name)}), flush=True)
    wait_for_all()
    os._exit(0)


if __name__ == "__main__":
    main()
