"""The rows of series: what the traced ranks of an incident did, one message of each launch."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import msgspec

from watchtower.wire.series import SeriesBatch

MAX_MESSAGES = 16
"""Messages with series of one incident. Orders are for at most as many launches."""

SAVE = """
INSERT INTO series (incident, node, launch, sharer, taken_at, size_bytes, body)
SELECT ?, ?, ?, ?, ?, ?, ? WHERE
    (SELECT COUNT(*) FROM series WHERE incident = ? AND (node <> ? OR launch <> ?)) < ?
ON CONFLICT (incident, node, launch) DO UPDATE SET taken_at = excluded.taken_at,
    size_bytes = excluded.size_bytes, body = excluded.body
"""

READ = """
SELECT incident, node, launch, sharer, taken_at, body FROM series WHERE incident = ?
ORDER BY node, launch
"""

_BATCHES = msgspec.json.Decoder(SeriesBatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRow:
    """The series of one launch on one node for an incident."""

    incident: str
    node: str
    launch: str = ""
    """As in the message."""
    sharer: str
    """Owner of the job, whose share of the store it uses."""
    taken_at: float
    """Time of the last points, in UNIX seconds."""
    body: bytes
    """The undecoded message."""

    def batch(self) -> SeriesBatch | None:
        """Return the decoded message; None if another release wrote it and it is unreadable."""
        try:
            return _BATCHES.decode(self.body)
        except (msgspec.MsgspecError, RecursionError):
            return None


def save(db: sqlite3.Connection, row: SeriesRow) -> None:
    """Insert the series of a launch, or replace its earlier ones."""
    text = row.body.decode("utf-8", "replace")
    values = (row.incident, row.node, row.launch, row.sharer, row.taken_at, len(row.body), text)
    db.execute(SAVE, (*values, row.incident, row.node, row.launch, MAX_MESSAGES))


def read(db: sqlite3.Connection, incident: str) -> list[SeriesRow]:
    """Return the series of an incident, by node."""
    return [
        SeriesRow(
            incident=ident,
            node=node,
            launch=launch,
            sharer=sharer,
            taken_at=taken_at,
            body=str(body).encode(),
        )
        for ident, node, launch, sharer, taken_at, body in db.execute(READ, (incident,))
    ]
