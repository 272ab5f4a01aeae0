"""What a peer is: it gets the evidence of one hung job, and says who is to blame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.accuracy.evidence import NO_SOCKET, Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What a peer says about one hung job."""

    accused: tuple[int, ...] = ()
    """Ascending; empty: it names nobody."""
    cause: str | None = None
    """A cause of watchtower's closed list, from a peer that gives reasons."""
    said: str
    """In its own words, shortened."""
    failed: bool = False
    """It broke or had nothing to read: that it names nobody is then no judgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One other way to find who hung a job."""

    name: str
    about: str
    """What it is and how it was given its evidence, for the report."""
    applies: Callable[[Evidence], str | None]
    """Why it cannot judge a job of this kind; None when it can."""
    judge: Callable[[Evidence], Opinion]


def always(_: Evidence) -> str | None:
    """Of a peer that needs nothing special."""
    return None


def needs_records(evidence: Evidence) -> str | None:
    """Of a peer that reads collective records, which only torch keeps."""
    if evidence.backend != "torch":
        return "this backend keeps no collective records"
    if not evidence.recorders and NO_SOCKET in evidence.missing.values():
        return "no rank serves its flight recorder, for lack of watchtower's client"
    return None
