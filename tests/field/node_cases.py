"""Cases with files about nodes beside logs: the kernel log, and what schedulers print."""

from __future__ import annotations

from tests.field.field_case import FieldCase, watchdog


def _log(rank: int, *lines: str) -> str:
    """Return the log of a rank, which begins with a line of NCCL about its process."""
    start = (
        f"gpu-0:{4710 + rank}:4800 [{rank}] NCCL INFO ncclCommInitRank comm 0xa{rank} rank {rank} "
        f"nranks 4 cudaDev {rank} busId 3b000 commId 0x77 - Init COMPLETE\n"
    )
    return start + "".join(lines)


_SILENT = {f"r{rank}.log": _log(rank, watchdog(rank, 808)) for rank in range(3)} | {
    "r3.log": _log(3, "step 807\n")
}
_XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid={}, name=python, GPU has fallen off the bus.\n"
_OOM = "Memory cgroup out of memory: Killed process {} (python) total-vm:9kB, anon-rss:8kB\n"

NODE_CASES = (
    FieldCase(
        name="dmesg_of_the_silent_rank",
        report="the log of each rank, and dmesg of the node: the GPU of the silent rank was lost",
        files={**_SILENT, "dmesg.txt": "[  123.456789] " + _XID.format(4713)},
        suspects=frozenset({3}),
        cause="gpu_fault",
        words=("Xid 79", "at a time that its file does not show"),
    ),
    FieldCase(
        name="journal_with_an_oom_kill",
        report="journalctl -k: the OOM killer ended the silent rank",
        files={**_SILENT, "journal.txt": "Nov 28 20:00:00 gpu-0 kernel: " + _OOM.format(4713)},
        suspects=frozenset({3}),
        cause="oom_killed",
    ),
    FieldCase(
        name="kernel_log_of_another_node",
        report="the same pid on another node: nothing of it is about this job",
        files={**_SILENT, "journal.txt": "Nov 28 20:00:00 gpu-7 kernel: " + _OOM.format(4711)},
        suspects=frozenset({3}),
        cause="behind_collective",
    ),
)
