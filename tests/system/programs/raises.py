"""A job of torch over gloo in which rank CULPRIT fails as its first word names, in a step that its
second word may name.

The texts are those of the libraries: of torch where it raises them here, of NCCL and CUDA as torch
formats them, because they need GPUs.
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from watchtower_heartbeat import beat

RANK = int(os.environ["RANK"])
CULPRIT = int(os.environ["CULPRIT"])
FAULTY_STEP = int(sys.argv[2]) if len(sys.argv) > 2 else 40
"""The agent needs some seconds to find the heartbeat files, on a busy machine more."""

STEP_S = 0.2
NEEDED = 33_030_532
"""Bytes of shared memory that a channel of NCCL needs."""

NCCL = (
    "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled system "
    "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device "
    "error.\nLast error:\n"
)
ECC = "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously"


def allocate():
    """Do what NCCL does with /dev/shm, here with SHM."""
    path = f"{os.environ['SHM']}/nccl-Xk3bQz"
    with open(path, "wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, NEEDED)
        except OSError as error:
            text = f"failed to extend /dev/shm/nccl-Xk3bQz to {NEEDED} bytes"
            raise dist.DistBackendError(
                f"{NCCL}Error: {text}, error: {error.strerror} ({error.errno})"
            ) from None


def handle():
    """Catch an error that a trainer can survive."""
    try:
        raise dist.DistBackendError(f"{NCCL}Error: failed to extend /dev/shm/nccl-Xk3bQz")
    except dist.DistBackendError as error:
        print("goes on without shared memory:", error, flush=True)


def fail_of_memory():
    raise RuntimeError(ECC)


def run_out_of_memory():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")


def differ():
    dist.broadcast(torch.zeros(4), src=RANK)


def wait_for_key():
    dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=1)).get("missing")


def leave():
    os._exit(3)


def write_to_full_disk():
    with open("/dev/full", "wb", buffering=0) as file:
        file.write(b"checkpoint")


def rest():
    """Sleep in a folder on a file system that was full before."""
    os.chdir(os.environ["DISK"])
    time.sleep(3600)


def try_again_on_full_disk():
    """Write a checkpoint as a program does that hopes for room."""
    os.chdir(os.environ["DISK"])
    while True:
        try:
            with open("step-40.pt", "wb") as file:
                file.write(bytes(4 << 20))
            return
        except OSError:
            time.sleep(3)


FAULTS = {
    each.__name__: each
    for each in (
        allocate,
        handle,
        fail_of_memory,
        run_out_of_memory,
        differ,
        wait_for_key,
        leave,
        write_to_full_disk,
        try_again_on_full_disk,
        rest,
    )
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for step in range(1_000_000):
        if step == FAULTY_STEP and RANK == CULPRIT:
            FAULTS[sys.argv[1]]()
        time.sleep(STEP_S)
        dist.all_reduce(torch.zeros(4))
        beat(step)
