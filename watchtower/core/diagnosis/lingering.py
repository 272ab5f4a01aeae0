"""Ranks whose program is over while their process is still there.

The interpreter has left the program and runs what is to be done at exit, or waits for a thread that
is not a daemon: after an exception as after the last line. Their main stack does not begin in a
module any more, while that of most other ranks does. (An embedded interpreter has such roots
everywhere.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.reading.frames import last_component
from watchtower.core.reading.threads import KnownStack
from watchtower.wire.dumps import RankDump

PROGRAM_ROOTS = frozenset({"<module>", "_run_module_as_main"})
"""Where the main stack of a Python program begins, started as a file or by `python -m`."""


@dataclass(frozen=True, slots=True)
class Lingering:
    """A rank that is on its way out and does not get there."""

    position: Position

    @property
    def has_raised(self) -> bool:
        """Whether an exception is known that ended its program."""
        beat = self.position.evidence.beat
        return beat is not None and bool(beat.exception_type or beat.exception_text)


def find_lingering(picture: Picture) -> tuple[Lingering, ...]:
    """Return the ranks that left their program while others wait, in ascending order."""
    known = {digest: _find_root(each) for digest, each in picture.stacks.items()}
    roots = {
        item.rank: [_root_of(dump, known) for dump in item.evidence.dumps[-2:]]
        for item in picture.live
    }
    inside = sum(bool(seen) and seen[-1] in PROGRAM_ROOTS for seen in roots.values())
    if 2 * inside <= len(picture.live) or not picture.waiting:
        return ()
    return tuple(Lingering(item) for item in picture.sinks if _is_outside(roots[item.rank]))


def _is_outside(roots: Sequence[str]) -> bool:
    """Return whether two dumps agree on a root that is not a program's; a torn stack has any."""
    return len(roots) > 1 and len(set(roots)) == 1 and not {"", *PROGRAM_ROOTS} & set(roots)


def _root_of(dump: RankDump, roots: Mapping[str, str]) -> str:
    """Return the outermost function of the main thread, empty without its stack."""
    for thread in dump.threads:
        if thread.main:
            return roots.get(thread.digest, "")
    return ""


def _find_root(known: KnownStack) -> str:
    frames = known.stack.frames
    return last_component(frames[-1].function) if frames else ""
