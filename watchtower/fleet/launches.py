"""Launches: which starts of ranks with one name and one owner are one job. Pure.

A name in a script that is started twice names two jobs. A job on many nodes has a launcher on each
node, and a restart has new launchers: these are one job. The first line that matches decides:

1. Launches with the same rendezvous are one job: their ranks talk to each other.
2. A launch with a process that is known belongs to the job of this process.
3. A launch that contradicts the live ranks of a job for `CONFIRM_S` seconds is not of this job. It
   contradicts them if it has a live process for the same rank, another world size, another job of
   the scheduler, or another run. A launch that has ended when it is first seen does so at once,
   also with another rendezvous: its ranks are not watched.
4. A launch by a process that has started ranks of a job before is of this job.
5. Any other launch is of this job: one more node, or the next attempt.

Reports of two nodes show two moments. An old rank may seem to live beside its successor for a
moment, so a contradiction needs a new report of both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from watchtower.fleet.claims import Claim
from watchtower.fleet.generation import Generation, LaunchKey, ProcessKey, RankRecord
from watchtower.wire.report import Launch, RankVitals

CONFIRM_S = 5.0
"""Seconds for which two launches must contradict each other. Ranks of a restarted launcher may need
a moment to end."""

DIGEST_BYTES = 16
"""Bytes of a digest, so that no texts of launches are stored."""

Digest = bytes
"""Digest of a text of any length; empty if the text is not known."""


class Origin(NamedTuple):
    """What is known about a launch. Equal values of two launches are equal digests."""

    party: Digest
    """The rendezvous; without one the launcher. Launches of one party are always one job."""
    rendezvous: Digest
    launcher: Digest
    scheduler_id: Digest
    run_id: Digest


def read_origin(launch: Launch, node: str, boot: str) -> Origin:
    """Return the origin of a launch of a node. `boot` identifies the boot of the node's kernel."""
    place = boot or node  # two agents of one machine see the same processes
    rendezvous = launcher = b""
    if launch.rendezvous:
        local = (place, launch.network) if launch.network else ()
        rendezvous = _digest("rendezvous", launch.rendezvous, *local)
    if launch.launcher:
        launcher = _digest("launcher", place, launch.launcher)
    return Origin(
        party=rendezvous or launcher or _digest("launch", node, launch.id),
        rendezvous=rendezvous,
        launcher=launcher,
        scheduler_id=_digest("scheduler", launch.scheduler_id) if launch.scheduler_id else b"",
        run_id=_digest("run", launch.run_id) if launch.run_id else b"",
    )


def _digest(*words: str) -> Digest:
    text = "\0".join(words).encode("utf-8", "surrogatepass")
    return hashlib.blake2s(text, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchClaims:
    """The processes of one launch in one report."""

    key: LaunchKey
    origin: Origin
    claims: Sequence[Claim]
    """All of its processes, also ended ones."""

    @property
    def processes(self) -> dict[ProcessKey, int]:
        """Its processes and their ranks."""
        return {claim.key: claim.vitals.rank for claim in self.claims}

    @property
    def live(self) -> list[Claim]:
        """Its processes that have not ended."""
        return [claim for claim in self.claims if claim.vitals.ended is None]

    def find_contradiction(
        self, gen: Generation, origin_of: Callable[[RankRecord], Origin | None]
    ) -> RankRecord | None:
        """Return a live rank of another launch that cannot be of one job with this one.

        None without one. `origin_of` returns None for ranks of agents that send no launches: these
        ranks show nothing. A launch that has ended is not the next attempt of a job that lives: it
        also contradicts a job if it meets elsewhere.
        """
        own, live = self.processes, self.live
        claims = live or self.claims

        def contradicts(claim: Claim, record: RankRecord) -> bool:
            origin = origin_of(record)
            is_other = origin is not None and origin.party != self.origin.party
            return is_other and record.key not in own and claim.is_held(record)

        for claim in claims:
            record = gen.ranks.get(claim.vitals.rank)
            if record is not None and contradicts(claim, record):
                return record
        other = next((each for each in gen.live() if contradicts(claims[0], each)), None)
        if other is None:
            return None
        sizes = {claim.vitals.world_size for claim in claims} | {other.vitals.world_size}
        theirs = origin_of(other)
        differs = differ(self.origin, theirs) or (not live and meet_apart(self.origin, theirs))
        return other if differs or len(sizes - {None}) > 1 else None


def differ(one: Origin, other: Origin | None) -> bool:
    """Return whether two launches are of two jobs of the scheduler, or of two runs."""
    return other is not None and any(
        b"" != mine != theirs != b""
        for mine, theirs in (
            (one.scheduler_id, other.scheduler_id),
            (one.run_id, other.run_id),
        )
    )


def meet_apart(one: Origin, other: Origin | None) -> bool:
    """Return whether two launches have different rendezvous, and both are known."""
    return other is not None and b"" != one.rendezvous != other.rendezvous != b""


def may_be_job(launch: Origin, other: Origin, ranks: Iterable[RankVitals]) -> bool:
    """Return whether a launch with these ranks may be a job beside another one of the same name.

    A program that is started beside a rank inherits its environment, with name and rank. It has no
    launcher, no heartbeats and no rendezvous of its own.
    """
    return meet_apart(launch, other) or any(
        each.launched or each.beat is not None for each in ranks
    )


def is_confirmed(since: float, record: RankRecord, now: float) -> bool:
    """Return whether a contradiction that was first seen at `since` is not only a delay."""
    return now - since >= CONFIRM_S and record.seen_at > since
