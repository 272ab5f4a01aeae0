"""The case: one immutable snapshot of all evidence about one job at one moment.

`diagnose(case)` needs nothing else. Goldens, the store, the export bundle and replay all use this
format, so that every verdict can be computed again from the stored case.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from watchtower.wire.collectives import GroupLog, ProcessGroup
from watchtower.wire.dumps import RankDump
from watchtower.wire.observations import Observation
from watchtower.wire.report import AgentGaps, Beat, Ending, Movement, ProcessState
from watchtower.wire.stacks import Stack

CASE_SCHEMA = 1
"""Version of the format. Increase it when an older reader would misunderstand a newer case."""

MIN_SAMPLES = 4
"""Fewer samples of a rank do not show how much it waits for others."""


class Presence(Enum):
    """State of a rank's process, as its node's agent reports it."""

    LIVE = "live"
    ENDED = "ended"
    MISSING = "missing"
    """Expected because of the world size, but no agent has reported it."""
    SILENT = "silent"
    """Its node's agent has stopped reporting, so its present state is not known."""
    UNREPORTED = "unreported"
    """Its node's agent reports without it, so its present state is not known."""

    @property
    def is_out_of_sight(self) -> bool:
        """Whether the process may be alive, but its present state is not known."""
        return self in (Presence.SILENT, Presence.UNREPORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvidence:
    """All evidence about one rank at the moment of the case."""

    rank: int
    presence: Presence
    node: str = ""
    """Empty for a missing rank."""
    pid: int | None = None
    local_rank: int | None = None
    """As the launcher set it. It is not a measured GPU index."""
    beat: Beat | None = None
    """Its ages are those at the moment of the case. None without a heartbeat page."""
    state: ProcessState = ProcessState.OTHER
    wchan: str = ""
    movement: Movement = Movement()
    ended: Ending | None = None
    dumps: tuple[RankDump, ...] = ()
    """Dumps of the current stall only: at most the last two, oldest first."""
    looks: int = 0
    """`samples`, under its name in stored cases and in exports."""
    waits: int = 0
    """Number of these samples in which the rank waited for other ranks."""
    rivals: tuple[str, ...] = ()
    """Other processes that claim the same rank, as "node pid"."""

    @property
    def samples(self) -> int:
        """Number of samples since the steps became slower; 0 if the job is not slow."""
        return self.looks

    def with_dumps(self, dumps: tuple[RankDump, ...]) -> RankEvidence:
        """Return this evidence with these dumps."""
        # `dataclasses.replace` takes 1.6 times as long, and a job has thousands of ranks.
        return RankEvidence(
            rank=self.rank,
            presence=self.presence,
            node=self.node,
            pid=self.pid,
            local_rank=self.local_rank,
            beat=self.beat,
            state=self.state,
            wchan=self.wchan,
            movement=self.movement,
            ended=self.ended,
            dumps=dumps,
            looks=self.looks,
            waits=self.waits,
            rivals=self.rivals,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvidence:
    """One node of the job."""

    node: str
    silent_for_s: float
    interval_s: float = 1.0
    """Seconds between two reports of its agent."""
    limits: AgentGaps = AgentGaps()
    unwatched: tuple[str, ...] = ()
    """Sentences about its processes that may be ranks of the job and are not watched, if the job
    lacks ranks."""
    observations: tuple[Observation, ...] = ()
    """Observations of its collectors, with their ages at the moment of the case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Evidence about one generation of one job."""

    job: str
    generation: int
    world_size: int
    """Number of ranks that the job reports; if it reports none, the number of ranks seen."""
    typical_step_s: float
    """p95 of plain steps in the current phase, 0 until learned."""
    stalled_for_s: float
    """Seconds since the last step of the rank that stopped first. While the job is starting:
    seconds since the first rank was seen."""
    settle_s: float
    """Deaths within this many seconds of each other are ordered by kind, not by time."""
    moving_cpu_cores: float
    """CPU use (cores, whole process tree) from which a rank counts as moving."""
    ranks: tuple[RankEvidence, ...]
    """One entry per rank, in ascending order. If many ranks are missing, only the lowest ones."""
    nodes: tuple[NodeEvidence, ...] = ()
    stacks: tuple[Stack, ...] = ()
    """Every stack whose digest is in a dump in `ranks`."""
    groups: tuple[ProcessGroup, ...] = ()
    """Process groups of the job that have a log in `group_logs`."""
    group_logs: tuple[GroupLog, ...] = ()
    """Every log whose digest is in a dump in `ranks`."""
    slowdown: float = 1.0
    """Length of a step now, as a multiple of its usual length. Above 1, the job is slow and not
    stalled."""
    schema: int = CASE_SCHEMA
