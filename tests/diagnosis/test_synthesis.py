"""Imagined jobs: the rank at fault is named for every fault, layout and size."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.diagnosis.causes.asking import named
from tests.properties import examples, is_thorough
from tests.synthesis.evidence import Maker, Recording, drop_dumps, renumber
from tests.synthesis.faults import FAULTS, LOADING, SILENT, SPINNING, Fault, imagine, imagine_cut
from tests.synthesis.layout import Layout
from tests.synthesis.timeline import run
from watchtower.diagnosis.diagnosis import diagnose

LAYOUTS = (
    Layout(data=4),
    Layout(tensor=4),
    Layout(tensor=2, data=2),
    Layout(tensor=2, data=4, expert=2),
    Layout(pipeline=4),
    Layout(tensor=2, pipeline=3),
    Layout(tensor=2, data=3, pipeline=2),
    Layout(tensor=4, data=4, pipeline=4),
)
FEW = examples(100)


@st.composite
def faults(draw, kinds=FAULTS):
    layout = draw(st.sampled_from(LAYOUTS))
    fault = draw(st.sampled_from(kinds))
    assume(fault.suits(layout))
    rank = draw(st.integers(0, layout.size - 1))
    return layout, fault, rank, draw(st.integers(0, 20))


@pytest.mark.long
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("layout", "fault"),
    [
        pytest.param(layout, fault, id=f"{fault.name} in {layout}")
        for layout in LAYOUTS
        for fault in FAULTS
        if fault.suits(layout)
    ],
)
def test_every_rank_and_place_of_a_fault_is_named(layout: Layout, fault: Fault):
    # Every third rank, each at another place: 0, 3, 2, 1.
    for rank in range(0, min(layout.size, 12), 1 if is_thorough() else 3):
        for at in range(4) if is_thorough() else (rank % 4,):
            truth = imagine(layout, fault, rank, at)
            if not is_stuck(truth):
                continue
            cause, ranks = named(diagnose(truth.case))
            assert ranks == list(truth.ranks), (rank, at, cause)
            assert cause in truth.causes, (rank, at)


def is_stuck(truth):
    return not any(place.done for place in truth.outcome.places)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_network_that_is_cut_is_nobody(layout: Layout):
    truth = imagine_cut(layout)
    assert named(diagnose(truth.case)) == ("symmetric_hang", [])


@FEW
@given(faults(), st.randoms(use_true_random=False))
def test_a_fifth_of_the_dumps_missing_makes_no_innocent_a_confident_answer(drawn, random):
    layout, fault, rank, at = drawn
    truth = imagine(layout, fault, rank, at)
    assume(is_stuck(truth))
    lost = random.sample(range(layout.size), max(1, layout.size // 5))
    diagnosis = diagnose(drop_dumps(truth.case, lost))
    assert {suspect.rank for suspect in diagnosis.suspects} <= set(truth.ranks), lost


@FEW
@given(faults(), st.booleans())
def test_a_library_that_only_says_called_accuses_no_innocent(drawn, kept):
    layout, fault, rank, at = drawn
    truth = imagine(layout, fault, rank, at, Recording(kept=kept, queued=True))
    assume(is_stuck(truth))
    diagnosis = diagnose(truth.case)
    assert {suspect.rank for suspect in diagnosis.suspects} <= set(truth.ranks)


@FEW
@given(faults(), st.randoms(use_true_random=False))
def test_other_numbers_of_the_ranks_give_the_same_answer_in_those_numbers(drawn, random):
    layout, fault, rank, at = drawn
    truth = imagine(layout, fault, rank, at)
    assume(is_stuck(truth))
    order = list(range(layout.size))
    random.shuffle(order)
    before, after = diagnose(truth.case), diagnose(renumber(truth.case, order))
    assert after.cause is before.cause
    assert after.confidence == before.confidence
    renamed = {order[suspect.rank] for suspect in before.suspects}
    assert {suspect.rank for suspect in after.suspects} == renamed


def test_two_faults_in_replicas_that_never_meet_are_both_named():
    layout = Layout(tensor=4, data=2)
    for first in range(4):
        for second in range(4, 8):
            outcome = run(layout, stops={first: 0, second: 0})
            case = Maker(layout).make(outcome, {first: LOADING, second: SPINNING})
            diagnosis = diagnose(case)
            assert sorted(named(diagnosis)[1]) == [first, second]
            assert not diagnosis.suspects_moving, "the first alone holds up the job for ever"


def test_a_node_that_fell_silent_is_named_as_one():
    layout = Layout(tensor=4, data=6)
    gone = range(8, 16)
    outcome = run(layout, stops=dict.fromkeys(gone, 0))
    case = Maker(layout).make(outcome, dict.fromkeys(gone, SILENT))
    nodes = tuple(
        replace(node, silent_for_s=12.0) if node.node == "node-00001" else node
        for node in case.nodes
    )
    diagnosis = diagnose(replace(case, nodes=nodes))
    assert named(diagnosis) == ("node_lost", list(gone))
