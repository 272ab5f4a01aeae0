"""Pace: how long a job's steps take, and whether they have become slower.

One sample is the median step time of all ranks that stepped within one tick. A sample far above
the usual length is a pause (checkpoint, evaluation, a slow read) and does not count as a step. If
all recent samples are that long, the steps themselves have become slower. A pause that comes
regularly is part of the job, and extends the deadline. A single pause does not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import NamedTuple

from watchtower.jobs.ranks import CHARACTER_BYTES

BACK_TO_USUAL = 1.5
"""A step below this many usual steps is not slow. The usual length is updated again then."""

SLOW_FOR_S = 1800.0
SLOW_STEPS = 20
"""After this many seconds and samples the slow length becomes the usual one."""

SLOW_AT_LEAST_S = 300.0
MANY_SAMPLES = 128
"""After this many samples it does so earlier, but not before `SLOW_AT_LEAST_S` seconds: enough for
three counts of waiting ranks (see `wait_counts`), however short the steps are."""

SAMPLE_S = 0.5
"""Seconds that a sample of shorter steps counts: samples come with reports of agents."""


class Latest(NamedTuple):
    """The latest steps."""

    slowdown: float
    present_s: float
    """Seconds per step."""


NOT_SLOWER = Latest(0.0, 0.0)
"""No slowdown is known."""


@dataclass(slots=True)
class Slowness:
    """The slowness of one job by one measure of its steps."""

    usual_s: float = 0.0
    """Usual length of a step in seconds; 0 if it is not known. It does not change while the steps
    are slow."""
    slowdown: float = 1.0
    """Present length of a step divided by the usual length; 1 while they are not known."""
    present_s: float = 0.0
    """Present length of a step in seconds; 0 if it is not known."""
    most: float = 1.0
    """The largest slowdown since the steps became slower; 1 once they are back to usual. With it, a
    job whose slowdown is about a limit is slow all the time, not now and then."""
    _samples: int = 0
    """Number of samples since the steps became slower."""
    _for_s: float = 0.0
    """The sum of these samples, in seconds, each at least `SAMPLE_S`."""

    @property
    def is_slow(self) -> bool:
        """Whether the steps take longer than usual."""
        return self._samples > 0

    def begin(self, usual_s: float) -> None:
        """Begin with steps that are slower than this, if the usual length is not known yet."""
        self.usual_s = self.usual_s or usual_s
        self._samples = self._samples or 1

    def take(self, present_s: float, sample_s: float, by_rounds: Latest = NOT_SLOWER) -> bool:
        """Compare the present length of a step with the usual one, after a sample of this length.

        `by_rounds`: the latest steps as `throughput` measures them. They may be slow still.
        Returns True if the steps were slow for so long that their length is the usual one now.
        """
        if not self.usual_s:
            return False
        own = Latest(present_s / self.usual_s, present_s)
        self.slowdown, self.present_s = max(own, by_rounds) if self.is_slow else own
        if self.slowdown < BACK_TO_USUAL:
            self.end()
            return False
        self.most = max(self.most, self.slowdown)
        self._samples += 1
        self._for_s += max(sample_s, SAMPLE_S)
        is_long = self._for_s >= SLOW_FOR_S and self._samples > SLOW_STEPS
        is_steady = self._for_s >= SLOW_AT_LEAST_S and self._samples > MANY_SAMPLES
        if is_long or is_steady:
            self.end()
        return is_long or is_steady

    def end(self) -> None:
        """Forget that the steps were slow."""
        self.slowdown = self.most = 1.0
        self._samples, self._for_s = 0, 0.0


ROUND_STEPS = 4
ROUND_S = 4.0
"""Least steps and seconds of a round. Hosts run up to three steps ahead, and the reports of two
nodes are up to a second apart."""

GROUP = 4
GROUPS = 3
"""Rounds of a group, and groups that must be slow: together at least 48 steps."""

MIN_BASELINE_ROUNDS = 8
"""Rounds needed before these to know the usual length."""

MAX_BASELINE_ROUNDS = 32
"""Rounds of which the usual length is the mean: at least 128 steps."""

MAX_ROUND = 3.0
"""A round counts at most this many usual ones. In simulated jobs of 600 steps of 1 s with pauses of
20 s or 60 s at 5 % of the steps, at random, 3 of 800 were slow at some time. With 3.5: 203."""


@dataclass(slots=True)
class Throughput:
    """The seconds per step of one job over rounds of steps. `take` adds a tick."""

    slowness: Slowness = field(default_factory=Slowness)
    latest: Latest = NOT_SLOWER
    """The latest group alone. It shows that a slow job is not back at its usual pace. It is too
    short to call a job slow."""
    _rounds: deque[float] = field(
        default_factory=lambda: deque(maxlen=MAX_BASELINE_ROUNDS + GROUPS * GROUP)
    )
    """Seconds per step of each round."""
    _step: int = -1
    """Step with which the present round began, -1 before the first."""
    _began_at: float = float("-inf")

    def is_due(self, now: float) -> bool:
        """Return whether a round may end now."""
        return now - self._began_at >= ROUND_S

    def interrupt(self) -> None:
        """Drop the present round: a phase belongs to no round."""
        self._step = -1

    def take(self, step: int, now: float) -> None:
        """Take the step that all ranks have made; -1 before the first."""
        if step < self._step or self._step < 0:
            self._step, self._began_at = step, now  # a loop may count from zero in each epoch
            return
        steps, seconds = step - self._step, now - self._began_at
        if steps < ROUND_STEPS or not self.is_due(now):
            return
        self._step, self._began_at = step, now
        self._rounds.append(seconds / steps)
        self._compare(seconds)

    def _compare(self, seconds: float) -> None:
        rounds = list(self._rounds)
        split = max(MIN_BASELINE_ROUNDS, len(rounds) - GROUPS * GROUP)
        before, recent = rounds[:split], rounds[split:]
        if len(recent) < GROUP:
            return
        if not self.slowness.is_slow:
            self.slowness.usual_s = _mean(before, median(before))
        usual_s = self.slowness.usual_s
        groups = [_mean(recent[at : at + GROUP], usual_s) for at in range(0, len(recent), GROUP)]
        latest_s = _mean(recent[-GROUP:], usual_s)
        self.latest = Latest(latest_s / usual_s, latest_s)
        if len(recent) < GROUPS * GROUP:
            return
        present_s = min(groups)
        if present_s >= BACK_TO_USUAL * usual_s:
            present_s = max(present_s, median(recent))  # it may be more than a round counts
        if self.slowness.take(present_s, seconds):
            self._rounds.clear()
            self._rounds.extend(recent)


def _mean(rounds: list[float], usual_s: float) -> float:
    return fmean(min(each, MAX_ROUND * usual_s) for each in rounds)


SAMPLES = 128
"""Number of plain samples that are stored: two minutes of 1 s steps, enough for a steady p95."""

LEARNED_AFTER = 3
"""Number of samples after which the pace is known. Until then the startup settings apply."""

PAUSE_FACTOR = 4.0
"""A sample above this many medians is a pause. It is high enough for 15 % jitter and uneven
batches, and below the five typical steps after which a rank is suspect."""

REGIME = 5
"""If this many samples in a row are above the limit for pauses, the steps became slower."""

PAUSE_WINDOW = 32
COMES_BACK = 3
"""`COMES_BACK` pauses within `PAUSE_WINDOW` samples are regular: about every tenth step. A
checkpoint or an evaluation every few minutes is not regular, and does not delay detection."""

RECENT = 7
"""Number of samples whose median is the present length of a step. More than half of them must be
slow before the job counts as slow."""

MIN_BASELINE_SAMPLES = 5
"""Number of samples needed before the recent ones to compute the usual length of a step. The first
steps are uneven."""

REGIME_BASELINE = 10
"""Number of samples needed before steps become slower. A job that resumes skips batches and warms
up, in some quick steps. After fewer samples, the new length is the usual one."""


@dataclass(slots=True)
class Pace:
    """Step times of one job in one phase. `note` adds values, `end_tick` ends a tick."""

    plain: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    typical_s: float = 0.0
    """p95 of the plain samples, in seconds; 0 before `LEARNED_AFTER` samples."""
    slowness: Slowness = field(default_factory=Slowness)
    """By the median of the recent samples, against the median of those before them."""
    pause_s: float = 0.0
    """Length of the pause that comes regularly; 0 without one."""
    _tick: list[float] = field(default_factory=list)
    _long: deque[float] = field(default_factory=lambda: deque(maxlen=REGIME))
    _pauses: deque[float] = field(default_factory=lambda: deque(maxlen=PAUSE_WINDOW))
    """The latest samples: the length of a pause, or 0 for a step."""
    _median: float = 0.0

    @property
    def is_learned(self) -> bool:
        """Whether enough steps were seen to know when a rank is late."""
        return len(self.plain) >= LEARNED_AFTER

    def recall(self, typical_s: float) -> None:
        """Begin with a typical step from an earlier run. Later steps correct it."""
        if typical_s > 0:
            self.plain.extend([typical_s] * REGIME_BASELINE)
            self._measure()

    def note(self, interval_s: float) -> None:
        """Add one rank's seconds per step since its previous report."""
        self._tick.append(interval_s)

    def end_tick(self, by_rounds: Latest = NOT_SLOWER) -> None:
        """Make one sample of the values of this tick; without values, none.

        `by_rounds`: the latest steps as `throughput` measures them, in rounds with their pauses.
        """
        if not self._tick:
            return
        sample = median(self._tick)
        self._tick.clear()
        is_long = self.is_learned and sample > PAUSE_FACTOR * self._median
        self._pauses.append(sample if is_long else 0.0)
        if is_long:
            self._take_long(sample)
        else:
            self._long.clear()
            self.plain.append(sample)
        self.pause_s = sorted(self._pauses)[-COMES_BACK:][0] if self._comes_back() else 0.0
        self._measure()
        self._compare(sample, by_rounds)

    def _comes_back(self) -> bool:
        return len(self._pauses) - self._pauses.count(0.0) >= COMES_BACK

    def _take_long(self, sample: float) -> None:
        self._long.append(sample)
        if len(self._long) == REGIME:
            if len(self.plain) >= REGIME_BASELINE:
                self.slowness.begin(self._median)
            else:
                self.slowness = Slowness()
            self.plain.clear()
            self.plain.extend(self._long)
            self._long.clear()
            self._pauses.clear()

    def _measure(self) -> None:
        ordered = sorted(self.plain)
        self._median = ordered[len(ordered) // 2]
        if self.is_learned:
            self.typical_s = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]

    def _compare(self, sample: float, by_rounds: Latest) -> None:
        """Compare the recent samples with those before them."""
        samples = list(self.plain)
        if not self.slowness.is_slow:
            before = samples[:-RECENT]
            self.slowness.usual_s = median(before) if len(before) >= MIN_BASELINE_SAMPLES else 0.0
        if self.slowness.take(median(samples[-RECENT:]), sample, by_rounds):
            self.plain.clear()
            self.plain.extend(samples[-RECENT:])


PAUSE_BYTES = 384
"""The longest pause of a kind."""


def count_pause(kind: tuple[str, str]) -> int:
    """Return the bytes of a learned pause in a phase and a class of frames."""
    return PAUSE_BYTES + CHARACTER_BYTES * sum(map(len, kind))


MAX_PAUSES = 128
"""Most kinds of pauses that are stored for one job; the shortest are dropped. A program may number
its phases, which must not fill the memory."""

FADE_A_DAY = 0.95
"""Every day, the length of a learned pause is multiplied by this. One that comes once a week is
still covered (0.95**7 times the usual factor of 1.5). After two weeks half of it is left."""

FORGOTTEN_S = 1.0
"""A pause shorter than this many seconds is dropped, because it does not change the patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A stall that ended by itself. The next stall of this kind and length raises no alert."""

    phase: str
    frame_class: str
    length_s: float


class Pauses:
    """The longest pause of each kind: the phase and frame class of the rank that was behind."""

    def __init__(self, known: tuple[Pause, ...] = ()) -> None:
        self._longest = {(p.phase, p.frame_class): p.length_s for p in known}

    def __bool__(self) -> bool:
        """Whether any pause was learned."""
        return bool(self._longest)

    @property
    def droppable_bytes(self) -> int:
        """Bytes of memory that can be dropped."""
        return sum(map(count_pause, self._longest))

    def drop(self, excess: int) -> None:
        """Drop the shortest pauses until `excess` bytes are free."""
        for kind in sorted(self._longest, key=lambda kind: self._longest[kind]):
            if excess <= 0:
                return
            excess -= count_pause(kind)
            del self._longest[kind]

    def longest(self, phase: str, frame_class: str) -> float:
        """Return the seconds of the longest pause of this kind, 0 if there was none."""
        return self._longest.get((phase, frame_class), 0.0)

    def longest_in(self, phase: str) -> float:
        """Return the seconds of the longest pause in `phase`, of any frame class; 0 without one."""
        return max((s for (p, _), s in self._longest.items() if p == phase), default=0.0)

    def all(self) -> list[Pause]:
        """Return the longest pause of each kind."""
        return [
            Pause(phase=phase, frame_class=frame_class, length_s=length_s)
            for (phase, frame_class), length_s in self._longest.items()
        ]

    def fade(self, share: float) -> None:
        """Multiply every length by `share`. Pauses shorter than `FORGOTTEN_S` are dropped."""
        faded = {kind: length_s * share for kind, length_s in self._longest.items()}
        self._longest = {kind: s for kind, s in faded.items() if s >= FORGOTTEN_S}

    def learn(self, pause: Pause) -> bool:
        """Record a pause. Returns False if one of its kind with at least this length is known."""
        if pause.length_s <= self.longest(pause.phase, pause.frame_class):
            return False
        self._longest[pause.phase, pause.frame_class] = pause.length_s
        if len(self._longest) > MAX_PAUSES:
            del self._longest[min(self._longest, key=lambda kind: self._longest[kind])]
        return True
