"""What a source of ranks gets of a process, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from watchtower_heartbeat.layout import UNKNOWN
from watchtower_heartbeat.page import PageView

from watchtower.wire.bounds import MAX_WORLD_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClaim:
    """The rank of a process according to one source, or to several that agree."""

    rank: int
    local_rank: int | None = None
    world_size: int | None = None
    restart_count: int | None = None
    starts_others: bool = False
    """It is a rank that starts other ranks itself: rank 0 of Lightning, the engine of a server."""
    role: str = ""
    """What the process is in its job, if it is not a rank like all others: "Worker_TP1"."""

    @property
    def is_possible(self) -> bool:
        """Whether a job of this size has this rank, as far as the size is known."""
        return self.world_size is None or self.rank < self.world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a process shows of itself, as it was read last. All of it is untrusted."""

    variables: Mapping[str, str]
    """Those of the environment that a source has in `variables`."""
    command: Sequence[str] = ()
    """The first words of the command line at the start of the program."""
    view: PageView | None = None
    """Its heartbeat page."""
    title: str = ""
    """The first word of its command line as it is now: a program may have set a title."""
    actor: str = ""
    """The class of its actor, if it is a worker of Ray."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The place of a process in a group that works together and has no ranks."""

    group: str
    """Distinguishes the groups of one starter, and names the job: "vllm", "Trainer"."""
    role: str
    """What it is in the group: "EngineCore", "Worker_TP1", "Trainer"."""
    position: tuple[int, ...] = ()
    """Orders the members. Members with equal positions are in the order of their start."""
    leads: bool = False
    """It has started the other members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One way in which a process shows its rank."""

    find_claim: Callable[[Shown], RankClaim | None] = lambda _: None
    variables: tuple[str, ...] = ()
    """The variables of the environment that it needs. Others are not kept."""
    is_inherited: bool = False
    """Whether processes that a rank starts show the same rank, and wrappers around it, too."""
    find_mistake: Callable[[Shown], str] = lambda _: ""
    """Returns what is wrong with the rank that the process shows; empty if nothing is wrong."""
    find_member: Callable[[Shown], Membership | None] = lambda _: None
    """Returns the place of a process that shows no rank in its group; None without a group."""


def known(word: int) -> int | None:
    """Return the number. None if it is UNKNOWN or out of range."""
    return word if UNKNOWN < word <= MAX_WORLD_SIZE else None
