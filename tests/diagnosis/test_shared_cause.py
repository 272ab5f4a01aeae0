"""Causes that a job may share with others, from the evidence of that job alone."""

from __future__ import annotations

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_MULTI_LOADER,
    IN_USER_CODE,
    IN_WORKER,
    a_case,
    a_child,
    a_kernel,
    a_rank,
    a_silent_rank,
    ranks_in,
    with_rank,
)
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.domain import name_mount
from watchtower.wire.dumps import Mount
from watchtower.wire.report import Movement
from watchtower.wire.verdict import Cause, SharedCause

NFS = Mount(kind="nfs4", source="nfs1:/data", point="/mnt/data")
HOME = Mount(kind="nfs", source="nfs2:/home", point="/home")
DISK = Mount(kind="ext4", source="/dev/nvme0n1p1", point="/")
SSHFS = Mount(kind="fuse.sshfs", source="ann@box:/x", point="/mnt/x")
S3 = Mount(kind="fuse.s3fs", source="s3fs", point="/mnt/s3")
LAYER = Mount(kind="overlay", source="overlay", point="/")

DEAD = {"wchan": "rpc_wait_bit_killable", "mounts": (NFS,)}
"""The kernel wait of a thread that reads from a file server that does not answer."""


def shared(*built, **values) -> SharedCause | None:
    return diagnose(a_case(built, **values)).shared_cause


def on_the_server(rank: int, stack: str = FETCHING, **values):
    values = {
        "kernel": DEAD,
        "state": "D",
        "syscall": "read",
        "target": "/mnt/data/1.tar",
        **values,
    }
    return a_rank(rank, stack, **values)


MOUNT = SharedCause(kind="mount", name="nfs1:/data")


@pytest.mark.parametrize(
    ("wait", "name"),
    [
        # The descriptor's mount.
        ({"wchan": "rpc_wait_bit_killable", "mounts": (NFS,)}, "nfs1:/data"),
        ({"wchan": "folio_wait_bit_common", "mounts": (NFS,)}, "nfs1:/data"),
        ({"wchan": "io_schedule", "mounts": (DISK,)}, "n07:/dev/nvme0n1p1"),
        ({"wchan": "", "syscall": "read", "mounts": (NFS,)}, "nfs1:/data"),
        ({"wchan": "fuse_get_req", "mounts": (SSHFS,)}, "ann@box:/x"),
        ({"wchan": "fuse_get_req", "mounts": (S3,)}, "n07:/mnt/s3"),
        ({"state": "S", "wchan": "request_wait_answer", "mounts": (S3,)}, "n07:/mnt/s3"),
        # A call with a path: one of several mounts, if only one is of the kind that it waits for.
        ({"wchan": "rpc_wait_bit_killable", "mounts": (DISK, NFS, S3)}, "nfs1:/data"),
        ({"wchan": "rpc_wait_bit_killable", "mounts": (DISK, NFS, HOME)}, ""),
        ({"wchan": "folio_wait_bit_common", "mounts": (DISK, NFS)}, ""),
        ({"wchan": "rpc_wait_bit_killable", "mounts": (DISK,)}, ""),
        # Not blocked on storage.
        ({"state": "S", "syscall": "read", "mounts": (NFS,)}, ""),
        ({"state": "R", "mounts": (NFS,)}, ""),
        ({"wchan": "kernel_clone", "mounts": (DISK,)}, ""),
        ({"wchan": "io_schedule", "mounts": (LAYER,)}, ""),
        ({"wchan": "rpc_wait_bit_killable"}, ""),
    ],
)
def test_a_thread_in_the_kernel_names_the_mount_that_it_is_blocked_on(wait, name):
    assert name_mount(a_kernel(**{"state": "D", **wait}), "n07") == name


def test_a_name_from_a_node_is_cleaned():
    evil = Mount(kind="fuse.sshfs", source="a\x1b[31m\u202eb`c", point="/")
    assert name_mount(a_kernel("D", wchan="fuse_get_req", mounts=(evil,)), "n") == "a [31m b'c"


def test_ranks_that_read_from_a_dead_file_server_share_its_mount():
    ranks = with_rank(ranks_in(8), on_the_server(3))
    diagnosis = diagnose(a_case(ranks))
    assert diagnosis.cause is Cause.UNINTERRUPTIBLE_IO
    assert diagnosis.shared_cause == MOUNT


def test_a_job_of_which_every_rank_is_blocked_names_the_mount_also_without_a_suspect():
    ranks = [on_the_server(rank, stack=IN_USER_CODE, syscall="pread64") for rank in range(8)]
    diagnosis = diagnose(a_case(ranks))
    assert (diagnosis.cause, diagnosis.suspects) == (Cause.UNKNOWN, ())
    assert diagnosis.shared_cause == MOUNT


def test_a_worker_that_is_blocked_counts_as_its_rank():
    worker = a_child(5001, "D", IN_WORKER, **DEAD)
    waiting = a_rank(
        3, IN_MULTI_LOADER, syscall="poll", children=(worker,), child_stacks=(IN_WORKER,)
    )
    assert shared(*with_rank(ranks_in(8), waiting)) == MOUNT


def test_the_mount_of_most_ranks_counts():
    home = {"kernel": {**DEAD, "mounts": (HOME,)}}
    assert shared(on_the_server(0, **home), on_the_server(1), on_the_server(2)) == MOUNT


def test_a_rank_that_reads_or_writes_is_not_held_up_by_storage():
    moving = on_the_server(3, movement=Movement(read_bytes_per_s=1e8))
    assert shared(*with_rank(ranks_in(8), moving)) is None


def test_a_rank_that_others_do_not_wait_for_names_nothing():
    """A rank in a collective that also has a blocked child holds up no job."""
    worker = a_child(5001, "D", IN_WORKER, **DEAD)
    bystander = a_rank(2, children=(worker,), child_stacks=(IN_WORKER,))
    assert shared(*with_rank(ranks_in(8), bystander, a_rank(3, state="T"))) is None


def test_ranks_of_a_lost_node_share_the_node():
    lost = [a_silent_rank(rank) for rank in (4, 5, 6, 7)]
    nodes = a_case([*ranks_in(4), *lost])
    diagnosis = diagnose(nodes)
    assert diagnosis.cause is Cause.NODE_LOST
    assert diagnosis.shared_cause == SharedCause(kind="node", name="gpu-01")


def test_a_job_with_a_fault_of_its_own_shares_nothing():
    assert shared(*with_rank(ranks_in(8), a_rank(3, FETCHING))) is None
    assert shared(*with_rank(ranks_in(8), a_rank(3, state="T"))) is None


def test_a_rank_that_waits_for_an_address_outside_the_job_shares_the_address():
    """The ranks of the job are not outside, and a process that is stopped waits for no address."""
    service = "tcp 10.0.0.7:41000 -> 10.0.9.9:443"
    waits = {"target": service, "syscall": "recvfrom"}
    address = SharedCause(kind="address", name="10.0.9.9")
    suspect = a_rank(0, IN_USER_CODE, **waits)
    assert shared(*with_rank(ranks_in(8), suspect)) == address
    peer = a_rank(1, target="tcp 10.0.9.9:29400 -> 10.0.0.7:41000")
    assert shared(*with_rank(ranks_in(8), suspect, peer)) is None
    stopped = a_rank(0, IN_USER_CODE, state="T", **waits)
    assert shared(*with_rank(ranks_in(8), stopped)) is None
    loads = a_rank(0, IN_USER_CODE, movement=Movement(socket_bytes_per_s=1e8), **waits)
    assert shared(*with_rank(ranks_in(8), loads)) is None


def test_a_blocked_mount_comes_before_an_address():
    """The client of a user-space file system waits for its server at a socket, too."""
    worker = a_child(5001, "D", IN_WORKER, **DEAD)
    waiting = a_rank(
        3,
        IN_MULTI_LOADER,
        syscall="recvfrom",
        target="tcp 10.0.0.7:41000 -> 10.0.9.9:443",
        children=(worker,),
        child_stacks=(IN_WORKER,),
    )
    assert shared(*with_rank(ranks_in(8), waiting)) == MOUNT
