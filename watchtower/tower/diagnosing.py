"""One diagnosis, from the sketch of a case to what is said of it, whatever fails on the way."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from watchtower.core.case import Case
from watchtower.core.detection.snapshot import Sketch, make_case
from watchtower.core.diagnosis.diagnosis import Diagnosis, diagnose, failed_diagnosis
from watchtower.tower.thinking import Thinker

log = logging.getLogger("watchtower.tower")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What became of one diagnosis."""

    diagnosis: Diagnosis
    case: Case | None
    """What it was made from; None when not even that could be made."""
    has_failed: bool
    """The diagnosis says only that there is none: a job can become hung on it all the same."""


async def conclude(thinker: Thinker, sketch: Sketch, earlier: Case | None) -> Conclusion:
    """Make the case and its diagnosis off the event loop. An error is logged, never raised."""
    case = None
    try:
        case = await thinker.think(sketch.job, lambda: make_case(sketch, earlier))
        made = case
        diagnosis = await thinker.think(sketch.job, lambda: diagnose(made))
    except Exception as error:
        part = "the diagnosis failed" if case else "no case could be made"
        log.exception("job %s: %s", sketch.job, part)
        failed = failed_diagnosis(sketch.stalled_for_s, error)
        return Conclusion(diagnosis=failed, case=case, has_failed=True)
    return Conclusion(diagnosis=diagnosis, case=case, has_failed=False)
