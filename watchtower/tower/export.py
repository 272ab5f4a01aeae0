"""The export of an incident: everything it was concluded from, as one JSON document."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from watchtower import __version__
from watchtower.core.case import Case
from watchtower.store.rows import read_case
from watchtower.store.values import DumpRow, Incident
from watchtower.tower.acks import AckView, view_ack
from watchtower.tower.clock import rfc3339
from watchtower.tower.history import read_incident
from watchtower.tower.tower import Tower
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.verdict import Status, Verdict, VerdictEntry

BUNDLE_FORMAT = "watchtower-incident-1"
"""Changes when an older reader would misunderstand a newer export."""

MAX_BATCHES = 1024
"""Batches of dumps in one export, the newest of the stall: with 20 KB each it can be mailed. The
case has the last two dumps of every rank in any event."""

MAX_BYTES = 64_000_000
"""... and about so many bytes of them."""

MARGIN_S = 60.0
"""Dumps are searched from this long before the stall: the wall clock may have been set since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDumps:
    """One batch of dumps and when it was taken."""

    batch: DumpBatch
    taken_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """An incident to take away: for a report, a golden, a replay with another release."""

    format: str
    watchtower: str
    """Release that wrote this."""
    exported_at: str
    id: str
    job: str
    generation: int
    status: Status
    opened_at: str
    closed_at: str | None
    ack: AckView | None
    verdict: Verdict
    case: Case | None
    """Evidence of the verdict; null when it is older than evidence is kept."""
    dumps: tuple[StoredDumps, ...]
    """Newest first; times are UNIX seconds."""
    dumps_are_all: bool
    verdicts: tuple[VerdictEntry, ...] = ()
    """Every verdict with its time, the first one first."""


async def export_incident(tower: Tower, incident_id: str) -> bytes | None:
    """Write an incident down as JSON; None when there is none of that id.

    Raises StoreFailedError.
    """
    incident = await read_incident(tower, incident_id)
    if incident is None:
        return None
    dumps, are_all = await _read_dumps(tower, incident)
    bundle = Bundle(
        format=BUNDLE_FORMAT,
        watchtower=__version__,
        exported_at=rfc3339(tower.clock.wall()),
        id=incident.id,
        job=incident.job,
        generation=incident.generation,
        status=incident.status,
        opened_at=rfc3339(incident.opened_at),
        closed_at=None if incident.closed_at is None else rfc3339(incident.closed_at),
        ack=view_ack(incident.ack) if incident.ack else None,
        verdict=incident.verdict,
        verdicts=incident.verdicts,
        case=read_case(incident),
        dumps=tuple(dumps[:MAX_BATCHES]),
        dumps_are_all=are_all and len(dumps) <= MAX_BATCHES,
    )
    return msgspec.json.encode(bundle)


async def _read_dumps(tower: Tower, incident: Incident) -> tuple[list[StoredDumps], bool]:
    """Read the newest dumps of an incident; true with them if these are all."""
    store_writer, dumps, last, size = tower.store_writer, list[StoredDumps](), None, 0
    found: list[DumpRow] = []
    since = incident.opened_at - incident.verdict.stalled_for_s - MARGIN_S
    until = incident.closed_at or tower.clock.wall()
    while len(dumps) <= MAX_BATCHES and size < MAX_BYTES:
        found = await store_writer.read(store_writer.store.dumps(incident.job, since, until, last))
        if not found:
            break
        dumps += [StoredDumps(batch=d.sent.batch, taken_at=d.taken_at) for d in found]
        last, size = found[-1], size + sum(len(d.sent.body) for d in found)
    return dumps, not found
