"""Examples of answers for /docs, made of the values that the routes return."""

from watchtower.api.examples.evidence import (
    EVIDENCE,
    RANKS,
    STACKS,
)
from watchtower.api.examples.objects import (
    ACK,
    AGENTS,
    ALIVE,
    CALIBRATION,
    EXPORT,
    FEEDBACK,
    HEALTH,
    INCIDENT_DETAIL,
    INCIDENTS,
    JOB_VIEW,
    JOBS,
    NODES,
    OUTAGES,
    POSTMORTEM,
    SILENCE,
    SILENCES,
    SIMILAR,
    TEXTS,
    VERDICT,
)
from watchtower.api.examples.series import (
    INCIDENT_SERIES,
    JOB_STEPS,
)

__all__ = [
    "ACK",
    "AGENTS",
    "ALIVE",
    "CALIBRATION",
    "EVIDENCE",
    "EXPORT",
    "FEEDBACK",
    "HEALTH",
    "INCIDENTS",
    "INCIDENT_DETAIL",
    "INCIDENT_SERIES",
    "JOBS",
    "JOB_STEPS",
    "JOB_VIEW",
    "NODES",
    "OUTAGES",
    "POSTMORTEM",
    "RANKS",
    "SILENCE",
    "SILENCES",
    "SIMILAR",
    "STACKS",
    "TEXTS",
    "VERDICT",
]
