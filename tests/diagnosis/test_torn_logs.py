"""Collective logs with holes may cost confidence. They never accuse another rank, or none."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import IN_TORCH_ALL_REDUCE, ranks_in
from tests.diagnosis.recording import a_recorded_case, calls
from tests.diagnosis.torn_logs import Hole, find_recorded, tear
from tests.properties import examples
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import Case
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


GROUPS = {"world": range(4)}
SLEEPING = "take_quota /home/ann/job/main.py:41 < <module> /home/ann/job/main.py:80"


@pytest.mark.parametrize(("number", "kind"), [(40, "removed"), (39, "left open")])
def test_no_job_whose_logs_have_holes_is_symmetric(number, kind):
    waits = calls("all_reduce", before=40, open=1)
    case = a_recorded_case(
        ranks_in(4, IN_TORCH_ALL_REDUCE),
        GROUPS,
        {rank: {"world": waits} for rank in range(4)},
    )
    assert diagnose(case).cause is Cause.SYMMETRIC_HANG
    group = case.groups[0].id
    found = diagnose(tear(case, [Hole(rank, group, number, kind) for rank in range(4)]))
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
