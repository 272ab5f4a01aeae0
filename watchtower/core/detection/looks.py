"""Looks at a job of which no rank beats: does anything in it change?

A look is one cheap dump of every rank. Where a rank stands (the stack of the thread that trains,
its collective records, its transfers) is its sight; as long as no rank's changes, the looks agree.
What follows from that is decided in `unbeaten`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from math import ceil, log
from typing import NamedTuple

from watchtower.core.reading.frames import FrameClass
from watchtower.core.reading.kernel import HELD
from watchtower.core.reading.threads import find_thread, index_stacks
from watchtower.wire.collectives import RankCollectives
from watchtower.wire.dumps import RankDump
from watchtower.wire.report import ProcessState
from watchtower.wire.stacks import Stack

NO_CHANCE = 0.001
"""Looks at a healthy job may agree by chance: most of a step may pass in one line. So many agree
that it happens once in a thousand runs."""

MAX_LOOKS = 120
"""Never more than so many are asked for: an hour of looks every 30 s."""


BLIND_AFTER = 3
"""Looks that showed nobody, after which it is said."""


class Sight(NamedTuple):
    """Where one process stood at one look."""

    pid: int
    start_time: int
    position: bytes
    """A hash over the stack of the thread that trains, its collective records and its transfers:
    these may be long, and are only compared."""


@dataclass(slots=True)
class Seen:
    """The latest sight of one rank."""

    sight: Sight
    at: float
    frame_class: FrameClass
    changed_at: float = float("-inf")
    """When it was last seen to be another one than before."""


@dataclass(slots=True)
class Looks:
    """All looks at one generation. `begin` starts one, `take` is told what came of it."""

    seen: dict[int, Seen] = field(default_factory=dict)
    """By rank; only ranks of the fleet's record are told, which bounds it."""
    since: float = float("-inf")
    """When the last rank was seen whose sight is new: nothing has changed since."""
    go_on: bool = False
    """Every rank was seen to work although none beats: no first steps are to be waited for."""
    _begun_at: float = float("-inf")
    _begun: int = 0
    """Looks so far."""
    _answered: set[int] = field(default_factory=set)
    """Ranks seen in the present look."""
    _agreed: int = 0
    """Looks before the present one that agree with each other."""
    _is_broken: bool = False
    """Something changed in the present look."""
    _by_chance: int = 0
    """Looks that agreed with the one before, and then something changed after all."""
    _changes: int = 0
    """Looks that did not."""
    _still: int = 0
    """Looks that agree while nobody moves."""
    _longest_still: int = 0
    _longest_working: int = 0
    """Most looks in a row that agreed before something changed: while all stood still, and not."""

    @property
    def has_begun(self) -> bool:
        """Tell whether there was any look."""
        return self._begun > 0

    @property
    def is_blind(self) -> bool:
        """Tell whether several looks showed no rank: its stacks cannot be read."""
        return self._begun > BLIND_AFTER and not self.seen

    def is_due(self, every_s: float, now: float) -> bool:
        """Tell whether it is time for the next look."""
        return now - self._begun_at >= every_s

    def begin(self, live: Set[int], now: float) -> None:
        """Begin a look at these ranks; one that some of them did not answer counts for nothing."""
        self._agreed = self.agreed(live)
        self._answered.clear()
        self._is_broken, self._begun_at = False, now
        self._begun += 1

    def agreed(self, live: Set[int]) -> int:
        """Count the looks in a row, the present one included, at which all these ranks stood where
        they stand now."""
        return self._agreed + (bool(live) and live <= self._answered)

    def take(self, dumps: Iterable[RankDump], stacks: Iterable[Stack], at: float) -> None:
        """Take dumps of this generation's ranks, whose stacks these are."""
        known = index_stacks(stacks)
        for dump in dumps:
            thread = find_thread(dump, known)
            read = known.get(thread.digest) if thread else None
            is_held = dump.kernel.state in HELD | {ProcessState.UNINTERRUPTIBLE}
            if (read is None or dump.failure is not None) and not is_held:
                continue  # not seen: that is neither progress nor none
            records = dump.collectives
            # Without a stack: a held process whose stack cannot be read.
            stack = read.stack.digest if read else ""
            sight = Sight(dump.pid, dump.start_time, _hash_position(stack, records))
            reading = read.reading if read else None
            self._note(dump.rank, sight, reading.frame_class if reading else FrameClass.NONE, at)

    def changed_since(self, rank: int, since: float) -> bool:
        """Tell whether a rank was seen to have gone on after `since`."""
        return rank in self.seen and self.seen[rank].changed_at > since

    def class_of(self, rank: int) -> FrameClass:
        """Say what a rank was last seen at."""
        return self.seen[rank].frame_class if rank in self.seen else FrameClass.NONE

    def begin_anew(self, now: float) -> None:
        """Let looks so far count for nothing: somebody was at work meanwhile."""
        self._answered.clear()
        self._end_run()
        self.since = now

    def note_still(self, agreed: int) -> None:
        """Remember that nobody moved while so many looks agreed."""
        self._still = max(self._still, agreed)

    def needed_by_chance(self) -> int:
        """Count the looks that have to agree before it is no chance in a job that works."""
        # Laplace's rule: without any look before, every second one is expected to agree.
        share = (self._by_chance + 1) / (self._by_chance + self._changes + 2)
        return min(MAX_LOOKS, ceil(log(NO_CHANCE) / log(share)))

    def longest(self, *, still: bool) -> int:
        """Count the looks that once agreed until something changed."""
        return min(MAX_LOOKS, self._longest_still if still else self._longest_working)

    def _note(self, rank: int, sight: Sight, frame_class: FrameClass, at: float) -> None:
        before = self.seen.get(rank)
        if before is not None and at < before.at:
            return  # a dump that was on its way for longer
        if before is not None and before.sight == sight:
            before.at = at
        else:
            changed_at = float("-inf") if before is None else at
            self.seen[rank] = Seen(sight, at, frame_class, changed_at)
            self.since = max(self.since, at)
            if before is not None:
                self._break()
            self._end_run()
        self._answered.add(rank)

    def _break(self) -> None:
        """End a run of looks that agreed; several ranks that change in one look are one change."""
        if not self._is_broken:
            self._by_chance += max(0, self._agreed - 1)
            self._changes += 1
        self._is_broken = True

    def _end_run(self) -> None:
        self._longest_working = max(self._longest_working, self._agreed)
        self._longest_still = max(self._longest_still, self._still)
        self._agreed = self._still = 0


def _hash_position(stack: str, records: RankCollectives | None) -> bytes:
    text = repr((stack, records.logs, records.peers) if records else (stack, (), ()))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
