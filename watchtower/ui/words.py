"""Words and numbers of several pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone

from watchtower.wire.verdict import Status
from watchtower.writing.text import clean

_TONES = {
    Status.HUNG: "bad",
    Status.SUSPECT: "warn",
    Status.SLOW: "warn",
    Status.MONITORING_LOST: "warn",
    Status.RECOVERED: "good",
    Status.HEALTHY: "good",
}

_SEVERITY = (
    Status.HUNG,
    Status.SUSPECT,
    Status.MONITORING_LOST,
    Status.SLOW,
    Status.SUSPENDED,
    Status.RECOVERED,
    Status.HEALTHY,
    Status.ENDED,
)
"""All statuses, the worst first."""


NO_TONE = "over"
"""The class of the colour of what is neither good nor bad."""


def find_tone(status: Status) -> str:
    """Return the class of the colour of a status: "bad", "warn", "good" or "over"."""
    return _TONES.get(status, NO_TONE)


def rank_severity(status: Status) -> int:
    """Return a number that is lower for a worse status."""
    return _SEVERITY.index(status)


def stamp(wall: float | None) -> str | None:
    """Return UNIX seconds as RFC 3339 in whole seconds, as pages and verdicts show them."""
    if wall is None:
        return None
    return f"{datetime.fromtimestamp(math.floor(wall), timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def format_step_time(seconds: float) -> str:
    """Return "1.2 s a step"; empty if it is not known. Two digits, so that it seldom changes."""
    if seconds <= 0:
        return ""
    return f"{seconds:.2g} s a step" if seconds < 100 else f"{seconds:.0f} s a step"


def format_name(name: str) -> str:
    """Return the name of a status as words: "monitoring lost"."""
    return clean(name, 64).replace("_", " ")


def list_labels(labels: Mapping[str, str]) -> list[str]:
    """Return the labels of a job in short: "slurm 48213", "alice", "train"."""
    ident = labels.get("scheduler_id", "")
    scheduled = f"{labels.get('scheduler', '')} {ident}".strip() if ident else ""
    rest = (labels.get(name, "") for name in ("name", "user", "partition", "namespace"))
    return list(dict.fromkeys(filter(None, (scheduled, *rest))))
