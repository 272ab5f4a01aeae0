"""Rows besides incidents, and the state of the last run, which a starting tower reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, fields

import msgspec

from watchtower.incidents.incident import Delivery, Feedback, Silence, SilenceKind
from watchtower.jobs.attempt import PastAttempt
from watchtower.jobs.pace import Pause
from watchtower.jobs.ranks import ProcessKey
from watchtower.store.database import Database, pack, unpack
from watchtower.store.grouped_writes import Insert
from watchtower.store.incident_rows import (
    BLAMES,
    LEFT_OPEN,
    decode,
    encode,
    read_blames,
    read_incident,
    try_read,
)
from watchtower.store.values import (
    MAX_RECALLED,
    AlertRow,
    AttemptRow,
    Named,
    PauseRow,
    SeriesRow,
    StartupState,
)
from watchtower.wire.drills import is_drill
from watchtower.wire.dumps import DumpBatch, SentBatch
from watchtower.wire.verdict import Cause

_BATCHES = msgspec.json.Decoder(DumpBatch)
_PROCESSES = msgspec.json.Decoder(frozenset[ProcessKey])

DUMPS = """
SELECT batch, taken_at FROM dumps
WHERE job = ? AND taken_at >= ? AND (taken_at < ? OR (taken_at = ? AND id < ?))
ORDER BY taken_at DESC, id DESC LIMIT ?
"""


def save_sql(table: str, key: str, columns: str) -> str:
    """Return the SQL that inserts a row, or updates the row with the same key."""
    names = columns.split(", ")
    values = ", ".join("?" for _ in names)
    changed = (name for name in names if name not in key.split(", "))
    updates = ", ".join(f"{name} = excluded.{name}" for name in changed)
    insert = f"INSERT INTO {table} ({columns}) VALUES ({values})"
    return f"{insert} ON CONFLICT ({key}) DO UPDATE SET {updates}"


SILENCE = "id, kind, name, since, until, reason, silenced_by"
PAUSE = "job, phase, frame_class, length_s"
ATTEMPT = "job, number, typical_step_s, processes, owner"
ALERT = ", ".join(each.name for each in fields(AlertRow))
FEEDBACK = (
    "incident, job, answered_at, is_right, true_rank, true_cause, answered_by, note,"
    " verdict_cause, verdict_confidence"
)

SAVE_SILENCE = save_sql("silences", "kind, name", SILENCE)
SAVE_PAUSE = save_sql("pauses", "job, phase, frame_class", PAUSE)
SAVE_ATTEMPT = save_sql("attempts", "job", f"{ATTEMPT}, seen_at")
SAVE_ALERT = save_sql("alerts", "destination, incident", ALERT)
SAVE_FEEDBACK = save_sql("feedback", "incident", FEEDBACK)

REMOVE_ALERT = "DELETE FROM alerts WHERE destination = ? AND incident = ?"


def save_silence(db: Database, silence: Silence) -> None:
    """Insert a silence, in place of an earlier one of the same job, node or user."""
    at = (silence.since, silence.until)
    row = (silence.id, silence.kind.value, silence.name, *at, silence.reason, silence.by)
    db.execute(SAVE_SILENCE, row)


def read_silence(row: tuple[str, str, str, float, float, str, str]) -> Silence:
    """Return the silence of a row with the columns of `SILENCE`."""
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


def save_alert(db: Database, row: AlertRow) -> None:
    """Insert or update what a destination must show about an incident."""
    db.execute(SAVE_ALERT, astuple(row))
    if row.delivered:
        note_delivery(db, row.incident, row.destination, row.updated_at)


def remove_alert(db: Database, destination: str, incident: str, delivered_at: float | None) -> None:
    """Remove an alert. If its end was delivered, this may have been the first delivery."""
    db.execute(REMOVE_ALERT, (destination, incident))
    if delivered_at is not None:
        note_delivery(db, incident, destination, delivered_at)


def insert_dumps(job: str, sharer: str, sent: SentBatch, received_at: float) -> Insert:
    """Return the row of a batch of a job. It contains the undecoded message."""
    batch, taken_at, size = sent.batch, received_at - sent.batch.held_s, len(sent.body)
    row = (batch.id, job, batch.node, received_at, sent.body, taken_at, size, sharer)
    into = "INSERT INTO dumps (id, job, node, received_at, batch, taken_at, size_bytes, sharer)"
    return Insert(into, row, on_conflict="ON CONFLICT (id) DO NOTHING")


def save_learned(db: Database, learned: Iterable[AttemptRow | PauseRow]) -> None:
    """Insert or update the last attempts and the pauses of jobs."""
    for row in learned:
        if isinstance(row, PauseRow):
            pause = row.pause
            db.execute(SAVE_PAUSE, (row.job, pause.phase, pause.frame_class, pause.length_s))
        else:
            past, processes = row.past, encode(sorted(row.past.processes))
            values = (row.job, past.number, past.typical_step_s, processes, past.owner, row.seen_at)
            db.execute(SAVE_ATTEMPT, values)


def read_batch(stored: bytes) -> SentBatch:
    """Return a stored batch of dumps. Raises msgspec.MsgspecError, ValueError."""
    body = unpack(stored)
    return SentBatch(_BATCHES.decode(body), body)


def read_processes(job: str, text: object) -> frozenset[ProcessKey]:
    """Return the processes of an attempt; empty if they are unreadable."""
    keys = try_read(job, "processes", lambda raw: decode(raw, _PROCESSES), text)
    return keys or frozenset()


SAVE_DELIVERY = """
INSERT INTO deliveries (incident, destination, at) VALUES (?, ?, ?)
ON CONFLICT (incident, destination) DO NOTHING
"""


def note_delivery(db: Database, incident: str, destination: str, at: float) -> None:
    """Store a delivery, unless the destination has received an earlier message."""
    db.execute(SAVE_DELIVERY, (incident, destination, at))


def read_deliveries(db: Database, incident: str) -> tuple[Delivery, ...]:
    """Return the first message to each destination, earliest first."""
    query = "SELECT destination, at FROM deliveries WHERE incident = ? ORDER BY at"
    rows: Iterable[tuple[str, float]] = db.execute(query, (incident,)).fetchall()
    return tuple(Delivery(destination=destination, at=at) for destination, at in rows)


def save_feedback(db: Database, given: Feedback) -> None:
    """Insert an answer, in place of an earlier one about the same incident."""
    row = (
        given.incident,
        given.job,
        given.at,
        int(given.right),
        given.rank,
        given.cause.value if given.cause else "",
        given.by,
        given.note,
        given.verdict_cause.value,
        given.confidence,
    )
    db.execute(SAVE_FEEDBACK, row)


def read_feedback(db: Database) -> tuple[Feedback, ...]:
    """Return the newest answers, oldest first."""
    newest = f"SELECT {FEEDBACK} FROM feedback ORDER BY answered_at DESC LIMIT {MAX_RECALLED}"
    return tuple(reversed([_read_feedback(row) for row in db.execute(newest)]))


def _read_feedback(
    row: tuple[str, str, float, int, int | None, str, str, str, str, float],
) -> Feedback:
    incident, job, at, is_right, rank, cause, by, note, verdict_cause, confidence = row
    return Feedback(
        incident=incident,
        job=job,
        at=at,
        right=bool(is_right),
        rank=rank,
        cause=_cause(cause),
        by=by,
        note=note,
        verdict_cause=_cause(verdict_cause) or Cause.UNKNOWN,
        confidence=confidence,
    )


def _cause(text: str) -> Cause | None:
    """Return a cause; None for none, and for one that only another release knows."""
    return next((cause for cause in Cause if cause.value == text), None)


MAX_MESSAGES = 16
"""Messages with series of one incident. Orders are for at most as many launches."""

SAVE_SERIES = """
INSERT INTO series (incident, node, launch, sharer, taken_at, size_bytes, body)
SELECT ?, ?, ?, ?, ?, ?, ? WHERE
    (SELECT COUNT(*) FROM series WHERE incident = ? AND (node <> ? OR launch <> ?)) < ?
ON CONFLICT (incident, node, launch) DO UPDATE SET taken_at = excluded.taken_at,
    size_bytes = excluded.size_bytes, body = excluded.body
"""

SERIES = """
SELECT incident, node, launch, sharer, taken_at, body FROM series WHERE incident = ?
ORDER BY node, launch
"""


def save_series(db: Database, row: SeriesRow) -> None:
    """Insert the series of a launch, or replace its earlier ones."""
    size, body = len(row.body), pack(row.body)
    values = (row.incident, row.node, row.launch, row.sharer, row.taken_at, size, body)
    db.execute(SAVE_SERIES, (*values, row.incident, row.node, row.launch, MAX_MESSAGES))


def read_series(db: Database, incident: str) -> list[SeriesRow]:
    """Return the series of an incident, by node."""
    return [
        SeriesRow(
            incident=ident,
            node=node,
            launch=launch,
            sharer=sharer,
            taken_at=taken_at,
            body=unpack(body),
        )
        for ident, node, launch, sharer, taken_at, body in db.execute(SERIES, (incident,))
    ]


NAMED = """
SELECT id, job, node, newest.opened_at FROM suspects JOIN
(SELECT id, job, opened_at FROM incidents WHERE shadow = 0 ORDER BY opened_at DESC LIMIT 4096)
AS newest ON newest.id = suspects.incident ORDER BY newest.opened_at, id
"""


def recall_state(db: Database) -> StartupState:
    """Return the stored state that a starting tower needs. Raises the errors of the database."""
    pauses: dict[str, tuple[Pause, ...]] = {}
    for job, phase, frame_class, length_s in db.execute(f"SELECT {PAUSE} FROM pauses"):
        pause = Pause(phase=phase, frame_class=frame_class, length_s=length_s)
        pauses[job] = (*pauses.get(job, ()), pause)
    alerts = db.execute(f"SELECT {ALERT} FROM alerts ORDER BY updated_at")
    return StartupState(
        pauses=pauses,
        attempts={
            job: PastAttempt(
                number=number,
                typical_step_s=typical_step_s,
                processes=read_processes(job, processes),
                owner=owner,
            )
            for job, number, typical_step_s, processes, owner in db.execute(
                f"SELECT {ATTEMPT} FROM attempts"
            )
        },
        incidents=tuple(read_incident(row) for row in db.execute(LEFT_OPEN)),
        silences=tuple(map(read_silence, db.execute(f"SELECT {SILENCE} FROM silences"))),
        alerts=tuple(AlertRow(**dict(zip(ALERT.split(", "), row, strict=True))) for row in alerts),
        blames=read_blames(db.execute(BLAMES)),
        named=_read_named(db.execute(NAMED)),
        feedback=read_feedback(db),
    )


def _read_named(found: Iterable[tuple[object, ...]]) -> tuple[Named, ...]:
    """Return the named nodes of rows of `NAMED`, oldest first, without those of drills."""
    nodes: dict[tuple[str, float], dict[str, None]] = {}
    for ident, job, node, opened_at in found:
        if not is_drill(str(job)):
            nodes.setdefault((str(ident), float(str(opened_at))), {})[str(node)] = None
    return tuple(
        Named(incident=ident, nodes=tuple(names), opened_at=opened_at)
        for (ident, opened_at), names in nodes.items()
    )
