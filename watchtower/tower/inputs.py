"""What changes a tower from outside: what agents send, what people do, and the time.

A recording is a list of these. They include what the tower draws by chance (ids) and what takes
time (diagnoses), so that each replay of a recording does the same.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from watchtower.wire.report import Report
from watchtower.wire.verdict import Cause


class _Input(msgspec.Struct, kw_only=True, tag_field="input"):
    at: float
    """Seconds of the tower's monotonic clock."""


class Reported(_Input, tag="report"):
    """An agent reported."""

    report: Report


class Dumped(_Input, tag="dumps"):
    """An agent sent dumps."""

    batch: msgspec.Raw
    """A `DumpBatch` as JSON."""


class Traced(_Input, tag="series"):
    """An agent sent the series of an incident."""

    batch: msgspec.Raw
    """A `SeriesBatch` as JSON."""


class Ticked(_Input, tag="tick"):
    """All jobs were checked."""


class Recalled(_Input, tag="recalled"):
    """Dumps were read from the store: those of the last run, or of a rank not known before."""

    job: str
    taken_at: float
    """UNIX seconds."""
    batch: msgspec.Raw
    """A `DumpBatch` as JSON."""


class Drawn(_Input, tag="id"):
    """The tower made an id."""

    id: str
    of: str
    """What it names."""


class DiagnosisAsked(_Input, tag="diagnosis"):
    """A diagnosis of a job began to wait for its turn."""

    job: str
    number: int
    """Counts the diagnoses of the tower."""


class Diagnosed(_Input, tag="diagnosed"):
    """A diagnosis ended. One that was cancelled has no end."""

    number: int
    frozen_at: float
    """When its evidence was collected."""
    why_not: str = ""
    """Why there is no diagnosis; empty if there is one."""


class Acknowledged(_Input, tag="ack"):
    """A person acknowledged an incident."""

    incident: str
    by: str
    note: str


class Silenced(_Input, tag="silence"):
    """A person silenced a job, a node or a user."""

    job: str
    node: str
    user: str
    for_s: float
    reason: str
    by: str


class Unsilenced(_Input, tag="unsilence"):
    """A person ended a silence."""

    silence: str


class Answered(_Input, tag="feedback"):
    """A person answered whether the verdict of an incident was right."""

    incident: str
    right: bool
    rank: int | None
    cause: Cause | None
    by: str
    note: str


class Examined(_Input, tag="examine"):
    """A person asked for an examination of a job."""

    job: str
    rank: int | None
    native: bool


class Stopped(_Input, tag="stop"):
    """The tower was stopped. A recording without it is torn, or its tower was killed."""


Input = (
    Reported
    | Dumped
    | Traced
    | Ticked
    | Recalled
    | Drawn
    | DiagnosisAsked
    | Diagnosed
    | Acknowledged
    | Silenced
    | Unsilenced
    | Answered
    | Examined
    | Stopped
)

Record = Callable[[Input], None]
"""Takes each input before the tower does. It returns at once, and an error in it is not raised."""


def unrecorded(_: Input) -> None:
    """Take an input of a tower that is not recorded."""
