"""The spool: whole or not there, bounded, of one agent, and never in the way."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.clocks import Moment, age_s, read_moment
from agent.delivery.dump_queue import MAX_WAITING_BATCHES, MAX_WAITING_BYTES, DumpLoss, DumpQueue
from agent.delivery.spool import MAX_SPOOL_BATCHES, MAX_SPOOL_BYTES, Spool, SpoolThread
from tests.agent.agent_scene import Losses, a_dump, spool_files
from tests.properties import examples
from tests.waiting import wait_until


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
def spool(tmp_path: Path, losses: Losses) -> Spool:
    made = Spool(str(tmp_path), losses.count, lambda _: False)
    made.open()
    return made


def reopened(spool: Spool, tmp_path: Path, losses: Losses) -> Spool:
    spool.close()
    again = Spool(str(tmp_path), losses.count, lambda _: False)
    again.open()
    return again


def test_a_dump_is_the_same_after_a_restart(spool: Spool, tmp_path: Path, losses: Losses) -> None:
    dump = a_dump()
    spool.put(dump)
    again = reopened(spool, tmp_path, losses)
    assert again.first() == dump
    again.remove(dump.id)
    assert reopened(again, tmp_path, losses).first() is None
    assert spool_files(again) == []


def test_nobody_else_may_read_it(spool: Spool) -> None:
    spool.put(a_dump())
    assert stat.S_IMODE(os.stat(spool.path).st_mode) == 0o700
    (name,) = spool_files(spool)
    assert stat.S_IMODE(os.stat(os.path.join(spool.path, name)).st_mode) == 0o600


def test_the_oldest_comes_first_and_goes_first(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, losses: Losses, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agent.delivery.spool.MAX_SPOOL_BATCHES", 3)
    dumps = [a_dump(at=1.8e9 + number) for number in range(5)]
    for dump in dumps:
        spool.put(dump)
    assert spool.ids() == {dump.id for dump in dumps[2:]}
    assert spool.first() == dumps[2]
    assert losses == {DumpLoss.FULL: 2}
    assert caplog.text.count("the spool is full") == 2


def test_an_owner_of_many_dumps_pushes_out_its_own(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, losses: Losses
) -> None:
    monkeypatch.setattr("agent.delivery.spool.MAX_SPOOL_BATCHES", 3)
    mine = a_dump(owner="uid:1")
    spool.put(mine)
    for number in range(9):
        spool.put(a_dump(at=1.8e9 + number, owner="uid:2"))
    assert mine.id in spool.ids()
    assert losses == {DumpLoss.FULL: 7}
    assert reopened(spool, tmp_path, losses).first() == mine


def test_it_is_bounded_in_bytes(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, losses: Losses
) -> None:
    monkeypatch.setattr("agent.delivery.spool.MAX_SPOOL_BYTES", 5000)
    for number in range(10):
        spool.put(a_dump(b" " * 1000, at=1.8e9 + number))
    total = sum(os.stat(os.path.join(spool.path, name)).st_size for name in spool_files(spool))
    assert 3000 < total <= 5000
    monkeypatch.setattr("agent.delivery.spool.MAX_SPOOL_BYTES", 2000)
    assert len(reopened(spool, tmp_path, losses).ids()) == 1


def test_a_dump_still_in_memory_is_not_lost_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: Losses
) -> None:
    monkeypatch.setattr("agent.delivery.spool.MAX_SPOOL_BATCHES", 1)
    spool = Spool(str(tmp_path), losses.count, lambda _: True)
    spool.open()
    for number in range(3):
        spool.put(a_dump(at=1.8e9 + number))
    assert losses == {}


@given(junk=st.binary(max_size=300))
@examples(100)
def test_random_bytes_are_removed_and_what_comes_after_is_read(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    losses = Losses()
    spool = Spool(str(tmp_path_factory.mktemp("spool")), losses.count, lambda _: False)
    spool.open()
    bad, good = a_dump(at=1.0), a_dump()
    spool.put(bad)
    spool.put(good)
    (Path(spool.path) / spool_files(spool)[0]).write_bytes(junk)
    assert spool.first() == good
    assert losses == {DumpLoss.DAMAGED: 1}
    assert len(spool_files(spool)) == 1
    spool.close()


@given(at=st.integers(min_value=0), to=st.integers(1, 255))
@examples(100)
def test_one_changed_byte_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, at: int, to: int
) -> None:
    losses = Losses()
    spool = Spool(str(tmp_path_factory.mktemp("spool")), losses.count, lambda _: False)
    spool.open()
    dump = a_dump(b'{"id": "something longer"}')
    spool.put(dump)
    path = Path(spool.path) / spool_files(spool)[0]
    content = bytearray(path.read_bytes())
    body_at = content.index(b"\n") + 1
    at = body_at + at % (len(content) - body_at)
    content[at] ^= to
    path.write_bytes(content)
    assert spool.first() is None
    assert losses == {DumpLoss.DAMAGED: 1}
    spool.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EPERM])
def test_a_disk_that_cannot_be_read_for_a_while_costs_no_dump(
    spool: Spool,
    losses: Losses,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    old, first, second = a_dump(at=1e9), a_dump(at=1.8e9), a_dump(at=1.9e9)
    for dump in (old, first, second):
        spool.put(dump)

    def fail(path: str, *_: object) -> int:
        raise OSError(number, os.strerror(number), path)

    with monkeypatch.context() as patched:
        patched.setattr("agent.delivery.spool.os.open", fail)
        assert spool.first() is None
        assert spool.first() is None
    assert losses == {DumpLoss.TOO_OLD: 1}  # nobody would send it any more
    assert spool.first() == first
    assert len(spool_files(spool)) == 2
    assert sum("cannot be read now" in line for line in caplog.messages) == 2


def test_what_others_put_there_is_left_alone_and_blocks_nothing(
    spool: Spool, tmp_path: Path, losses: Losses, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(spool.path)
    dump = a_dump()
    spool.put(dump)
    (folder / "notes.txt").write_text("mine")
    (folder / f"{0:015d}-{uuid.uuid4().hex}.json").mkdir()
    (folder / f"{1:015d}-{uuid.uuid4().hex}.json").symlink_to("/etc/passwd")
    os.mkfifo(folder / f"{2:015d}-{uuid.uuid4().hex}.json")
    again = reopened(spool, tmp_path, losses)
    assert again.first() == dump
    assert len(spool_files(again)) == 5
    assert "4 files" in caplog.text


def test_a_half_written_file_is_removed_and_that_is_said(
    spool: Spool, tmp_path: Path, losses: Losses, caplog: pytest.LogCaptureFixture
) -> None:
    (Path(spool.path) / f"{0:015d}-{uuid.uuid4().hex}.part").write_text('{"format"')
    again = reopened(spool, tmp_path, losses)
    assert again.first() is None
    assert spool_files(again) == []
    assert "1 half-written dumps" in caplog.text


def test_a_second_agent_is_refused(tmp_path: Path, spool: Spool, losses: Losses) -> None:
    second = Spool(str(tmp_path), losses.count, lambda _: False)
    with pytest.raises(OSError, match="another agent"):
        second.open()
    spool.close()
    second.open()


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path, losses: Losses) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "dumps").symlink_to("elsewhere")
    with pytest.raises(OSError, match="not a folder of this user"):
        Spool(str(tmp_path), losses.count, lambda _: False).open()


def test_within_one_boot_an_age_is_exact_whatever_the_wall_clock_does() -> None:
    then = Moment(boot_id="b", boottime_s=100.0, wall_s=5e9)
    assert age_s(then, Moment(boot_id="b", boottime_s=107.5, wall_s=1.0)) == 7.5


@pytest.mark.parametrize(("wall_s", "age"), [(160.0, 60.0), (40.0, 0.0)])
def test_after_a_reboot_the_wall_clock_tells_and_never_less_than_nothing(
    wall_s: float, age: float
) -> None:
    then = Moment(boot_id="b", boottime_s=1e6, wall_s=100.0)
    assert age_s(then, Moment(boot_id="c", boottime_s=3.0, wall_s=wall_s)) == age
    unknown = Moment(boot_id="", boottime_s=1e6, wall_s=100.0)
    assert age_s(unknown, Moment(boot_id="", boottime_s=3.0, wall_s=wall_s)) == age


def test_a_moment_of_this_machine_has_its_boot() -> None:
    assert len(read_moment().boot_id) == 36


def test_bounds_are_in_order() -> None:
    assert MAX_WAITING_BATCHES <= MAX_SPOOL_BATCHES
    assert MAX_WAITING_BYTES <= MAX_SPOOL_BYTES


class Kept:
    """A queue with its spooler."""

    def __init__(self, directory: Path) -> None:
        self.losses = Losses()
        self.queue = DumpQueue(self.losses.count)
        self.spooler = SpoolThread(str(directory), self.queue, self.losses.count)
        self.rings = threading.Semaphore(0)
        self.spooler.start(self.rings.release)


def test_what_waits_is_on_disk_until_it_is_delivered(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    dump = a_dump()
    kept.queue.put(dump)
    wait_until(lambda: kept.spooler.ids() == {dump.id}, "it is written")
    assert kept.queue.count() == 1
    kept.queue.remove(dump.id)
    wait_until(lambda: not kept.spooler.ids(), "it is unlinked")
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
        wait_until(lambda c=count: len(kept.spooler.ids()) == c, "it is written")  # type: ignore[misc]
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
    wait_until(lambda: kept.spooler.ids() == {d.id for d in dumps[3:]}, "the newest are kept")
    before = os.stat(tmp_path / "dumps").st_mtime_ns
    kept.spooler.flush(10.0)
    kept.spooler.flush(10.0)
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
        kept.spooler.flush(10.0)
    assert "dumps wait in memory only" in kept.spooler.trouble()
    assert caplog.text.count("dumps wait in memory only") == 1
    assert len(kept.queue.all()) == 3
    (tmp_path / "dumps").unlink()
    kept.queue.put(a_dump())
    wait_until(lambda: len(kept.spooler.ids()) == 4, "all are written now")
    assert kept.spooler.trouble() == ""


def test_a_folder_that_was_deleted_is_made_anew(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    first, second = a_dump(at=1.0), a_dump(at=2.0)
    kept.queue.put(first)
    wait_until(lambda: kept.spooler.ids() == {first.id}, "it is written")
    for name in os.listdir(tmp_path / "dumps"):
        (tmp_path / "dumps" / name).unlink()
    (tmp_path / "dumps").rmdir()
    kept.queue.put(second)
    kept.spooler.flush(10.0)
    kept.spooler.flush(10.0)
    assert kept.spooler.ids() == {first.id, second.id}


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
    wait_until(lambda: "has not answered" in kept.spooler.trouble(), "it is said")
    assert kept.queue.first() == dump
    began = time.monotonic()
    kept.spooler.flush(0.1)
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
    wait_until(lambda: kept.spooler.ids() == {delivered.id}, "it is written")

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("agent.delivery.spool._write", no_room)
    kept.queue.put(a_dump())
    wait_until(kept.spooler.trouble, "the disk is full")
    kept.queue.remove(delivered.id)
    wait_until(lambda: os.listdir(tmp_path / "dumps") == ["lock"], "it is unlinked")
