"""Dumps that wait in memory are on disk too, or the trouble of the disk is reported."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from agent.delivery.dump_queue import DumpQueue
from agent.delivery.spool import Spool, SpoolKeeper
from tests.agent.agent_scene import Losses, a_dump, wait_until


class Kept:
    """A queue with its keeper."""

    def __init__(self, directory: Path) -> None:
        self.losses = Losses()
        self.queue = DumpQueue(self.losses.count)
        self.keeper = SpoolKeeper(str(directory), self.queue, self.losses.count)
        self.rings = threading.Semaphore(0)
        self.keeper.start(self.rings.release)


def test_what_waits_is_on_disk_until_it_is_delivered(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    dump = a_dump()
    kept.queue.put(dump)
    wait_until(lambda: kept.keeper.ids() == {dump.id}, "it is written")
    assert kept.queue.count() == 1
    kept.queue.remove(dump.id)
    wait_until(lambda: not kept.keeper.ids(), "it is unlinked")
    assert os.listdir(tmp_path / "dumps") == ["lock"]


def test_what_an_earlier_run_left_is_handed_back_one_by_one(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), Losses().count, lambda _: False)
    spool.open()
    dumps = [a_dump(at=1.8e9 + number) for number in range(3)]
    for dump in dumps:
        spool.put(dump)
    spool.close()
    kept = Kept(tmp_path)
    for dump in dumps:
        assert kept.rings.acquire(timeout=30)
        assert kept.queue.all() == [dump]
        kept.queue.remove(dump.id)
    wait_until(lambda: not kept.queue.count(), "all went")


def test_what_memory_has_no_room_for_comes_back_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.delivery.dump_queue.MAX_WAITING_BATCHES", 2)
    kept = Kept(tmp_path)
    dumps = [a_dump(at=1.8e9 + number) for number in range(6)]
    for count, dump in enumerate(dumps, 1):
        kept.queue.put(dump)
        wait_until(lambda c=count: len(kept.keeper.ids()) == c, "it is written")  # type: ignore[misc]
    assert len(kept.queue.all()) == 2
    assert kept.queue.count() == 6
    delivered = set()
    while len(delivered) < 6:
        dump = wait_until(kept.queue.first, "one is there")
        delivered.add(dump.id)
        kept.queue.remove(dump.id)
    assert delivered == {dump.id for dump in dumps}
    assert kept.losses == {}


def test_a_full_spool_does_not_write_and_drop_the_same_dump_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.delivery.spool.MAX_SPOOL_BATCHES", 2)
    kept = Kept(tmp_path)
    dumps = [a_dump(at=1.8e9 + number) for number in range(5)]
    for dump in dumps:
        kept.queue.put(dump)
    wait_until(lambda: kept.keeper.ids() == {d.id for d in dumps[3:]}, "the newest are kept")
    before = os.stat(tmp_path / "dumps").st_mtime_ns
    kept.keeper.flush(10.0)
    kept.keeper.flush(10.0)
    assert os.stat(tmp_path / "dumps").st_mtime_ns == before
    assert len(kept.queue.all()) == 5  # in memory all of them wait
    assert kept.losses == {}


def test_a_folder_that_cannot_be_used_is_said_once_and_memory_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "dumps").write_text("a file")
    kept = Kept(tmp_path)
    for number in range(3):
        kept.queue.put(a_dump(at=number))
        kept.keeper.flush(10.0)
    assert "dumps wait in memory only" in kept.keeper.trouble()
    assert caplog.text.count("dumps wait in memory only") == 1
    assert len(kept.queue.all()) == 3
    (tmp_path / "dumps").unlink()
    kept.queue.put(a_dump())
    wait_until(lambda: len(kept.keeper.ids()) == 4, "all are written now")
    assert kept.keeper.trouble() == ""


def test_a_folder_that_was_deleted_is_made_anew(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    first, second = a_dump(at=1.0), a_dump(at=2.0)
    kept.queue.put(first)
    wait_until(lambda: kept.keeper.ids() == {first.id}, "it is written")
    for name in os.listdir(tmp_path / "dumps"):
        (tmp_path / "dumps" / name).unlink()
    (tmp_path / "dumps").rmdir()
    kept.queue.put(second)
    kept.keeper.flush(10.0)
    kept.keeper.flush(10.0)
    assert kept.keeper.ids() == {first.id, second.id}


def test_a_disk_that_hangs_delays_nobody_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dumps").mkdir(mode=0o700)
    gate = threading.Event()
    monkeypatch.setattr("agent.delivery.spool._write", lambda *_: gate.wait(30))
    monkeypatch.setattr("agent.delivery.spool.SPOOL_IS_SLOW_S", 0.05)
    kept = Kept(tmp_path)
    dump = a_dump()
    kept.queue.put(dump)
    wait_until(lambda: "has not answered" in kept.keeper.trouble(), "it is said")
    assert kept.queue.first() == dump
    began = time.monotonic()
    kept.keeper.flush(0.1)
    assert time.monotonic() - began < 5
    kept.queue.remove(dump.id)
    monkeypatch.undo()
    gate.set()


def test_what_was_delivered_is_unlinked_although_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path)
    delivered = a_dump()
    kept.queue.put(delivered)
    wait_until(lambda: kept.keeper.ids() == {delivered.id}, "it is written")

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("agent.delivery.spool._write", no_room)
    kept.queue.put(a_dump())
    wait_until(kept.keeper.trouble, "the disk is full")
    kept.queue.remove(delivered.id)
    wait_until(lambda: os.listdir(tmp_path / "dumps") == ["lock"], "it is unlinked")
