"""Imagined jobs of drawn layouts: no fault, size or noise makes an innocent the answer."""

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.properties import examples, is_thorough
from tests.synthesis.evidence import Maker, Recording, drop_dumps, renumber
from tests.synthesis.faults import (
    FAULTS,
    LOADING,
    LOCKED,
    OFFSETS,
    WRONG_GROUP,
    Fault,
    Truth,
    imagine,
)
from tests.synthesis.layout import Layout
from tests.synthesis.noise import add_noise
from tests.synthesis.program import Call, Spoil, insert, skip, swap, write_program
from tests.synthesis.timeline import run
from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import Case
from watchtower.wire.verdict import Cause

SOME = examples(40)
LARGE, SMALLER = Layout(tensor=8, data=8, pipeline=8), Layout(tensor=4, data=8, pipeline=4)


@st.composite
def layouts(draw: st.DrawFn, limit: int = 72) -> Layout:
    expert = draw(st.sampled_from([1, 1, 2, 3]))
    layout = Layout(
        tensor=draw(st.integers(1, 6)),
        data=draw(st.integers(1, 6)) * expert,
        pipeline=draw(st.integers(1, 5)),
        expert=expert,
    )
    assume(4 <= layout.size <= limit)
    return layout


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    layout, fault = draw(layouts()), draw(st.sampled_from(FAULTS))
    assume(fault.suits(layout))
    rank, at = draw(st.integers(0, layout.size - 1)), draw(st.integers(0, 20))
    truth = imagine(layout, fault, rank, at, Recording(queued=draw(st.booleans())))
    assume(is_stuck(truth))
    return truth


def is_stuck(truth: Truth) -> bool:
    return not any(place.done for place in truth.outcome.places)


def suspects_of(diagnosis: Diagnosis) -> list[int]:
    return [suspect.rank for suspect in diagnosis.suspects]


@SOME
@given(truths())
def test_whatever_the_layout_the_rank_at_fault_is_named_alone(truth: Truth):
    diagnosis = diagnose(truth.case)
    assert suspects_of(diagnosis) == list(truth.ranks)
    assert diagnosis.cause.value in truth.causes


@SOME
@given(truths(), st.integers(0, 2**32))
def test_noise_changes_neither_suspects_nor_cause(truth: Truth, seed: int):
    before = diagnose(truth.case)
    after = diagnose(add_noise(truth.case, truth.ranks, random.Random(seed)))
    assert (suspects_of(after), after.cause) == (suspects_of(before), before.cause)


@SOME
@given(truths(), st.integers(0, 2**32), st.floats(0.05, 0.6))
def test_however_many_dumps_are_missing_no_innocent_is_a_confident_answer(
    truth: Truth, seed: int, share: float
):
    size = truth.case.world_size
    lost = random.Random(seed).sample(range(size), max(1, round(size * share)))
    assert set(suspects_of(diagnose(drop_dumps(truth.case, lost)))) <= set(truth.ranks)


@pytest.mark.long
@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("queued", [False, True], ids=["like gloo", "like NCCL"])
def test_of_many_ranks_the_one_at_fault_is_named(fault: Fault, queued: bool):
    layout, rank = (LARGE, 317) if is_thorough() else (SMALLER, 77)
    truth = imagine(layout, fault, rank, 3, Recording(queued=queued))
    assert is_stuck(truth)
    diagnosis = diagnose(truth.case)
    assert (suspects_of(diagnosis), diagnosis.cause.value in truth.causes) == ([rank], True)


@SOME
@given(layouts(), st.data())
def test_two_ranks_at_fault_are_the_only_ones_named(layout: Layout, data: st.DataObject):
    one, other = data.draw(st.lists(st.integers(0, layout.size - 1), min_size=2, max_size=2))
    assume(one != other)
    outcome = run(layout, stops={one: 0, other: 0})
    case = Maker(layout).make(outcome, {one: LOADING, other: LOCKED})
    named = set(suspects_of(diagnose(case)))
    assert named
    assert named <= {one, other}


@SOME
@given(layouts(), st.integers(0, 9), st.booleans())
def test_a_network_that_is_cut_in_the_middle_of_a_step_is_nobody(
    layout: Layout, at: int, queued: bool
):
    outcome = run(layout, cut_at=at)
    assume(not any(place.done for place in outcome.places))
    diagnosis = diagnose(Maker(layout, Recording(queued=queued)).make(outcome, {}))
    assert suspects_of(diagnosis) == []
    assert queued or diagnosis.cause.value == "symmetric_hang"


@pytest.mark.parametrize("fault", OFFSETS, ids=lambda fault: fault.name)
def test_a_rank_that_is_one_call_off_is_named_alone(fault: Fault):
    for layout in (Layout(tensor=4), Layout(data=4), Layout(tensor=4, data=4)):
        if fault.suits(layout):
            for at in range(3):
                truth = imagine(layout, fault, 1, at)
                diagnosis = diagnose(truth.case)
                assert suspects_of(diagnosis) == [1]
                assert diagnosis.cause.value in truth.causes


@SOME
@given(layouts(), st.integers(0, 71), st.integers(0, 20), st.booleans(), st.booleans())
def test_who_calls_in_the_wrong_group_is_named_or_nobody_with_confidence(
    layout: Layout, rank: int, at: int, numbered: bool, queued: bool
):
    assume(WRONG_GROUP.suits(layout))
    truth = imagine(layout, WRONG_GROUP, rank % layout.size, at, Recording(queued=queued))
    assume(is_stuck(truth))
    diagnosis = diagnose(number_groups(truth.case) if numbered else truth.case)
    assert suspects_of(diagnosis) == list(truth.ranks) or diagnosis.confidence <= 0.55


def number_groups(case: Case) -> Case:
    """Name all groups but the world by numbers, as torch does for those without a name."""
    groups = (
        group if group.name == "world" else replace(group, name=str(number))
        for number, group in enumerate(case.groups)
    )
    return replace(case, groups=tuple(groups))


@st.composite
def spoilt(draw: st.DrawFn) -> tuple[Layout, int, Spoil]:
    """One rank leaves out, doubles or swaps some call of some group."""
    layout = draw(layouts())
    rank = draw(st.integers(0, layout.size - 1))
    calls = write_program(layout, rank)
    at = draw(st.sampled_from([index for index, call in enumerate(calls) if call.group]))
    swaps = at + 1 < len(calls) and calls[at + 1].group and calls[at + 1] != calls[at]
    spoils = [skip(at), insert(at, calls[at]), *([swap(at)] if swaps else [])]
    return layout, rank, draw(st.sampled_from(spoils))


def spoil_one(drawn: tuple[Layout, int, Spoil], recording: Recording) -> Case:
    layout, rank, spoil = drawn
    outcome = run(layout, spoil={rank: spoil})
    assume(not any(place.done for place in outcome.places))
    return Maker(layout, recording).make(outcome, {})


@SOME
@given(spoilt(), st.booleans())
def test_a_call_left_out_doubled_or_swapped_accuses_its_rank_alone(drawn, queued: bool):
    diagnosis = diagnose(spoil_one(drawn, Recording(queued=queued)))
    layout, rank, _ = drawn
    if suspects_of(diagnosis) != [rank]:
        # Of two in a group one has a message too few, the other a call, or two groups are of the
        # same two ranks: nothing tells them apart.
        assert layout.pipeline > 1 or layout.expert > 1
        assert 2 in (layout.tensor, layout.data, layout.expert)
        assert diagnosis.cause is Cause.COLLECTIVE_CYCLE
        assert rank in suspects_of(diagnosis)
    else:
        assert diagnosis.cause is Cause.MISMATCHED_COLLECTIVE


@SOME
@given(spoilt(), st.sampled_from(["gloo", "NCCL", "none"]), st.integers(0, 2**32))
def test_with_a_fifth_of_the_dumps_missing_no_innocent_alone_is_the_answer(
    drawn, like: str, seed: int
):
    case = spoil_one(drawn, Recording(kept=like != "none", queued=like == "NCCL"))
    lost = random.Random(seed).sample(range(case.world_size), max(1, case.world_size // 5))
    suspects = suspects_of(diagnose(drop_dumps(case, lost)))
    assert not suspects or drawn[1] in suspects


@SOME
@given(spoilt(), st.booleans(), st.randoms(use_true_random=False))
def test_a_rank_that_is_one_call_off_keeps_its_name_in_other_numbers(drawn, queued: bool, shuffled):
    case = spoil_one(drawn, Recording(queued=queued))
    order = list(range(case.world_size))
    shuffled.shuffle(order)
    before, after = diagnose(case), diagnose(renumber(case, order))
    assert (after.cause, after.confidence) == (before.cause, before.confidence)
    assert suspects_of(after) == sorted(order[rank] for rank in suspects_of(before))


@SOME
@given(layouts(), st.data(), st.booleans())
def test_who_leaves_the_loop_for_the_last_barrier_had_fewer_batches(
    layout: Layout, data: st.DataObject, queued: bool
):
    rank = data.draw(st.integers(0, layout.size - 1))
    barrier = Call("barrier", 70, "world", signature="")
    drawn = (layout, rank, lambda _: [barrier])
    diagnosis = diagnose(spoil_one(drawn, Recording(queued=queued)))
    assert (diagnosis.cause, suspects_of(diagnosis)) == (Cause.UNEVEN_INPUTS, [rank])


def test_who_waits_for_the_rank_that_left_a_collective_out_has_not_left_out_a_send():
    layout = Layout(tensor=2, pipeline=3)
    outcome = run(layout, spoil={3: skip(1)})
    assert 3 in suspects_of(diagnose(Maker(layout).make(outcome, {})))


def test_without_records_who_waits_in_an_earlier_line_is_not_the_answer():
    layout = Layout(data=2, pipeline=2)
    outcome = run(layout, spoil={2: skip(5)})
    diagnosis = diagnose(Maker(layout, Recording(kept=False)).make(outcome, {}))
    assert set(suspects_of(diagnosis)) <= {2}


def test_without_records_a_network_that_is_cut_is_nobody_either():
    layout = Layout(data=4, pipeline=3)
    outcome = run(layout, cut_at=8)
    assert all(place.inside for place in outcome.places)
    diagnosis = diagnose(Maker(layout, Recording(kept=False)).make(outcome, {}))
    assert suspects_of(diagnosis) == []
