"""The export of an incident: its verdict, case and dumps as one JSON document.

An export without names: of jobs, nodes, users, paths, addresses, programs and log lines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from watchtower import __version__
from watchtower.evidence.case import Case
from watchtower.incidents.incident import Incident
from watchtower.incidents.redaction.redactor import RULES, Redactor, Rule, redact_value
from watchtower.store.values import DumpRow, read_case
from watchtower.tower.stored_incidents import read_incident
from watchtower.tower.tower import Tower
from watchtower.views.people import AckView, FeedbackView, view_ack, view_feedback
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.verdict import Status, Verdict, VerdictEntry
from watchtower.writing.times import rfc3339

BUNDLE_FORMAT = "watchtower-incident-1"
"""This name changes only if an older reader would misunderstand a newer export."""

MAX_BATCHES = 1024
"""Batches of dumps in one export, newest first. With 20 KB each, it can be sent by mail. The case
always contains the last two dumps of every rank."""

MAX_BYTES = 64_000_000
"""Bytes of batches in one export, approximately."""

MARGIN_S = 60.0
"""Dumps are searched from this many seconds before the stall: the wall clock may have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDumps:
    """One batch of dumps and the time at which it was taken."""

    batch: DumpBatch
    taken_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """An exported incident: for a bug report, a golden test or a replay with another release."""

    format: str
    watchtower: str
    """Release that wrote the export."""
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
    """Evidence of the verdict; null if retention has deleted it."""
    dumps: tuple[StoredDumps, ...]
    """Newest first; times are UNIX seconds."""
    dumps_are_all: bool
    verdicts: tuple[VerdictEntry, ...] = ()
    """All verdicts with their times, oldest first."""
    redacted: bool = False
    """Names were replaced by placeholders."""
    feedback: FeedbackView | None = None
    """The answer of a person about the verdict."""


async def export_incident(tower: Tower, incident_id: str) -> bytes | None:
    """Return an incident as JSON; None if the id is unknown.

    Raises StoreFailedError.
    """
    incident = await read_incident(tower, incident_id, with_case=True)
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
        feedback=view_feedback(given) if (given := tower.feedback.find(incident.id)) else None,
    )
    return msgspec.json.encode(bundle)


async def _read_dumps(tower: Tower, incident: Incident) -> tuple[list[StoredDumps], bool]:
    """Return the newest dumps of an incident, and whether these are all of them."""
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


_BUNDLES = msgspec.json.Decoder(Bundle)


def _keep(_: Redactor, value: object) -> object:
    return value


_OF_BUNDLE: dict[tuple[type, str], Rule] = {
    **dict.fromkeys(
        ((Bundle, name) for name in ("format", "watchtower", "exported_at", "id")), _keep
    ),
    (Bundle, "opened_at"): _keep,
    (Bundle, "closed_at"): _keep,
    (Bundle, "job"): lambda redactor, value: redactor.name("job", value),
    (AckView, "at"): _keep,
    (AckView, "by"): lambda redactor, value: redactor.name("user", value),
    (FeedbackView, "at"): _keep,
    (FeedbackView, "by"): lambda redactor, value: redactor.name("user", value),
    (FeedbackView, "note"): lambda redactor, value: redactor.removed(value),
    (AckView, "note"): lambda redactor, value: redactor.removed(value),
}
"""Fields that the tower writes itself stay."""

_ALL = RULES | _OF_BUNDLE


def redact_export(body: bytes) -> bytes:
    """Return an export without names. Raises msgspec.MsgspecError."""
    return msgspec.json.encode(redact_bundle(_BUNDLES.decode(body)))


def redact_bundle(bundle: Bundle) -> Bundle:
    """Return an export in which `watchtower replay` finds the same rank and cause."""
    redactor = Redactor(_find_names(bundle))
    return redact_value(redactor, replace(bundle, redacted=True), _ALL)


def _find_names(bundle: Bundle) -> dict[str, list[str]]:
    case, batches = bundle.case, [each.batch for each in bundle.dumps]
    nodes = [batch.node for batch in batches] + [each.node for each in bundle.verdict.suspects]
    jobs = [bundle.job, bundle.verdict.job, *(batch.job for batch in batches)]
    if case is not None:
        nodes += [each.node for each in case.nodes] + [each.node for each in case.ranks]
        jobs += [case.job, *(each.job for each in case.holders)]
        nodes += [node for each in case.holders for node in each.nodes]
    return {
        "node": nodes,
        "job": jobs,
        "user": [each.by for each in (bundle.ack, bundle.feedback) if each],
        "owner": [batch.owner for batch in batches],
        "launch": [batch.launch for batch in batches],
        "batch": [batch.id for batch in batches],
    }
