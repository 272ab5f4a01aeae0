"""The collectors of the node, in order. A new collector is a file here and a line below."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent.collectors.clock import Clock
from agent.collectors.collector import Collector
from agent.collectors.cpu_limit import CpuLimits
from agent.collectors.disks import Disks
from agent.collectors.fabric_manager import FabricManager
from agent.collectors.gpu.collector import Nvml
from agent.collectors.gpu.files import GpuFiles
from agent.collectors.infiniband import Infiniband
from agent.collectors.kernel_log import KernelLog
from agent.collectors.listeners import Ended, Listeners
from agent.collectors.memory_limit import MemoryLimits
from agent.collectors.network import Network
from agent.collectors.node_checks import NodeChecks
from agent.collectors.pressure import Pressure
from agent.collectors.shared_memory import SharedMemory
from agent.collectors.written_files import WrittenFiles


def make_collectors(
    root: str,
    find_ranks: Callable[[], Iterable[int]] = lambda: (),
    find_ended: Callable[[], Iterable[Ended]] = lambda: (),
    find_job: Callable[[int], str] = lambda _: "",
    find_saving: Callable[[], Iterable[int]] = lambda: (),
) -> tuple[Collector, ...]:
    """Return all collectors of the node.

    `root` is the root of its file system, `find_ranks` returns the pids of the ranks of now,
    `find_ended` those that have ended, `find_job` the job of a process, `find_saving` the pids of
    the ranks that save a checkpoint.
    """
    return (
        CpuLimits(root, find_ranks),
        MemoryLimits(root, find_ranks),
        GpuFiles(root, find_ranks),
        KernelLog(root),
        Nvml(root),
        FabricManager(root),
        Network(root),
        Infiniband(root),
        SharedMemory(root, find_ranks),
        Disks(root, find_ranks),
        Pressure(root),
        Listeners(root, find_ended, find_job),
        Clock(),
        WrittenFiles(root, find_saving),
        NodeChecks(root),
    )
