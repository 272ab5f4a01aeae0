"""What collectors observed names a rank or a place only where it can be the reason.

Every row of the table is asked in every way, so that a new row is covered by itself.
"""

from dataclasses import replace
from itertools import product

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_ALL_REDUCE,
    IN_LOCK,
    IN_USER_CODE,
    a_case,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.recording import a_recorded_case, calls
from watchtower.diagnosis.blame import BEFORE_S, Since, Strength, Subject
from watchtower.diagnosis.blame_table import ROWS
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.picture import take_picture
from watchtower.wire.observations import NODE, Observation

ODD, OTHER = 5, 6
"""The rank whose device is observed, and another one on its node."""

DEVICE = "pci:0000:3b:00"
SUBJECTS = {
    Subject.GPU: DEVICE,
    Subject.PROCESS: f"pid:{4000 + ODD}",
    Subject.LINK: "nic:eth1",
    Subject.NODE: NODE,
}
NAMES = ("", ".79", ".13", ".20034")
TEXTS = ("what happened", "Uncorrected (Fatal)", "20034, Fatal, Link 28")
VALUES = (1.0, 17_700.0)
"""Whatever a row may ask of an observation."""


HELPER = "pid:9000"


def example_of(row, *, age_s=12.0, pid=4000 + ODD):
    """Return an observation that is of the row, and those that it must be beside."""
    of_rank = row.subject in (Subject.GPU, Subject.PROCESS)
    subjects = (SUBJECTS[row.subject], *((HELPER,) if row.subject is Subject.PROCESS else ()))
    earlier = ROWS[: [each.name for each in ROWS].index(row.name)]
    for name, text, value, subject, age in product(NAMES, TEXTS, VALUES, subjects, (age_s, 3.0)):
        made = Observation(
            source="nvml",
            subject=subject,
            name=f"{row.observed[0]}{name}",
            age_s=age,
            text=text,
            value=value,
            pid=pid if of_rank else None,
        )
        first = [
            each
            for each in (*earlier, row)
            if made.name.startswith(each.observed)
            and each.holds(made)
            and (each is row or not each.beside)
        ]
        if first[:1] == [row]:
            return (made, *(replace(made, name=each) for each in row.beside[:1]))
    raise AssertionError(f"row {row.name}: add what it asks for to NAMES, TEXTS or VALUES")


def observed(row, *, logged=False, built=None, called=None, **values):
    """A job of 8 ranks on two nodes; the second one has the observation."""
    built = built or ranks_in(8, IN_ALL_REDUCE)
    if logged:
        made = {rank: {"w": calls("all_reduce", before=3, open=1)} for rank in range(8)}
        case = a_recorded_case(built, {"w": list(range(8))}, made | (called or {}))
    else:
        case = a_case(built)
    first, second = case.nodes
    return replace(case, nodes=(first, replace(second, observations=example_of(row, **values))))


def of_rows(*strengths, names_ranks=None):
    rows = [
        row
        for row in ROWS
        if row.strength in (strengths or Strength)
        and (names_ranks is None or row.names_ranks is names_ranks)
    ]
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name.replace(" ", "_"))


DECIDES = Strength.DECIDES


def ranks_of(diagnosis):
    return [each.rank for each in diagnosis.suspects]


@pytest.mark.parametrize("logged", [False, True], ids=["stacks", "logs"])
@of_rows(DECIDES, names_ranks=True)
def test_what_decides_names_the_rank_that_uses_the_device(row, logged):
    diagnosis = diagnose(observed(row, logged=logged))
    assert (diagnosis.cause, ranks_of(diagnosis)) == (row.cause, [ODD])
    assert diagnosis.domain is row.domain
    assert diagnosis.confidence >= 0.8
    assert "uses GPU 0000:3b:00: " in diagnosis.summary
    assert "GPU 0000:3b:00 of rank 5: " in diagnosis.evidence[0].text
    assert "gpu-01" in diagnosis.next_steps[0]


@of_rows(DECIDES, names_ranks=False)
def test_what_decides_names_the_place_where_no_rank_is_to_blame(row):
    diagnosis = diagnose(observed(row))
    assert (diagnosis.cause, ranks_of(diagnosis)) == (row.cause, [])
    assert diagnosis.domain is row.domain
    assert "gpu-01, 12 s ago: " in diagnosis.summary
    assert "gpu-01" in diagnosis.next_steps[0]


@of_rows(Strength.SEPARATES, Strength.SUPPORTS)
def test_what_does_not_decide_leaves_the_cause_open(row):
    diagnosis = diagnose(observed(row, age_s=2.0))
    assert (diagnosis.cause.value, ranks_of(diagnosis)) == ("unknown", [])
    assert [each.kind for each in take_picture(observed(row, age_s=2.0)).separations] == [row.name]


@of_rows()
def test_what_is_old_neither_decides_nor_separates(row):
    """Of a state and of an event: the job made steps since. A call that goes on has any age."""
    if row.since is not Since.ANY:
        case = observed(row, age_s=9.0 + BEFORE_S + 1.0)
        assert diagnose(case).cause.value == "symmetric_hang"
        assert not take_picture(case).blamed


@of_rows()
def test_where_the_others_wait_for_another_rank_that_one_is_named(row):
    built = with_rank(ranks_in(8, IN_ALL_REDUCE), a_rank(OTHER, FETCHING, syscall="nanosleep"))
    diagnosis = diagnose(observed(row, built=built))
    assert (diagnosis.cause.value, ranks_of(diagnosis)) == ("dataloader_stall", [OTHER])


GOES_ON = {
    "reads a batch": a_rank(ODD, FETCHING, syscall="nanosleep"),
    "goes on in the program": a_rank(ODD, IN_USER_CODE, before=IN_LOCK, state="R", cpu=1.0),
    "is stopped": a_rank(ODD, IN_ALL_REDUCE, state="T"),
}


@pytest.mark.parametrize("what", GOES_ON)
@of_rows(DECIDES)
def test_a_rank_that_does_something_else_than_to_wait_for_its_gpu_is_named_for_that(row, what):
    built = with_rank(ranks_in(8, IN_ALL_REDUCE), GOES_ON[what])
    diagnosis = diagnose(observed(row, built=built))
    assert diagnosis.cause.value in (
        "dataloader_stall",
        "behind_collective",
        "busy_loop",
        "process_stopped",
    )
    assert ranks_of(diagnosis) == [ODD]


@of_rows(DECIDES, names_ranks=True)
def test_a_rank_at_a_line_that_may_wait_for_its_gpu_is_named(row):
    built = with_rank(ranks_in(8, IN_ALL_REDUCE), a_rank(ODD, IN_USER_CODE, state="R", cpu=1.0))
    assert diagnose(observed(row, built=built)).cause is row.cause


@of_rows(DECIDES)
def test_where_logs_show_that_another_rank_is_missing_nobody_else_is_named(row):
    late = {OTHER: {"w": calls("all_reduce", before=2)}}
    diagnosis = diagnose(observed(row, logged=True, called=late))
    assert ODD not in ranks_of(diagnosis)
    assert diagnosis.cause is not row.cause


@of_rows()
def test_what_is_of_a_device_or_process_of_another_job_blames_nobody(row):
    if row.subject in (Subject.GPU, Subject.PROCESS):
        diagnosis = diagnose(observed(row, pid=77))
        assert diagnosis.cause.value == "symmetric_hang"


@of_rows(DECIDES)
def test_a_state_that_is_older_than_the_job_counts_until_the_job_has_made_a_step(row):
    for step in (None, 41):
        built = [a_rank(rank, IN_ALL_REDUCE, step=41) for rank in range(8)]
        if step is None:
            beats = [replace(each.evidence.beat, step=-1) for each in built]
            built = [
                replace(each, evidence=replace(each.evidence, beat=beat))
                for each, beat in zip(built, beats, strict=True)
            ]
        blamed = take_picture(observed(row, built=built, age_s=5000.0)).blamed
        assert bool(blamed) is (row.since is Since.ANY or (row.is_state and step is None))


def test_rows_have_names_of_their_own():
    assert len({row.name for row in ROWS}) == len(ROWS)


@of_rows(DECIDES)
def test_a_row_that_decides_has_a_domain_and_advice(row):
    assert row.domain.value != "unknown"
    assert row.advice


@of_rows(Strength.EXPLAINS)
def test_what_explains_a_rank_is_added_to_its_verdict_and_separates_none(row):
    culprit = a_rank(ODD, IN_USER_CODE, syscall="clock_nanosleep")
    explained = diagnose(observed(row, built=with_rank(ranks_in(8, IN_ALL_REDUCE), culprit)))
    plain = diagnose(a_case(with_rank(ranks_in(8, IN_ALL_REDUCE), culprit)))
    assert (explained.cause, ranks_of(explained)) == (plain.cause, [ODD])
    assert "What happened" in explained.summary
    assert explained.domain is row.domain
    assert row.advice.replace("{node}", "gpu-01") == explained.next_steps[0]
    assert diagnose(observed(row)).cause.value == "symmetric_hang"
