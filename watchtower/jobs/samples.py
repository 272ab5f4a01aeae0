"""Samples of a job without heartbeats: does anything in it change?

A sample is one cheap dump of every rank. The position of a rank consists of the stack of its
training thread, its collective log and its transfers. Samples agree while no rank's position
changes. `no_heartbeat` decides what follows from that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from enum import Enum
from math import ceil, log
from typing import NamedTuple

from watchtower.evidence.frames import FrameClass
from watchtower.evidence.kernel import HELD
from watchtower.evidence.native import (
    at_training_thread,
    find_block,
    is_device_wait,
    is_same_block,
    runs_code,
    used_little_cpu,
)
from watchtower.evidence.threads import (
    find_thread,
    index_stacks,
    kernel_wait_of,
    serves_clients,
)
from watchtower.wire.collectives import RankCollectives
from watchtower.wire.dumps import NativePlace, RankDump
from watchtower.wire.report import ProcessState
from watchtower.wire.stacks import Stack

CHANCE = 0.001
"""Samples of a healthy job may agree by chance, because most of a step may pass in one line. The
number of samples that must agree is chosen so that this happens once in a thousand runs."""

MAX_SAMPLES = 120
"""Most samples that can be required to agree: an hour of samples every 30 s."""

MAX_RUN_S = 3600.0
"""The longest run of samples that agreed is recorded up to this length, in seconds."""

BLIND_AFTER = 3
"""A job is reported as not watched after more than this many samples without any stack."""


class RunKind(Enum):
    """What happened during a run of samples that agree."""

    ANY = "any"
    STILL = "still"
    """No rank moved."""
    CODE = "code"
    """A rank ran Python or a library that does not wait for a device."""


class RankSample(NamedTuple):
    """The position of one process in one sample. Parts that were not read are None."""

    pid: int
    start_time: int
    stack: str | None
    """Digest of the stack of the training thread."""
    calls: bytes | None
    """A hash over the collective log and the transfers. A hash is enough, because they are only
    compared and may be long."""

    def join(self, newer: RankSample) -> RankSample | None:
        """Return what is known of a position that both show; None if they show different ones.

        On a busy machine a part is not read now and then. That is no change.
        """
        stack = self.stack if newer.stack is None else newer.stack
        calls = self.calls if newer.calls is None else newer.calls
        is_known = self.stack in (None, stack) and self.calls in (None, calls)
        joined = newer._replace(stack=stack, calls=calls)
        return joined if is_known and self[:2] == newer[:2] else None


class RankActivity(NamedTuple):
    """The activity of one process in one sample."""

    frame_class: FrameClass = FrameClass.NONE
    block: NativePlace | None = None
    """Where its training thread is blocked; null if it, or what it may wait for, runs."""
    waits_for_device: bool = False
    runs_code: bool = False
    """Its training thread is known to run code that does not wait for a device."""
    waits_for_client: bool = False
    is_placed: bool = True
    """Where it is in native code was read. On a busy machine it is not, now and then."""
    is_running: bool = False
    ran_python: bool = False
    """Its main thread is known to have run Python since the sample before."""
    is_uninterruptible: bool = False
    """It is in state D. Where such a thread is blocked cannot be read without risk."""

    def place_as(self, before: RankActivity) -> RankActivity:
        """Return the activity of a thread that is at the same line as `before`: if its place is not
        known now, it is that of before."""
        if self.is_placed or not self.is_running:
            return self
        return self._replace(waits_for_device=before.waits_for_device, runs_code=before.runs_code)

    def is_same_wait(self, newer: RankActivity) -> bool:
        """Return whether the thread did not run between two samples at one position."""
        in_d = self.is_uninterruptible and newer.is_uninterruptible
        return in_d or is_same_block(self.block, newer.block)

    def has_ended_wait(self, newer: RankActivity) -> bool:
        """Return whether a wait for a device ended between two samples. None runs Python."""
        return newer.ran_python and (self.waits_for_device or newer.waits_for_device)


@dataclass(slots=True)
class LatestSample:
    """The latest sample of one rank."""

    sample: RankSample
    at: float
    activity: RankActivity
    stays_blocked: bool = False
    """Its training thread was blocked all the time since the sample before."""
    rests: bool = False
    """Its training thread used little CPU time since the sample before."""
    has_ended_wait: bool = False
    """It waited for its device in this sample or in the one before, and ran Python between them."""
    is_followed: bool = False
    """Where it is in native code was read in this sample and in the one before."""
    changed_at: float = float("-inf")
    """When the position last changed."""


@dataclass(slots=True)
class Samples:
    """All samples of one attempt. `begin` starts a sample, `take` adds its dumps."""

    latest: dict[int, LatestSample] = field(default_factory=dict)
    """By rank. It is bounded, because only ranks of the fleet's record are added."""
    since: float = float("-inf")
    """When the position of any rank last changed."""
    has_worked: bool = False
    """Every rank was found to work without heartbeats, so that no first steps are expected."""
    _begun_at: float = float("-inf")
    _interval_s: float = 0.0
    """Seconds between the previous sample and the present one."""
    _usual_interval_s: float = 0.0
    _begun: int = 0
    """Number of samples so far."""
    _answered: set[int] = field(default_factory=set)
    """Ranks whose dumps of the present sample have arrived."""
    _agreed: int = 0
    """Number of samples before the present one that agree with each other."""
    _agreed_s: float = 0.0
    """Seconds from the first to the last of these samples."""
    _has_change: bool = False
    """Something changed in the present sample."""
    _by_chance: dict[RunKind, int] = field(default_factory=dict)
    """Number of samples that agreed with the previous one, in runs that ended with a change."""
    _changes: int = 0
    """Number of samples that did not agree with the previous one."""
    _still_s: float = 0.0
    """Length of the present run while no rank moves."""
    _ran_code: bool = False
    """A rank ran code in an earlier sample of the present run."""
    _runs_code: bool = False
    """A rank runs code in the present sample. If a rank changes in it, that sample begins a run."""
    _longest_s: dict[RunKind, float] = field(default_factory=dict)
    """Lengths of the longest runs of samples that agreed before a change."""

    @property
    def has_begun(self) -> bool:
        """Whether any sample was begun."""
        return self._begun > 0

    @property
    def ran_code(self) -> bool:
        """Whether a rank ran code in a sample of the present run."""
        return self._ran_code or self._runs_code

    @property
    def is_blind(self) -> bool:
        """Whether several samples showed no rank: the stacks cannot be read."""
        return self._begun > BLIND_AFTER and not self.latest

    def is_due(self, every_s: float, now: float) -> bool:
        """Return whether the next sample is due."""
        return now - self._begun_at >= every_s

    def begin(self, live: Set[int], usual_interval_s: float, now: float) -> None:
        """Begin a sample of these ranks. It does not count if a rank's dump does not arrive."""
        self._agreed, self._agreed_s = self._count(live), self.agreed_s(live)
        self._answered.clear()
        self._interval_s = now - self._begun_at if self._begun else 0.0
        self._usual_interval_s = usual_interval_s
        self._ran_code, self._runs_code = self.ran_code, False
        self._has_change, self._begun_at = False, now
        self._begun += 1

    def agreed_s(self, live: Set[int]) -> float:
        """Return for how many seconds the samples agree, from the first to the last of those in
        which all these ranks had their present positions. Intervals before a sample that does not
        count are left out."""
        return self._agreed_s + (self._interval_s if self._agreed and self._is_whole(live) else 0.0)

    def _count(self, live: Set[int]) -> int:
        """Return the number of samples that agree, including the present one."""
        return self._agreed + self._is_whole(live)

    def _is_whole(self, live: Set[int]) -> bool:
        """Return whether the dumps of all these ranks are in the present sample."""
        return bool(live) and live <= self._answered

    def take(self, dumps: Iterable[RankDump], stacks: Iterable[Stack], at: float) -> None:
        """Add dumps of this attempt's ranks, with the stacks of these dumps."""
        known = index_stacks(stacks)
        for dump in dumps:
            thread = find_thread(dump, known)
            placed = at_training_thread(dump, thread)
            read = known.get(thread.digest) if thread else None
            is_held = dump.kernel.state in HELD | {ProcessState.UNINTERRUPTIBLE}
            if (read is None or dump.failure is not None) and not is_held:
                continue  # the position is not known, so nothing follows about progress
            # The stack of a held process may be unreadable. Its position counts nevertheless.
            stack = read.stack.digest if read else None
            calls = _hash_calls(dump.collectives)
            sample = RankSample(dump.pid, dump.start_time, stack, calls)
            frame_class = read.frame_class if read else FrameClass.NONE
            activity = RankActivity(
                frame_class=frame_class,
                block=find_block(placed),
                waits_for_device=is_device_wait(placed.native),
                runs_code=runs_code(placed.native),
                waits_for_client=serves_clients(
                    frame_class, kernel_wait_of(thread, dump.kernel), dump.settings
                ),
                is_placed=placed.native is not None,
                is_running=dump.kernel.state is ProcessState.RUNNING,
                ran_python=dump.native is not None and dump.native.ran_python is True,
                is_uninterruptible=dump.kernel.state is ProcessState.UNINTERRUPTIBLE,
            )
            self._note(dump.rank, sample, activity, at)

    def changed_since(self, rank: int, since: float) -> bool:
        """Return whether a rank's position changed after `since`."""
        return rank in self.latest and self.latest[rank].changed_at > since

    def activity_of(self, rank: int) -> RankActivity:
        """Return what a rank did in its latest sample."""
        return self.latest[rank].activity if rank in self.latest else RankActivity()

    def stays_blocked(self, rank: int) -> bool:
        """Return whether a rank's training thread was blocked between its latest two samples."""
        return rank in self.latest and self.latest[rank].stays_blocked

    def is_still(self, rank: int) -> bool:
        """Return whether a rank does nothing, whatever CPU its process uses: its training thread
        stays blocked, hardly runs, or polls for its device."""
        rests = rank in self.latest and self.latest[rank].rests
        return rests or self.stays_blocked(rank) or self.activity_of(rank).waits_for_device

    def ran(self, rank: int) -> bool:
        """Return whether a rank's training thread is known to have run between its latest two
        samples, other than to poll for its device."""
        latest = self.latest.get(rank)
        if latest is None or not latest.is_followed:
            return False
        return not latest.stays_blocked and not latest.activity.waits_for_device

    def has_ended_wait(self, rank: int) -> bool:
        """Return whether a rank ended a wait for its device between its latest two samples."""
        return rank in self.latest and self.latest[rank].has_ended_wait

    def reset(self, now: float) -> None:
        """Drop the run of samples that agree, because a rank was working during it."""
        self._answered.clear()
        self._end_run()
        self._runs_code = False
        self.since = now

    def note_still(self, agreed_s: float) -> None:
        """Record that no rank moved while the samples agreed for this many seconds."""
        self._still_s = max(self._still_s, agreed_s + self._usual_interval_s)

    def needed_by_chance(self, kind: RunKind = RunKind.ANY) -> int:
        """Return how many samples must agree so that agreement by chance is unlikely (`CHANCE`),
        by earlier runs of this kind."""
        by_chance = self._by_chance.get(kind, 0)
        # Laplace's rule of succession: without earlier samples, half of them are expected to agree.
        share = (by_chance + 1) / (by_chance + self._changes + 2)
        return min(MAX_SAMPLES, ceil(log(CHANCE) / log(share)))

    def longest_s(self, kind: RunKind = RunKind.ANY) -> float:
        """Return the length of the longest run of this kind that ended with a change: from its
        first sample to one interval after its last one."""
        return min(MAX_RUN_S, self._longest_s.get(kind, 0.0))

    def _note(self, rank: int, sample: RankSample, activity: RankActivity, at: float) -> None:
        before = self.latest.get(rank)
        if before is not None and at < before.at:
            return  # an older dump that arrived late
        joined = before.sample.join(sample) if before is not None else None
        if before is not None and joined is not None:
            before.is_followed = before.activity.is_placed and activity.is_placed
            activity = activity.place_as(before.activity)
            before.has_ended_wait = before.activity.has_ended_wait(activity)
            before.stays_blocked = before.activity.is_same_wait(activity)
            before.rests = used_little_cpu(before.activity.block, activity.block, at - before.at)
            before.sample, before.at, before.activity = joined, at, activity
        else:
            changed_at = float("-inf") if before is None else at
            ended = before is not None and before.activity.has_ended_wait(activity)
            self.latest[rank] = LatestSample(
                sample, at, activity, changed_at=changed_at, has_ended_wait=ended
            )
            self.since = max(self.since, at)
            if before is not None:
                self._break()
            self._end_run()
        self._runs_code = self._runs_code or activity.runs_code
        self._answered.add(rank)

    def _break(self) -> None:
        """Count a change. Changes of several ranks in one sample count once."""
        if not self._has_change:
            for kind in self._kinds():
                agreed = self._by_chance.get(kind, 0) + max(0, self._agreed - 1)
                self._by_chance[kind] = agreed
            self._changes += 1
        self._has_change = True

    def _end_run(self) -> None:
        run_s = self._agreed_s + self._usual_interval_s if self._agreed else 0.0
        lengths = dict.fromkeys(self._kinds(), run_s) | {RunKind.STILL: self._still_s}
        for kind, length_s in lengths.items():
            self._longest_s[kind] = max(self.longest_s(kind), length_s)
        self._agreed, self._agreed_s, self._still_s, self._ran_code = 0, 0.0, 0.0, False

    def _kinds(self) -> tuple[RunKind, ...]:
        """Return the kinds of the run before the present sample, besides STILL."""
        return (RunKind.ANY, RunKind.CODE) if self._ran_code else (RunKind.ANY,)


def _hash_calls(collectives: RankCollectives | None) -> bytes | None:
    if collectives is None or collectives.failure:
        return None
    text = repr((collectives.logs, collectives.peers)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()
