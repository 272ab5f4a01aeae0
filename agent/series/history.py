"""The last 15 minutes of every rank, and of what ranks use: one ring for each lane.

Points are a second apart, also if the agent reports less often. Then the seconds between two
reports have no point.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from agent.collectors.collector import Measured, Reading
from watchtower.wire.bounds import MAX_RANKS_PER_NODE
from watchtower.wire.report import RankVitals
from watchtower.wire.series import (
    MAX_LANES,
    MAX_POINTS,
    POINT_S,
    Lane,
    Series,
    encode_points,
)

CHUNK_POINTS = 60
"""Points that are dropped together. Each chunk begins with a whole number."""

MAX_CHUNKS = MAX_POINTS // CHUNK_POINTS + 1
"""One more than 15 minutes need, because the newest one is not full."""


class Ring:
    """The last `MAX_POINTS` points of one lane."""

    __slots__ = ("_chunks", "_last", "_left")

    def __init__(self) -> None:
        self._chunks: deque[bytearray] = deque(maxlen=MAX_CHUNKS)
        self._last = self._left = 0

    def push(self, point: int | None) -> None:
        """Add a point; None if nothing was measured."""
        if not self._left:
            self._chunks.append(bytearray())
            self._last, self._left = 0, CHUNK_POINTS
        self._left -= 1
        chunk = self._chunks[-1]
        if point is None:
            chunk.append(0)
            return
        change = point - self._last
        self._last = point
        # Even numbers for increases, odd ones for decreases; 7 bits in each byte.
        code = (change << 1 if change >= 0 else (-change << 1) - 1) + 1
        while code > 127:
            chunk.append(code & 127 | 128)
            code >>= 7
        chunk.append(code)

    def points(self) -> list[int | None]:
        """Return all points, oldest first."""
        points: list[int | None] = []
        for chunk in self._chunks:
            last = code = shift = 0
            for byte in chunk:
                code |= (byte & 127) << shift
                shift += 7
                if byte & 128:
                    continue
                if code:
                    change = code - 1
                    last += -((change + 1) >> 1) if change & 1 else change >> 1
                points.append(last if code else None)
                code = shift = 0
        return points[-MAX_POINTS:]

    @property
    def size_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(map(len, self._chunks))


MAX_TRACKS = MAX_RANKS_PER_NODE
"""Processes of ranks with series. Each has four lanes of about 1 kB. If there are more, as in a job
that restarts again and again, those that were measured least recently are dropped."""

MAX_THINGS = 64
"""GPUs with series. A node has 16 at most."""

MAX_VALUE = 1e15
"""A larger value is not measured, and neither is a NaN."""

_CORES, _BYTES = 0.01, 1000.0
"""Smallest differences of CPU use and of bytes per second that matter."""

RankKey = tuple[int, int]
"""Pid and start time of a rank's process."""


@dataclass(slots=True, eq=False)
class _Track:
    """The lanes of one rank or GPU."""

    index: int | None = None
    lanes: dict[str, tuple[Reading, Ring]] = field(default_factory=dict)
    """By name: the last reading, which has unit and scale, and the points."""
    users: tuple[int, ...] = ()
    """Pids of the ranks that use it, when it was last used."""
    measured_at: int = 0


class History:
    """Records readings, and returns the series of one rank with those of its GPUs."""

    def __init__(self) -> None:
        self._ranks: dict[RankKey, _Track] = {}
        self._things: dict[str, _Track] = {}
        self._slot = -1

    def record(
        self, vitals: Iterable[RankVitals], measured: Iterable[Measured], now: float
    ) -> None:
        """Add a point to every lane. A second call in the same second is skipped.

        The pids of `measured` are those of ranks. `now` is a time of `time.monotonic`.
        """
        slot = int(now / POINT_S)
        if slot <= self._slot:
            return
        missed = min(slot - self._slot - 1, MAX_POINTS) if self._slot >= 0 else 0
        self._slot = slot
        for each in vitals:
            if each.ended is None:
                track = self._ranks.setdefault((each.pid, each.start_time), _Track())
                self._take(track, _read_rank(each), missed)
                track.measured_at = slot
        for thing in islice(measured, MAX_THINGS):
            track = self._things.setdefault(thing.subject, _Track())
            track.index, track.users = thing.index, thing.pids or track.users
            self._take(track, thing.readings, missed)
            track.measured_at = slot
        self._fill_and_forget(missed)

    def _take(self, track: _Track, readings: Iterable[Reading], missed: int) -> None:
        """Add a point to each lane of a track: the empty one to lanes without a reading."""
        given = {each.name: each for each in readings if abs(each.value) <= MAX_VALUE}
        for name, (last, ring) in track.lanes.items():
            for _ in range(missed):
                ring.push(None)
            reading = given.pop(name, None)
            ring.push(None if reading is None else _point(reading))
            track.lanes[name] = reading or last, ring
        for name, reading in given.items():
            if len(track.lanes) < MAX_LANES:
                track.lanes[name] = reading, Ring()
                track.lanes[name][1].push(_point(reading))

    def _fill_and_forget(self, missed: int) -> None:
        """Add empty points where nothing was measured, and drop what has only such points."""
        self._ranks = {key: each for key, each in self._ranks.items() if self._is_kept(each)}
        self._things = {key: each for key, each in self._things.items() if self._is_kept(each)}
        for track in (*self._ranks.values(), *self._things.values()):
            if track.measured_at != self._slot:
                self._take(track, (), missed)
        if len(self._ranks) > MAX_TRACKS:
            oldest = sorted(self._ranks, key=lambda key: self._ranks[key].measured_at)
            for key in oldest[: len(self._ranks) - MAX_TRACKS]:
                del self._ranks[key]

    def _is_kept(self, track: _Track) -> bool:
        return self._slot - track.measured_at < MAX_POINTS

    def series(self, rank: int, key: RankKey) -> Iterator[Series]:
        """Return the series of a rank's process, and of each GPU that it uses or used last."""
        pid, start_time = key
        own = self._ranks.get(key)
        if own is not None:
            yield Series(rank=rank, pid=pid, start_time=start_time, lanes=_as_lanes(own))
        for subject, track in self._things.items():
            if pid in track.users and own is not None:
                yield Series(
                    rank=rank,
                    pid=pid,
                    start_time=start_time,
                    gpu=subject,
                    gpu_index=track.index,
                    lanes=_as_lanes(track),
                )

    @property
    def size_bytes(self) -> int:
        """Bytes of all points."""
        every = (*self._ranks.values(), *self._things.values())
        return sum(ring.size_bytes for track in every for _, ring in track.lanes.values())


def _point(reading: Reading) -> int:
    return round(reading.value / reading.scale)


def _as_lanes(track: _Track) -> tuple[Lane, ...]:
    return tuple(
        Lane(
            name=name,
            unit=last.unit,
            scale=last.scale,
            values=encode_points(ring.points()),
        )
        for name, (last, ring) in track.lanes.items()
    )


def _read_rank(vitals: RankVitals) -> Iterator[Reading]:
    beat, moved = vitals.beat, vitals.movement
    if beat is not None and beat.step >= 0:
        yield Reading("step", "", 1.0, beat.step)
    yield Reading("cpu", "cores", _CORES, moved.cpu_cores)
    moved_bytes = moved.read_bytes_per_s + moved.write_bytes_per_s + moved.socket_bytes_per_s
    yield Reading("moved", "B/s", _BYTES, moved_bytes)
    yield Reading("state", "state", 1.0, ord(vitals.state.value))
