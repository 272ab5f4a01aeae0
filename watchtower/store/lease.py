"""Whether a tower owns the jobs of a database that several towers use.

The store's thread writes it, the tower reads it. A store that only one tower can open has none.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

LEASE_S = 10.0
"""Seconds for which a store stays the owner after it has renewed its lease."""

RENEW_S = 1.0
"""Seconds between two renewals, so that a lease does not end by a slow disk or a busy machine."""

GRACE_S = 2.0
"""Seconds for which a lease must be seen to be over before another tower takes it. After a restart
of the database its owner and the others come back at once, and the owner has what is not stored."""

AWAY_S = 10.0
"""Seconds for which a failed renewal shows that the database is away. Its owner then goes on."""


def now_s() -> float:
    """Return the seconds of a clock that goes on while the process or the machine is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class Lease:
    """What a tower knows of the lease."""

    tower: str
    """Name of this tower in the database."""
    url: str = ""
    """Address of this tower, for people who ask another one."""
    epoch: int = 0
    """Grows with each owner. 0 before this tower was one."""
    is_held: bool = False
    """Whether this tower is the owner, as far as it knows."""
    renewed_at: float = float("-inf")
    """When the last renewal that succeeded has begun, on the clock of `now_s`."""
    failed_at: float = float("-inf")
    """When the database last gave no answer."""
    lost: str = ""
    """Why this tower is not the owner any more: nothing of it is stored. Empty while it may be."""
    owner: str = ""
    """Name of the owner, if that is another tower."""
    owner_url: str = ""
    standbys: int = 0
    """Other towers that were there within the last `LEASE_S` seconds."""

    def age_s(self, now: float | None = None) -> float:
        """Return the seconds since the last renewal; infinite before the first one."""
        return (now_s() if now is None else now) - self.renewed_at

    def is_sure(self, now: float | None = None) -> bool:
        """Return whether no other tower can be the owner now."""
        return self.is_held and not self.lost and self.age_s(now) < LEASE_S

    def is_away(self, now: float | None = None) -> bool:
        """Return whether the database was asked within the last seconds and did not answer."""
        return (now_s() if now is None else now) - self.failed_at < AWAY_S
