"""The part of an incident's page about time: a suspect against healthy ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from watchtower.ui.charts import WIDTH, Band, Line, Scale, draw_line, make_scale, shrink
from watchtower.views.incident import IncidentSeries, LaneView, OutputView, SeriesView
from watchtower.wire.series import MAX_POINTS, POINT_S
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.times import read_time

SETTLED = 10
"""Points at the end whose median is the value now."""

LEAST_BEFORE = 5
"""Fewer points before the stall do not show what was usual."""

MAX_SUSPECTS = 8
"""Suspects with a line of text; the first one has charts."""

DIFFERS = 0.1
"""A value is said to have changed if it differs by more than this share of the larger one."""

TITLES = {
    "step": "Step",
    "cpu": "CPU of the process and its children",
    "moved": "Bytes moved",
    "utilization": "GPU utilization",
    "power": "GPU power",
    "tensor": "GPU tensor cores",
    "memory bandwidth": "GPU memory bandwidth",
    "clock": "GPU clock",
}
"""Lanes that have charts, in this order, with their titles. The lanes of a GPU come last."""

FLAT = {"cores": 0.05, "%": 3.0, "W": 10.0, "MHz": 50.0, "B/s": 1e4}
"""By unit: a lane of suspect and peers that varies by no more has no chart."""

STATE = "state"

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "blocked in the kernel",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "I": "idle",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceChart:
    """One quantity over the last 15 minutes."""

    title: str
    suspect: str
    """"690 -> 88 W"; empty without a suspect."""
    peers: str
    """"684 W", of the median."""
    scale: Scale
    lines: list[Line]
    bands: list[Band]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesShown:
    """The values of the part."""

    suspect: str
    """"rank 37 on gpu-042, GPU 5"; empty if no rank is blamed."""
    peers: str
    """"ranks 0,8,16"."""
    sentences: list[str]
    """Of each suspect: "Rank 37: utilization 100 -> 0 %, power 690 -> 88 W"."""
    charts: list[TraceChart]
    minutes: int
    """Minutes that the charts show."""
    outputs: list[OutputView]


Lanes = dict[str, LaneView]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The time that all charts show."""

    columns: int
    split: int | None
    """The column at which the stall begins."""
    ends_at: str


def show_traces(found: IncidentSeries, stalled_at: float | None) -> TracesShown | None:
    """Return what the part shows; None without series. `stalled_at`: UNIX seconds."""
    if not found.items:
        return None
    ends_at = max(found.items, key=lambda each: _seconds(each.ends_at)).ends_at
    ranks = _join_lanes(found.items, _seconds(ends_at))
    suspects = [rank for rank, (first, _) in ranks.items() if first.is_suspect]
    peers = [rank for rank, (first, _) in ranks.items() if not first.is_suspect]
    columns = _count_columns(lanes for _, lanes in ranks.values())
    stall = None if stalled_at is None else (_seconds(ends_at) - stalled_at) / POINT_S
    split = None if stall is None else max(0, columns - 1 - round(stall))
    first = suspects[0] if suspects else None
    mine = ranks[first][1] if first is not None else {}
    others = [ranks[rank][1] for rank in peers]
    span = _Span(columns=columns, split=split, ends_at=ends_at)
    drawn = (_draw(name, mine, others, span) for name in TITLES)
    charts = [chart for chart in drawn if chart is not None]
    return TracesShown(
        suspect=_name(ranks[first][0], found.items) if first is not None else "",
        peers=name_ranks(peers) if peers else "",
        sentences=[
            f"Rank {rank}: {text}"
            for rank in suspects[:MAX_SUSPECTS]
            if (text := _write_changes(ranks[rank][1], columns, split))
        ],
        charts=charts,
        minutes=max(1, round(columns * POINT_S / 60)),
        outputs=found.outputs,
    )


def _join_lanes(items: Sequence[SeriesView], ends_at: float) -> dict[int, tuple[SeriesView, Lanes]]:
    """Return the lanes of each rank and of its first GPU, all with the same end."""
    joined: dict[int, tuple[SeriesView, Lanes]] = {}
    for item in items:
        missing = min(MAX_POINTS, max(0, round((ends_at - _seconds(item.ends_at)) / POINT_S)))
        _, lanes = joined.setdefault(item.rank, (item, {}))
        for lane in item.lanes:
            values = [*lane.values, *[None] * missing][-MAX_POINTS:]
            lanes.setdefault(lane.name, LaneView(name=lane.name, unit=lane.unit, values=values))
    return joined


def _count_columns(ranks: Iterable[Lanes]) -> int:
    return max((len(lane.values) for lanes in ranks for lane in lanes.values()), default=0)


def _draw(name: str, mine: Lanes, others: Sequence[Lanes], span: _Span) -> TraceChart | None:
    """Return the chart of one lane; None if neither the suspect nor its peers have it."""
    columns, split = span.columns, span.split
    own = _align(mine.get(name), columns)
    peers = _find_median([_align(lanes.get(name), columns) for lanes in others])
    known = [each for each in (*own, *peers) if each is not None]
    unit = next((lanes[name].unit for lanes in (mine, *others) if name in lanes), "")
    if not known or max(known) - min(known) <= FLAT.get(unit, 0.0):
        return None
    low = min(known) if name == "step" else 0.0
    high = 100.0 if unit == "%" else max(known)
    every = [("peers", shrink(peers)), ("suspect", shrink(own))]
    width = max(len(values) for _, values in every)
    lines = [draw_line(kind, values, low, high, width) for kind, values in every]
    return TraceChart(
        title=TITLES[name],
        suspect=_write_own(name, own, unit, split) if name in mine else "",
        peers=_write_value(_find_now(peers, split), unit),
        scale=make_scale(
            _write_value(low, unit),
            _write_value(high, unit),
            span.ends_at,
            POINT_S * (columns - 1),
        ),
        lines=[line for line in lines if line.pieces],
        bands=[] if split is None else [_shade(split, columns)],
    )


def _shade(split: int, columns: int) -> Band:
    x = split / max(columns - 1, 1) * WIDTH
    return Band(kind="stall", x=round(x, 1), width=round(WIDTH - x, 1), label="the stall")


def _align(lane: LaneView | None, columns: int) -> list[float | None]:
    values = lane.values if lane is not None else []
    return [*[None] * (columns - len(values)), *values]


def _find_median(lanes: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the median of several lanes at each point."""
    medians: list[float | None] = []
    for points in zip(*lanes, strict=True):
        known = [each for each in points if each is not None]
        medians.append(median(known) if known else None)
    return medians


def _find_now(values: Sequence[float | None], split: int | None) -> float | None:
    """Return the median of the last values, of the stall only if it has any."""
    known = [each for each in values if each is not None]
    stalled = [each for each in values[split:] if each is not None] if split is not None else []
    return median_low((stalled or known)[-SETTLED:]) if known else None


def _find_before(values: Sequence[float | None], split: int | None) -> float | None:
    """Return the median before the stall; None if that is not known."""
    known = [each for each in values[:split] if each is not None] if split else []
    return median_low(known) if len(known) >= LEAST_BEFORE else None


def _write_own(name: str, values: Sequence[float | None], unit: str, split: int | None) -> str:
    """Return how a lane of the suspect changed. Of steps, only the present one is known."""
    if name == "step":
        return _write_value(_find_now(values, None), unit)
    return _write_change(values, unit, split)


def _write_change(values: Sequence[float | None], unit: str, split: int | None) -> str:
    before, now = _find_before(values, split), _find_now(values, split)
    if before is None or not _differ(before, now):
        return _write_value(now, unit)
    number, _, shown = _write_value(before, unit).partition(" ")
    after = _write_value(now, unit)
    # One unit is enough if both have the same.
    return f"{number} -> {after}" if after.endswith(f" {shown}") else f"{number} {shown} -> {after}"


def _differ(before: float, now: float | None) -> bool:
    return now is not None and abs(before - now) > DIFFERS * max(abs(before), abs(now))


def _write_changes(lanes: Lanes, columns: int, split: int | None) -> str:
    """Return what changed with the stall, in words: "power 690 -> 88 W"."""
    lines = []
    for name in (*TITLES, STATE):
        values = _align(lanes.get(name), columns)
        before, now = _find_before(values, split), _find_now(values, split)
        if before is None or now is None or name == "step":
            continue
        if name == STATE:
            words = [STATES.get(chr(int(code)), "") for code in (before, now)]
            if words[0] != words[1] and all(words):
                lines.append(f"{words[0]} -> {words[1]}")
        elif _differ(before, now):
            lines.append(f"{name} {_write_change(values, lanes[name].unit, split)}")
    return ", ".join(lines)


def _write_value(value: float | None, unit: str) -> str:
    """Return "690 W", "1.2 GB/s", "100 %", "1233"."""
    if value is None:
        return "not known"
    if unit == "B/s":
        for size, name in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
            if value >= size:
                return f"{value / size:.3g} {name}"
        return "0 B/s"
    number = f"{value:.2f}" if unit == "cores" else f"{value:.0f}"
    return f"{number} {unit}".strip()


def _name(first: SeriesView, items: Sequence[SeriesView]) -> str:
    gpus = [each.gpu for each in items if each.rank == first.rank and each.gpu is not None]
    return f"rank {first.rank} on {first.node}" + (f", GPU {gpus[0]}" if gpus else "")


def _seconds(stamp: str) -> float:
    return read_time(stamp).timestamp()
