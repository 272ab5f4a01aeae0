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

SMI = """
==============NVSMI LOG==============

Attached GPUs                             : 2
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU Reset Status
        Reset Required                    : {reset}
    Fabric
        State                             : Completed
    ECC Errors
        Volatile
            SRAM Uncorrectable            : 0
    Processes
        GPU instance ID                   : N/A
        Process ID                        : {pid}
            Type                          : C
GPU 00000000:5E:00.0
    GPU Reset Status
        Reset Required                    : No
    Fabric
        State                             : In Progress
"""
IBSTAT = """CA 'mlx5_0'
\tCA type: MT4129
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
CA 'mlx5_1'
\tPort 1:
\t\tState: Down
\t\tPhysical state: Polling
"""
LINK = (
    "2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP mode DEFAULT\n"
    "3: ib0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 2044 qdisc mq state DOWN mode DEFAULT\n"
)
_JAX = (
    "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: Init::0. # of "
    "tasks that reached the barrier: 3/4. The first task at the barrier: "
    "/job:jax_worker/replica:0/task:0. Some timed out task names:\n"
    "/job:jax_worker/replica:0/task:2\n"
)

NODE_CASES = (
    FieldCase(
        name="nvidia_smi_of_the_silent_rank",
        report="nvidia-smi -q: the GPU that the silent rank uses needs a reset",
        files={**_SILENT, "smi.txt": SMI.format(reset="Yes", pid=4713)},
        suspects=frozenset({3}),
        cause="gpu_fault",
    ),
    FieldCase(
        name="links_of_a_node",
        report="ip link, ibstat and nvidia-smi -q: shown, and no rank is named for them",
        files={
            **_SILENT,
            "node.txt": f"{LINK}{IBSTAT}{SMI.format(reset='No', pid=4711)}",
        },
        suspects=frozenset({3}),
        cause="behind_collective",
    ),
    FieldCase(
        name="srun_out_of_memory",
        report="srun writes that a task used too much memory, and killed the others",
        files={
            "slurm-17.out": "0: step 41\n1: step 41\n2: step 41\n3: step 41\n"
            "slurmstepd: error: Detected 1 oom_kill event in StepId=17.0.\n"
            "srun: error: gpu-1: task 2: Out Of Memory\nsrun: error: gpu-0: tasks 0-1: Killed\n"
        },
        suspects=frozenset({2}),
        cause="oom_killed",
    ),
    FieldCase(
        name="srun_exit_code",
        report="one task ended with a code of its own; the others were terminated",
        files={
            "slurm-17.out": "0: step 41\n1: step 41\n2: step 41\n3: step 41\n"
            "srun: error: gpu-1: task 3: Segmentation fault (core dumped)\n"
            "srun: error: gpu-0: tasks 0-2: Terminated\n"
        },
        suspects=frozenset({3}),
    ),
    FieldCase(
        name="jax_barrier",
        report="JAX's coordination service names the task that did not come",
        files={"out.txt": "world_size=4\n" + _JAX},
        suspects=frozenset({2}),
        words=("JAX coordination service",),
    ),
    FieldCase(
        name="vllm_engine_waits",
        report="vLLM writes once a minute that a worker does not read: it names no rank",
        files={
            "vllm.log": "(EngineCore_DP0 pid=71) INFO 11-28 20:00:00 [shm_broadcast.py:522] No "
            "available shared memory broadcast block found in 60 seconds.\n"
            "(Worker_TP0 pid=72) INFO 11-28 20:00:01 loaded\n"
            "(Worker_TP1 pid=73) INFO 11-28 20:00:01 loaded\n"
        },
    ),
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
