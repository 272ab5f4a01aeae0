"""Samples of a job without heartbeats: does anything in it change?

A sample is one cheap dump of every rank. The position of a rank consists of the stack of its
training thread, its collective log and its transfers. Samples agree while no rank's position
changes. `no_heartbeat` decides what follows from that.
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

CHANCE = 0.001
"""Samples of a healthy job may agree by chance: most of a step may pass in one line. So many must
agree that this happens once in a thousand runs."""

MAX_SAMPLES = 120
"""At most so many samples are required: an hour of samples every 30 s."""

BLIND_AFTER = 3
"""A job is reported as not watched after more than so many samples that showed no rank."""


class RankSample(NamedTuple):
    """The position of one process in one sample."""

    pid: int
    start_time: int
    position: bytes
    """A hash over the stack of the training thread, the collective log and the transfers. These may
    be long, and are only compared."""


@dataclass(slots=True)
class LatestSample:
    """The latest sample of one rank."""

    sample: RankSample
    at: float
    frame_class: FrameClass
    changed_at: float = float("-inf")
    """When the position last differed from the one before."""


@dataclass(slots=True)
class Samples:
    """All samples of one generation. `begin` starts one, `take` adds the dumps that came of it."""

    latest: dict[int, LatestSample] = field(default_factory=dict)
    """By rank. It is bounded, because only ranks of the fleet's record are added."""
    since: float = float("-inf")
    """When a new position was last found in any rank: nothing has changed since."""
    go_on: bool = False
    """Every rank was found to work without heartbeats: there are no first steps to wait for."""
    _begun_at: float = float("-inf")
    _begun: int = 0
    """Samples so far."""
    _answered: set[int] = field(default_factory=set)
    """Ranks in the present sample."""
    _agreed: int = 0
    """Samples before the present one that agree with each other."""
    _is_broken: bool = False
    """Something changed in the present sample."""
    _by_chance: int = 0
    """Samples that agreed with the one before in a run that a change ended."""
    _changes: int = 0
    """Samples that did not."""
    _still: int = 0
    """Samples that agree while no rank moves."""
    _longest_still: int = 0
    _longest_working: int = 0
    """Most samples in a row that agreed before something changed: without movement, and with."""

    @property
    def has_begun(self) -> bool:
        """Whether there was any sample."""
        return self._begun > 0

    @property
    def is_blind(self) -> bool:
        """Whether several samples showed no rank: the stacks cannot be read."""
        return self._begun > BLIND_AFTER and not self.latest

    def is_due(self, every_s: float, now: float) -> bool:
        """Whether it is time for the next sample."""
        return now - self._begun_at >= every_s

    def begin(self, live: Set[int], now: float) -> None:
        """Begin a sample of these ranks. It does not count if one of them does not answer."""
        self._agreed = self.agreed(live)
        self._answered.clear()
        self._is_broken, self._begun_at = False, now
        self._begun += 1

    def agreed(self, live: Set[int]) -> int:
        """Return how many samples in a row, the present one included, found all these ranks in
        their present positions."""
        return self._agreed + (bool(live) and live <= self._answered)

    def take(self, dumps: Iterable[RankDump], stacks: Iterable[Stack], at: float) -> None:
        """Add dumps of this generation's ranks, with the stacks of these dumps."""
        known = index_stacks(stacks)
        for dump in dumps:
            thread = find_thread(dump, known)
            read = known.get(thread.digest) if thread else None
            is_held = dump.kernel.state in HELD | {ProcessState.UNINTERRUPTIBLE}
            if (read is None or dump.failure is not None) and not is_held:
                continue  # without a position: neither progress nor the absence of it
            collectives = dump.collectives
            # Without a stack: a held process whose stack cannot be read.
            stack = read.stack.digest if read else ""
            sample = RankSample(dump.pid, dump.start_time, _hash_position(stack, collectives))
            reading = read.reading if read else None
            self._note(dump.rank, sample, reading.frame_class if reading else FrameClass.NONE, at)

    def changed_since(self, rank: int, since: float) -> bool:
        """Whether a rank's position changed after `since`."""
        return rank in self.latest and self.latest[rank].changed_at > since

    def class_of(self, rank: int) -> FrameClass:
        """Return the class of a rank's frame in its latest sample."""
        return self.latest[rank].frame_class if rank in self.latest else FrameClass.NONE

    def begin_anew(self, now: float) -> None:
        """Drop the run of samples so far: a rank was at work meanwhile."""
        self._answered.clear()
        self._end_run()
        self.since = now

    def note_still(self, agreed: int) -> None:
        """Record that no rank moved while so many samples agreed."""
        self._still = max(self._still, agreed)

    def needed_by_chance(self) -> int:
        """Return how many samples have to agree before chance is excluded in a job that works."""
        # Laplace's rule: without any sample before, every second one is expected to agree.
        share = (self._by_chance + 1) / (self._by_chance + self._changes + 2)
        return min(MAX_SAMPLES, ceil(log(CHANCE) / log(share)))

    def longest(self, *, still: bool) -> int:
        """Return the most samples in a row that once agreed until something changed."""
        return min(MAX_SAMPLES, self._longest_still if still else self._longest_working)

    def _note(self, rank: int, sample: RankSample, frame_class: FrameClass, at: float) -> None:
        before = self.latest.get(rank)
        if before is not None and at < before.at:
            return  # a dump that was on its way for longer
        if before is not None and before.sample == sample:
            before.at = at
        else:
            changed_at = float("-inf") if before is None else at
            self.latest[rank] = LatestSample(sample, at, frame_class, changed_at)
            self.since = max(self.since, at)
            if before is not None:
                self._break()
            self._end_run()
        self._answered.add(rank)

    def _break(self) -> None:
        """End a run of samples that agreed. Changes of several ranks in one sample count once."""
        if not self._is_broken:
            self._by_chance += max(0, self._agreed - 1)
            self._changes += 1
        self._is_broken = True

    def _end_run(self) -> None:
        self._longest_working = max(self._longest_working, self._agreed)
        self._longest_still = max(self._longest_still, self._still)
        self._agreed = self._still = 0


def _hash_position(stack: str, collectives: RankCollectives | None) -> bytes:
    position = (stack, collectives.logs, collectives.peers) if collectives else (stack, (), ())
    text = repr(position).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()
