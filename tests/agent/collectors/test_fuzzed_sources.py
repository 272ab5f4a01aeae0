"""Files of the node, damaged in any way: collectors do not fail, and report nothing forged."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.gpu.collector import GpuCount
from agent.collectors.gpu.metrics import sample_names, sample_values
from agent.collectors.gpu.reading import GpuReading
from agent.collectors.gpu.report import ERRORS, GpuState, observe_gpu
from agent.collectors.kernel_log import MAX_OF_FAMILY, KernelLog
from agent.collectors.node import make_collectors
from agent.procfs import Proc
from tests.properties import examples
from watchtower.wire.observations import Observation

PID = 7

LINES = (
    b"NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    b"Memory cgroup out of memory: Killed process 7 (python) total-vm:9000kB, anon-rss:800kB",
    b"python[7]: segfault at 0 ip 00007f00 sp 00007ffd error 4 in libnccl.so.2[7f00+1000]",
    b"INFO: task python:7 blocked for more than 120 seconds.",
    b"mlx5_core 0000:a1:00.0: Port module event: module 0, Cable unplugged",
)

pieces = st.one_of(
    st.binary(max_size=64),
    st.sampled_from((*LINES, b"\n", b";", b",", b" ", b"-", b"\x00", b"\xff", b"9" * 40)),
    st.integers(-(2**70), 2**70).map(lambda number: str(number).encode()),
)
damaged = st.lists(pieces, max_size=24).map(b"".join)

FILES = (
    "proc/net/dev",
    f"proc/{PID}/cgroup",
    "proc/pressure/memory",
    "proc/pressure/io",
    "sys/class/net/eth0/operstate",
    "sys/class/net/eth0/mtu",
    "sys/class/net/eth0/carrier_changes",
    "sys/fs/cgroup/pod/cpu.max",
    "sys/fs/cgroup/pod/cpu.stat",
    "sys/fs/cgroup/pod/memory.max",
    "sys/fs/cgroup/pod/memory.current",
    "sys/fs/cgroup/pod/memory.stat",
)
"""Files that the collectors read, except the kernel log."""

HEALTHY = {
    "proc/net/dev": b"Inter-|\n face |\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n",
    f"proc/{PID}/cgroup": b"0::/pod\n",
    "sys/class/net/eth0/operstate": b"up\n",
    "sys/class/net/eth0/mtu": b"1500\n",
    "sys/class/net/eth0/carrier_changes": b"1\n",
    "sys/fs/cgroup/pod/cpu.max": b"50000 100000\n",
    "sys/fs/cgroup/pod/memory.max": b"1000\n",
}


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


@examples(300)
@given(damaged, st.lists(st.tuples(st.integers(1, 23), st.sampled_from(LINES)), max_size=8))
def test_no_line_from_outside_the_kernel_is_believed(noise: bytes, forged: list[tuple[int, bytes]]):
    """The lines of facilities other than 0 were written by a program, whatever they contain."""
    records = [
        b"%d,%d,100000000,-;%s\n" % (facility << 3 | 4, number, text)
        for number, (facility, text) in enumerate(forged)
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        # Noise that would itself be a record of the kernel is left out.
        clean = noise.replace(b"\n", b" ").replace(b";", b" ")
        write(root, {"dev/kmsg": clean + b"\n" + b"".join(records) + clean})
        log = KernelLog(str(root))
        assert list(log.collect(110.0)) == []
        log.stop()


@examples(300)
@given(st.lists(st.tuples(st.integers(0, 2**70), damaged), max_size=16))
def test_damaged_lines_of_the_kernel_are_read_within_their_bounds(lines: list[tuple[int, bytes]]):
    records = b"".join(
        b"4,%d,%d,-;%s\n" % (number, at, text) for number, (at, text) in enumerate(lines)
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, {"dev/kmsg": records})
        log = KernelLog(str(root))
        found = list(log.collect(110.0))
        log.stop()
    assert all(isinstance(each, Observation) and each.age_s >= 0 for each in found)
    families = [each.family for each in found]
    assert all(families.count(each) <= MAX_OF_FAMILY for each in families)


@examples(300)
@given(st.dictionaries(st.sampled_from(FILES), damaged, max_size=5))
def test_damaged_files_of_the_kernel_fail_no_collector(damage: dict[str, bytes]):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "sys/class/net/eth0/device").mkdir(parents=True)
        collectors = make_collectors(folder, lambda: iter([PID]))
        for now, files in ((100.0, HEALTHY), (111.0, HEALTHY | damage), (122.0, HEALTHY)):
            write(root, files)
            for collector in collectors:
                assert all(each.age_s >= 0 for each in collector.collect(now))
                assert all(sample.value == sample.value for sample in collector.samples(0.0))
                assert isinstance(collector.gap(), str)
        for collector in collectors:
            collector.stop()


@examples(100)
@given(damaged, damaged, st.sampled_from(("", "vfio-pci", "nvidia", "../x")))
def test_damaged_devices_of_the_bus_are_no_gpus(kind: bytes, vendor: bytes, driver: str):
    with tempfile.TemporaryDirectory() as folder:
        device = "sys/bus/pci/devices/0000:3b:00.0"
        write(Path(folder), {f"{device}/class": kind, f"{device}/vendor": vendor})
        if driver:
            (Path(folder) / device / "driver").symlink_to(driver)
        count = GpuCount(folder, {})
        is_gpu = kind.startswith((b"0x0300", b"0x0302")) and vendor.startswith(b"0x10de")
        assert [each.value for each in count.compare(0, 1.0)] == [1.0] * is_gpu
        assert count.expected == is_gpu


NAMES = (
    *ERRORS,
    *("energy_j", "sampled_at", "power_w", "power_limit_w", "utilization", "memory_utilization"),
    *("nvlinks", "nvlinks_up", "fabric_state", "fabric_status", "fabric_health", "clock_reasons"),
    *("pcie_width", "pcie_max_width", "recovery_action", "mig", "sm_active", "tensor_active"),
)
numbers = st.one_of(st.integers(0, 10**18 - 1), st.floats(0, 1e12), st.sampled_from((0, 1, 3)))
"""The reader of GPUs drops all others."""


@examples(300)
@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES), numbers, max_size=12), max_size=6),
    st.sampled_from(("", "lost", "reset_required", "unknown")),
)
def test_numbers_of_a_broken_gpu_fail_nothing_and_accuse_nothing(
    values: list[dict[str, float]], state: str
):
    gpu, nowhere = GpuState(GpuReading(index=0)), Proc("/nowhere")
    for at, each in enumerate(values):
        last = state if at == len(values) - 1 else ""
        gpu.take(GpuReading(index=0, values=each, processes=[7], state=last, age_s=0.1), float(at))
        found = list(observe_gpu(gpu, float(at), float(at), nowhere))
        assert all(isinstance(each, Observation) and each.age_s >= 0 for each in found)
        assert not any(each.family == "gpu_frozen" for each in found)
        list(sample_names("gpu", gpu.find_pattern(float(at)), gpu.reading, ""))
        assert all(s.value == s.value for s in sample_values("gpu", gpu.reading))
