"""Whether this tower owns the jobs, if several towers use one database.

The owner renews its lease every second. A tower that stood still, or that the database did not
answer, asks again before it judges or alerts: another tower may have taken over. While the database
does not answer at all, the owner goes on from memory: a hang is worth more than a second alert.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum

from watchtower.store.lease import LEASE_S, RENEW_S, now_s
from watchtower.store.protocol import Store
from watchtower.writing.times import rfc3339

log = logging.getLogger("watchtower.tower")

CLAIM_S = 0.5
"""Seconds between two tries of a tower on standby to become the owner."""


ANSWER_S = 3.0
"""Seconds for which a renewal is waited for. After that the database does not answer."""

UNSTORED_S = 20.0
"""Seconds for which an alert that cannot be stored waits if other towers are on standby. If this
tower alone is cut off from the database, another one has taken over then, and its agents report
there."""

LONGEST_UNSTORED_S = 300.0
"""After this time it is sent even if agents of its job do not report to this tower any more."""

REPORTED_S = 5.0
"""A rank counts as reported to this tower if its last report is not older."""


class Role(Enum):
    """What a tower is among those of one database."""

    SINGLE = "single"
    """No other tower can use its store."""
    OWNER = "owner"
    STANDBY = "standby"


class Ownership:
    """The lease of this tower. Call it from one event loop at a time."""

    def __init__(self, store: Store) -> None:
        self._store, self.lease = store, store.lease
        self._renewal: asyncio.Future[None] | None = None
        self.trouble = ""
        """Why the database gave no answer to the last call; empty if it did."""

    @property
    def role(self) -> Role:
        """What this tower is now."""
        if self.lease is None:
            return Role.SINGLE
        return Role.OWNER if self.lease.is_held and not self.lease.lost else Role.STANDBY

    async def claim(self) -> None:
        """Wait on standby until this tower is the owner."""
        while True:
            try:
                if await asyncio.wrap_future(self._store.claim()):
                    return
                self._note("")
            except Exception as error:
                self._note(str(error))
            await asyncio.sleep(CLAIM_S)

    async def hold(self, on_lost: Callable[[], None]) -> None:
        """Renew the lease until another tower has taken over."""
        if self.lease is None:
            return
        while not self.lease.lost:
            await self._renew()
            await asyncio.sleep(0 if self.lease.lost else RENEW_S)
        log.error("%s: this tower judges and alerts no more, and is on standby", self.lease.lost)
        on_lost()

    async def may_act(self) -> bool:
        """Return whether this tower may judge and alert.

        It waits for an answer of the database if another tower may have taken over.
        """
        lease = self.lease
        if lease is None or lease.is_sure():
            return True
        while not (lease.lost or lease.is_sure() or lease.is_away()):
            await self._renew()
        return not lease.lost

    def must_wait(self, waited_s: float, is_reported: Callable[[], bool]) -> bool:
        """Return whether an alert that is not stored must wait: another tower may send it.

        `is_reported` returns whether all ranks of its jobs are reported to this tower now.
        """
        if self.lease is None or not self.lease.standbys:
            return False
        if waited_s < UNSTORED_S:
            return True
        return waited_s < LONGEST_UNSTORED_S and not is_reported()

    def describe(self) -> str:
        """Return a sentence about the role of this tower."""
        lease = self.lease
        if lease is None:
            return "this tower is the only one of its store"
        if self.role is Role.STANDBY:
            if lease.lost:
                return f"on standby soon: {lease.lost}"
            why = f"; {self.trouble}" if self.trouble else ""
            owner = lease.owner_url or lease.owner
            return f"on standby: the jobs belong to {owner or 'a tower that has ended'}{why}"
        others = f"{lease.standbys} on standby" if lease.standbys else "no tower is on standby"
        return f"owner with epoch {lease.epoch}; {others}"

    def describe_loss(self, wall: float) -> str:
        """Return what is lost while the database is away, and from when on; "" if nothing is.

        `wall` is now, in UNIX seconds.
        """
        if self.lease is None or self.lease.is_sure():
            return ""
        over_at = wall - (self.lease.age_s() - LEASE_S)
        return (
            f"the lease is over since {rfc3339(over_at)}: if another tower takes over, or this one "
            "ends, what waits in memory is lost"
        )

    async def _renew(self) -> None:
        """Renew the lease. Calls at the same time wait for one renewal, `ANSWER_S` seconds each."""
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.wrap_future(self._store.check())
        began = now_s()
        done, _ = await asyncio.wait([self._renewal], timeout=ANSWER_S)
        if done:
            error = self._renewal.exception()
            self.trouble = str(error) if error is not None else ""
        # If far more time has passed, this process stood still: the answer may be there.
        elif self.lease is not None and now_s() - began < 2 * ANSWER_S:
            self.lease.failed_at, self.trouble = now_s(), "the database does not answer"

    def _note(self, trouble: str) -> None:
        if bool(trouble) != bool(self.trouble):
            log.warning("the database %s", f"fails: {trouble}" if trouble else "answers again")
        self.trouble = trouble
