"""Files as people paste them into public reports: the right rank, or the right "not known"."""

from __future__ import annotations

import pytest

from tests.field.field_case import FieldCase, diagnose_folder, write
from tests.field.log_cases import LOG_CASES
from tests.field.nccl_cases import NCCL_CASES
from tests.field.node_cases import NODE_CASES
from tests.field.record_cases import RECORD_CASES
from tests.field.stack_cases import STACK_CASES
from watchtower.commands.evidence_files import find_files, read_files
from watchtower.fleet.found_case import make_case
from watchtower.fleet.found_files import sort_findings

FORMS = {
    "logs": LOG_CASES,
    "NCCL": NCCL_CASES,
    "flight recorder": RECORD_CASES,
    "stacks": STACK_CASES,
    "nodes": NODE_CASES,
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


def test_a_claimed_number_of_ranks_costs_nothing(tmp_path):
    (tmp_path / "rank1.log").write_text(
        "world_size=65536\nTraceback (most recent call last):\nValueError: x"
    )
    (tmp_path / "rank2.log").write_text("world_size=65536\n")
    case = make_case("job", sort_findings(list(read_files(find_files([tmp_path]), root=tmp_path))))
    assert case.world_size == 65536
    assert len(case.ranks) < 1000
