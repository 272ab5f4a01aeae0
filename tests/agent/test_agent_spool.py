"""The spool: whole or not there, bounded, of one agent, and never in the way."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest
from agent_scene import clean_environment, wait_until
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import config
from agent.dump_queue import DumpQueue, Loss, WaitingDump
from agent.moments import Moment, age_s, read_moment
from agent.spool import Spool
from agent.spool_keeper import SpoolKeeper


def a_dump(body: bytes = b'{"id": "x"}', at: float = 1.8e9) -> WaitingDump:
    taken = Moment(boot_id="b", boottime_s=5.0, wall_s=at)
    return WaitingDump(id=uuid.uuid4().hex, job="llama", taken=taken, body=body)


class Losses(Counter[Loss]):
    """What was lost, by reason."""

    def count(self, loss: Loss) -> None:
        self[loss] += 1


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


def files(spool: Spool) -> list[str]:
    return sorted(set(os.listdir(spool.path)) - {"lock"})


def test_a_dump_is_the_same_after_a_restart(spool: Spool, tmp_path: Path, losses: Losses) -> None:
    dump = a_dump()
    spool.put(dump)
    again = reopened(spool, tmp_path, losses)
    assert again.first() == dump
    again.remove(dump.id)
    assert reopened(again, tmp_path, losses).first() is None
    assert files(again) == []


def test_nobody_else_may_read_it(spool: Spool) -> None:
    spool.put(a_dump())
    assert stat.S_IMODE(os.stat(spool.path).st_mode) == 0o700
    (name,) = files(spool)
    assert stat.S_IMODE(os.stat(os.path.join(spool.path, name)).st_mode) == 0o600


def test_the_oldest_comes_first_and_goes_first(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, losses: Losses, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agent.spool.MAX_SPOOL_BATCHES", 3)
    dumps = [a_dump(at=1.8e9 + number) for number in range(5)]
    for dump in dumps:
        spool.put(dump)
    assert spool.ids() == {dump.id for dump in dumps[2:]}
    assert spool.first() == dumps[2]
    assert losses == {Loss.FULL: 2}
    assert caplog.text.count("the spool is full") == 2


def test_it_is_bounded_in_bytes(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, losses: Losses
) -> None:
    monkeypatch.setattr("agent.spool.MAX_SPOOL_BYTES", 5000)
    for number in range(10):
        spool.put(a_dump(b" " * 1000, at=1.8e9 + number))
    total = sum(os.stat(os.path.join(spool.path, name)).st_size for name in files(spool))
    assert 3000 < total <= 5000
    monkeypatch.setattr("agent.spool.MAX_SPOOL_BYTES", 2000)
    assert len(reopened(spool, tmp_path, losses).ids()) == 1


def test_a_dump_still_in_memory_is_not_lost_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: Losses
) -> None:
    monkeypatch.setattr("agent.spool.MAX_SPOOL_BATCHES", 1)
    spool = Spool(str(tmp_path), losses.count, lambda _: True)
    spool.open()
    for number in range(3):
        spool.put(a_dump(at=1.8e9 + number))
    assert losses == {}


@given(junk=st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_removed_and_what_comes_after_is_read(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    losses = Losses()
    spool = Spool(str(tmp_path_factory.mktemp("spool")), losses.count, lambda _: False)
    spool.open()
    bad, good = a_dump(at=1.0), a_dump()
    spool.put(bad)
    spool.put(good)
    (Path(spool.path) / files(spool)[0]).write_bytes(junk)
    assert spool.first() == good
    assert losses == {Loss.DAMAGED: 1}
    assert len(files(spool)) == 1
    spool.close()


@given(at=st.integers(min_value=0), to=st.integers(1, 255))
@settings(max_examples=100, deadline=None)
def test_one_changed_byte_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, at: int, to: int
) -> None:
    losses = Losses()
    spool = Spool(str(tmp_path_factory.mktemp("spool")), losses.count, lambda _: False)
    spool.open()
    dump = a_dump(b'{"id": "something longer"}')
    spool.put(dump)
    path = Path(spool.path) / files(spool)[0]
    content = bytearray(path.read_bytes())
    body_at = content.index(b"\n") + 1
    at = body_at + at % (len(content) - body_at)
    content[at] ^= to
    path.write_bytes(content)
    assert spool.first() is None
    assert losses == {Loss.DAMAGED: 1}
    spool.close()


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
    assert len(files(again)) == 5
    assert "4 files" in caplog.text


def test_a_half_written_file_is_removed_and_that_is_said(
    spool: Spool, tmp_path: Path, losses: Losses, caplog: pytest.LogCaptureFixture
) -> None:
    (Path(spool.path) / f"{0:015d}-{uuid.uuid4().hex}.part").write_text('{"format"')
    again = reopened(spool, tmp_path, losses)
    assert again.first() is None
    assert files(again) == []
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
    with pytest.raises(OSError, match="no folder of this user"):
        Spool(str(tmp_path), losses.count, lambda _: False).open()


WRITER = """
import sys, uuid
from agent.dump_queue import WaitingDump
from agent.moments import Moment
from agent.spool import Spool
spool = Spool(sys.argv[1], lambda _: None, lambda _: False)
spool.open()
taken = Moment(boot_id="b", boottime_s=5.0, wall_s=1.8e9)
body = b'{"id": "' + b"x" * 200_000 + b'"}'
print("ready", flush=True)
while True:
    dump = WaitingDump(id=uuid.uuid4().hex, job="j", taken=taken, body=body)
    spool.put(dump)
    print(dump.id, flush=True)
"""


def test_killed_at_any_moment_it_holds_every_dump_it_said_it_holds(
    tmp_path: Path, losses: Losses
) -> None:
    for number in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            env=clean_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.005 * number)  # another moment each time; any is as good
        writer.kill()
        said = writer.stdout.read().splitlines()
        writer.stdout.close()
        writer.wait()
        spool = Spool(str(tmp_path), losses.count, lambda _: False)
        spool.open()
        whole = {dump_id for dump_id in said if len(dump_id) == 32}
        assert whole <= spool.ids()
        while (dump := spool.first()) is not None:
            assert len(dump.body) == 200_010
            spool.remove(dump.id)
        assert losses == {}
        assert files(spool) == []
        spool.close()


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


def test_what_an_earlier_run_left_is_handed_back_one_by_one(tmp_path: Path, spool: Spool) -> None:
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
    monkeypatch.setattr("agent.dump_queue.MAX_WAITING_BATCHES", 2)
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
    monkeypatch.setattr("agent.spool.MAX_SPOOL_BATCHES", 2)
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
    monkeypatch.setattr("agent.spool._write", lambda *_: gate.wait(30))
    monkeypatch.setattr("agent.spool_keeper.SPOOL_IS_SLOW_S", 0.05)
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


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system: run it as root")
def test_a_full_disk_is_said_and_dumps_wait_in_memory(tmp_path: Path) -> None:
    program = """
import sys, threading
from agent.dump_queue import DumpQueue, WaitingDump
from agent.moments import Moment
from agent.spool_keeper import SpoolKeeper
queue = DumpQueue(print)
keeper = SpoolKeeper(sys.argv[1], queue, print)
keeper.start(lambda: None)
taken = Moment(boot_id="b", boottime_s=5.0, wall_s=1.8e9)
for number in range(4):
    queue.put(WaitingDump(id=f"{number:032d}", job="j", taken=taken, body=b"x" * 400_000))
    keeper.flush(20)
print(len(keeper.ids()), len(queue.all()), keeper.trouble(), flush=True)
for number in range(4):
    queue.remove(f"{number:032d}")
keeper.flush(20)
queue.put(WaitingDump(id="f" * 32, job="j", taken=taken, body=b"x" * 400_000))
keeper.flush(20)
print(len(keeper.ids()), repr(keeper.trouble()), flush=True)
"""
    command = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, "sh", str(tmp_path), sys.executable, program],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr}")
    full, again = done.stdout.splitlines()
    assert full.startswith("2 4 dumps wait in memory only")
    assert "No space left on device" in full
    assert again == "1 ''"


def test_bounds_are_in_order() -> None:
    assert config.MAX_WAITING_BATCHES <= config.MAX_SPOOL_BATCHES
    assert config.MAX_WAITING_BYTES <= config.MAX_SPOOL_BYTES
