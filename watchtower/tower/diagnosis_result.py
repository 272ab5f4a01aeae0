"""One diagnosis, from the inputs of a case to its result, whatever fails on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from watchtower.core.detection.case_inputs import CaseInputs, split_case
from watchtower.core.diagnosis.diagnosis import Diagnosis, not_diagnosed
from watchtower.diagnoser.messages import Request, limits_for
from watchtower.tower.diagnosis_runner import DiagnosisRunner, NotDiagnosedError

log = logging.getLogger("watchtower.tower")


class DiagnosisError(Exception):
    """A diagnosis failed in its process; the message is the traceback from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisResult:
    """The result of one diagnosis."""

    diagnosis: Diagnosis
    """`why_not` in it says why there is none, if so."""
    evidence: bytes | None
    """The case that it was made from, as JSON; null if none could be made."""


async def run_diagnosis(
    runner: DiagnosisRunner,
    job: str,
    owner: str,
    founder: str,
    take: Callable[[], CaseInputs],
    earlier: bytes | None,
    *,
    again: bool,
) -> DiagnosisResult:
    """Make the case and its diagnosis off the event loop, once it is the owner's turn.

    `take` collects the inputs at that moment. `again`: the job has a diagnosis already. An error is
    logged, never raised.
    """
    evidence, extra, stalled_for_s = None, {"sharer": owner}, 0.0

    def freeze() -> Callable[[], Request]:
        nonlocal stalled_for_s
        inputs = take()
        stalled_for_s = inputs.stalled_for_s
        return partial(_write, inputs, earlier)

    try:
        answer = await runner.run(job, owner, founder, freeze, again=again)
        evidence = answer.evidence
        if answer.diagnosis is not None:
            return DiagnosisResult(diagnosis=answer.diagnosis, evidence=evidence)
        why = "it failed, its traceback is in the tower's log"
        part = "the diagnosis failed" if evidence else "no case could be made"
        log.error("job %s: %s", job, part, exc_info=DiagnosisError(answer.error), extra=extra)
    except NotDiagnosedError as error:
        why = str(error)
        log.warning("job %s is not diagnosed: %s", job, why, extra=extra)
    except Exception:
        why = "it failed, its traceback is in the tower's log"
        log.exception("job %s: the diagnosis could not be started", job, extra=extra)
    return DiagnosisResult(diagnosis=not_diagnosed(stalled_for_s, why), evidence=evidence)


def _write(inputs: CaseInputs, earlier: bytes | None) -> Request:
    parts, bodies = split_case(inputs)
    limits = limits_for(len(parts.case.ranks))
    return Request(limits=limits, parts=parts, bodies=bodies, earlier=earlier)
