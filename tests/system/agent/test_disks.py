"""Full file systems of ranks: a real one in memory, and what is left out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.collectors.disks import EVERY_S, Disks, _find_point

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "scratch"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "drill", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def worker(disk: Path) -> Iterator[int]:
    """A process that works in this file system."""
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleeps, cwd=disk) as process:
        yield process.pid
        process.kill()


def fill(disk: Path) -> None:
    (disk / "step-40.pt").write_bytes(bytes(1 << 20))


@needs_root
def test_a_disk_that_becomes_full_is_reported_for_the_ranks_that_work_there(
    disk: Path, worker: int
):
    disks = Disks(find_ranks=lambda: (worker, os.getpid()))
    assert list(disks.collect(100.0)) == []
    fill(disk)
    assert list(disks.collect(101.0)) == [], "it is read every 5 s"
    (found,) = disks.collect(100.0 + EVERY_S)
    assert (found.name, found.pid, found.age_s) == ("disk_full", worker, 0.0)
    assert f"the file system {disk}, in which it works, is full" in found.text
    (found,) = disks.collect(100.0 + 3 * EVERY_S)
    assert found.age_s == 2 * EVERY_S
    (disk / "step-40.pt").unlink()
    assert list(disks.collect(100.0 + 4 * EVERY_S)) == []


@needs_root
def test_a_disk_that_was_full_before_is_old(disk: Path, worker: int):
    fill(disk)
    (found,) = Disks(find_ranks=lambda: (worker,)).collect(5000.0)
    assert found.age_s == 5000.0


@needs_root
def test_a_full_disk_that_cannot_be_written_to_is_no_fault(disk: Path, worker: int):
    disks = Disks(find_ranks=lambda: (worker,))
    list(disks.collect(100.0))
    fill(disk)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert list(disks.collect(100.0 + EVERY_S)) == []


@pytest.mark.parametrize(
    ("path", "point"),
    [
        ("/scratch/run/7", "/scratch/run"),
        ("/scratch/runs", "/scratch"),
        ("/scratch", "/scratch"),
        ("/home", "/"),
        ("socket:[4711]", ""),
    ],
)
def test_a_path_is_on_the_nearest_mount(path: str, point: str):
    assert _find_point(path, ["/", "/scratch", "/scratch/run"]) == point
