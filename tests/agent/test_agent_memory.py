"""Memory limits and pressure of ranks, in cgroups below a root of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.collectors.memory import EVERY_S, Memory
from watchtower.wire.observations import Observation

PID = 7
POD = "kubepods.slice/kubepods-pod1.slice"
GIB = 1 << 30
PRESSURE = "some avg10={0:.2f} avg60=0.00 avg300=0.00 total=1\nfull avg10={1:.2f} avg60=0.00 x\n"


class Node:
    """The cgroups of a rank, and the collector."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.memory = Memory(str(root), lambda: iter([PID]))
        self.now = 0.0

    def place(self, line: str) -> None:
        self.write("proc/7", cgroup=f"{line}\n")

    def write(self, folder: str, **files: str) -> None:
        """Write files; `_` is a dot in a name, once."""
        path = self.root / folder
        path.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (path / name.replace("_", ".", 1)).write_text(text)

    def fill(self, folder: str, used: int, limit: str, cache: int = 0) -> None:
        self.write(
            f"sys/fs/cgroup/{folder}",
            memory_current=f"{used}\n",
            memory_max=f"{limit}\n",
            memory_stat=f"anon 5\ninactive_file {cache}\nactive_file 3\n",
        )

    def look(self) -> list[Observation]:
        self.now += EVERY_S
        return list(self.memory.collect(self.now))

    def values(self) -> dict[tuple[str, ...], float]:
        return {
            (sample.spec.name.removeprefix("watchtower_"), *sample.labels): sample.value
            for sample in self.memory.samples(0.0)
        }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.place(f"0::/{POD}/container")
    return made


def test_a_limit_that_is_nearly_full_is_reported_also_that_of_the_pod(node: Node):
    node.fill(f"{POD}/container", 60 * GIB, "max")
    node.fill(POD, 63 * GIB, str(64 * GIB))
    (found,) = node.look()
    assert (found.name, found.subject, found.pid) == ("memory_limit", "pid:7", PID)
    assert found.text == "its memory limit is 98% full (63 GiB of 64 GiB)"
    assert node.values() == {("memory_limit_used_ratio",): 63 / 64}


def test_cache_that_can_be_dropped_does_not_count(node: Node):
    node.fill(POD, 64 * GIB, str(64 * GIB), cache=16 * GIB)
    assert node.look() == []
    assert node.values() == {("memory_limit_used_ratio",): 0.75}


def test_a_limit_of_cgroup_v1_is_read_too(node: Node):
    node.place("5:memory:/slurm/uid_1/job_7")
    folder = "sys/fs/cgroup/memory/slurm/uid_1/job_7"
    node.write(folder, memory_usage_in_bytes=f"{GIB}\n", memory_limit_in_bytes=f"{GIB}\n")
    node.write(folder, memory_stat=f"inactive_file 0\ntotal_inactive_file {GIB // 100}\n")
    (found,) = node.look()
    assert found.value == pytest.approx(0.99)
    node.write(folder, memory_limit_in_bytes="9223372036854771712\n")
    assert node.look() == []
    assert node.memory.is_absent


def test_ranks_that_wait_for_memory_are_reported(node: Node):
    node.write(f"sys/fs/cgroup/{POD}", memory_pressure=PRESSURE.format(60, 34))
    (found,) = node.look()
    assert (found.name, found.value) == ("memory_pressure", 0.34)
    assert "waited for memory in 34% of the last 10 s" in found.text
    node.write(f"sys/fs/cgroup/{POD}", memory_pressure=PRESSURE.format(60, 4))
    assert node.look() == []


def test_the_pressure_on_the_node_is_a_metric(node: Node):
    node.write("proc/pressure", cpu=PRESSURE.format(12.5, 0), memory=PRESSURE.format(0, 0))
    assert node.look() == []
    assert node.values() == {("pressure_ratio", "cpu"): 0.125, ("pressure_ratio", "memory"): 0.0}


@pytest.mark.parametrize("text", ["", "max", "-1", "x" * 9000, "9" * 5000, "\0", "0"])
def test_whatever_the_files_contain_is_no_error(node: Node, text: str):
    node.fill(POD, GIB, text)
    node.write(f"sys/fs/cgroup/{POD}", memory_pressure=text, memory_current=text)
    node.write("proc/pressure", cpu=text)
    assert node.look() == []
    assert node.values() == {}
