"""Labels: the tower's unique names for jobs. Several jobs may have the same name.

* The job of the first owner has the plain name as its label. A job of another owner with that name
  has the label `NAME@OWNER`. If an agent reports no owners, its processes belong to the job with
  the plain name.
* Further jobs of the same name and owner have `~2`, `~3` and so on behind that label. They come
  from launches that `placing` separates.
* A name that ends like that itself gets `~1` behind it, so that no name leads to such a job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from watchtower.fleet.claims import Claim
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.ranks import LaunchKey, ProcessKey, RankRecord
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
        self, attempt: Attempt, origin_of: Callable[[RankRecord], Origin | None]
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
            record = attempt.ranks.get(claim.vitals.rank)
            if record is not None and contradicts(claim, record):
                return record
        other = next((each for each in attempt.live() if contradicts(claims[0], each)), None)
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


MAX_PAIRS = 8
"""Most pairs of name and owner of one live job. An agent may report a different owner later, when
it can read more."""

MAX_TWINS = 64
"""Most live jobs of one name and owner. Processes of further ones are not watched."""

MAX_PAST_LAUNCHES = 64
"""Launches of one job that are stored beside one per rank. A restart may have new ones."""

MAX_APART = 64
"""Parties of one label that are known not to be its job. Beyond it, the oldest are dropped."""


class Labels:
    """Labels of the live jobs, by the names, owners and launches that agents report."""

    def __init__(self, holder_of: Callable[[str], str | None]) -> None:
        """`holder_of` returns the owner of a label: "" if not known, None if there is no job."""
        self._holder_of = holder_of
        self._live: dict[tuple[str, str], dict[str, None]] = {}
        self._pairs: dict[str, list[tuple[str, str]]] = {}
        self._launches: dict[str, dict[LaunchKey, Origin]] = {}
        self._by_launch: dict[LaunchKey, str] = {}
        self._by_origin: dict[tuple[str, str, Digest], tuple[str, LaunchKey]] = {}
        """By name, owner, and rendezvous or launcher: the label and the launch that joined last."""
        self._apart: dict[str, dict[Digest, None]] = {}

    def find(self, name: str, owner: str) -> str:
        """Return the first label of this name and owner: the live job's, else of a new job.

        The loop ends soon for any names, because each step makes the label longer and the length of
        names is limited.
        """
        live = next(iter(self._live.get((name, owner), ())), None)
        if live is not None:
            return _base_of(live)
        label = plain_label(name)
        while owner and self._holder_of(label) not in (None, "", owner):
            label = plain_label(f"{label}@{owner}")
        return label

    def find_live(self, name: str, owner: str) -> str | None:
        """Return the first label of this name and owner if its job is live; else None."""
        live = self._live.get((name, owner), {})
        return next((label for label in live if _base_of(label) == label), None)

    def list_live(self, name: str, owner: str) -> list[str]:
        """Return the labels of all live jobs of this name and owner, in their order."""
        live = self._live.get((name, owner), {})
        return sorted(live, key=lambda label: (_base_of(label) != label, len(label), label))

    def list_all(self, name: str, owner: str) -> Iterator[str]:
        """Yield the labels that jobs of this name and owner may have, in their order."""
        base = self.find(name, owner)
        return chain([base], (f"{base}~{number}" for number in range(2, MAX_TWINS + 1)))

    def is_live(self, name: str, owner: str, label: str) -> bool:
        """Return whether this is the label of a live job of this name and owner."""
        return label in self._live.get((name, owner), ())

    def find_free(self, name: str, owner: str) -> str | None:
        """Return the first label without a live job; None if there are `MAX_TWINS`."""
        live = self._live.get((name, owner), {})
        return next(
            (
                label
                for label in self.list_all(name, owner)
                if label not in live
                and label not in self._pairs
                and self._holder_of(label) in (None, "", owner)
            ),
            None,
        )

    def bind(self, name: str, owner: str, label: str) -> bool:
        """Record a name and owner of the live job with this label; False if that changes nothing.

        A name and owner have one job without a number. It stays the first one that was recorded.
        """
        live = self._live.get((name, owner), ())
        if label in live or (_base_of(label) == label and self.find_live(name, owner) is not None):
            return False
        pairs = self._pairs.setdefault(label, [])
        pairs.append((name, owner))
        self._live.setdefault((name, owner), {})[label] = None
        if len(pairs) > MAX_PAIRS:
            self._release(pairs.pop(0), label)
        return True

    def drop(self, label: str) -> None:
        """Remove a job that has ended."""
        for pair in self._pairs.pop(label, ()):
            self._release(pair, label)
        for key, origin in self._launches.pop(label, {}).items():
            self._forget(label, key, origin)
        self._apart.pop(label, None)

    def find_launch(self, key: LaunchKey) -> str | None:
        """Return the label of the job that a launch has joined; None if it has not."""
        return self._by_launch.get(key)

    def find_origin(self, key: LaunchKey, digest: Digest) -> str | None:
        """Return the label that a launch with this rendezvous or launcher has joined last."""
        last = self._by_origin.get((key.name, key.owner, digest)) if digest else None
        return last[0] if last is not None else None

    def origin_of(self, label: str, key: LaunchKey) -> Origin | None:
        """Return the origin of a launch that has joined a job; None if it has not."""
        return self._launches.get(label, {}).get(key)

    def join(self, label: str, key: LaunchKey, origin: Origin, ranks: int) -> None:
        """Record that a launch is of this job, which has so many ranks."""
        launches = self._launches.setdefault(label, {})
        launches[key] = origin
        self._by_launch[key] = label
        for digest in filter(None, (origin.party, origin.launcher)):
            self._by_origin[key.name, key.owner, digest] = label, key
        while len(launches) > MAX_PAST_LAUNCHES + ranks:
            oldest = next(iter(launches))
            self._forget(label, oldest, launches.pop(oldest))

    def joined_first(self, label: str, one: LaunchKey, other: LaunchKey) -> LaunchKey:
        """Return which of two launches of a job has joined first."""
        return next((key for key in self._launches.get(label, ()) if key in (one, other)), one)

    def part(self, label: str, party: Digest) -> list[LaunchKey]:
        """Separate a party from this job for good. Return its launches."""
        launches = self._launches.get(label, {})
        parted = [key for key, origin in launches.items() if origin.party == party]
        for key in parted:
            self._forget(label, key, launches.pop(key))
        apart = self._apart.setdefault(label, {})
        apart[party] = None
        while len(apart) > MAX_APART:
            del apart[next(iter(apart))]
        return parted

    def is_apart(self, label: str, party: Digest) -> bool:
        """Return whether a party was separated from this job."""
        return party in self._apart.get(label, ())

    def _release(self, pair: tuple[str, str], label: str) -> None:
        live = self._live.get(pair, {})
        live.pop(label, None)
        if not live:
            self._live.pop(pair, None)

    def _forget(self, label: str, key: LaunchKey, origin: Origin) -> None:
        if self._by_launch.get(key) == label:
            del self._by_launch[key]
        for digest in (origin.party, origin.launcher):
            if self._by_origin.get((key.name, key.owner, digest)) == (label, key):
                del self._by_origin[key.name, key.owner, digest]


def plain_label(name: str) -> str:
    """Return the label of a name: the name itself, unless it looks like a label of a twin."""
    _, tilde, number = name.rpartition("~")
    return f"{name}~1" if tilde and number.isdigit() else name


def _base_of(label: str) -> str:
    """Return the label of the first job of the same name and owner."""
    base, tilde, number = label.rpartition("~")
    return base if tilde and number.isdigit() and number != "1" else label
