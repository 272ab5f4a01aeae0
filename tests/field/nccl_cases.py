"""Cases with NCCL's own log."""

from __future__ import annotations

from tests.field.field_case import FieldCase
from tests.field.log_cases import GAVE_UP


def set_up(rank: int, size: int, what: str, *, comm: str = "0xfeed", new: bool = True) -> str:
    """Return a line of the set-up of a communicator."""
    who = f"[Rank {rank}] ncclCommInitRankConfig comm" if new else "comm"
    return (
        f"gpu-{rank // 2}:{700 + rank}:{900 + rank} [{rank % 2}] NCCL INFO {who} 0x55d{rank:02x} "
        f"rank {rank} nranks {size} cudaDev {rank % 2} nvmlDev 0 busId 1a000 commId {comm} - "
        f"Init {what}\n"
    )


def warn(rank: int, text: str) -> str:
    """Return a warning of NCCL."""
    return (
        f"\n[2026-06-26 06:24:44] gpu-{rank // 2}:{700 + rank}:{900 + rank} [0] "
        f"misc/shmutils.cc:87 NCCL WARN {text}\n"
    )


def ras(most: tuple[int, int], few: tuple[int, int], *listed: int) -> str:
    """Return the text of RAS about a communicator whose ranks have two counts."""
    ranks = "".join(
        f"  Rank {rank} -- GPU {rank % 8} managed by process {4000 + rank} on node 10.0.0.2\n"
        for rank in listed
    )

    return (
        "Communicators...\nWarnings\n========\n\n#0-0 (27a079b828ff1a75) MISMATCH\n"
        "  Communicator ranks have different collective operation counts\n"
        + "".join(
            f"  {count} ranks have launched up to operation {at}\n" for count, at in (most, few)
        )
        + f"{ranks}\n"
    )


NCCL_CASES = (
    FieldCase(
        name="ras_of_a_rank_behind",
        report="two of 16 ranks have launched one collective less",
        files={"ras.txt": ras((14, 641), (2, 640), 3, 12)},
        suspects=frozenset({3, 12}),
    ),
    FieldCase(
        name="ras_lists_those_that_are_ahead",
        report="nccl#1911: RAS lists two of 32 ranks that are ahead; most are behind",
        files={"ras.txt": ras((30, 640), (2, 641), 12, 13)},
    ),
    FieldCase(
        name="nccl_set_up_without_one_rank",
        report="pytorch#116304: seven of eight ranks begin the set-up, none completes it",
        files={"job.log": "".join(set_up(rank, 8, "START") for rank in range(8) if rank != 5)},
        suspects=frozenset({5}),
    ),
    FieldCase(
        name="nccl_set_up_of_old_versions",
        report="NCCL 2.18: neither a function nor [Rank R] in the line",
        files={
            "job.log": "".join(set_up(rank, 4, "START", new=False) for rank in range(4) if rank)
        },
        suspects=frozenset({0}),
    ),
    FieldCase(
        name="nccl_set_up_that_is_complete",
        report="a set-up that all ranks completed accuses none",
        files={
            "job.log": "".join(
                set_up(rank, 4, what) for what in ("START", "COMPLETE") for rank in range(4)
            )
        },
    ),
    FieldCase(
        name="nccl_shared_memory_is_full",
        report="nccl#290, ci-infra#490: one node has 64 MB of /dev/shm",
        files={
            f"rank{rank}.log": set_up(rank, 4, "START")
            + (
                warn(
                    2,
                    "Error: failed to extend /dev/shm/nccl-7Yk1 to 33030532 bytes, error: No space "
                    "left on device (28)",
                )
                + 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
                "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:269, unhandled "
                "system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3\n"
                if rank == 2
                else warn(rank, "socketProgress: Connection closed by remote peer gpu-1<4001>")
                + GAVE_UP
            )
            for rank in range(4)
        },
        suspects=frozenset({2}),
        words=("/dev/shm",),
    ),
)
