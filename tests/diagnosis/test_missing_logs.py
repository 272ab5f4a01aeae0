"""Collective logs of some ranks were not read: any rank of them may be behind, for now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.jobs.story import Story, a_diagnosis, stalled
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.picture import take_picture
from watchtower.evidence.case import Case
from watchtower.jobs.dump_timing import AGAIN_S
from watchtower.jobs.effects import DumpsWanted
from watchtower.jobs.stillness import LOGS_WAIT_S
from watchtower.wire.collectives import RankCollectives
from watchtower.wire.verdict import Cause, Status

GOLDEN = Path(__file__).parent / "goldens" / "missing_send" / "case.json"
UNREAD = RankCollectives(failure="no time was left to read the process's collective log")
AGAIN = DumpsWanted(reason="nothing decides yet", again=True)
HUNG_S = 10


@pytest.fixture(scope="module")
def case() -> Case:
    """All ranks wait in `recv`, and one has left out a send."""
    return msgspec.json.decode(GOLDEN.read_bytes(), type=Case)


def unread(case: Case, ranks: Iterable[int], instead: RankCollectives | None) -> Case:
    """Return the case as if the logs and counts of these ranks were not read in any dump."""
    chosen = set(ranks)
    return replace(
        case,
        ranks=tuple(
            replace(item, dumps=tuple(replace(dump, collectives=instead) for dump in item.dumps))
            if item.rank in chosen
            else item
            for item in case.ranks
        ),
    )


@pytest.mark.parametrize("instead", [None, UNREAD])
def test_no_rank_is_said_not_to_be_behind_while_its_log_is_missing(case, instead):
    right = diagnose(case)
    assert (right.cause, right.unlogged) == (Cause.MISSING_SEND, ())
    culprit = right.suspects[0].rank
    said = diagnose(unread(case, [culprit], instead))
    assert said.unlogged == (culprit,)
    assert said.cause is Cause.UNKNOWN
    assert "none is behind" not in said.summary
    assert f"rank {culprit}" in said.summary
    assert any("no collective log" in gap for gap in said.missing_evidence)


def test_a_log_that_was_read_in_the_dump_before_is_not_missing(case):
    culprit = diagnose(case).suspects[0].rank
    ranks = tuple(
        replace(item, dumps=(item.dumps[0], replace(item.dumps[-1], collectives=UNREAD)))
        if item.rank == culprit
        else item
        for item in case.ranks
    )
    said = diagnose(replace(case, ranks=ranks))
    assert [each.rank for each in said.suspects] == [culprit]


def test_whether_a_log_was_read_has_one_answer(case):
    item = take_picture(case).by_rank[0]
    logged, empty = RankCollectives(logs=("a" * 32,)), RankCollectives()
    for read, expected in (
        ((logged, logged), (True, "")),
        ((logged, UNREAD), (True, "")),
        ((empty, UNREAD), (False, "")),
        ((UNREAD, UNREAD), (False, UNREAD.failure)),
        ((UNREAD, None), (False, UNREAD.failure)),
        ((None, None), (False, "")),
    ):
        dumps = tuple(replace(item.evidence.dumps[0], collectives=each) for each in read)
        found = replace(item, evidence=item.evidence.with_dumps(dumps))
        assert (found.has_log, found.log_failure) == expected


def test_a_job_without_any_log_lacks_none(case):
    said = diagnose(unread(case, range(case.world_size), None))
    assert said.unlogged == ()


def unknown(**values: object) -> object:
    return a_diagnosis(Cause.UNKNOWN, suspects=(), **values)


def test_the_ranks_are_dumped_again_and_the_incident_waits_for_a_while():
    story = Story()
    story.see(stalled())
    story.hear(unknown(unlogged=(1,)))
    ordered = story.see(stalled(), seconds=HUNG_S + LOGS_WAIT_S - 1)
    assert ordered.count(AGAIN) == 3
    assert story.watch.status is Status.SUSPECT
    story.see(stalled(), seconds=1)
    assert story.watch.status is Status.HUNG


def test_an_incident_that_waited_opens_when_the_logs_have_arrived():
    story = Story()
    story.see(stalled())
    story.hear(unknown(unlogged=(1,)))
    story.see(stalled(), seconds=HUNG_S + 2)
    assert story.watch.status is Status.SUSPECT
    story.hear(a_diagnosis())
    story.see(stalled(), seconds=1)
    assert story.watch.status is Status.HUNG


def test_an_incident_does_not_wait_for_logs_if_none_is_missing():
    story = Story()
    story.see(stalled())
    story.hear(unknown())
    assert AGAIN in story.see(stalled(), seconds=HUNG_S)
    assert story.watch.status is Status.HUNG


def test_nothing_waits_if_the_rank_is_known():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis(unlogged=(1,)))
    ordered = story.see(stalled(), seconds=max(HUNG_S, AGAIN_S))
    assert AGAIN not in ordered
    assert story.watch.status is Status.HUNG
