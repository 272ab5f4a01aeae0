"""Pace: how long a job's steps take, with pauses kept apart so that they do not blur it.

One sample is the median step time of all ranks that stepped within one tick. A sample far above
the usual is a pause (checkpoint, evaluation, a slow read) and never counts as a step; only when all
recent samples are that long have the steps themselves become slower. A pause that keeps coming back
is part of how the job works, and is waited for; a single one moves nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from watchtower.core.fleet.sizes import count_pause

SAMPLES = 128
"""Plain samples kept: two minutes of 1 s steps, enough for a steady p95."""

LEARNED_AFTER = 3
"""Samples before the pace counts as known; until then the startup patience holds."""

PAUSE_FACTOR = 4.0
"""A sample above this many medians is a pause: wide enough for 15 % jitter and uneven batches,
below the five typical steps at which a rank becomes suspect."""

REGIME = 5
"""This many samples in a row above the pause line are no pauses: the steps became slower."""

PAUSE_WINDOW = 32
COMES_BACK = 3
"""A pause that came so often in so many samples will come again: every tenth step or oftener. A
checkpoint or an evaluation every few minutes never does, and leaves detection as quick as it is."""

RECENT = 7
"""Samples that say how long a step takes now: more than half of them must agree that it is slow."""

YARDSTICK = 5
"""Samples before the recent ones from which on they are a measure: the first steps are uneven."""

REGIME_YARDSTICK = 10
"""... and before a change of regime: a job that resumes skips batches, and warms up, in some quick
steps. Fewer are no measure, and the new length is the usual one."""

BACK_TO_USUAL = 1.5
"""Below this many usual steps a job is no longer slow, and the yardstick moves again."""

SLOW_FOR_S = 1800.0
SLOW_STEPS = 20
"""Slow for so long, and for so many samples, is the new usual; after `SAMPLES` in any case. Three
counts of who waits for whom fit in (see `wait_counts`)."""


@dataclass(slots=True)
class Pace:
    """Step times of one job in one phase. Fed by `note`, closed by `end_tick` once a tick."""

    plain: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    typical_s: float = 0.0
    """p95 of the plain samples, 0 until `LEARNED_AFTER` of them are in."""
    usual_s: float = 0.0
    """Median of the samples before the recent ones; stands still while the steps are slow."""
    slowdown: float = 1.0
    """How many times longer a step takes now than usual; 1 while too little is known."""
    pause_s: float = 0.0
    """Length of the pause that keeps coming back; 0 when none does."""
    _tick: list[float] = field(default_factory=list)
    _long: deque[float] = field(default_factory=lambda: deque(maxlen=REGIME))
    _pauses: deque[float] = field(default_factory=lambda: deque(maxlen=PAUSE_WINDOW))
    """Of the latest samples those that were pauses; 0 for a step."""
    _median: float = 0.0
    _slow_for: int = 0
    """Samples taken since the steps became slower."""
    _slow_for_s: float = 0.0
    """The sum of them."""

    @property
    def is_learned(self) -> bool:
        """Whether enough steps were seen to know what is late."""
        return len(self.plain) >= LEARNED_AFTER

    def recall(self, typical_s: float) -> None:
        """Begin with what was learned before; steps to come correct it."""
        if typical_s > 0:
            self.plain.extend([typical_s] * REGIME_YARDSTICK)
            self._measure()

    def note(self, interval_s: float) -> None:
        """Take one rank's seconds per step since its previous report."""
        self._tick.append(interval_s)

    def end_tick(self) -> None:
        """Turn this tick's notes into one sample."""
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
        self._compare(sample)

    def _comes_back(self) -> bool:
        return len(self._pauses) - self._pauses.count(0.0) >= COMES_BACK

    def _take_long(self, sample: float) -> None:
        self._long.append(sample)
        if len(self._long) == REGIME:
            if len(self.plain) >= REGIME_YARDSTICK:
                self.usual_s = self.usual_s or self._median
                self._slow_for = self._slow_for or 1
            else:
                self.usual_s, self._slow_for, self.slowdown = 0.0, 0, 1.0
            self.plain.clear()
            self.plain.extend(self._long)
            self._long.clear()
            self._pauses.clear()

    def _measure(self) -> None:
        ordered = sorted(self.plain)
        self._median = ordered[len(ordered) // 2]
        if self.is_learned:
            self.typical_s = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]

    def _compare(self, sample: float) -> None:
        """Compare the recent samples with those before them."""
        samples = list(self.plain)
        if not self._slow_for:
            before = samples[:-RECENT]
            self.usual_s = median(before) if len(before) >= YARDSTICK else 0.0
        if not self.usual_s:
            return
        self.slowdown = median(samples[-RECENT:]) / self.usual_s
        if self.slowdown < BACK_TO_USUAL:
            self._end_slowness()
            return
        self._slow_for, self._slow_for_s = self._slow_for + 1, self._slow_for_s + sample
        is_long = self._slow_for_s >= SLOW_FOR_S and self._slow_for > SLOW_STEPS
        if is_long or self._slow_for > SAMPLES:
            self._end_slowness()
            self.plain.clear()  # what a step took before is no measure any more
            self.plain.extend(samples[-RECENT:])

    def _end_slowness(self) -> None:
        self.slowdown, self._slow_for, self._slow_for_s = 1.0, 0, 0.0


MAX_PAUSES = 128
"""Kinds of pauses remembered of one job: a program that numbers its phases does not fill the
memory. The shortest make room."""


FADE_A_DAY = 0.95
"""What is left of a learned pause after a day: one that comes once a week is still covered (0.95**7
times the usual factor of 1.5), one that never came again is half forgotten in two weeks."""

FORGOTTEN_S = 1.0
"""A pause that faded to less changes no patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A stall that ended by itself: the job may take this long again without an alarm."""

    phase: str
    frame_class: str
    length_s: float


class Pauses:
    """The longest pause seen of each kind (phase and frame class of the rank that was behind)."""

    def __init__(self, known: tuple[Pause, ...] = ()) -> None:
        self._longest = {(p.phase, p.frame_class): p.length_s for p in known}

    def __bool__(self) -> bool:
        """Whether any pause was learned."""
        return bool(self._longest)

    @property
    def droppable_bytes(self) -> int:
        """Bytes that they take."""
        return sum(map(count_pause, self._longest))

    def drop(self, excess: int) -> None:
        """Forget the shortest ones until so many bytes are free."""
        for kind in sorted(self._longest, key=lambda kind: self._longest[kind]):
            if excess <= 0:
                return
            excess -= count_pause(kind)
            del self._longest[kind]

    def longest(self, phase: str, frame_class: str) -> float:
        """Seconds of the longest pause of this kind, 0 when none was seen."""
        return self._longest.get((phase, frame_class), 0.0)

    def longest_in(self, phase: str) -> float:
        """Seconds of the longest pause in `phase`, whatever the ranks did."""
        return max((s for (p, _), s in self._longest.items() if p == phase), default=0.0)

    def all(self) -> list[Pause]:
        """Return what is known."""
        return [
            Pause(phase=phase, frame_class=frame_class, length_s=length_s)
            for (phase, frame_class), length_s in self._longest.items()
        ]

    def fade(self, share: float) -> None:
        """Keep this share of every length; a pause seen again is learned anew."""
        faded = {kind: length_s * share for kind, length_s in self._longest.items()}
        self._longest = {kind: s for kind, s in faded.items() if s >= FORGOTTEN_S}

    def learn(self, pause: Pause) -> bool:
        """Remember a pause; False when a longer one of its kind is known already."""
        if pause.length_s <= self.longest(pause.phase, pause.frame_class):
            return False
        self._longest[pause.phase, pause.frame_class] = pause.length_s
        if len(self._longest) > MAX_PAUSES:
            del self._longest[min(self._longest, key=lambda kind: self._longest[kind])]
        return True
