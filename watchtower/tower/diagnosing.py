"""One diagnosis, from the sketch of a case to what is said of it, whatever fails on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from watchtower.core.detection.snapshot import Sketch, draw_up
from watchtower.core.diagnosed import Diagnosis, not_diagnosed
from watchtower.diagnoser.messages import Request, limits_for
from watchtower.tower.diagnosis_runner import DiagnosisRunner, NotDiagnosedError

log = logging.getLogger("watchtower.tower")


class DiagnosisError(Exception):
    """A diagnosis failed in its process; the message is the traceback from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What became of one diagnosis."""

    diagnosis: Diagnosis
    """`why_not` in it says why there is none, if so."""
    evidence: bytes | None
    """The case that it was made from, as JSON; null if none could be made."""


async def conclude(
    runner: DiagnosisRunner,
    job: str,
    owner: str,
    take: Callable[[], Sketch],
    earlier: bytes | None,
    *,
    again: bool,
) -> Conclusion:
    """Make the case and its diagnosis off the event loop, once it is the owner's turn.

    `take` makes the sketch of that moment. `again`: the job has a diagnosis already. An error is
    logged, never raised.
    """
    evidence, extra, stalled_for_s = None, {"sharer": owner}, 0.0

    def freeze() -> Callable[[], Request]:
        nonlocal stalled_for_s
        sketch = take()
        stalled_for_s = sketch.stalled_for_s
        return partial(_write, sketch, earlier)

    try:
        answer = await runner.run(job, owner, freeze, again=again)
        evidence = answer.evidence
        if answer.diagnosis is not None:
            return Conclusion(diagnosis=answer.diagnosis, evidence=evidence)
        why = "it failed, its traceback is in the tower's log"
        part = "the diagnosis failed" if evidence else "no case could be made"
        log.error("job %s: %s", job, part, exc_info=DiagnosisError(answer.error), extra=extra)
    except NotDiagnosedError as error:
        why = str(error)
        log.warning("job %s is not diagnosed: %s", job, why, extra=extra)
    except Exception:
        why = "it failed, its traceback is in the tower's log"
        log.exception("job %s: the diagnosis could not be started", job, extra=extra)
    return Conclusion(diagnosis=not_diagnosed(stalled_for_s, why), evidence=evidence)


def _write(sketch: Sketch, earlier: bytes | None) -> Request:
    inputs, bodies = draw_up(sketch)
    limits = limits_for(len(inputs.case.ranks))
    return Request(limits=limits, inputs=inputs, bodies=bodies, earlier=earlier)
