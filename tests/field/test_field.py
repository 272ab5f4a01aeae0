"""Files as people paste them into public reports: the right rank, or the right "not known"."""

from __future__ import annotations

import pytest

from tests.field.field_case import FieldCase, diagnose_folder, write
from tests.field.log_cases import LOG_CASES
from tests.field.nccl_cases import NCCL_CASES
from tests.field.record_cases import RECORD_CASES
from tests.field.stack_cases import STACK_CASES

FORMS = {
    "logs": LOG_CASES,
    "NCCL": NCCL_CASES,
    "flight recorder": RECORD_CASES,
    "stacks": STACK_CASES,
}
CASES = tuple(case for cases in FORMS.values() for case in cases)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_answer_is_the_one_of_the_report(case: FieldCase, tmp_path):
    verdict = diagnose_folder(write(case, tmp_path))
    assert {suspect.rank for suspect in verdict.suspects} == case.suspects, verdict.summary
    if case.cause:
        assert verdict.cause.value == case.cause
    if case.candidates:
        named = {rank for each in verdict.alternatives for rank in each.suspects}
        assert case.candidates <= named, verdict
    text = " ".join(
        [
            verdict.summary,
            *(doubt.text for doubt in verdict.doubts),
            *(each.text for each in verdict.evidence),
            *verdict.next_steps,
            *verdict.missing_evidence,
        ]
    )
    for word in case.words:
        assert word in text
