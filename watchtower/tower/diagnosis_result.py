"""One diagnosis, from the inputs of a case to its result, also if a step fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from watchtower.diagnoser.messages import Request, limits_for
from watchtower.diagnosis.diagnosed import Diagnosis, not_diagnosed
from watchtower.jobs.case_inputs import CaseInputs, split_case
from watchtower.tower.diagnosis_runner import NotDiagnosedError, Runner

log = logging.getLogger("watchtower.tower")


class DiagnosisError(Exception):
    """A diagnosis failed in its process. The message is the traceback from that process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisResult:
    """The result of one diagnosis."""

    diagnosis: Diagnosis
    """If the diagnosis failed, its `why_not` contains the reason."""
    evidence: bytes | None
    """The case of the diagnosis as JSON; None if no case could be made."""
    summary: bytes | None = None
    """The summary of the case (`diagnoser.summaries`); None if there is none."""


async def run_diagnosis(
    runner: Runner,
    job: str,
    owner: str,
    founder: str,
    take: Callable[[], CaseInputs],
    earlier: bytes | None,
    *,
    again: bool,
) -> DiagnosisResult:
    """Return the diagnosis of a job. Wait for the owner's turn, then diagnose in another process.

    `take` collects the inputs at the start of the turn. `again`: the job already has a diagnosis.
    Errors are logged, never raised.
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
            if answer.error:
                failed = DiagnosisError(answer.error)
                log.error("job %s: the summary failed", job, exc_info=failed, extra=extra)
            return DiagnosisResult(
                diagnosis=answer.diagnosis, evidence=evidence, summary=answer.summary
            )
        why = "it failed: see the traceback in the tower's log"
        part = "the diagnosis failed" if evidence else "no case could be made"
        log.error("job %s: %s", job, part, exc_info=DiagnosisError(answer.error), extra=extra)
    except NotDiagnosedError as error:
        why = str(error)
        log.warning("job %s is not diagnosed: %s", job, why, extra=extra)
    except Exception:
        why = "it failed: see the traceback in the tower's log"
        log.exception("job %s: the diagnosis could not be started", job, extra=extra)
    return DiagnosisResult(diagnosis=not_diagnosed(stalled_for_s, why), evidence=evidence)


def _write(inputs: CaseInputs, earlier: bytes | None) -> Request:
    parts, bodies = split_case(inputs)
    limits = limits_for(len(parts.case.ranks))
    return Request(limits=limits, parts=parts, bodies=bodies, earlier=earlier)
