"""Drills that only the GPUs of the nodes explain: in the host, all ranks are alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from watchtower.drills.catalogue.pauses import (
    AFTERWARDS_STEPS,
    SETTLE_S,
    plan_eval_alone,
    plan_straggler,
)
from watchtower.drills.catalogue.queued import ONLY
from watchtower.drills.catalogue.stalls import event
from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.errors import DrillError
from watchtower.drills.gpus import HANGS, IDLES, LOST, SPINS, THROTTLED, WORKS, name_address
from watchtower.drills.kernel_log import KernelLogs
from watchtower.drills.launching import node_name
from watchtower.drills.settings import DrillSettings
from watchtower.drills.setup import CALM, Expected, names


def _show_gpus(run: DrillRun, odd: str, others: str) -> None:
    """Set the load of the GPU of the rank with the fault, and that of all others."""
    _show_each(run, lambda rank: odd if rank == run.rank else others)


def _show_each(run: DrillRun, load_of: Callable[[int], str]) -> None:
    """Set the load of the GPU of each rank."""
    gpus = run.environment.gpus
    if gpus is None:
        raise DrillError("this drill has no GPUs of its own")
    by_node: dict[int, list[tuple[int, str]]] = {}
    for rank in range(run.job.layout.ranks):
        shown = run.job.pid(rank), load_of(rank)
        by_node.setdefault(run.job.layout.node_of(rank), []).append(shown)
    for node, of_node in by_node.items():
        gpus.show(node_name(node), of_node)


def _change_gpus(
    odd: str, others: str, log: Callable[[KernelLogs, str, str], None] | None = None
) -> Callable[[DrillRun], None]:
    """Return a run in which all GPUs work, and change their load with the fault.

    `log` writes what the kernel of a node reports about the GPU of the rank, by its PCI address.
    """

    def act(run: DrillRun) -> None:
        logs = run.environment.kernel_logs
        if log is not None and logs is None:
            raise DrillError("this drill has no kernel log of its own")
        run.launch()
        run.wait_for_step(1)
        _show_gpus(run, WORKS, WORKS)
        run.wait_for_fault()
        node, address = _odd_address(run)
        if log is not None and logs is not None:
            log(logs, node, address)
        _show_gpus(run, odd, others)
        if log is not None:
            run.note(f"the kernel log has an error of GPU {address}")
        run.wait_for_final()

    return act


def _log_fatal_pcie(logs: KernelLogs, node: str, address: str) -> None:
    """Write a fatal error of a GPU, as the port above it reports it."""
    text = f"AER: Uncorrectable (Fatal) error message received from {address}.0"
    logs.write(node, f"pcieport 0000:00:01.0: {text}")


def _odd_address(run: DrillRun) -> tuple[str, str]:
    """Return the node of the rank with the fault, and the PCI address of its GPU."""
    node = run.job.layout.node_of(run.rank)
    beside = [r for r in range(run.job.layout.ranks) if run.job.layout.node_of(r) == node]
    return node_name(node), name_address(beside.index(run.rank))


def _until_seen(_: DrillSettings) -> Mapping[str, object]:
    """Return the default of a setting that may be shorter in tests: an agent reads the processes of
    a GPU every 10 s, and its load shows a wait after 5 s."""
    return {"hung_floor_s": 10.0}


XID_79 = Drill(
    name="xid_79",
    shows="the GPU of one rank falls off the bus (Xid 79), and the hosts of all ranks wait",
    expected=names("gpu_fault", "Xid 79", domain="gpu"),
    plan=event("stick_device"),
    # An agent reads the processes of a GPU every 10 s. A lost one has none that can be read.
    warmups=7,
    backends=ONLY,
    own_gpus=True,
    # Only the processes of the GPU show whose it is.
    act=_change_gpus(SPINS + LOST, SPINS, KernelLogs.write_lost_gpu),
)

KERNEL_WITHOUT_END = Drill(
    name="kernel_without_end",
    shows="the GPU of one rank runs a kernel that does not end, and the GPUs of all others wait",
    expected=names("behind_collective", "still works", domain="user_code"),
    plan=event("stick_device"),
    warmups=2,
    detection=_until_seen,
    backends=ONLY,
    own_gpus=True,
    act=_change_gpus(WORKS, SPINS),
)

_IN_ALL_REDUCE = event("stick_device", log="absent", read_every=1, reads_in_all_reduce=True)
"""All hosts read the loss in a function whose name is that of a collective, without any log."""

ODD_GPU_IN_NAMED_COLLECTIVE = Drill(
    name="odd_gpu_in_named_collective",
    shows="all hosts wait in a function all_reduce_loss, and one GPU works while the others wait",
    expected=names("behind_collective", "still works", domain="user_code"),
    plan=_IN_ALL_REDUCE,
    warmups=2,
    detection=_until_seen,
    backends=ONLY,
    own_gpus=True,
    act=_change_gpus(WORKS, SPINS),
)

IDLE_GPU_IN_NAMED_COLLECTIVE = Drill(
    name="idle_gpu_in_named_collective",
    shows="all hosts wait in a function all_reduce_loss, and one GPU has no work meanwhile",
    expected=names("gpu_fault", "has no work", domain="gpu"),
    plan=_IN_ALL_REDUCE,
    warmups=2,
    detection=_until_seen,
    backends=ONLY,
    own_gpus=True,
    act=_change_gpus(IDLES, SPINS),
)

NVML_HANG = Drill(
    name="nvml_hang",
    shows="the driver of one GPU does not answer, and the hosts of all ranks wait",
    expected=names("gpu_driver_stuck", "has not returned", domain="gpu"),
    plan=event("stick_device"),
    backends=ONLY,
    own_gpus=True,
    act=_change_gpus(WORKS + HANGS, SPINS),
)

THROTTLED_STRAGGLER = Drill(
    name="throttled_straggler",
    shows="the clocks of one GPU are reduced because of heat, and its rank is slow",
    expected=Expected(
        cause="straggler", domain="gpu", mentions=("reduced clocks",), statuses=("slow",)
    ),
    plan=plan_straggler,
    warmups=3,
    own_gpus=True,
    act=_change_gpus(THROTTLED, WORKS),
)


def _evaluate_beside_errors(run: DrillRun) -> None:
    """Report errors of a GPU while rank 0 evaluates: the others wait for it, whatever they show."""
    run.launch()
    run.wait_for_step(1)
    _show_gpus(run, WORKS, WORKS)
    run.wait_for_step(run.variables.step - 1)
    errors = "field.4 {gpu} 5\nfield.230 {gpu} 1\n"

    def load_of(rank: int) -> str:
        return (WORKS if rank == 0 else SPINS) + (errors if rank == run.rank else "")

    _show_each(run, load_of)
    run.wait_for_step(run.variables.step + AFTERWARDS_STEPS, extra_s=2 * run.settings.alone_s)
    run.wait_for_status(CALM, SETTLE_S)


def _at_gpu(
    name: str, shows: str, said: str, act: Callable[[DrillRun], None], cause: str = "gpu_fault"
) -> Drill:
    """Return a drill in which all hosts and GPUs wait, and something is observed of one GPU."""
    return Drill(
        name=name,
        shows=f"{shows}, and the hosts of all ranks wait",
        expected=names(cause, said, domain="gpu"),
        plan=event("stick_device"),
        warmups=2,
        detection=_until_seen,
        backends=ONLY,
        own_gpus=True,
        act=act,
    )


AT_ONE_GPU = (
    _at_gpu(
        "ecc_uncorrected",
        "the GPU of one rank has memory errors that ECC cannot correct",
        "5 new uncorrected memory errors",
        _change_gpus(f"{SPINS}field.4 {{gpu}} 5\n", SPINS),
    ),
    _at_gpu(
        "gpu_recovery_action",
        "the driver asks for a reset of the GPU of one rank",
        "the driver asks for a reset",
        _change_gpus(f"{SPINS}field.230 {{gpu}} 1\n", SPINS),
    ),
    _at_gpu(
        "pcie_lanes_lost",
        "the GPU of one rank falls to 4 lanes of PCIe, with replays",
        "has 4 of 16 lanes",
        _change_gpus(f"{SPINS}width {{gpu}} 4\nfield.94 {{gpu}} 40\n", SPINS),
    ),
    _at_gpu(
        "pcie_fatal_error",
        "the kernel reports a fatal error of PCIe from the GPU of one rank",
        "a fatal PCIe error",
        _change_gpus(SPINS, SPINS, _log_fatal_pcie),
    ),
    _at_gpu(
        "row_remap_failed",
        "the GPU of one rank has no spare memory left for a damaged row",
        "could not be replaced",
        _change_gpus(f"{SPINS}remap_failed {{gpu}} 1\n", SPINS),
    ),
    _at_gpu(
        "fabric_state_lost",
        "the GPU of one rank is no longer part of its NVLink fabric",
        "NVLink fabric is not set up",
        _change_gpus(f"{SPINS}fabric_state {{gpu}} 1\n", SPINS),
        cause="fabric_fault",
    ),
)
"""Only an observation of one GPU explains these stalls. Its load is that of all others."""

GPU_ERRORS_BESIDE_EVAL = Drill(
    name="gpu_errors_beside_eval",
    shows="a GPU has memory errors and is to be reset while the job waits for rank 0 to evaluate",
    expected=Expected(),
    plan=plan_eval_alone,
    own_gpus=True,
    act=_evaluate_beside_errors,
)

GPU_FAULTS = (
    XID_79,
    KERNEL_WITHOUT_END,
    ODD_GPU_IN_NAMED_COLLECTIVE,
    IDLE_GPU_IN_NAMED_COLLECTIVE,
    NVML_HANG,
    THROTTLED_STRAGGLER,
    *AT_ONE_GPU,
    GPU_ERRORS_BESIDE_EVAL,
)
