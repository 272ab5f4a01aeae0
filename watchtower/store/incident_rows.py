"""Incidents as rows: with their verdicts, evidence and summaries, and the places that find them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from watchtower.incidents.incident import NO_FACTS, Identity, Incident, JobFacts
from watchtower.incidents.incident_filter import IncidentFilter, places_of
from watchtower.store.database import Database, pack, unpack
from watchtower.store.values import Blame, warn_once
from watchtower.wire.drills import PREFIX, is_drill
from watchtower.wire.verdict import Cause, Status, Verdict, VerdictEntry

log = logging.getLogger("watchtower.store")

_T = TypeVar("_T")
_Read = TypeVar("_Read")

_VERDICTS = msgspec.json.Decoder(Verdict)
_HISTORIES = msgspec.json.Decoder(tuple[VerdictEntry, ...])
_IDENTITIES = msgspec.json.Decoder(Identity)
_FACTS = msgspec.json.Decoder(JobFacts)

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

# The newest ones: older ones are not counted.
BLAMES = """
SELECT id, job, only_node, identity, opened_at FROM incidents
WHERE only_node != '' AND shadow = 0 ORDER BY opened_at DESC LIMIT 4096
"""

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


def save_incident(db: Database, incident: Incident) -> None:
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
    db.execute(SAVE_EVIDENCE, (incident.id, pack(evidence)))
    if summary is None:
        db.execute(REMOVE_SUMMARY, (incident.id,))
    else:
        db.execute(SAVE_SUMMARY, (incident.id, pack(summary)))


def read_incident(row: tuple[object, ...]) -> Incident:
    """Return the incident of a row: the columns of `INCIDENT` and the evidence.

    A verdict or evidence of another release may be unreadable. The incident is then returned
    without it. Raises msgspec.MsgspecError if other columns are unreadable.
    """
    ident, job, generation, status, opened_at, updated_at, closed_at, verdict, *rest = row
    acked_at, acked_by, ack_note, verdicts, identity, only_node, shadow, sharer, *last = rest
    facts, evidence = last
    known_status = try_read(ident, "status", Status, status) or Status.MONITORING_LOST
    return msgspec.convert(
        {
            "id": ident,
            "job": job,
            "generation": generation,
            "status": known_status,
            "opened_at": opened_at,
            "updated_at": updated_at,
            "closed_at": closed_at,
            "verdict": try_read(ident, "verdict", lambda text: decode(text, _VERDICTS), verdict)
            or Verdict(
                job=str(job),
                generation=int(str(generation)),
                status=known_status,
                summary=UNREADABLE,
                incident=str(ident),
                cause=Cause.UNKNOWN,
            ),
            "evidence": None if evidence is None else try_read(ident, "evidence", unpack, evidence),
            "verdicts": try_read(ident, "verdicts", lambda text: decode(text, _HISTORIES), verdicts)
            or (),
            "identity": try_read(
                ident, "identity", lambda text: decode(text, _IDENTITIES), identity
            )
            or Identity(),
            "only_node": only_node,
            "shadow": bool(shadow),
            "sharer": sharer,
            "facts": try_read(ident, "facts", lambda text: decode(text, _FACTS), facts) or NO_FACTS,
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
                try_read(ident, "identity", lambda text: decode(text, _IDENTITIES), identity)
                or Identity()
            ).domain,
            opened_at=float(str(opened_at)),
        )
        for ident, job, node, identity, opened_at in found
        if not is_drill(str(job))
    ]
    return tuple(reversed(blames))


def read_summary(db: Database, incident: str) -> bytes | None:
    """Return the stored summary of an incident's case; None if there is none."""
    row = db.execute(SUMMARY, (incident,)).fetchone()
    return try_read(incident, "summary", unpack, row[0]) if row else None


def try_read(whose: object, what: str, read: Callable[[Any], _Read], value: object) -> _Read | None:
    """Return what `read` makes of a stored value; None, and a line in the log, if it cannot."""
    try:
        return read(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        warn_once(str(whose), what, str(error))
        return None


def encode(value: object) -> str:
    """Return a value as JSON."""
    return msgspec.json.encode(value).decode()


def decode(text: object, decoder: msgspec.json.Decoder[_T]) -> _T:
    """Return a value from JSON. Raises msgspec.MsgspecError."""
    return decoder.decode(str(text))


def as_sql(chosen: IncidentFilter) -> tuple[str, list[object]]:
    """Return the same conditions as a WHERE clause, and its values."""
    parts = list(_conditions(chosen))
    values = [value for _, values in parts for value in values]
    return f"WHERE {' AND '.join(text for text, _ in parts)}" if parts else "", values


def _conditions(chosen: IncidentFilter) -> Iterator[tuple[str, tuple[object, ...]]]:
    columns = {
        "job": chosen.job,
        "status": chosen.status.value if chosen.status else "",
        "cause": chosen.cause.value if chosen.cause else "",
        "domain": chosen.domain.value if chosen.domain else "",
        "job_user": chosen.user,
    }
    for column, value in columns.items():
        if value:
            yield f"{column} = ?", (value,)
    for column, value in {"node": chosen.node, "place": chosen.where}.items():
        if value:
            yield f"id IN (SELECT incident FROM suspects WHERE {column} = ?)", (value,)
    if chosen.since is not None:
        yield "opened_at >= ?", (chosen.since,)
    if (last := chosen.before) is not None:
        # The first condition is implied. It lets an index find the position.
        condition = "opened_at <= ? AND (opened_at < ? OR id < ?)"
        yield condition, (last.opened_at, last.opened_at, last.id)
    if chosen.drills is not None:
        same = "=" if chosen.drills else "<>"
        yield f"substr(job, 1, ?) {same} ?", (len(PREFIX), PREFIX)


def filter_columns(incident: Incident) -> tuple[str, str, str]:
    """Return the columns cause, domain and job_user, by which incidents are found."""
    verdict = incident.verdict
    cause = verdict.cause.value if verdict.cause else ""
    domain = verdict.domain.value if verdict.domain else ""
    return cause, domain, incident.identity.user


def save_places(db: Database, incident: Incident) -> None:
    """Store the nodes and lines by which an incident is found, in place of earlier ones."""
    db.execute("DELETE FROM suspects WHERE incident = ?", (incident.id,))
    db.executemany(
        "INSERT INTO suspects (incident, node, place) VALUES (?, ?, ?)",
        [(incident.id, *place) for place in places_of(incident)],
    )
