"""Collective logs with holes may cost confidence. They never accuse another rank, or none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import IN_TORCH_ALL_REDUCE, a_rank, ranks_in, with_rank
from tests.diagnosis.recording import a_recorded_case, calls
from tests.diagnosis.torn_logs import Hole, find_recorded, tear
from tests.properties import examples
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.picture import take_picture
from watchtower.evidence.case import Case
from watchtower.evidence.collective_log import CallLog
from watchtower.wire.collectives import make_group_log
from watchtower.wire.verdict import Cause

FOLDER = Path(__file__).parent / "goldens"


def load(name: str) -> Case:
    return msgspec.json.decode((FOLDER / name / "case.json").read_bytes(), type=Case)


def truth_of(name: str) -> set[int]:
    return set(json.loads((FOLDER / name / "truth.json").read_text("utf-8"))["suspects"])


LOGGED = tuple(
    name
    for name in sorted(path.parent.name for path in FOLDER.glob("*/case.json"))
    if find_recorded(load(name))
)
BLAMED = tuple(name for name in LOGGED if truth_of(name))


@pytest.mark.parametrize("name", LOGGED)
def test_logs_without_holes_give_the_same_verdict_in_the_new_form(name):
    case = load(name)
    if any(CallLog(log).has_hole for log in case.group_logs):
        pytest.skip("the form of an earlier release does not show which records it lacks")
    before, after = diagnose(case), diagnose(tear(case, []))
    assert (after.cause, after.confidence, after.summary) == (
        before.cause,
        before.confidence,
        before.summary,
    )


@st.composite
def holes_of(draw, recorded: list[Hole]) -> list[Hole]:
    """Draw records to remove, or to leave open: single ones, or one call on every rank.

    A log that lacks its last calls has no hole: it is shorter, and nothing in it shows that.
    """
    last: dict[tuple[int, str], int] = {}
    for hole in recorded:
        key = hole.rank, hole.group
        last[key] = max(last.get(key, 0), hole.number)
    recent = [each for each in recorded if each.number > last[each.rank, each.group] - 4]
    chosen = draw(st.lists(st.sampled_from(recent), min_size=1, max_size=6))
    if draw(st.booleans()):
        calls = {(each.group, each.number) for each in chosen}
        chosen = [each for each in recorded if (each.group, each.number) in calls]
    kind = draw(st.sampled_from(["removed", "left open"]))
    return [
        each._replace(kind=kind)
        for each in chosen
        if kind == "left open" or each.number < last[each.rank, each.group]
    ]


@pytest.mark.parametrize("name", BLAMED)
def test_a_hole_never_turns_a_right_rank_into_none_or_another(name):
    case, right = load(name), truth_of(name)

    @examples(12)
    @given(holes_of(find_recorded(case)))
    def check(holes):
        found = diagnose(tear(case, holes))
        assert found.cause is not Cause.SYMMETRIC_HANG
        assert "none is behind" not in found.summary
        assert {suspect.rank for suspect in found.suspects} <= right

    check()


def as_sent_before(case: Case, completed: int) -> Case:
    """Return the case with logs as an agent of an earlier release sends them: `completed` stops
    at the first call without a record."""
    logs = {
        log.digest: make_group_log(
            group=log.group,
            called=log.called,
            entered=log.entered,
            completed=completed,
            records=log.records,
        )
        for log in case.group_logs
    }

    def change(dump):
        known = dump.collectives
        digests = tuple(logs[each].digest for each in known.logs)
        return replace(dump, collectives=replace(known, logs=digests))

    ranks = tuple(replace(i, dumps=tuple(map(change, i.dumps))) for i in case.ranks)
    return replace(case, ranks=ranks, group_logs=tuple(logs.values()))


GROUPS = {"world": range(4)}
SLEEPING = "take_quota /home/ann/job/main.py:41 < <module> /home/ann/job/main.py:80"


def after_barrier() -> Case:
    """All ranks have passed a barrier without a record long ago. Rank 2 sleeps in its own code."""
    waits, behind = calls("all_reduce", before=40, open=1), calls("", before=40)
    return a_recorded_case(
        with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), a_rank(2, SLEEPING)),
        GROUPS,
        {rank: {"world": behind if rank == 2 else waits} for rank in range(4)},
    )


def test_a_log_of_an_earlier_release_that_stops_at_a_hole_still_names_the_rank_behind():
    case = after_barrier()
    right, old = diagnose(case), diagnose(as_sent_before(case, completed=1))
    assert [suspect.rank for suspect in right.suspects] == [2]
    assert [suspect.rank for suspect in old.suspects] == [2]
    assert old.confidence <= right.confidence
    assert len(take_picture(as_sent_before(case, completed=1)).holed) == 4


@pytest.mark.parametrize("completed", [1, 30])
def test_no_job_whose_logs_have_holes_is_symmetric(completed):
    waits = calls("all_reduce", before=40, open=1)
    case = a_recorded_case(
        ranks_in(4, IN_TORCH_ALL_REDUCE),
        GROUPS,
        {rank: {"world": waits} for rank in range(4)},
    )
    assert diagnose(case).cause is Cause.SYMMETRIC_HANG
    found = diagnose(as_sent_before(case, completed=completed))
    assert found.cause is Cause.UNKNOWN
    assert any("does not show whether some call is over" in gap for gap in found.missing_evidence)


def test_a_hole_in_an_idle_group_hides_no_symmetric_hang():
    """Its last call is over, so that no rank waits in an earlier one."""
    made = {"world": calls("all_reduce", before=3, open=1), "control": calls("broadcast broadcast")}
    case = a_recorded_case(
        ranks_in(4, IN_TORCH_ALL_REDUCE),
        {"world": range(4), "control": range(4)},
        dict.fromkeys(range(4), made),
    )
    (idle,) = {log.group for log in case.group_logs if log.called == log.completed}
    torn = tear(case, [Hole(rank, idle, 1, "left open") for rank in range(4)])
    assert [log.unknown for log in torn.group_logs if log.group == idle] == [(1,)]
    found = diagnose(torn)
    assert (found.cause, found.confidence) == (Cause.SYMMETRIC_HANG, 0.95)


def test_no_job_is_symmetric_by_its_stacks_if_its_logs_lack_the_call():
    """As of ranks in a monitored barrier, which has no record."""
    built, made = ranks_in(4, IN_TORCH_ALL_REDUCE), calls("", before=40)
    case = a_recorded_case(built, GROUPS, {rank: {"world": made} for rank in range(4)})
    found = diagnose(case)
    assert found.cause is Cause.UNKNOWN
    assert {doubt.kind for doubt in found.doubts} >= {"log_has_hole"}
