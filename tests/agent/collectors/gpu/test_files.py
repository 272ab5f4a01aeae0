"""Ranks joined to GPUs by their open device files, below a root of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.collectors.gpu.files import EVERY_S, GpuFiles
from watchtower.evidence.observed import Observed
from watchtower.readers.kernel_lines import read_line
from watchtower.wire.observations import Observation


class Node:
    """A node whose ranks have files open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pids: list[int] = []
        self.collector = GpuFiles(str(root), lambda: self.pids)

    def add_gpu(self, pci: str, minor: int, text: str = "") -> None:
        folder = self.root / "proc/driver/nvidia/gpus" / pci
        folder.mkdir(parents=True)
        about = text or f"Model: \t\t H100\nBus Location: \t {pci}\nDevice Minor: \t {minor}\n"
        (folder / "information").write_text(about)

    def add_rank(self, pid: int, *files: str) -> None:
        folder = self.root / f"proc/{pid}/fd"
        folder.mkdir(parents=True)
        for number, file in enumerate(files):
            (folder / str(number)).symlink_to(file)
        self.pids.append(pid)

    def used(self, now: float = 100.0) -> dict[int | None, str]:
        return {each.pid: each.subject for each in self.collector.collect(now)}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.add_gpu("0000:3b:00.0", 1)
    made.add_gpu("00010000:5E:00.0", 0)
    return made


def test_a_rank_with_one_gpu_open_uses_it(node: Node):
    node.add_rank(41, "/dev/null", "/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm")
    node.add_rank(42, "/dev/nvidia0", "/dev/nvidia0", "pipe:[7]")
    assert node.used() == {41: "pci:0000:3b:00", 42: "pci:0000:5e:00"}
    assert node.collector.can_read


def test_a_rank_with_several_or_unknown_gpus_says_nothing(node: Node):
    node.add_rank(41, "/dev/nvidia1", "/dev/nvidia0")
    node.add_rank(42, "/dev/nvidia7")
    node.add_rank(43, "/home/ann/dev/nvidia1", "/dev/nvidia1.bak")
    node.pids.append(44)  # it has ended
    assert node.used() == {}


def test_files_are_read_again_after_a_while_and_the_ages_show_it(node: Node):
    assert node.used(100.0) == {}
    node.add_rank(41, "/dev/nvidia1")
    assert node.used(100.0 + EVERY_S / 2) == {}
    assert node.used(100.0 + EVERY_S) == {41: "pci:0000:3b:00"}
    (found,) = node.collector.collect(100.0 + EVERY_S + 4)
    assert found.age_s == 4


@pytest.mark.parametrize("text", ["\0", "Device Minor: x\n", "Device Minor: 99999999999\n", "\n"])
def test_a_gpu_without_a_number_is_left_out(tmp_path: Path, text: str):
    node = Node(tmp_path)
    node.add_gpu("0000:3b:00.0", 1, text)
    node.add_rank(41, "/dev/nvidia1")
    assert node.used() == {}
    assert node.collector.is_absent
    assert node.collector.gap() == ""


def test_it_joins_an_xid_without_a_process_to_the_rank(node: Node):
    line = read_line("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has")
    assert line is not None
    xid = Observation(source="kernel_log", subject=line.subject, name=line.name, age_s=1.0)
    node.add_rank(41, "/dev/nvidia1")
    node.add_rank(42, "/dev/nvidia0")
    observed = Observed([xid, *node.collector.collect(100.0)])
    assert observed.about(41, ("xid",)) == (xid,)
    assert observed.about(42, ("xid",)) == ()


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({"SLURM_JOB_GPUS": "0-3,6", "CUDA_VISIBLE_DEVICES": "0"}, 5),
        ({"SLURM_STEP_GPUS": "2,3", "SLURM_JOB_GPUS": "0-7"}, 2),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "1, 2"}, 2),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-8f3a-1,GPU-77-2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "MIG-4f"}, 0),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps", "CUDA_VISIBLE_DEVICES": "0"}, 0),
    ],
)
def test_how_many_gpus_a_rank_may_use_is_in_its_variables(node: Node, variables, count: int):
    node.add_rank(41)
    text = "".join(f"{name}={value}\0" for name, value in variables.items())
    (node.root / "proc/41/environ").write_text(text)
    (node.root / "proc/41/stat").write_text(Path("/proc/self/stat").read_text())
    (found,) = node.collector.collect(100.0)
    assert (found.name, found.value, found.pid) == ("gpus_allowed", count, 41)


@pytest.mark.parametrize("value", ["", "all", "NoDevFiles", "-1", "3-1", "9" * 400])
def test_other_values_do_not_show_it(node: Node, value: str):
    node.add_rank(41)
    (node.root / "proc/41/environ").write_text(f"CUDA_VISIBLE_DEVICES={value}\0")
    (node.root / "proc/41/stat").write_text(Path("/proc/self/stat").read_text())
    assert list(node.collector.collect(100.0)) == []
