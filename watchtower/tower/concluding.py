"""From held-still evidence to a verdict; runs beside the event loop, which it does not touch."""

from __future__ import annotations

import logging

from watchtower.core.case import Case
from watchtower.core.detection.snapshot import Sketch, carry_over, make_case
from watchtower.core.diagnosis.diagnosis import Diagnosis, diagnose, failed_diagnosis

log = logging.getLogger(__name__)


def conclude(sketch: Sketch, earlier: Case | None) -> tuple[Case, Diagnosis]:
    """Make the case and diagnose it; a diagnosis that fails is said, and stops nothing.

    `earlier` is what the tower's last run knew of the same stall.
    """
    case = make_case(sketch)
    if earlier is not None:
        case = carry_over(case, earlier)
    try:
        return case, diagnose(case)
    except Exception as error:
        log.exception("job %s: the diagnosis failed", case.job)
        return case, failed_diagnosis(case, error)
