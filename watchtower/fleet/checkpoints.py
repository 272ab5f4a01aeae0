"""The last complete checkpoint of a job, from the marked phases of its ranks.

A job marks its checkpoints with `phase("checkpoint")`. Reports come once a second, so a shorter
phase may be missed: the step found here is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from watchtower.wire.report import Beat

CHECKPOINT = "checkpoint"
"""A phase with this word in its name is a checkpoint."""


@dataclass(slots=True)
class Checkpoints:
    """Checkpoints that a rank has left, and the last one that all ranks have left."""

    _left: int | None = None
    """Highest step at which a rank left a checkpoint."""
    _complete: int | None = None

    def note(self, before: Beat | None, beat: Beat | None) -> None:
        """Compare two beats of a rank that follow each other."""
        if before is None or beat is None or not _is_saving(before) or _is_saving(beat):
            return
        if beat.exception_type:
            return  # the exception may have ended the checkpoint
        self._left = before.step if self._left is None else max(self._left, before.step)

    def find_last(self, beats: Iterable[Beat | None]) -> int | None:
        """Return the step of the last complete checkpoint; None if none is known.

        `beats` are the current ones of all ranks. A checkpoint is complete if no rank is in it.
        """
        left = self._left
        if left is not None and not any(
            beat is not None and _is_saving(beat) and beat.step <= left for beat in beats
        ):
            self._complete = left
        return self._complete


def _is_saving(beat: Beat) -> bool:
    return bool(beat.phase) and CHECKPOINT in beat.phase.lower()
