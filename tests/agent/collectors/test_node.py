"""Collectors of limits and resources of a node, below a root of its own: memory limits, pressure,
shared memory, the wall clock."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agent.collectors.clock import REPORTED_S, Clock
from agent.collectors.memory_limit import EVERY_S, MemoryLimits
from agent.collectors.pressure import Pressure
from agent.collectors.shared_memory import FULL, KEPT_S, STALE_S, SharedMemory

GIB = 1 << 30
PID = 7
POD = "kubepods.slice/kubepods-pod1.slice"


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(f"{text}\n")


def a_pod(root: Path, *, limit: str, used: int, freeable: int) -> MemoryLimits:
    """A rank in a container without a limit, in a pod with one, on cgroup v2."""
    write(root, f"proc/{PID}/cgroup", f"0::/{POD}/container")
    write(root, f"sys/fs/cgroup/{POD}/container/memory.max", "max")
    write(root, f"sys/fs/cgroup/{POD}/container/memory.current", str(used))
    write(root, f"sys/fs/cgroup/{POD}/memory.max", limit)
    write(root, f"sys/fs/cgroup/{POD}/memory.current", str(used))
    write(root, f"sys/fs/cgroup/{POD}/memory.stat", f"anon 5\ninactive_file {freeable}")
    return MemoryLimits(str(root), lambda: iter([PID]))


def test_a_rank_whose_pod_has_nearly_no_memory_left_is_reported(tmp_path: Path):
    limits = a_pod(tmp_path, limit=str(512 * GIB), used=505 * GIB, freeable=2 * GIB)
    (found,) = limits.collect(100.0)
    assert (found.name, found.subject, found.pid) == ("memory_limit", "pid:7", PID)
    assert found.text == "it uses 503.0 GiB of its memory limit of 512.0 GiB"
    (sample,) = limits.samples(0.0)
    assert sample.value == found.value == pytest.approx(503 / 512)
    assert limits.can_read
    assert not limits.is_absent


def test_pages_of_files_that_can_be_freed_do_not_count(tmp_path: Path):
    limits = a_pod(tmp_path, limit=str(512 * GIB), used=511 * GIB, freeable=200 * GIB)
    assert list(limits.collect(100.0)) == []
    (sample,) = limits.samples(0.0)
    assert sample.value == pytest.approx(311 / 512)


@pytest.mark.parametrize("limit", ["max", "", "0", "-1", "a" * 30, "9" * 30])
def test_a_rank_without_a_limit_has_no_series(tmp_path: Path, limit: str):
    limits = a_pod(tmp_path, limit=limit, used=GIB, freeable=0)
    assert list(limits.collect(100.0)) == []
    assert list(limits.samples(0.0)) == []
    assert limits.is_absent


def test_limits_of_cgroup_v1_count_too(tmp_path: Path):
    write(tmp_path, f"proc/{PID}/cgroup", "4:memory:/slurm/uid_1000/job_7/step_0")
    for level, limit in (("job_7/step_0", 1 << 63), ("job_7", 4 * GIB)):
        folder = f"sys/fs/cgroup/memory/slurm/uid_1000/{level}"
        write(tmp_path, f"{folder}/memory.limit_in_bytes", str(limit))
        write(tmp_path, f"{folder}/memory.usage_in_bytes", str(4 * GIB))
        write(tmp_path, f"{folder}/memory.stat", "inactive_file 0\ntotal_inactive_file 0")
    limits = MemoryLimits(str(tmp_path), lambda: iter([PID]))
    (found,) = limits.collect(100.0)
    assert found.value == 1.0
    assert found.text == "it uses 4.0 GiB of its memory limit of 4.0 GiB"


def test_a_limit_that_has_room_again_is_not_reported_and_reads_are_ten_seconds_apart(
    tmp_path: Path,
):
    limits = a_pod(tmp_path, limit=str(GIB), used=GIB, freeable=0)
    assert len(list(limits.collect(100.0))) == 1
    write(tmp_path, f"sys/fs/cgroup/{POD}/memory.current", "5")
    (found,) = limits.collect(100.0 + EVERY_S / 2)
    assert found.age_s == EVERY_S / 2
    assert list(limits.collect(100.0 + EVERY_S)) == []


def pressure_of(root: Path, memory_full: str) -> Pressure:
    write(root, "proc/pressure/cpu", "some avg10=93.10 avg60=90.00\nfull avg10=0.00 avg60=0.00")
    for resource, full in (("memory", memory_full), ("io", "12.00")):
        rows = ("some avg10=50.00 avg60=1.00 avg300=1.00 total=5", f"full avg10={full} avg60=0.00")
        write(root, f"proc/pressure/{resource}", "\n".join(rows))
    return Pressure(str(root))


def test_a_node_without_free_memory_is_reported(tmp_path: Path):
    pressure = pressure_of(tmp_path, "40.25")
    (found,) = pressure.collect(1.0)
    assert (found.name, found.value) == ("pressure.memory", 0.4025)
    assert found.text == "all processes waited for memory in 40% of the last 10 s"
    values = {sample.labels: sample.value for sample in pressure.samples(0.0)}
    assert values[("cpu", "some")] == pytest.approx(0.931)
    assert values[("memory", "full")] == 0.4025
    assert len(values) == 5


@pytest.mark.parametrize("full", ["0.00", "9.99", "nan", "-50", "1e9", ""])
def test_little_pressure_and_damaged_lines_are_not_reported(tmp_path: Path, full: str):
    assert list(pressure_of(tmp_path, full).collect(1.0)) == []


def test_a_kernel_without_pressure_is_an_ordinary_one(tmp_path: Path):
    pressure = Pressure(str(tmp_path))
    assert list(pressure.collect(1.0)) == []
    assert list(pressure.samples(0.0)) == []
    assert pressure.is_absent
    assert pressure.gap() == ""


class Shm:
    """The folder /dev/shm of a root, with a rank of this test's user or without ranks."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = root / "dev/shm"
        self.folder.mkdir(parents=True)
        self.process = root / "proc" / str(PID)
        self.process.mkdir(parents=True)
        (self.process / "stat").write_bytes(Path("/proc/self/stat").read_bytes())
        self.ranks: list[int] = []
        self.later_s = 0.0
        """By so much later the rank seems to have started."""
        self.memory = SharedMemory(
            str(root), lambda: iter(self.ranks), lambda: time.time() + self.later_s
        )
        self.free = 0.5
        monkeypatch.setattr(os, "statvfs", self._statvfs)

    def _statvfs(self, path: str) -> os.statvfs_result:
        """The size of a real file system that is full cannot be arranged without root."""
        assert path == str(self.folder)
        return os.statvfs_result((4096, 4096, 1000, 0, int(1000 * self.free), 0, 0, 0, 0, 255))

    def sample(self) -> tuple[float, float]:
        """Used share, and bytes that were left behind."""
        used, stale = (sample.value for sample in self.memory.samples(0.0))
        return used, stale


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shm:
    return Shm(tmp_path, monkeypatch)


def test_a_full_shared_memory_is_reported_with_what_ended_jobs_left_behind(shm: Shm):
    (shm.folder / "nccl-AbC123").write_bytes(b"x" * 8192)
    (shm.folder / "torch_12_34").write_bytes(b"x" * 8192)
    shm.free = 1 - FULL
    (found,) = shm.memory.collect(0.0)
    assert (found.name, found.subject, found.text) == ("shm_full", "node", "/dev/shm is 95% full")
    (found,) = shm.memory.collect(STALE_S)
    assert found.text.endswith("; files of NCCL that ended jobs left behind hold 0.0 GiB of it")
    assert shm.sample() == (pytest.approx(0.95), 8192)


def test_files_of_a_user_with_a_rank_are_in_use(shm: Shm):
    (shm.folder / "nccl-AbC123").write_bytes(b"x" * 8192)
    list(shm.memory.collect(0.0))
    shm.ranks = [PID]
    list(shm.memory.collect(STALE_S))
    assert shm.sample() == (0.5, 0)
    shm.ranks = []
    list(shm.memory.collect(2 * STALE_S))
    assert shm.sample() == (0.5, 0), "without a rank for a moment only"


def test_files_older_than_each_rank_of_their_user_were_left_behind(shm: Shm):
    (shm.folder / "nccl-AbC123").write_bytes(b"x" * 8192)
    shm.ranks, shm.later_s, shm.free = [PID], 3600.0, 0.0
    (found,) = shm.memory.collect(0.0)
    assert "files of NCCL that ended jobs left behind" in found.text
    assert shm.sample() == (1.0, 8192)


def test_a_shared_memory_that_was_full_is_reported_for_a_minute(shm: Shm):
    shm.free = 0.0
    (full,) = shm.memory.collect(0.0)
    shm.free = 0.5
    (later,) = shm.memory.collect(KEPT_S)
    assert (later.text, later.age_s) == (full.text, KEPT_S)
    assert list(shm.memory.collect(KEPT_S + 1)) == []


@pytest.mark.parametrize(
    ("mount", "expected"),
    [
        ("99 9 0:7 / /dev/shm rw - tmpfs shm rw,size=65536k,inode64", ["shm_small"]),
        ("99 9 0:7 / /dev/shm rw - tmpfs shm rw,size=67108864", ["shm_small"]),
        ("99 9 0:7 / /dev/shm rw - tmpfs shm rw,size=24684092k", []),
        ("99 9 0:7 / /dev/shm rw - tmpfs shm rw", []),
        ("99 9 0:7 / /dev/shm rw - ext4 /dev/sda1 rw,size=65536k", []),
        ("99 9 0:7 / /dev rw - tmpfs shm rw,size=65536k", []),
        ("99 9 0:7 / /dev/shm rw - tmpfs shm rw,size=" + "9" * 99, []),
        (" - ", []),
    ],
)
def test_a_small_shared_memory_of_a_container_is_reported_for_its_rank(
    shm: Shm, mount: str, expected: list[str]
):
    (shm.process / "mountinfo").write_text(f"{mount}\n")
    shm.ranks = [PID]
    found = list(shm.memory.collect(0.0))
    assert [each.name for each in found] == expected
    assert all(each.pid == PID and "only 64 MiB" in each.text for each in found)
    shm.ranks = []
    assert len(list(shm.memory.collect(KEPT_S))) == len(expected)
    assert list(shm.memory.collect(KEPT_S + EVERY_S)) == []


def test_links_and_folders_with_such_names_are_not_followed(shm: Shm, tmp_path: Path):
    (tmp_path / "large").write_bytes(b"x" * 8192)
    (shm.folder / "nccl-link").symlink_to(tmp_path / "large")
    (shm.folder / "nccl-folder").mkdir()
    for now in (0.0, STALE_S):
        list(shm.memory.collect(now))
    assert shm.sample() == (0.5, 0)


def test_a_node_without_shared_memory_has_no_series(tmp_path: Path):
    memory = SharedMemory(str(tmp_path))
    assert list(memory.collect(0.0)) == []
    assert list(memory.samples(0.0)) == []
    assert memory.is_absent


class Clocks:
    """Two clocks that a test sets."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_700_000_000.0, 50.0

    def read(self) -> tuple[float, float]:
        return self.wall, self.steady

    def pass_(self, seconds: float, step_s: float = 0.0) -> None:
        self.steady += seconds
        self.wall += seconds + step_s


def test_a_step_of_the_wall_clock_is_reported_for_some_minutes():
    clocks = Clocks()
    clock = Clock(clocks.read)
    clocks.pass_(1.0, step_s=0.01)  # an ordinary correction
    assert list(clock.collect(1.0)) == []
    clocks.pass_(1.0, step_s=-3600.0)
    (found,) = clock.collect(2.0)
    assert (found.name, found.unit, found.age_s) == ("clock_step", "s", 0.0)
    assert found.text == "the wall clock was set back by 3600.0 s"
    clocks.pass_(10.0)
    (found,) = clock.collect(12.0)
    assert found.age_s == 10.0
    assert list(clock.collect(2.0 + REPORTED_S + 1)) == []
    (sample,) = clock.samples(0.0)
    assert sample.value == 1


def test_the_real_clocks_do_not_step():
    clock = Clock()
    assert list(clock.collect(1.0)) == []
