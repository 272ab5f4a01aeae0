"""The pauses that a job has made: its next stall of that kind and length raises no alert."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.jobs.ranks import CHARACTER_BYTES

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
