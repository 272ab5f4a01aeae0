"""How full /dev/shm is, and old files of NCCL in it, below a root of its own."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.collectors.shared_memory import EVERY_S, MAX_FILES, STALE_S, SharedMemory
from watchtower.wire.observations import Observation

NOW = 1_000_000.0


class Node:
    """A root whose /dev/shm has a size that the test sets."""

    def __init__(self, root: Path) -> None:
        self.root, self.free = root, 500
        self.shm = root / "dev/shm"
        self.shm.mkdir(parents=True)
        self.pids: list[int] = []
        self.collector = SharedMemory(str(root), lambda: self.pids, lambda: NOW)
        self.now = 0.0

    def add_file(self, name: str, *, mib: int = 1, age_s: float = 2 * STALE_S) -> None:
        file = self.shm / name
        with file.open("wb") as written:
            written.write(b"x" * (mib << 20))
        os.utime(file, (NOW - age_s, NOW - age_s))

    def look(self) -> list[Observation]:
        self.now += EVERY_S
        return list(self.collector.collect(self.now))

    def values(self) -> list[float]:
        return [sample.value for sample in self.collector.samples(0.0)]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    size = lambda _: SimpleNamespace(f_blocks=1000, f_bavail=made.free, f_frsize=1 << 20)  # noqa: E731
    monkeypatch.setattr(os, "statvfs", size)
    return made


def test_room_is_no_news(node: Node):
    assert node.look() == []
    assert node.values() == [0.5, 0]
    assert node.collector.can_read


def test_a_full_one_is_reported_with_the_files_that_nccl_left(node: Node):
    node.add_file("nccl-Xa9bCd", mib=2)
    node.add_file("nccl-Xa9bCe", mib=1)
    node.add_file("nccl-fresh", age_s=STALE_S / 2)
    node.add_file("torch_7_1")
    node.free = 30
    (found,) = node.look()
    assert (found.name, found.subject, found.pid, found.value) == ("shm_full", "node", None, 0.97)
    assert found.text == "/dev/shm is 97% full (1000 MiB); 2 old files nccl-* have 3.0 MiB"
    used, stale = node.values()
    assert (used, stale) == (0.97, 3 << 20)


def test_many_old_files_are_reported_also_if_there_is_room(
    node: Node, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("agent.collectors.shared_memory.STALE_BYTES", 1 << 20)
    node.add_file("nccl-Xa9bCd", mib=2)
    assert [each.name for each in node.look()] == ["shm_stale"]


def test_it_is_read_again_after_a_while(node: Node):
    assert node.look() == []
    node.free = 0
    assert list(node.collector.collect(node.now + EVERY_S / 2)) == []
    (found,) = node.look()
    assert [each.age_s for each in node.collector.collect(node.now + 3)] == [3.0]
    assert found.age_s == 0


def test_a_container_has_its_own_and_one_of_its_ranks_is_named(node: Node, monkeypatch):
    real = os.stat
    for pid in (41, 42, 43):
        (node.root / f"proc/{pid}/root/dev/shm").mkdir(parents=True)
        node.pids.append(pid)
    devices = {"41": 7, "42": 7}  # 43 sees that of the node

    def stat(path, **options):
        part = str(path).removeprefix(str(node.root)).split("/")
        device = devices.get(part[2], 1) if part[1:2] == ["proc"] else 1
        return (
            SimpleNamespace(st_dev=device)
            if str(path).endswith("dev/shm")
            else real(path, **options)
        )

    monkeypatch.setattr(os, "stat", stat)
    node.free = 10
    assert [(each.subject, each.pid) for each in node.look()] == [("node", None), ("pid:41", 41)]


def test_a_system_without_it_is_an_ordinary_one(tmp_path: Path):
    collector = SharedMemory(str(tmp_path / "nowhere"))
    assert list(collector.collect(0.0)) == []
    assert collector.is_absent
    assert collector.gap() == ""
    assert list(collector.samples(0.0)) == []


def test_one_that_cannot_be_read_is_a_gap(node: Node, monkeypatch: pytest.MonkeyPatch):
    def refuse(_: str) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "statvfs", refuse)
    assert node.look() == []
    assert "cannot be read" in node.collector.gap()


def test_the_number_of_files_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch):
    seen = []

    class Endless:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def __iter__(self):
            while True:
                seen.append(1)
                yield SimpleNamespace(name="other")

    monkeypatch.setattr(os, "scandir", lambda _: Endless())
    assert node.look() == []
    assert len(seen) <= MAX_FILES + 1
