"""Findings: what a reader found in a file, with the place where it stands.

A rank is known in several ways, and some of them are better than others (`Known`). A number in a
line may be the rank in its group, which is not the global rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from watchtower.readers.canonical import Threads
from watchtower.readers.torch_records import TorchRecords
from watchtower.wire.observations import Observation


class Known(IntEnum):
    """How the rank of a finding is known; the best way first."""

    CONTENT = 1
    """The text itself has the global rank."""
    PREFIX = 2
    """A prefix of the line has it: of torch, srun or another launcher."""
    FILE_NAME = 3
    FOLDER = 4
    COUNTED = 5
    """No file has it: processes are numbered by their ids."""
    NOT = 9
    """It is not known."""


class Place(NamedTuple):
    """Where a finding stands: a file, and a line from 1, or 0 for the whole file."""

    file: str
    line: int = 0


class Owner(NamedTuple):
    """The global rank that a finding is about; -1 if it is not known."""

    rank: int = -1
    known: Known = Known.NOT


NO_OWNER = Owner()


class Process(NamedTuple):
    """A process, as its lines name it: its pid may be that in a container."""

    node: str
    pid: int


UNKNOWN = -1
"""Stands for a number that the text does not have."""

DEFAULT_GROUP = "default_pg"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsFound:
    """How far a rank has come in one group, as a line of torch's watchdog or of NCCL shows it."""

    place: Place
    owner: Owner
    group: str = DEFAULT_GROUP
    group_rank: int = UNKNOWN
    """Its rank in the group, which is the global rank in the group of all ranks."""
    group_size: int = UNKNOWN
    waits_in: int = UNKNOWN
    """Number of the collective that did not end; unknown if none is known to be open."""
    enqueued: int = UNKNOWN
    completed: int = UNKNOWN
    operation: str = ""
    signature: str = ""
    timeout_s: float = 0.0
    waited_s: float = 0.0
    """How long the rank has waited in it."""
    library: str = "nccl"

    def joined_with(self, earlier: CallsFound) -> CallsFound:
        """Return this finding with what only an earlier line shows of the same call."""
        if earlier.waits_in != self.waits_in:
            return self
        return replace(
            self,
            enqueued=max(self.enqueued, earlier.enqueued),
            completed=max(self.completed, earlier.completed),
            operation=self.operation or earlier.operation,
            signature=self.signature or earlier.signature,
            timeout_s=self.timeout_s or earlier.timeout_s,
            waited_s=max(self.waited_s, earlier.waited_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogStuck:
    """The watchdog of a rank does not come back from a call, so that the rank itself is special."""

    place: Place
    owner: Owner
    stuck_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsFound:
    """All calls that torch's flight recorder has of a rank."""

    place: Place
    owner: Owner
    records: TorchRecords

    @property
    def made_ns(self) -> int:
        """When the newest call was made, by the clock of its machine."""
        return self.records.last_made_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksFound:
    """The Python stacks of one process."""

    place: Place
    owner: Owner
    pid: int
    threads: Threads
    is_sampled: bool = False
    """It is known which threads were on a CPU."""
    lines: int = 0
    """Lines of a log that it takes: each of its threads begins as a dump does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierFound:
    """A rank was in a monitored barrier, and which ranks did not come, if it knows them."""

    place: Place
    owner: Owner
    missing: tuple[int, ...] = ()
    name: str = "monitored_barrier"
    """How sentences name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUpFound:
    """A rank has begun or completed the set-up of a communicator."""

    place: Place
    owner: Owner
    process: Process | None
    group: str
    group_rank: int
    size: int
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldFound:
    """A line has the number of ranks."""

    place: Place
    owner: Owner
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFound:
    """The last step that a rank wrote."""

    place: Place
    owner: Owner
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFound:
    """An exception that a rank printed with its traceback, or a line about an error."""

    place: Place
    owner: Owner
    type: str
    text: str
    process: Process | None = None
    is_line: bool = False
    """It is a line without traceback: the program may have gone on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFound:
    """How the process of a rank ended, by its launcher."""

    place: Place
    owner: Owner
    code: int
    """Negative: the number of a signal."""
    is_oom: bool = False
    """It used more memory than it was allowed."""
    pid: int = UNKNOWN
    node: str = ""
    at: float = float(UNKNOWN)
    """Seconds by the clock of its launcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A launcher writes that it starts the processes of a node, maybe again."""

    place: Place
    owner: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFound:
    """What a file about a node shows, such as its kernel log: it may name a process of the job."""

    place: Place
    owner: Owner
    node: str
    """Empty if the file does not have its name."""
    observation: Observation


Finding: TypeAlias = (
    CallsFound
    | WatchdogStuck
    | RecordsFound
    | StacksFound
    | BarrierFound
    | SetUpFound
    | WorldFound
    | StepFound
    | ErrorFound
    | EndFound
    | RunStarted
    | ObservedFound
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFound:
    """One file: what it was taken for, and whose it is."""

    name: str
    form: str
    """Name of its reader; empty if no reader knows it."""
    owner: Owner = NO_OWNER
    """The rank whose file it is; unknown of a file of several ranks."""
    ranks: tuple[int, ...] = ()
    """Ranks that its lines name in a prefix."""
    findings: tuple[Finding, ...] = ()
    lines: int = 0
    last_line: str = ""
    not_understood: int = 0
    """Lines that look like evidence of a known kind, and could not be read."""
    earlier_runs: int = 0
    """Runs of the job in it that are not the last one, and do not count."""
    trouble: str = ""
    """Why a part of it was not read."""
