"""A finding: what one rule concludes from a case."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from watchtower.wire.verdict import Cause, Evidence, Suspect


class Tier(IntEnum):
    """How strong a kind of evidence is; lower wins, weights only count inside one tier."""

    CANNOT_ANSWER = 1
    """The process is gone, stopped, traced, in uninterruptible sleep; its node or GPU is lost."""
    NEVER_CAME = 2
    """Missing ranks, stuck before the first collective, misconfigured."""
    WAIT_FOR = 3
    """The wait-for graph over collective records."""
    MISMATCH = 4
    """Same collective, another operation, size or dtype."""
    STACKS = 5
    """Stack classes compared within a group."""
    PROGRESS = 6
    """Lowest step, device signature."""
    NOTHING = 9
    """No rule had an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule's answer. `confidence` is 0 to 1 inside the tier."""

    cause: Cause
    tier: Tier
    confidence: float
    suspects: tuple[Suspect, ...]
    summary: str
    """One line a pager can show; without the job's name."""
    evidence: tuple[Evidence, ...] = ()
    next_steps: tuple[str, ...] = ()
