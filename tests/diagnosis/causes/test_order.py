"""The tuple of causes: complete, in tiers, each file one cause."""

from tests.diagnosis.builders import a_rank, picture_of, ranks_in, with_rank
from tests.diagnosis.strategies import FAULTS
from watchtower.diagnosis.causes import CAUSES, SLOW_CAUSES
from watchtower.wire.verdict import Cause


def test_every_cause_has_one_entry():
    causes = [entry.cause for entry in (*CAUSES, *SLOW_CAUSES)]
    assert len(causes) == len(set(causes))
    assert not {Cause.UNKNOWN, Cause.JOB_SLOW}.intersection(causes)


def test_causes_stand_in_the_order_of_their_tiers():
    faults = {**FAULTS, "never_started": None, "init_stuck": None}
    tiers = []
    for cause, find, *_ in CAUSES:
        if faults.get(cause.value) is None:
            continue
        built = with_rank(ranks_in(8), faults[cause.value](3))
        finding = find(picture_of(built))
        assert finding.cause is cause
        tiers.append(finding.tier)
    assert tiers == sorted(tiers)


def test_no_cause_accuses_anybody_of_a_job_in_its_collective():
    built = [*ranks_in(7), a_rank(7)]
    found = {cause: find(picture_of(built)) for cause, find, *_ in CAUSES}
    found = {cause: finding.suspects for cause, finding in found.items() if finding}
    assert found == {Cause.SYMMETRIC_HANG: ()}
