"""A dumper: an expensive reader of one form of evidence, for all ranks of a round of dumps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from watchtower_heartbeat.page import PageView

from agent.dumpers.kernel_state import KernelTables
from watchtower.readers.canonical import StackDump
from watchtower.wire.collectives import GroupLog, PeerTransfers, ProcessGroup
from watchtower.wire.dumps import KernelWait
from watchtower.wire.report import ProcessState

DEAD = (ProcessState.ZOMBIE, ProcessState.GONE)

ROUND_GRACE_S = 5.0
"""Seconds after the deadline of a round in which a running py-spy may end. Then the round is sent
as it is.
"""

LATE_HELP = "the round of dumps had no time left for this process"

CHILDREN_READ_PER_RANK = 16
"""Children of one rank that dumpers read. For the others there is only the kernel state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A rank to dump."""

    rank: int
    pid: int
    start_time: int
    read_page: Callable[[], PageView | None]


@dataclass(slots=True, kw_only=True, eq=False)
class Process:
    """One process, with everything read of it so far."""

    pid: int
    start_time: int = 0
    owner: str
    is_child: bool = False
    kernel: KernelWait
    command: list[str] = field(default_factory=list)
    stacks: StackDump = field(default_factory=StackDump)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecords:
    """The collective logs of one rank, before they are added to a batch."""

    logs: tuple[tuple[ProcessGroup, GroupLog], ...] = ()
    peers: tuple[PeerTransfers, ...] = ()
    oldest_open: str = ""
    """Id of the group whose open call was made before all other open calls."""
    failures: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Tree:
    """A rank and its children, with everything read of them so far."""

    target: Target
    view: PageView | None
    process: Process
    children: list[Process]
    records: RankRecords | None = None
    """Apart from the other evidence, because the ranks of a batch share logs, as they do stacks."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """What dumpers have read of the rank, by the field of `RankDump` that it becomes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksOfRound:
    """The ranks of one job that a round reads."""

    trees: Sequence[Tree]
    owner: str
    deadline: float
    """Time of `time.monotonic` at which the round should end."""
    tables: KernelTables
    is_sample: bool
    """This is a stack sample, without child processes: only what is cheap is read."""

    def processes(self) -> list[Process]:
        """Return the ranks, then the children that dumpers read."""
        children = (each for tree in self.trees for each in tree.children[:CHILDREN_READ_PER_RANK])
        return [*(tree.process for tree in self.trees), *children]


Step = Callable[[], None]


class Dumper(Protocol):
    """Reads one form of evidence. One file each, named in `make_taker` of `agent/dumps/round.py`.

    It writes what it has read to the trees. What cannot be read is left out, or is a sentence in a
    field `failure` of the evidence. A step that raises is logged, and costs only its own evidence.
    A step that hangs for longer than the round is abandoned with the round, and counts against the
    owner of the job: what may hang is better read in a child process.
    """

    name: str
    """Name of its threads."""
    at_once: int
    """Number of its steps that run at the same time."""
    needs_stacks: bool
    """Its steps begin when those of the dumpers without this have ended."""

    def plan(self, ranks: RanksOfRound) -> Sequence[Step]:
        """Return the steps in their order: one for each rank or process, or one for all."""
