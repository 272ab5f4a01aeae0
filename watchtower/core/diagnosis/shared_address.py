"""The address outside a job that holds up the job, and may hold up other jobs, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from watchtower.core.diagnosis.blocked_rank import BlockedRank, Job
from watchtower.core.diagnosis.domain import ELSEWHERE
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.wire.verdict import ADDRESS, Cause, SharedCause


def find_shared_address(
    picture: Picture, cause: Cause, accused: Sequence[Position]
) -> SharedCause | None:
    """Return the address that the accused ranks wait for; null if they wait for none.

    If they wait for several ones, the address that most of them wait for counts. Among equal
    numbers the first in alphabetical order counts. A rank that still transfers data is not blocked.
    """
    if cause not in ELSEWHERE:
        return None
    job = Job(picture)
    still = [item for item in accused if not item.transfers and not item.moving]
    named = Counter(name for item in still for name in BlockedRank(job, item).outside_addresses)
    if not named:
        return None
    name, _ = min(named.items(), key=lambda item: (-item[1], item[0]))
    return SharedCause(kind=ADDRESS, name=name)
