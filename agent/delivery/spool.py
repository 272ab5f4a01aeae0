"""The spool: dumps on disk until the tower has them, one file each.

A file is either complete or absent: it is written under another name, synced, renamed, and the
folder synced. Only one agent uses a folder. The content of the folder is not trusted: damaged files
are removed, and other files are ignored.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import stat
import threading
import time
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice

import msgspec

from agent.clocks import Moment
from agent.delivery.dump_queue import (
    MAX_HELD_S,
    CountDumpLoss,
    DumpLoss,
    DumpQueue,
    WaitingDump,
    oldest_of_most,
)
from watchtower.wire.bounds import MAX_TEXT

log = logging.getLogger(__name__)

MAX_SPOOL_BATCHES = 256
MAX_SPOOL_BYTES = 64 << 20
"""Bytes of dumps on disk. In an hour without the tower, each job that hangs causes about 24
dumps.
"""

MAX_SPOOL_ENTRIES = 4096
"""Names checked in the spool's folder. There are more only if other programs use it too."""

FOLDER = "dumps"
LOCK = "lock"
FORMAT = 1
_NAME = re.compile(r"(\d{15})-([0-9a-f]{32})\.json")
"""Wall-clock milliseconds of the dump, for the order, and its id."""
_HALF = re.compile(r"(\d{15})-([0-9a-f]{32})\.part")
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Head(msgspec.Struct):
    """First line of a file. The second line is the batch."""

    format: int
    id: str
    job: str
    boot_id: str
    boottime_s: float
    wall_s: float
    body_bytes: int
    body_crc32: int
    owner: str = ""


_HEADS = msgspec.json.Decoder(_Head)

_OF_THIS_FILE = (
    errno.ENOENT,
    errno.ELOOP,
    errno.EISDIR,
    errno.ENXIO,
)
"""Errors that show for good that the file is damaged."""

_FOR_NOW = (errno.EACCES, errno.EPERM, errno.EIO)
"""Errors that may concern the disk, and then every file: during a failover a path returns EIO for a
minute. The file stays, and is tried again until it is too old to be sent.
"""


class _Damaged(Exception):
    """The content of the file is not what was written."""


class Spool:
    """One folder of dumps, for one thread. Every method may wait for the disk or raise OSError."""

    def __init__(
        self, directory: str, count_loss: CountDumpLoss, is_queued: Callable[[str], bool]
    ) -> None:
        """`is_queued` returns whether the dump with this id is also in memory."""
        self.path = os.path.join(directory, FOLDER)
        self._count_loss, self._is_queued = count_loss, is_queued
        self._lock = -1
        self._files: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._bytes = 0
        self._owners: dict[str, str] = {}
        """Owners of the files of this run. Files of earlier runs share one unnamed owner."""
        self._unreadable: set[str] = set()
        """Files that could not be read and were already logged."""

    def open(self) -> None:
        """Lock the folder and read what is in it. Does nothing if it is open."""
        if self._lock >= 0:
            return
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        self._check_folder()
        lock = os.open(os.path.join(self.path, LOCK), _LOCK, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._scan()
        except BlockingIOError as error:
            os.close(lock)
            raise BlockingIOError(error.errno, "another agent uses this folder") from error
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def close(self) -> None:
        """Unlock the folder. Its files stay."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def ids(self) -> frozenset[str]:
        """Return the ids of the stored dumps."""
        return frozenset(self._files)

    def put(self, dump: WaitingDump) -> None:
        """Write a dump. After this it survives the end of the agent and a loss of power."""
        head = _Head(
            format=FORMAT,
            id=dump.id,
            job=dump.job,
            boot_id=dump.taken.boot_id,
            boottime_s=dump.taken.boottime_s,
            wall_s=dump.taken.wall_s,
            body_bytes=len(dump.body),
            body_crc32=zlib.crc32(dump.body),
            owner=dump.owner,
        )
        content = msgspec.json.encode(head) + b"\n" + dump.body
        name = f"{min(max(0, int(dump.taken.wall_s * 1000)), 10**15 - 1):015d}-{dump.id}"
        self._make_room(len(content))
        half = os.path.join(self.path, f"{name}.part")
        try:
            _write(half, content)
            os.rename(half, os.path.join(self.path, f"{name}.json"))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(half)
            raise
        _sync_folder(self.path)
        self._files[dump.id] = (f"{name}.json", len(content))
        self._owners[dump.id] = dump.owner
        self._bytes += len(content)

    def first(self) -> WaitingDump | None:
        """Return the oldest readable dump. Damaged ones are logged and removed."""
        for dump_id, (name, _) in sorted(self._files.items(), key=lambda item: item[1]):
            try:
                dump = _read(os.path.join(self.path, name), dump_id)
            except OSError as error:
                if error.errno in _FOR_NOW:
                    self._leave(dump_id, error)
                elif error.errno in _OF_THIS_FILE:
                    self._give_up(dump_id, f"is damaged: {error.strerror}", DumpLoss.DAMAGED)
                else:
                    raise
            except (_Damaged, msgspec.MsgspecError, UnicodeDecodeError) as error:
                self._give_up(dump_id, f"is damaged: {error}", DumpLoss.DAMAGED)
            else:
                self._unreadable.discard(dump_id)
                return dump
        return None

    def _leave(self, dump_id: str, error: OSError) -> None:
        """Try this file again later, and log it once."""
        name, _ = self._files[dump_id]
        if time.time() - int(name.partition("-")[0]) / 1000 > MAX_HELD_S:
            self._give_up(
                dump_id, f"could not be read for too long: {error.strerror}", DumpLoss.TOO_OLD
            )
        elif dump_id not in self._unreadable:
            self._unreadable.add(dump_id)
            log.warning("%s in the spool cannot be read now: %s", name, error.strerror)

    def _give_up(self, dump_id: str, why: str, loss: DumpLoss) -> None:
        log.warning("%s in the spool %s; it is removed", self._files[dump_id][0], why)
        self._count_loss(loss)
        self.remove(dump_id)

    def remove(self, dump_id: str) -> None:
        """Remove a dump. An unknown id is ignored."""
        if dump_id not in self._files:
            return
        self._unreadable.discard(dump_id)
        self._owners.pop(dump_id, None)
        name, size = self._files.pop(dump_id)
        self._bytes -= size
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, name))

    def _check_folder(self) -> None:
        found = os.lstat(self.path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(0, "it is not a folder of this user")
        if found.st_mode & 0o077:
            os.chmod(self.path, 0o700)

    def _scan(self) -> None:
        """Find the files of an earlier run: complete ones will be sent, incomplete ones are
        removed.
        """
        self._files, self._bytes, self._owners = OrderedDict(), 0, {}
        halves = foreign = 0
        with os.scandir(self.path) as entries:
            for entry in islice(entries, MAX_SPOOL_ENTRIES):
                whole = _NAME.fullmatch(entry.name)
                if whole and entry.is_file(follow_symlinks=False):
                    size = entry.stat(follow_symlinks=False).st_size
                    self._files[whole[2]] = (entry.name, size)
                    self._bytes += size
                elif _HALF.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)
                    halves += 1
                elif entry.name != LOCK:
                    foreign += 1
        if halves:
            log.warning("%d half-written dumps in %s are removed", halves, self.path)
        if foreign:
            log.warning("%d files in %s are not the agent's: ignored", foreign, self.path)
        if self._files:
            log.info("%d dumps in %s wait for the tower", len(self._files), self.path)
        self._make_room(0)

    def _make_room(self, size: int) -> None:
        """Remove the oldest dump of the owner that has most, until a file of this size fits."""
        full = MAX_SPOOL_BATCHES if not size else MAX_SPOOL_BATCHES - 1
        while self._files and (len(self._files) > full or self._bytes + size > MAX_SPOOL_BYTES):
            by_age = sorted(self._files.items(), key=lambda item: item[1])
            sizes = {each: (self._owners.get(each, ""), length) for each, (_, length) in by_age}
            dump_id = oldest_of_most(sizes, many=len(self._files) > full)
            name, _ = self._files[dump_id]
            self.remove(dump_id)
            if not self._is_queued(dump_id):
                self._count_loss(DumpLoss.FULL)
                log.warning("dump %s is dropped: the spool is full", name)


def _write(path: str, content: bytes) -> None:
    descriptor = os.open(path, _NEW, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: str, dump_id: str) -> WaitingDump:
    descriptor = os.open(path, _OLD)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _Damaged("it is not a regular file")
        content = file.read(MAX_SPOOL_BYTES + 1)
    line, _, body = content.partition(b"\n")
    head = _HEADS.decode(line)
    if head.format != FORMAT or head.id != dump_id:
        raise _Damaged(f"format {head.format}, id {head.id[:64]!r}")
    if (len(body), zlib.crc32(body)) != (head.body_bytes, head.body_crc32):
        raise _Damaged("its length or checksum is wrong")
    taken = Moment(boot_id=head.boot_id, boottime_s=head.boottime_s, wall_s=head.wall_s)
    return WaitingDump(id=head.id, job=head.job, taken=taken, body=body, owner=head.owner)


SPOOL_RETRY_S = 30.0
"""Seconds until a folder that could not be used is tried again."""

SPOOL_IS_SLOW_S = 10.0
"""A write that takes this long is reported: the disk hangs, and dumps are in memory only."""

MAX_REMOVED = 4096
"""Ids to unlink while the disk hangs. A dropped id is sent twice, which the tower ignores."""

FLUSH_POLL_S = 0.01


class SpoolThread:
    """Writes new dumps, unlinks removed ones, and queues the dumps that an earlier run left."""

    def __init__(self, directory: str, queue: DumpQueue, count_loss: CountDumpLoss) -> None:
        self._queue = queue
        self._spool = Spool(directory, count_loss, self._is_queued)
        self._ids: frozenset[str] = frozenset()
        self._written: set[str] = set()
        self._removed: deque[str] = deque(maxlen=MAX_REMOVED)
        self._wake = threading.Event()
        self._busy_since: float | None = None
        self._is_slow = False
        self._trouble = ""
        self._ring: Callable[[], None] = lambda: None
        queue.attach(self)

    def start(self, ring: Callable[[], None]) -> None:
        """Start the thread. `ring` is called when a dump from the disk is ready to be sent."""
        self._ring = ring
        self._wake.set()
        threading.Thread(target=self._run, name="spool", daemon=True).start()

    def ids(self) -> frozenset[str]:
        """Return the ids of the dumps on disk."""
        return self._ids

    def notice(self, removed: str = "") -> None:
        """Check the queue soon."""
        if removed:
            self._removed.append(removed)
        self._wake.set()

    def trouble(self) -> str:
        """Return why dumps are in memory only; empty if they are on disk."""
        since = self._busy_since
        if since is not None and (busy_s := time.monotonic() - since) > SPOOL_IS_SLOW_S:
            text = self._explain(f"the disk has not answered for {busy_s // 60 * 60 or 10:.0f} s")
            if not self._is_slow:
                log.warning("%s", text)
            self._is_slow = True
            return text
        return self._trouble

    def flush(self, wait_s: float) -> None:
        """Wait until all waiting dumps are on disk, at most this long."""
        self._wake.set()
        until = time.monotonic() + wait_s
        while time.monotonic() < until and (self._wake.is_set() or self._busy_since is not None):
            time.sleep(FLUSH_POLL_S)

    def _run(self) -> None:
        while True:
            self._wake.wait(SPOOL_RETRY_S)
            self._busy_since = time.monotonic()
            self._wake.clear()
            try:
                self._bring_up_to_date()
                self._log_change("")
            except OSError as error:
                self._give_up(error.strerror or str(error))
            except Exception as error:
                log.exception("the spool failed")
                self._give_up(f"{type(error).__name__}: {error}")
            finally:
                self._busy_since, self._is_slow = None, False

    def _bring_up_to_date(self) -> None:
        self._spool.open()
        self._unlink_removed()  # first: on a full disk this frees the space for waiting dumps
        waiting = [dump for dump in self._queue.all() if not dump.memory_only]
        self._written &= {dump.id for dump in waiting}
        for dump in waiting:
            # Only once: a dump that was dropped from a full spool must not push out another one.
            if dump.id not in self._written and dump.id not in self._spool.ids():
                self._spool.put(dump)
            self._written.add(dump.id)
        self._ids = self._spool.ids()
        if not self._queue.all() and (oldest := self._spool.first()) is not None:
            self._written.add(oldest.id)
            self._queue.put(oldest)
            self._ring()

    def _unlink_removed(self) -> None:
        while self._removed:
            dump_id = self._removed.popleft()
            try:
                self._spool.remove(dump_id)
            except OSError:
                # Keep the id until the file is gone. Otherwise it would be sent again and again.
                self._removed.appendleft(dump_id)
                raise
        self._ids = self._spool.ids()

    def _give_up(self, why: str) -> None:
        """Start again next time: the folder may be another one then."""
        self._spool.close()
        self._written.clear()
        self._log_change(self._explain(why))

    def _is_queued(self, dump_id: str) -> bool:
        return any(dump.id == dump_id for dump in self._queue.all())

    def _explain(self, why: str) -> str:
        text = f"dumps wait in memory only, and are lost when the agent ends: {self._spool.path}: "
        return (text + why)[:MAX_TEXT]

    def _log_change(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("%s", trouble)
        elif self._trouble and not trouble:
            log.info("dumps are stored in %s again", self._spool.path)
        self._trouble = trouble
