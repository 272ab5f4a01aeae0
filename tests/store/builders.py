"""Values to store."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from tests.batches import EMPTY_BATCH
from tests.diagnosis.builders import as_sent
from watchtower.evidence.case import Case
from watchtower.incidents.incident import Incident
from watchtower.wire.dumps import SentBatch
from watchtower.wire.verdict import Cause, Status, Verdict


def an_incident(**changes) -> Incident:
    verdict = Verdict(
        job="llama", generation=1, status=Status.HUNG, cause=Cause.UNKNOWN, summary="no idea"
    )
    incident = Incident(
        id="01A",
        job="llama",
        generation=1,
        status=Status.HUNG,
        opened_at=100.0,
        updated_at=100.0,
        verdict=verdict,
    )
    return replace(incident, **changes)


def a_case() -> Case:
    return Case(
        job="llama",
        generation=1,
        world_size=0,
        typical_step_s=1.0,
        stalled_for_s=6.0,
        settle_s=2.0,
        moving_cpu_cores=0.05,
        ranks=(),
    )


EVIDENCE = msgspec.json.encode(a_case())


def a_batch(ident: str, **values) -> SentBatch:
    batch = replace(
        EMPTY_BATCH,
        id=ident,
        node="n0",
        job="llama",
    )
    return as_sent(replace(batch, **values))
