"""Reads a single dump by itself: was the rank waiting for the others at that moment?

One look cannot tell stuck from slow; many of them tell who waits least.
"""

from __future__ import annotations

from collections.abc import Mapping

from watchtower.core.diagnosis.frames import WAITING_CLASSES, FrameClass
from watchtower.core.diagnosis.standing import ASLEEP
from watchtower.core.diagnosis.threads import KnownStack, find_thread
from watchtower.wire.dumps import RankDump

HIDING = frozenset({FrameClass.BACKWARD, FrameClass.DEVICE})
"""Classes in which a rank that sleeps waits for others, and one that runs works."""


def was_waiting(dump: RankDump, stacks: Mapping[str, KnownStack]) -> bool | None:
    """Tell whether a dump found its rank inside a collective; null when it has no stack."""
    thread = find_thread(dump, stacks)
    known = stacks.get(thread.digest) if thread else None
    if thread is None or known is None or known.reading is None:
        return None
    frame_class = known.reading.frame_class
    if frame_class in HIDING:
        return dump.kernel.state in ASLEEP and not thread.active
    return frame_class in WAITING_CLASSES
