"""The last lines that the suspects of an incident wrote, where their agents may send them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from watchtower.store.values import SeriesRow
from watchtower.tower.store_writer import StoreFailedError
from watchtower.tower.tower import Tower
from watchtower.wire.series import SeriesBatch
from watchtower.writing.times import rfc3339

Received = tuple[SeriesRow, SeriesBatch]
"""A stored message, and what it contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputView:
    """The last lines that a suspect wrote before its series were sent."""

    rank: int
    node: str
    stream: str
    """"stdout", "stderr", or "output" if both go to one file."""
    lines: list[str]
    """The last lines, oldest first, cleaned and cut."""
    written_at: str
    """RFC 3339: time of the last write."""


def decode_rows(rows: Iterable[SeriesRow]) -> list[Received]:
    """Return stored messages with their contents. Unreadable ones are left out."""
    return [(row, batch) for row in rows if (batch := row.batch()) is not None]


async def list_outputs(tower: Tower, incident_id: str) -> list[OutputView]:
    """Return the stored lines of an incident; none while the store cannot be read."""
    try:
        rows = await tower.store_writer.series(incident_id)
        return list(view_outputs(decode_rows(rows)))
    except StoreFailedError:
        return []


def view_outputs(received: Iterable[Received]) -> Iterator[OutputView]:
    """Return the lines in these messages."""
    for row, batch in received:
        for output in batch.outputs:
            yield OutputView(
                rank=output.rank,
                node=row.node,
                stream=output.stream,
                lines=list(output.lines),
                written_at=rfc3339(row.taken_at - output.age_s),
            )
