"""Converts values to rows of the store's tables, and rows to values."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeVar

import msgspec

from watchtower.evidence.case import Case
from watchtower.fleet.generation import ProcessKey
from watchtower.store.deliveries import note_delivery
from watchtower.store.grouped_writes import Insert
from watchtower.store.incident_filter import filter_columns, save_places
from watchtower.store.values import (
    NO_FACTS,
    AlertRow,
    Blame,
    GenerationRow,
    Identity,
    Incident,
    JobFacts,
    PauseRow,
    Silence,
    SilenceKind,
)
from watchtower.wire.drills import is_drill
from watchtower.wire.dumps import DumpBatch, SentBatch
from watchtower.wire.verdict import Cause, Status, Verdict, VerdictEntry

log = logging.getLogger("watchtower.store")

_T = TypeVar("_T")
_Read = TypeVar("_Read")

_BATCHES = msgspec.json.Decoder(DumpBatch)
_VERDICTS = msgspec.json.Decoder(Verdict)
_HISTORIES = msgspec.json.Decoder(tuple[VerdictEntry, ...])
_IDENTITIES = msgspec.json.Decoder(Identity)
_FACTS = msgspec.json.Decoder(JobFacts)
_CASES = msgspec.json.Decoder(Case)
_PROCESSES = msgspec.json.Decoder(frozenset[ProcessKey])

UNREADABLE = "the verdict of this incident cannot be read: another release may have written it"

INCIDENT = (
    "id, job, generation, status, opened_at, updated_at, closed_at, verdict,"
    " acked_at, acked_by, ack_note, verdicts, identity, only_node, shadow, sharer, facts"
)

INCIDENT_WITHOUT_CASE = f"SELECT {INCIDENT}, NULL FROM incidents WHERE id = ?"
INCIDENT_WITH_CASE = (
    f"SELECT {INCIDENT}, body FROM incidents LEFT JOIN evidence ON incident = id WHERE id = ?"
)

# A starting tower needs open incidents, and each job's latest one if the job ended in it.
LEFT_OPEN = f"""
SELECT {INCIDENT}, body FROM incidents
LEFT JOIN evidence ON incident = id AND closed_at IS NULL
WHERE closed_at IS NULL OR (status = 'ended' AND opened_at =
    (SELECT MAX(opened_at) FROM incidents AS later WHERE later.job = incidents.job))
ORDER BY opened_at
"""

PAUSES = "SELECT job, phase, frame_class, length_s FROM pauses"

DUMPS = """
SELECT batch, taken_at FROM dumps
WHERE job = ? AND taken_at >= ? AND (taken_at < ? OR (taken_at = ? AND id < ?))
ORDER BY taken_at DESC, id DESC LIMIT ?
"""

SILENCES = "SELECT id, kind, name, since, until, reason, silenced_by FROM silences"

SAVE_SILENCE = """
INSERT INTO silences (id, kind, name, since, until, reason, silenced_by)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET id = excluded.id, since = excluded.since,
    until = excluded.until, reason = excluded.reason, silenced_by = excluded.silenced_by
"""

SAVE_PAUSE = """
INSERT INTO pauses (job, phase, frame_class, length_s) VALUES (?, ?, ?, ?)
ON CONFLICT (job, phase, frame_class) DO UPDATE SET length_s = excluded.length_s
"""

SAVE_GENERATION = """
INSERT INTO generations (job, number, typical_step_s, processes, seen_at, owner)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (job) DO UPDATE SET number = excluded.number, seen_at = excluded.seen_at,
    typical_step_s = excluded.typical_step_s, processes = excluded.processes, owner = excluded.owner
"""

SAVE_INCIDENT = f"""
INSERT INTO incidents ({INCIDENT}, evidence_bytes, summary_bytes, cause, domain, job_user)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET status = excluded.status, updated_at = excluded.updated_at,
    closed_at = excluded.closed_at, verdict = excluded.verdict,
    verdicts = excluded.verdicts, only_node = excluded.only_node, shadow = excluded.shadow,
    facts = excluded.facts, cause = excluded.cause, domain = excluded.domain,
    acked_at = COALESCE(excluded.acked_at, incidents.acked_at),
    acked_by = COALESCE(NULLIF(excluded.acked_by, ''), incidents.acked_by),
    ack_note = COALESCE(NULLIF(excluded.ack_note, ''), incidents.ack_note),
    evidence_bytes = CASE WHEN excluded.evidence_bytes = 0 THEN incidents.evidence_bytes
        ELSE excluded.evidence_bytes END,
    summary_bytes = CASE WHEN excluded.evidence_bytes = 0 THEN incidents.summary_bytes
        ELSE excluded.summary_bytes END
"""

ALERTS = (
    "SELECT destination, incident, alert, version, delivered, receipt, updated_at FROM alerts"
    " ORDER BY updated_at"
)

# The newest ones: older ones are not counted.
BLAMES = """
SELECT id, job, only_node, identity, opened_at FROM incidents
WHERE only_node != '' AND shadow = 0 ORDER BY opened_at DESC LIMIT 4096
"""

SAVE_ALERT = """
INSERT INTO alerts (destination, incident, alert, version, delivered, receipt, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (destination, incident) DO UPDATE SET alert = excluded.alert,
    version = excluded.version, delivered = excluded.delivered, receipt = excluded.receipt,
    updated_at = excluded.updated_at
"""

REMOVE_ALERT = "DELETE FROM alerts WHERE destination = ? AND incident = ?"

SAVE_EVIDENCE = """
INSERT INTO evidence (incident, body) VALUES (?, ?)
ON CONFLICT (incident) DO UPDATE SET body = excluded.body
"""


SAVE_SUMMARY = """
INSERT INTO summaries (incident, body) VALUES (?, ?)
ON CONFLICT (incident) DO UPDATE SET body = excluded.body
"""

SUMMARY = "SELECT body FROM summaries WHERE incident = ?"

REMOVE_SUMMARY = "DELETE FROM summaries WHERE incident = ?"


def save_incident(db: sqlite3.Connection, incident: Incident) -> None:
    """Insert or update an incident. An update without ack or case does not remove a stored one.

    A new case also replaces the stored summary.
    """
    evidence, summary, ack = incident.evidence, incident.summary, incident.ack
    row = (
        incident.id,
        incident.job,
        incident.generation,
        incident.status.value,
        incident.opened_at,
        incident.updated_at,
        incident.closed_at,
        encode(incident.verdict),
        *((ack.at, ack.by, ack.note) if ack else (None, "", "")),
        encode(incident.verdicts),
        encode(incident.identity),
        incident.only_node,
        int(incident.shadow),
        incident.sharer,
        encode(incident.facts),
        len(evidence or b""),
        len(summary or b""),
        *filter_columns(incident),
    )
    db.execute(SAVE_INCIDENT, row)
    save_places(db, incident)
    if evidence is None:
        return
    db.execute(SAVE_EVIDENCE, (incident.id, _as_text(evidence)))
    if summary is None:
        db.execute(REMOVE_SUMMARY, (incident.id,))
    else:
        db.execute(SAVE_SUMMARY, (incident.id, _as_text(summary)))


def save_silence(db: sqlite3.Connection, silence: Silence) -> None:
    """Insert a silence, in place of an earlier one of the same job, node or user."""
    at = (silence.since, silence.until)
    row = (silence.id, silence.kind.value, silence.name, *at, silence.reason, silence.by)
    db.execute(SAVE_SILENCE, row)


def read_silence(row: tuple[str, str, str, float, float, str, str]) -> Silence:
    """Return the silence of a row: the columns of `SILENCES`."""
    ident, kind, name, since, until, reason, by = row
    return Silence(
        id=ident,
        kind=SilenceKind(kind),
        name=name,
        since=since,
        until=until,
        reason=reason,
        by=by,
    )


def save_alert(db: sqlite3.Connection, row: AlertRow) -> None:
    """Insert or update what a destination must show about an incident."""
    db.execute(
        SAVE_ALERT,
        (
            row.destination,
            row.incident,
            row.alert,
            row.version,
            row.delivered,
            row.receipt,
            row.updated_at,
        ),
    )
    if row.delivered:
        note_delivery(db, row.incident, row.destination, row.updated_at)


def remove_alert(
    db: sqlite3.Connection, destination: str, incident: str, delivered_at: float | None
) -> None:
    """Remove an alert. If its end was delivered, this may have been the first delivery."""
    db.execute(REMOVE_ALERT, (destination, incident))
    if delivered_at is not None:
        note_delivery(db, incident, destination, delivered_at)


def read_alert(row: tuple[str, str, str, int, int, str, float]) -> AlertRow:
    """Return the alert of a row: the columns of `ALERTS`."""
    destination, incident, alert, version, delivered, receipt, updated_at = row
    return AlertRow(
        destination=destination,
        incident=incident,
        alert=alert,
        version=version,
        delivered=delivered,
        receipt=receipt,
        updated_at=updated_at,
    )


def insert_dumps(job: str, sharer: str, sent: SentBatch, received_at: float) -> Insert:
    """Return the row of a batch of a job. It contains the undecoded message."""
    batch, taken_at, size = sent.batch, received_at - sent.batch.held_s, len(sent.body)
    text = _as_text(sent.body)
    row = (batch.id, job, batch.node, received_at, text, taken_at, size, sharer)
    into = "INSERT INTO dumps (id, job, node, received_at, batch, taken_at, size_bytes, sharer)"
    return Insert(into, row, on_conflict="ON CONFLICT (id) DO NOTHING")


def save_learned(db: sqlite3.Connection, learned: Iterable[GenerationRow | PauseRow]) -> None:
    """Insert or update the last attempts and the pauses of jobs."""
    for row in learned:
        if isinstance(row, PauseRow):
            pause = row.pause
            db.execute(SAVE_PAUSE, (row.job, pause.phase, pause.frame_class, pause.length_s))
        else:
            past, processes = row.past, encode(sorted(row.past.processes))
            values = (row.job, past.number, past.typical_step_s, processes, row.seen_at, past.owner)
            db.execute(SAVE_GENERATION, values)


def read_incident(row: tuple[object, ...]) -> Incident:
    """Return the incident of a row: the columns of `INCIDENT` and the evidence.

    A verdict or evidence of another release may be unreadable. The incident is then returned
    without it. Raises msgspec.MsgspecError if other columns are unreadable.
    """
    ident, job, generation, status, opened_at, updated_at, closed_at, verdict, *rest = row
    acked_at, acked_by, ack_note, verdicts, identity, only_node, shadow, sharer, *last = rest
    facts, evidence = last
    known_status = _try_read(ident, "status", Status, status) or Status.MONITORING_LOST
    return msgspec.convert(
        {
            "id": ident,
            "job": job,
            "generation": generation,
            "status": known_status,
            "opened_at": opened_at,
            "updated_at": updated_at,
            "closed_at": closed_at,
            "verdict": _try_read(ident, "verdict", lambda text: decode(text, _VERDICTS), verdict)
            or Verdict(
                job=str(job),
                generation=int(str(generation)),
                status=known_status,
                summary=UNREADABLE,
                incident=str(ident),
                cause=Cause.UNKNOWN,
            ),
            "evidence": None if evidence is None else str(evidence).encode(),
            "verdicts": _try_read(
                ident, "verdicts", lambda text: decode(text, _HISTORIES), verdicts
            )
            or (),
            "identity": _try_read(
                ident, "identity", lambda text: decode(text, _IDENTITIES), identity
            )
            or Identity(),
            "only_node": only_node,
            "shadow": bool(shadow),
            "sharer": sharer,
            "facts": _try_read(ident, "facts", lambda text: decode(text, _FACTS), facts)
            or NO_FACTS,
            "ack": acked_at and {"at": acked_at, "by": acked_by, "note": ack_note},
        },
        Incident,
    )


def read_blames(found: Iterable[tuple[object, ...]]) -> tuple[Blame, ...]:
    """Return the blames of rows of `BLAMES`, oldest first, without those of drills."""
    blames = [
        Blame(
            incident=str(ident),
            node=str(node),
            domain=(
                _try_read(ident, "identity", lambda text: decode(text, _IDENTITIES), identity)
                or Identity()
            ).domain,
            opened_at=float(str(opened_at)),
        )
        for ident, job, node, identity, opened_at in found
        if not is_drill(str(job))
    ]
    return tuple(reversed(blames))


def read_case(incident: Incident) -> Case | None:
    """Return the evidence of an incident; None if it is missing or unreadable."""
    if incident.evidence is None:
        return None
    return _try_read(
        incident.id, "evidence", lambda text: decode(text, _CASES), incident.evidence.decode()
    )


def read_summary(db: sqlite3.Connection, incident: str) -> bytes | None:
    """Return the stored summary of an incident's case; None if there is none."""
    row = db.execute(SUMMARY, (incident,)).fetchone()
    return str(row[0]).encode() if row else None


def read_batch(text: object) -> SentBatch:
    """Return a stored batch of dumps. Raises msgspec.MsgspecError."""
    body = str(text).encode()
    return SentBatch(_BATCHES.decode(body), body)


def read_processes(job: str, text: object) -> frozenset[ProcessKey]:
    """Return the processes of an attempt; empty if they are unreadable."""
    keys = _try_read(job, "processes", lambda raw: decode(raw, _PROCESSES), text)
    return keys or frozenset()


def _try_read(
    whose: object, what: str, read: Callable[[object], _Read], value: object
) -> _Read | None:
    try:
        return read(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        _warn_once(str(whose), what, str(error))
        return None


@lru_cache(maxsize=1024)
def _warn_once(whose: str, what: str, error: str) -> None:
    log.warning("cannot read the %s of %s in the store, it is left out: %s", what, whose, error)


def encode(value: object) -> str:
    """Return a value as JSON."""
    return msgspec.json.encode(value).decode()


def decode(text: object, decoder: msgspec.json.Decoder[_T]) -> _T:
    """Return a value from JSON. Raises msgspec.MsgspecError."""
    return decoder.decode(str(text))


def _as_text(body: bytes) -> str:
    """Return a JSON body as text. Bytes that are not UTF-8 (in unknown fields) are replaced."""
    return body.decode("utf-8", "replace")
