"""Recordings: the inputs of a tower in a file, one JSON line each, compressed with gzip.

The first line is the header. A recording contains stacks, names and the paths of programs, as the
data folder does: only its owner may read the file.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from watchtower import __version__
from watchtower.core.policy import Policy
from watchtower.daemon_executor import DaemonExecutor
from watchtower.store.values import StartupState
from watchtower.tower.clock import Clock
from watchtower.tower.inputs import Drawn, Input, Record, Stopped, Ticked
from watchtower.tower.shadow import ShadowMode

log = logging.getLogger("watchtower.tower")

FORMAT = 1

MAX_BYTES = 1 << 30
"""Compressed bytes of a recording. About two days of a hundred jobs of eight ranks."""

MAX_WAITING_BYTES = 64 << 20
"""Bytes that wait for a slow disk."""

MAX_FILES = 99
"""Recordings with one name: those of a tower that is restarted."""

MAX_LINE = 128 << 20
"""Bytes of one line: the header has the incidents of the last run with their stacks."""

CLOSE_S = 2.0
"""Seconds to write what waits when the tower stops."""


class RecordingError(Exception):
    """A file is not a recording, or cannot be written. The message says which and why."""


class Header(msgspec.Struct, kw_only=True):
    """What a tower starts with."""

    format: int = FORMAT
    watchtower: str = __version__
    policy: Policy
    shadow: ShadowMode
    startup: StartupState
    now: float
    """Seconds of the monotonic clock."""
    wall: float
    """UNIX seconds at the same moment."""


class Recorder:
    """Writes a recording. It never blocks the tower: if the disk is too slow or full, the recording
    ends, and what was written before can be replayed."""

    def __init__(self, path: Path, header: Header) -> None:
        """Create the file, or `tower.2.gz` if `tower.gz` exists, as after a restart. Raises
        RecordingError."""
        try:
            self.path, self._file = _create(path)
        except OSError as error:
            raise RecordingError(f"cannot record to {path}: {error.strerror}") from error
        self._gzip = zlib.compressobj(wbits=31)
        self._thread = DaemonExecutor("record")
        self._taken = 0
        """Bytes of lines that the tower gave."""
        self._done = 0
        """Bytes of lines that the thread has written."""
        self._size = 0
        self._ended = self._failed = False
        self._put(_encode(header))

    def note(self, one: Input) -> None:
        """Record an input."""
        if not self._ended:
            # Complete up to each tick, also if the tower is killed.
            self._put(_encode(one), flush=isinstance(one, Ticked))

    def close(self, now: float) -> None:
        """Write what waits and close the file. `now` is the time of the tower's clock."""
        self.note(Stopped(at=now))
        if not self._ended:
            self._end("")
        self._thread.stop(CLOSE_S)

    def _put(self, line: bytes, *, flush: bool = False) -> None:
        self._taken += len(line)
        if self._taken - self._done > MAX_WAITING_BYTES:
            self._end("the disk is too slow")
            return
        self._thread.submit(lambda: self._write(line, flush))

    def _write(self, line: bytes, flush: bool) -> None:
        self._done += len(line)
        if self._failed:
            return
        data = self._gzip.compress(line + b"\n")
        if flush:
            data += self._gzip.flush(zlib.Z_SYNC_FLUSH)
        try:
            self._file.write(data)
            if flush:
                self._file.flush()
        except OSError as error:
            self._fail(str(error.strerror))
        self._size += len(data)
        if self._size > MAX_BYTES:
            self._fail(f"it has {MAX_BYTES >> 20} MB")

    def _fail(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            self._end(why)

    def _end(self, why: str) -> None:
        self._ended = True
        if why:
            log.error("the recording %s ends here: %s", self.path, why)
        self._thread.submit(self._close)

    def _close(self) -> None:
        try:
            with self._file:
                self._file.write(self._gzip.flush())
        except OSError as error:
            log.error("the end of the recording %s is lost: %s", self.path, error.strerror)


def _create(path: Path) -> tuple[Path, BinaryIO]:
    """Create a file that its owner alone can read. Raises OSError."""
    for number in range(1, MAX_FILES + 1):
        free = path if number == 1 else path.with_suffix(f".{number}{path.suffix}")
        with contextlib.suppress(FileExistsError):
            made = os.open(free, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            return free, os.fdopen(made, "wb")
    raise FileExistsError(errno.EEXIST, f"there are {MAX_FILES} recordings of this name already")


class RecordedClock(Clock):
    """The clock of a tower that is recorded: its ids are in the recording."""

    def __init__(self, clock: Clock, record: Record) -> None:
        self._clock, self._record = clock, record
        self.now, self.wall = clock.now, clock.wall  # type: ignore[method-assign]

    def new_id(self, of: str) -> str:
        """Return a new ULID and record it."""
        made = self._clock.new_id(of)
        self._record(Drawn(at=self.now(), id=made, of=of))
        return made


def is_recording(path: Path) -> bool:
    """Return whether a file begins as one that is compressed with gzip. Raises OSError."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def read_recording(path: Path) -> tuple[Header, Iterator[Input]]:
    """Return the header and the inputs of a file, which are read one by one.

    The recording of a tower that was killed ends early, and so do its inputs. Raises
    RecordingError, also while the inputs are read.
    """
    lines = _read_lines(path)
    try:
        header = _headers.decode(next(lines, b""))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RecordingError(f"{path} is not a recording of watchtower: {error}") from None
    if header.format != FORMAT:
        raise RecordingError(
            f"{path} was written by watchtower {header.watchtower}: replay it with that release"
        )
    return header, _decode(path, lines)


def _decode(path: Path, lines: Iterator[bytes]) -> Iterator[Input]:
    for number, line in enumerate(lines, start=2):
        try:
            yield _inputs.decode(line)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RecordingError(f"{path}, line {number}: {error}") from None


def _read_lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as file:
            yield from _split(file)
    except (EOFError, zlib.error):
        return  # the tower was killed
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error}") from None


def _split(file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    while line := file.readline(MAX_LINE):
        if not line.endswith(b"\n"):
            return  # torn
        yield line


def _encode(value: Header | Input) -> bytes:
    encoded = msgspec.json.encode(value)
    if b"\n" in encoded:  # between the values of a body that somebody formatted
        encoded = msgspec.json.format(encoded, indent=-1)
    return encoded


_headers = msgspec.json.Decoder(Header)
_inputs = msgspec.json.Decoder(Input)
