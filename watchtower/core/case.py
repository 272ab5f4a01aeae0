"""The case: one immutable snapshot of all evidence about one job at one moment.

`diagnose(case)` needs nothing else. Goldens, the store, the export bundle and replay are all this
format, so a verdict that surprised someone can be computed again from what was stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from watchtower.wire.collectives import GroupLog, ProcessGroup
from watchtower.wire.dumps import RankDump
from watchtower.wire.report import AgentGaps, Beat, Ending, Movement, ProcessState
from watchtower.wire.stacks import Stack

CASE_SCHEMA = 1
"""Raised when an older reader would misunderstand a newer case."""


class Presence(Enum):
    """Where a rank's process is, as far as its node's agent can tell."""

    LIVE = "live"
    ENDED = "ended"
    MISSING = "missing"
    """Expected by the world size, never seen."""
    SILENT = "silent"
    """Its node's agent has stopped reporting: nothing is known of it now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvidence:
    """All that is known of one rank when the case was taken."""

    rank: int
    presence: Presence
    node: str = ""
    """Empty for a missing rank."""
    pid: int | None = None
    local_rank: int | None = None
    """By the launcher's word. Not a measured GPU index."""
    beat: Beat | None = None
    """Ages in it are as of the moment of the case. Null without a heartbeat page."""
    state: ProcessState = ProcessState.OTHER
    wchan: str = ""
    movement: Movement = Movement()
    ended: Ending | None = None
    dumps: tuple[RankDump, ...] = ()
    """Of the current stall only, oldest first, at most the last two."""
    looks: int = 0
    """Of a slow job: dumps of this rank since the steps became slower."""
    waits: int = 0
    """How many of those found it waiting for other ranks."""
    rivals: tuple[str, ...] = ()
    """Other processes that claim the same rank, as "node pid"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvidence:
    """One node of the job."""

    node: str
    silent_for_s: float
    interval_s: float = 1.0
    """Seconds between two reports of its agent."""
    limits: AgentGaps = AgentGaps()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Evidence about one generation of one job."""

    job: str
    generation: int
    world_size: int
    """Number of ranks the job says it has; the number seen when it does not say."""
    typical_step_s: float
    """p95 of plain steps in the current phase, 0 until learned."""
    stalled_for_s: float
    """Seconds since the last step of the rank that stopped first, or since the first rank was seen
    while the job is starting."""
    settle_s: float
    """Deaths closer together than this are ordered by kind, not by time."""
    moving_cpu_cores: float
    """CPU use (cores, whole process tree) from which a rank counts as moving."""
    ranks: tuple[RankEvidence, ...]
    """In ascending order, one entry per rank of the world size; of missing ones the lowest."""
    nodes: tuple[NodeEvidence, ...] = ()
    stacks: tuple[Stack, ...] = ()
    """Every stack that a dump in `ranks` names by its digest."""
    groups: tuple[ProcessGroup, ...] = ()
    """Process groups of the job, as far as collective records are there."""
    group_logs: tuple[GroupLog, ...] = ()
    """Every log that a dump in `ranks` names by its digest."""
    slowdown: float = 1.0
    """Above 1: nothing is stalled, steps come and take this many times their usual length."""
    schema: int = CASE_SCHEMA
