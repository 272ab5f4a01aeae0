"""Whatever the kernel, sysfs or the reader of GPUs writes: no crash, no forged signal, bounds."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.kernel_log import KEPT_S, MAX_OF_FAMILY, KernelLog
from agent.collectors.memory import Memory
from agent.collectors.network import MAX_INTERFACES, Network
from agent.collectors.nvml import Nvml, _Gpu
from agent.collectors.nvml_process import GpuReading, NvmlProcess
from tests.properties import examples
from watchtower.wire.observations import Observation

WORDS = st.sampled_from(
    [
        "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        "NVRM: Xid (PCI:",
        "0000:3b:00): 79, pid=7,",
        "Out of memory: Killed process 7 (python) total-vm:1kB, UID:0",
        "[  7 ]  0 7 1 9 9 9 9 9 9 name",
        "memory: usage 1kB, limit 2kB, failcnt 1",
        "python invoked oom-killer: gfp",
        "mlx5_core 0000:5e:00.0 eth2: Link down",
        "\x00\x1b[31m",
        "9" * 3000,
    ]
)
TEXTS = st.lists(WORDS | st.text(max_size=60), max_size=6).map(" ".join)
NUMBERS = st.integers(-(2**70), 2**70) | st.sampled_from(["", "x", "-", "9" * 400])
RECORDS = st.tuples(NUMBERS, NUMBERS, NUMBERS, st.sampled_from([",-;", ",c;", ";", ","]), TEXTS)


@examples(60)
@given(st.lists(RECORDS.map(lambda r: f"{r[0]},{r[1]},{r[2]}{r[3]}{r[4]}") | TEXTS, max_size=30))
def test_any_kernel_log(lines: list[str]):
    with tempfile.TemporaryDirectory() as folder:
        kmsg = Path(folder, "dev/kmsg")
        kmsg.parent.mkdir()
        kmsg.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass") + b"\n")
        log = KernelLog(folder)
        found = list(log.collect(1000.0))
        assert len(found) <= 20 * MAX_OF_FAMILY
        assert all(0 <= each.age_s <= KEPT_S for each in found)
        for sample in log.samples(1e9):
            assert sample.value >= 0
        log.stop()


@examples(40)
@given(st.lists(TEXTS, max_size=20))
def test_a_process_cannot_forge_a_line_of_the_kernel(texts: list[str]):
    """Its records have another facility, and it cannot begin a record."""
    with tempfile.TemporaryDirectory() as folder:
        kmsg = Path(folder, "dev/kmsg")
        kmsg.parent.mkdir()
        # The kernel writes a newline in a record as an escape.
        cleaned = [text.replace("\n", "\\x0a") for text in texts]
        records = [f"{1 << 3 | 3},{n},{n},-;{text}\n" for n, text in enumerate(cleaned)]
        kmsg.write_text("".join(records), encoding="utf-8", errors="replace")
        log = KernelLog(folder)
        assert list(log.collect(1000.0)) == []
        log.stop()


@examples(40)
@given(st.lists(TEXTS, max_size=6), TEXTS, TEXTS, TEXTS)
def test_any_text_of_sysfs_and_proc(lines: list[str], state: str, mtu: str, pressure: str):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "proc/net").mkdir(parents=True)
        (root / "proc/pressure").mkdir()
        rows = [f"eth{n}: {line}" for n, line in enumerate(lines)]
        write(root / "proc/net/dev", "\n".join(["", "", *rows]))
        write(root / "proc/pressure/memory", pressure)
        for number in range(len(lines)):
            card = root / f"sys/class/net/eth{number}"
            (card / "device").mkdir(parents=True)
            for name, text in {"operstate": state, "mtu": mtu, "carrier_changes": mtu}.items():
                write(card / name, text)
        for collector in (Network(folder), Memory(folder, lambda: [1])):
            for now in (1.0, 20.0, 40.0):
                assert len(list(collector.collect(now))) <= 2 * MAX_INTERFACES
                list(collector.samples(0.0))
                assert isinstance(collector.gap(), str)


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="replace")


VALUES = st.dictionaries(
    st.sampled_from(["utilization", "memory_utilization", "power_w", "power_limit_w"])
    | st.sampled_from(["recovery_action", "ecc_uncorrected", "clock_reasons", "tensor_active"])
    | st.text(max_size=9),
    st.floats(-1e15, 1e15) | st.integers(0, 2**63),
    max_size=9,
)
READINGS = st.builds(
    GpuReading,
    index=st.integers(0, 40),
    names=st.dictionaries(st.sampled_from(["pci", "uuid", "model"]), st.text(max_size=96)),
    values=VALUES,
    processes=st.lists(st.integers(0, 2**31), max_size=9),
    state=st.sampled_from(["", "lost", "reset_required", "unknown", "x"]),
    age_s=st.floats(-1, 1e6),
    call=st.sampled_from(["", "nvmlDeviceGetPowerUsage"]),
    call_s=st.floats(0, 1e6),
)


@examples(60)
@given(st.lists(READINGS, min_size=1, max_size=6))
def test_any_value_of_a_gpu(readings: list[GpuReading]):
    collector = Nvml("/nowhere")
    gpu = _Gpu(readings[0], float("-inf"))
    for second, reading in enumerate(readings):
        now = 2e6 + second
        gpu.take(reading, now)
        collector._read_at = now
        found = list(collector._observe_gpu(gpu, now))
        assert all(isinstance(each, Observation) and each.age_s >= 0 for each in found)
        assert len(found) < 20


@examples(40)
@given(st.lists(st.binary(max_size=80) | st.builds(json.dumps, VALUES).map(str.encode), max_size=6))
def test_any_line_of_the_reader(lines: list[bytes]):
    class Child:
        stdout = None

        def poll(self) -> None:
            return None

    process = NvmlProcess("/nowhere")
    process._child = Child()  # type: ignore[assignment]
    process._lines = lambda *_: iter(lines)  # type: ignore[assignment, method-assign]
    process.read(1.0)
    process._child = None
