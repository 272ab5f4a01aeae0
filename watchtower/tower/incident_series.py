"""The series of an incident, as the API and the pages show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchtower.jobs.incident_reads import choose_suspects
from watchtower.store.values import SeriesRow
from watchtower.tower.outputs import OutputView, decode_rows, view_outputs
from watchtower.tower.stored_incidents import read_incident
from watchtower.tower.tower import Tower
from watchtower.wire.series import POINT_S, Lane, SeriesBatch
from watchtower.writing.times import rfc3339

DECIMALS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneView:
    """One measured quantity."""

    name: str
    """"step", "cpu", "moved", "state", and of a GPU "utilization", "power", "tensor", ..."""
    unit: str
    """"cores", "B/s", "W", "MHz", "%"; empty for a count. "state": the code of the letter of a
    process state."""
    values: list[float | None]
    """Oldest first; null where nothing was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesView:
    """The lanes of one rank's process, or of a GPU that the rank uses."""

    rank: int
    node: str
    is_suspect: bool
    """False for a healthy peer."""
    gpu: int | None
    """Number of the GPU in NVML; null for the process itself."""
    gpu_address: str
    """PCI address of the GPU; empty for the process itself."""
    ends_at: str
    """RFC 3339: time of the last value of each lane."""
    interval_s: float
    """Seconds between two values."""
    lanes: list[LaneView]
    """The measured quantities, each with its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentSeries:
    """Values of the suspects of an incident and of a few healthy ranks in the 15 minutes before."""

    incident: str
    items: list[SeriesView]
    """Suspects first."""
    outputs: list[OutputView]
    """Empty unless the agents may send lines of the output."""


async def find_series(tower: Tower, incident_id: str) -> IncidentSeries | None:
    """Return the series of an incident; None if the id is unknown. Raises StoreFailedError."""
    incident = await read_incident(tower, incident_id, with_case=False)
    if incident is None:
        return None
    rows = await read_rows(tower, incident.id)
    return view_series(incident.id, rows, choose_suspects(incident.verdict))


async def read_rows(tower: Tower, incident_id: str) -> list[SeriesRow]:
    """Return the stored messages of an incident with its series. Raises StoreFailedError."""
    return await tower.store_writer.series(incident_id)


def view_series(
    incident: str, rows: Sequence[SeriesRow], suspects: tuple[int, ...]
) -> IncidentSeries:
    """Return the series of an incident from the stored messages of its nodes."""
    received = decode_rows(rows)
    items = [view for row, batch in received for view in _view_series(row, batch, suspects)]
    return IncidentSeries(
        incident=incident,
        items=sorted(items, key=lambda each: (not each.is_suspect, each.rank, each.gpu_address)),
        outputs=list(view_outputs(received)),
    )


def _view_series(row: SeriesRow, batch: SeriesBatch, suspects: tuple[int, ...]) -> list[SeriesView]:
    return [
        SeriesView(
            rank=one.rank,
            node=row.node,
            is_suspect=one.rank in suspects,
            gpu=one.gpu_index,
            gpu_address=one.gpu.removeprefix("pci:"),
            ends_at=rfc3339(row.taken_at),
            interval_s=POINT_S,
            lanes=[_view_lane(lane) for lane in one.lanes],
        )
        for one in batch.series
    ]


def _view_lane(lane: Lane) -> LaneView:
    values = [None if each is None else round(each, DECIMALS) for each in lane.points()]
    return LaneView(name=lane.name, unit=lane.unit, values=values)
