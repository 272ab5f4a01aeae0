"""When each destination received its first message about an incident, for its timeline.

The rows of alerts are removed with their end. These rows stay as long as the incident.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from watchtower.store.values import Delivery

_NOTE = """
INSERT INTO deliveries (incident, destination, at) VALUES (?, ?, ?)
ON CONFLICT (incident, destination) DO NOTHING
"""


def note_delivery(db: sqlite3.Connection, incident: str, destination: str, at: float) -> None:
    """Store a delivery, unless the destination has received an earlier message."""
    db.execute(_NOTE, (incident, destination, at))


def read_deliveries(db: sqlite3.Connection, incident: str) -> tuple[Delivery, ...]:
    """Return the first message to each destination, earliest first."""
    query = "SELECT destination, at FROM deliveries WHERE incident = ? ORDER BY at"
    rows: Iterable[tuple[str, float]] = db.execute(query, (incident,)).fetchall()
    return tuple(Delivery(destination=destination, at=at) for destination, at in rows)
