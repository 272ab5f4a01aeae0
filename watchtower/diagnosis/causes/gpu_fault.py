"""A GPU reported an error that can explain why its rank does not continue.

The kernel log names the GPU, and often the process. Errors for which the program is to blame, and
errors that follow another one, accuse no GPU (`service/xids.toml`).
"""

from __future__ import annotations

from collections.abc import Iterator

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import MAX_QUOTED, Accusation, Reason, ReasonKind, Tier
from watchtower.diagnosis.doubts import Doubt
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.reasons import peers_reason, step_reason
from watchtower.diagnosis.subjects import FaultyGpu, FaultyGpus
from watchtower.evidence.xids import FAMILIES, find_gpu_errors
from watchtower.wire.verdict import Cause

ERROR_WEIGHT = 0.85

BEFORE_S = 60.0
"""An error may come this many seconds before the last step: queued work still ends."""

STEPS_AFTER = 3
"""A rank that made more steps than this after the error went on in spite of it."""


def find(picture: Picture) -> Accusation | None:
    """Accuse the ranks whose GPUs reported errors around their last step, the earliest first."""
    found = sorted(_find_faulty(picture), key=lambda each: -each.errors[0].age_s)
    if not found:
        return None
    suspects = tuple(each.position for each in found)
    reasons = [
        Reason(ReasonKind.GPU_ERROR, ERROR_WEIGHT, (each.position.rank,), each)
        for each in found[:MAX_QUOTED]
    ]
    return Accusation(
        cause=Cause.GPU_FAULT,
        tier=Tier.CANNOT_ANSWER,
        suspects=suspects,
        reasons=(
            *reasons,
            *step_reason(picture, suspects[0]),
            *peers_reason(picture, suspects),
        ),
        doubts=tuple(_find_doubts(picture, found)),
        advice=(found[0].errors[0].action, "read_xids"),
        about=FaultyGpus(tuple(found)),
    )


def _find_faulty(picture: Picture) -> Iterator[FaultyGpu]:
    oldest_s = picture.case.stalled_for_s + BEFORE_S
    for item in picture.live:
        errors = find_gpu_errors(picture.observed(item.rank, *FAMILIES))
        errors = tuple(error for error in errors if error.age_s <= oldest_s)
        if errors:
            yield FaultyGpu(item, errors, errors[0].age_s - item.age_s)


def _find_doubts(picture: Picture, found: list[FaultyGpu]) -> Iterator[Doubt]:
    accused = {each.position.rank for each in found}
    others = [item for item in picture.sinks if item.rank not in accused]
    if others and all(each.position.waits for each in found):
        yield doubts.GPU_ERROR_BESIDE
    if found[0].before_s > max(STEPS_AFTER * picture.case.typical_step_s, BEFORE_S / 6):
        yield doubts.GPU_ERROR_EARLIER
