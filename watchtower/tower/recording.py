"""Recordings: what changes a tower from outside, in a file: a JSON line each, compressed with gzip.

The inputs are what agents send, what people do, and the time. They include what the tower draws by
chance (ids) and what takes time (diagnoses), so that each replay of a recording does the same. The
first line is the header. A recording contains stacks, names and the paths of programs, as the data
folder does: only its owner may read the file.
"""

from __future__ import annotations

import contextlib
import gzip
import logging
import os
import zlib
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from watchtower import __version__
from watchtower.incidents.incident import ShadowMode
from watchtower.policy import Policy
from watchtower.service.calls import DaemonExecutor
from watchtower.store.values import StartupState
from watchtower.tower.clock import Clock
from watchtower.wire.report import Report
from watchtower.wire.verdict import Cause


class _Input(msgspec.Struct, kw_only=True, tag_field="input"):
    at: float
    """Seconds of the tower's monotonic clock."""


class Reported(_Input, tag="report"):
    """An agent reported."""

    report: Report


class Dumped(_Input, tag="dumps"):
    """An agent sent dumps."""

    batch: msgspec.Raw
    """A `DumpBatch` as JSON."""


class Traced(_Input, tag="series"):
    """An agent sent the series of an incident."""

    batch: msgspec.Raw
    """A `SeriesBatch` as JSON."""


class Ticked(_Input, tag="tick"):
    """All jobs were checked."""


class Recalled(_Input, tag="recalled"):
    """Dumps were read from the store: those of the last run, or of a rank not known before."""

    job: str
    taken_at: float
    """UNIX seconds."""
    batch: msgspec.Raw
    """A `DumpBatch` as JSON."""


class Drawn(_Input, tag="id"):
    """The tower made an id."""

    id: str
    of: str
    """What it names."""


class DiagnosisAsked(_Input, tag="diagnosis"):
    """A diagnosis of a job began to wait for its turn."""

    job: str
    number: int
    """Counts the diagnoses of the tower."""


class Diagnosed(_Input, tag="diagnosed"):
    """A diagnosis ended. One that was cancelled has no end."""

    number: int
    frozen_at: float
    """When its evidence was collected."""
    why_not: str = ""
    """Why there is no diagnosis; empty if there is one."""


class Acknowledged(_Input, tag="ack"):
    """A person acknowledged an incident."""

    incident: str
    by: str
    note: str


class Silenced(_Input, tag="silence"):
    """A person silenced a job, a node or a user."""

    job: str
    node: str
    user: str
    for_s: float
    reason: str
    by: str


class Unsilenced(_Input, tag="unsilence"):
    """A person ended a silence."""

    silence: str


class Answered(_Input, tag="feedback"):
    """A person answered whether the verdict of an incident was right."""

    incident: str
    right: bool
    rank: int | None
    cause: Cause | None
    by: str
    note: str


class Examined(_Input, tag="examine"):
    """A person asked for an examination of a job."""

    job: str
    rank: int | None


class Stopped(_Input, tag="stop"):
    """The tower was stopped. A recording without it is torn, or its tower was killed."""


Input = (
    Reported
    | Dumped
    | Traced
    | Ticked
    | Recalled
    | Drawn
    | DiagnosisAsked
    | Diagnosed
    | Acknowledged
    | Silenced
    | Unsilenced
    | Answered
    | Examined
    | Stopped
)

Record = Callable[[Input], None]
"""Takes each input before the tower does. It returns at once, and an error in it is not raised."""


def unrecorded(_: Input) -> None:
    """Take an input of a tower that is not recorded."""


log = logging.getLogger("watchtower.tower")

FORMAT = 1

MAX_BYTES = 1 << 30
"""Compressed bytes of a recording: half a day of a hundred jobs of four ranks, which take 0.25 kB a
second each (`tests/recordings`, with level 1 of zlib)."""

MAX_WAITING_BYTES = 256 << 20
"""Bytes that wait for a slow disk."""

MAX_FILES = 9
"""Recordings with one name: those of a tower that is restarted."""

LINE_BYTES = 2000
"""Bytes of memory of a line that waits, besides its text."""

MAX_CLOCK_S = 1e11
"""More seconds than any clock shows."""

MAX_PAUSE_S = 86_400.0
"""Most seconds between two inputs. A tower ticks twice a second, but its machine may sleep."""

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
        """Create the file, or `tower.2.gz` if `tower.gz` exists, as after a restart, and write the
        header. Raises RecordingError."""
        self._gzip = zlib.compressobj(level=1, wbits=31)
        self._taken = 0
        """Bytes of lines that the tower gave."""
        self._done = 0
        """Bytes of lines that the thread has written."""
        self._size = 0
        self._ended = self._failed = self._explained = False
        try:
            self.path, self._file = _create(path)
            self._file.write(self._gzip.compress(_as_line(_encode(header))))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise RecordingError(f"cannot record to {path}: {why}") from error
        self._thread = DaemonExecutor("record")

    def note(self, one: Input) -> None:
        """Record an input. An input that is no JSON ends the recording."""
        if self._ended:
            return
        try:
            line = _encode(one)
        except Exception as error:
            self._end(f"an input cannot be written: {error}")
            return
        self._taken += len(line) + LINE_BYTES
        if self._taken - self._done > MAX_WAITING_BYTES:
            self._end("its inputs come faster than they can be written")
            return
        # Complete up to each tick, also if the tower is killed.
        self._thread.submit(partial(self._write, line, flush=isinstance(one, Ticked)))

    def close(self, now: float) -> None:
        """Write what waits and close the file. `now` is the time of the tower's clock."""
        self.note(Stopped(at=now))
        self._end("")
        self._thread.stop(CLOSE_S)

    def _write(self, line: bytes, *, flush: bool) -> None:
        self._done += len(line) + LINE_BYTES
        if self._failed:
            return
        data = self._gzip.compress(_as_line(line))
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
        if why and not self._explained:
            self._explained = True
            log.error("the recording %s ends here: %s", self.path, why)
        if not self._ended:
            self._ended = True
            self._thread.submit(self._close)

    def _close(self) -> None:
        with contextlib.suppress(OSError), self._file:  # then it is torn, and can be replayed
            self._file.write(self._gzip.flush())


def _create(path: Path) -> tuple[Path, BinaryIO]:
    """Create a file that its owner alone can read. Raises OSError, ValueError."""
    for number in range(1, MAX_FILES + 1):
        free = path if number == 1 else path.with_suffix(f".{number}{path.suffix}")
        try:
            made = os.open(free, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            if not free.is_file():
                raise ValueError(f"{free} is not a regular file") from None
        else:
            return free, os.fdopen(made, "wb")
    raise ValueError(f"there are {MAX_FILES} recordings of this name already: move them away")


class RecordedClock(Clock):
    """The clock of a tower that is recorded: its ids are in the recording."""

    def __init__(self, clock: Clock, record: Record) -> None:
        self._clock, self._record = clock, record

    def now(self) -> float:
        """Return seconds of the monotonic clock."""
        return self._clock.now()

    def wall(self) -> float:
        """Return UNIX seconds."""
        return self._clock.wall()

    def new_id(self, of: str) -> str:
        """Return a new ULID and record it."""
        made = self._clock.new_id(of)
        self._record(Drawn(at=self.now(), id=made, of=of))
        return made


def is_recording(path: Path) -> bool:
    """Return whether a file begins as one that is compressed with gzip. Raises OSError.

    A pipe is none: nothing may be read from it twice.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


class Recording:
    """A recording in a file."""

    def __init__(self, path: Path) -> None:
        """Read the header. Raises RecordingError."""
        self._path = path
        self.torn = ""
        """Why the inputs ended before the stop of the tower; empty before they ended."""
        lines = self._read_lines()
        try:
            self.header = _headers.decode(next(lines, b""))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RecordingError(f"{path} is not a recording of watchtower: {error}") from None
        finally:
            lines.close()
        if self.header.format != FORMAT:
            raise RecordingError(
                f"{path} was written by watchtower {self.header.watchtower}: replay it with that "
                "release"
            )
        if not (abs(self.header.now) < MAX_CLOCK_S and abs(self.header.wall) < MAX_CLOCK_S):
            raise RecordingError(f"{path} is not a recording of watchtower: its clock is wrong")

    def inputs(self) -> Generator[Input, None, None]:
        """Return the inputs, which are read one by one. A broken one is the end: see `torn`."""
        lines, at = self._read_lines(), self.header.now
        next(lines)
        self.torn = "its file is torn, or its tower was killed"
        for number, line in enumerate(lines, start=2):
            try:
                one = _inputs.decode(line)
            except (msgspec.MsgspecError, RecursionError) as error:
                self.torn = f"line {number}: {error}"
                return
            if not at <= one.at < at + MAX_PAUSE_S:
                self.torn = f"line {number}: {one.at:g} s is not soon after {at:g} s"
                return
            at = one.at
            if isinstance(one, Stopped):
                self.torn = ""
            yield one

    def _read_lines(self) -> Generator[bytes, None, None]:
        try:
            with self._path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as file:
                while line := file.readline(MAX_LINE):
                    if not line.endswith(b"\n"):
                        return
                    yield line
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return
        except OSError as error:
            raise RecordingError(f"cannot read {self._path}: {error.strerror}") from None


def _as_line(encoded: bytes) -> bytes:
    if b"\n" in encoded:  # the body of a message may have several lines
        encoded = msgspec.json.format(encoded, indent=-1)
    return encoded + b"\n"


_encode = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(Header)
_inputs = msgspec.json.Decoder(Input)
