"""The definition of a peer: it gets the evidence of one hung job, and returns the accused ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.accuracy.evidence import NO_SOCKET, Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """A peer's answer about one hung job."""

    accused: tuple[int, ...] = ()
    """Ascending; empty if it names no rank."""
    cause: str | None = None
    """A cause of watchtower's list, from a peer that reports causes."""
    said: str
    """Its own text, shortened."""
    failed: bool = False
    """True if it failed or had no input: then the absence of accused ranks is not a judgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another way to find the ranks that hung a job."""

    name: str
    about: str
    """Its description and its input, for the report."""
    applies: Callable[[Evidence], str | None]
    """Returns why it cannot judge a job of this kind; None if it can."""
    judge: Callable[[Evidence], Opinion]


def always(_: Evidence) -> str | None:
    """Return None, for a peer without requirements."""
    return None


def needs_records(evidence: Evidence) -> str | None:
    """Return why a peer that reads collective logs cannot work: only torch has them."""
    if evidence.backend != "torch":
        return "this backend keeps no collective records"
    if not evidence.recorders and NO_SOCKET in evidence.missing.values():
        return "no rank serves its flight recorder, for lack of watchtower's client"
    return None
