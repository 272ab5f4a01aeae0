"""The summary of a case: what pages show of it, in a size that does not grow with the case.

The case of 16,384 ranks has 29 MB. Its summary is made once, in the diagnosing process, and stored
beside the case. Texts of processes in it are clean and short, except those of `Frame`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from watchtower.wire.stacks import Frame

MAX_SET = 1000
"""Characters of one rank set: more ranks than a person reads. The count is always exact."""

CELL_BYTES = 3
"""Bytes of one rank in a grid: state, lag, phase."""

MAX_LAG = 254
"""Steps. A rank further behind has this lag."""

LAG_UNKNOWN = 255
"""Lag of a rank without a known step."""


class RankState(Enum):
    """Where a rank is. Its number in a grid is its place in this list, which only grows."""

    # Of the singleton, in C. Enum hashes the name in Python, and a case has thousands of ranks.
    __hash__ = object.__hash__

    UNSEEN = "unseen"
    """Its node does not report, no stack of it is known, or the stack shows both."""
    WAITING = "waiting"
    """It is in a call that waits for other ranks."""
    DEVICE = "device"
    """It waits for its device, which waits for those of other ranks."""
    PRESUMED = "presumed"
    """It waits for other ranks by inference: most ranks stay at its place."""
    ELSEWHERE = "elsewhere"
    """It is in no call that waits for other ranks."""
    SUSPECT = "suspect"
    """The verdict names it."""
    CANNOT_RUN = "cannot_run"
    """It is stopped or traced."""
    ENDED = "ended"
    MISSING = "missing"
    """It was never reported."""
    STEPPING = "stepping"
    """Only in the grid of a live job: its last step is not late."""
    LATE = "late"
    """Only in the grid of a live job: its last step is longer ago than steps take."""
    NO_STEPS = "no_steps"
    """Only in the grid of a live job: it runs, and has no steps that can be late."""


STATES = tuple(RankState)

NUMBER_OF = {state: number for number, state in enumerate(STATES)}

STATE_WORDS = {
    RankState.UNSEEN: "not seen",
    RankState.WAITING: "waiting",
    RankState.DEVICE: "waiting for the device",
    RankState.PRESUMED: "seem to wait",
    RankState.ELSEWHERE: "not waiting",
    RankState.SUSPECT: "suspect",
    RankState.CANNOT_RUN: "cannot run",
    RankState.ENDED: "ended",
    RankState.MISSING: "never seen",
    RankState.STEPPING: "stepping",
    RankState.LATE: "late",
    RankState.NO_STEPS: "no steps",
}
"""States in words, for pictures and tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSet:
    """Some ranks."""

    text: str
    """"0-6,8". If it would be longer than `MAX_SET` characters, only the lowest of them."""
    count: int
    """Number of ranks."""
    is_whole: bool = True
    """Whether `text` contains all of them."""


def make_rank_set(ranks: Iterable[int]) -> RankSet:
    """Return a set of these ranks."""
    known = sorted(set(ranks))
    if len(known) > 1 and known[-1] - known[0] + 1 == len(known):
        return RankSet(text=f"{known[0]}-{known[-1]}", count=len(known))
    parts: list[str] = []
    size, index = 0, 0
    while index < len(known):
        first = last = known[index]
        index += 1
        while index < len(known) and known[index] == last + 1:
            last = known[index]
            index += 1
        part = str(first) if first == last else f"{first}-{last}"
        size += len(part) + 1
        if size > MAX_SET:
            return RankSet(text=",".join(parts), count=len(known), is_whole=False)
        parts.append(part)
    return RankSet(text=",".join(parts), count=len(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRanks:
    """The ranks of one node, in ascending order."""

    node: str
    """Empty for ranks that were never reported."""
    ranks: str
    """Rank set, complete."""
    count: int
    """Number of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """Ranks in the same state, at the same step and place."""

    state: RankState
    lag: int | None
    """Steps behind the highest step; null without a known step."""
    phase: str
    place: str
    """"all_reduce, train.py:22 in train"; empty without a stack."""
    rank_set: RankSet
    """The ranks."""
    node: str
    """Their node; empty if there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGrid:
    """Every rank in three bytes, and the same as a short table."""

    nodes: tuple[NodeRanks, ...]
    """In the order of their lowest rank."""
    cells: bytes
    """Three bytes for each rank, in the order of `nodes`: number of the state in `STATES`, steps
    behind `step`, index of the phase."""
    phases: tuple[str, ...]
    """The first one is "", plain training."""
    step: int | None
    """The highest step of a rank; null if none is known."""
    groups: tuple[RankGroup, ...] = ()
    """The suspects first, then the smallest groups."""
    groups_left_out: int = 0
    ranks_left_out: int = 0
    """Ranks without a cell. The table contains them."""

    @property
    def count(self) -> int:
        """Number of ranks with a cell."""
        return len(self.cells) // CELL_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class StackBranch:
    """Frames that lead from one fork of the tree to the next one."""

    frame_numbers: tuple[int, ...]
    """Indices into the frames of the tree, outermost first."""
    rank_set: RankSet
    """The ranks whose stacks contain these frames."""
    has_suspect: bool
    """Whether the verdict names one of these ranks."""
    ending: RankSet
    """Those whose innermost frame is the last one here."""
    branches: tuple[StackBranch, ...] = ()
    """The one with a suspect first, then those with the most ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackTree:
    """The main-thread stacks of the last dumps, merged from the outermost frame on."""

    frames: tuple[Frame, ...] = ()
    branches: tuple[StackBranch, ...] = ()
    """The branches at the outermost frame."""
    rank_count: int = 0
    """Ranks with a stack, also of those left out."""
    stacks_left_out: int = 0
    """Distinct stacks that are not in the tree, because it is full."""
    ranks_left_out: int = 0
    """Ranks with these stacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitBox:
    """Ranks that wait for the same ranks at the same place, or for which others wait."""

    rank_set: RankSet
    """The ranks."""
    suspect_ranks: str
    """Those of them that the verdict names, as a rank set of at most `MAX_SET` characters."""
    state: RankState
    """Their state apart from that; of several, the most frequent one."""
    place: str
    """"all_reduce, train.py:22 in train"; empty without a stack."""
    node: str
    """Their node; empty if there are several."""
    is_cycle: bool
    """They wait for each other."""
    call: str
    """Of a cycle: the calls that they wait in. Else the call that they wait in, if all ranks have
    entered it and the waiting ends there. Else empty."""
    layer: int
    """0 for ranks that wait for no other box. An arrow leads to a lower layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitArrow:
    """The ranks of one box wait for those of another one."""

    from_box: int
    """Index of the box that waits."""
    to_box: int
    """Index of the box that it waits for."""
    label: str
    """"all_reduce 17 in tp4 (ranks 32-39)"; empty if the call is not known."""
    source: str
    """Its evidence: "collective log", "stack", "communication thread", "child process",
    "device", "gave up", "presumed"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitBoxes:
    """Which ranks wait for which, with few boxes. It has no cycle."""

    boxes: tuple[WaitBox, ...] = ()
    """The boxes, at most 12."""
    arrows: tuple[WaitArrow, ...] = ()
    """The arrows between them."""
    arrows_left_out: int = 0
    """Arrows that are not in the list, because it is full."""
    sentence: str = ""
    """The same in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One property in which the suspect differs from the other ranks."""

    name: str
    """"step", "innermost frame", "CPU use", ..."""
    suspect: str
    """The value of the suspect."""
    peers: str
    """The most frequent value, or the median of numbers."""
    agreeing: int
    """Peers with the suspect's value. Of numbers: peers at least as far from the median."""
    known: int
    """Peers of which the property is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The first suspect against the other ranks."""

    rank: int
    node: str
    peer_count: int
    """Number of ranks that it was compared with."""
    differences: tuple[Difference, ...]
    """The most telling one first: that of which the fewest peers have the suspect's value."""
    same: tuple[str, ...]
    """Names of the properties in which it does not differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSummary:
    """The content of pages about a case."""

    ranks: RankGrid
    stacks: StackTree
    waits: WaitBoxes
    contrast: Contrast | None = None
    """Null without a suspect, or without a peer."""
