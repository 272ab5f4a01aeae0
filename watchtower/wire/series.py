"""Series: what the traced ranks of an incident and their GPUs did in the last 15 minutes.

The tower orders them after a verdict: of the suspects, and of a few healthy peers to compare with.
Like dumps, they are sent again until the tower acknowledges them.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.wire.bounds import (
    AGE,
    INTEGER,
    MAX_INTEGER,
    MAX_NAME,
    NAME,
    RANK,
    both,
    bounded,
    characters,
    check_count,
    check_text,
    entries,
    every,
    optional,
)

POINT_S = 1.0
"""Seconds between two points of a lane."""

MAX_POINTS = 900
"""Points of one lane: 15 minutes. The hang, and what was usual before it."""

MAX_LANES = 16
"""Lanes of one rank or GPU. There are five today."""

MAX_TRACED = 16
"""Ranks in one order: up to 8 suspects and 3 peers, and suspects of earlier verdicts."""

MAX_SERIES = 4 * MAX_TRACED
"""Series in one message: the ranks of the order, with up to three GPUs each."""

MAX_SERIES_BYTES = 2 * 1024 * 1024
"""Bytes of one message as JSON. Eight ranks with a GPU each have 0.2 MB."""

MAX_OUTPUT_LINES = 100
"""Lines of a rank's output that an agent may be asked to send."""

MAX_OUTPUT_LINE = 400
"""Characters of one line. Longer lines are cut."""

MAX_UNIT = 16
"""Characters of a unit: "cores" is the longest."""

MAX_SCALE = 1e9
"""Largest difference of two neighbouring values: a gigabyte a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One measured quantity, once a second. The last point is the newest one."""

    name: str
    """"step", "cpu", "moved", "state", "utilization", "power", ... An open vocabulary."""
    unit: str
    """Unit of a value after multiplication with `scale`: "cores", "B/s", "W", "%". Empty for a
    count. "state": the code of the letter of a process state."""
    scale: float
    values: tuple[int | None, ...]
    """The first measured point, then the difference of each point from the last measured one. Null
    where nothing was measured."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("name", self.name, MAX_NAME)
        check_text("unit", self.unit, MAX_UNIT)
        check_count("values", len(self.values), MAX_POINTS)
        if not 0 < self.scale <= MAX_SCALE:
            raise ValueError(f"`scale` is {self.scale}, allowed is above 0 to {MAX_SCALE:g}")
        if not all(each is None or abs(each) <= MAX_INTEGER for each in self.values):
            raise ValueError(f"`values` are out of range, allowed is up to {MAX_INTEGER}")

    def points(self) -> list[float | None]:
        """Return the measured values, oldest first; None where nothing was measured."""
        total, points = 0, list[float | None]()
        for each in self.values:
            total += each or 0
            points.append(None if each is None else total * self.scale)
        return points


def encode_points(points: list[int | None]) -> tuple[int | None, ...]:
    """Return the differences from point to point, as in `Lane.values`."""
    last, values = 0, list[int | None]()
    for point in points:
        values.append(None if point is None else point - last)
        last = last if point is None else point
    return tuple(values)


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    rank=RANK,
    pid=INTEGER,
    start_time=INTEGER,
    gpu=NAME,
    gpu_index=optional(INTEGER),
    lanes=entries(MAX_LANES),
)
class Series:
    """The lanes of one rank's process, or of a GPU that the rank uses. All end at one moment."""

    rank: int
    pid: int
    start_time: int
    gpu: str = ""
    """The GPU, as in observations ("pci:0000:3b:00"); empty: the process itself."""
    gpu_index: int | None = None
    """Number of the GPU in NVML."""
    lanes: tuple[Lane, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    rank=RANK,
    pid=INTEGER,
    start_time=INTEGER,
    stream=NAME,
    age_s=AGE,
    lines=both(entries(MAX_OUTPUT_LINES), every(characters(MAX_OUTPUT_LINE))),
)
class RankOutput:
    """The last lines that a suspect wrote, if its agent may send them."""

    rank: int
    pid: int
    start_time: int
    stream: str
    """"stdout", "stderr", or "output" if both go to one file."""
    lines: tuple[str, ...]
    """Oldest first, without control characters, and with obvious secrets replaced."""
    age_s: float = 0.0
    """Seconds since the file was last written."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    id=NAME,
    node=NAME,
    job=NAME,
    owner=NAME,
    launch=NAME,
    incident=NAME,
    held_s=AGE,
    series=entries(MAX_SERIES),
    outputs=entries(2 * MAX_TRACED),
)
class SeriesBatch:
    """The series of one node's traced ranks for one incident. Posted to `/ingest/v1/series`."""

    version: int
    id: str
    """Unique."""
    node: str
    job: str
    incident: str
    """As in the order."""
    held_s: float
    """Seconds between the last point of the series and the sending of this message."""
    owner: str = ""
    """Owner of the job, as in the report."""
    launch: str = ""
    """Launch of the job on this node, as in the report."""
    series: tuple[Series, ...] = ()
    outputs: tuple[RankOutput, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    id=NAME,
    incident=NAME,
    job=NAME,
    owner=NAME,
    launch=NAME,
    ranks=both(entries(MAX_TRACED), every(RANK)),
    suspects=both(entries(MAX_TRACED), every(RANK)),
)
class SeriesOrder:
    """Send the series of `ranks` of `job` once."""

    id: str
    """Unique: an agent carries out each order once."""
    incident: str
    job: str
    ranks: tuple[int, ...]
    suspects: tuple[int, ...] = ()
    """Those of `ranks` whose last lines of output are wanted. The agent sends them only if it is
    set up to."""
    owner: str = ""
    """Owner of the job, as in the report."""
    launch: str = ""
    """Launch of the job on this node, as in the report."""
