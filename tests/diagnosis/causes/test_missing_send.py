"""A rank that has left out a message that another one waits for, in pipelines of blocking calls."""

import sys

import pytest

from tests.diagnosis.builders import FETCHING, RECEIVING, a_rank, ranks_in, with_loops, with_rank
from tests.diagnosis.causes.asking import named
from tests.diagnosis.recording import a_recorded_case, calls, peer
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.picture import take_picture
from watchtower.diagnosis.waits import mismatches as module
from watchtower.diagnosis.waits.mismatches import find_missing_sends

INSIDE = calls("all_reduce", before=3, open=1)


def pipeline(transfers, groups=None, made=None, built=None):
    built = built or ranks_in(4, RECEIVING)
    made = made or {rank: {} for rank in range(4)}
    return diagnose(a_recorded_case(built, groups or {}, made, transfers))


def test_a_stage_that_waits_for_the_answer_to_what_it_has_not_sent():
    """Forward and backward over four stages; stage 1 left out message 41 to stage 2."""
    diagnosis = pipeline(
        {
            0: [peer(1, sent=(41, 41), received=(41, 40))],
            1: [
                peer(0, received=(41, 41), sent=(40, 40), opens=False),
                peer(2, sent=(40, 40), received=(41, 40)),
            ],
            2: [
                peer(1, received=(41, 40), sent=(40, 40), opens=False),
                peer(3, sent=(40, 40), received=(40, 40)),
            ],
            3: [peer(2, received=(41, 40), sent=(40, 40), opens=False)],
        }
    )
    assert named(diagnosis) == ("missing_send", [1])
    assert all(value in diagnosis.summary for value in ("message 41", "rank 2"))
    assert diagnosis.waiting == "0,2-3"


def test_a_stage_that_gets_two_messages_for_each_it_sends_has_gone_nowhere():
    diagnosis = pipeline(
        {
            0: [peer(1, sent=(82, 82), received=(41, 40))],
            1: [
                peer(0, received=(82, 82), sent=(40, 40), opens=False),
                peer(2, sent=(40, 40), received=(41, 40)),
            ],
            2: [peer(1, received=(41, 40), sent=(40, 40), opens=False)],
            3: [],
        }
    )
    assert "it has received 82" not in str(diagnosis)


def test_the_first_stage_too():
    diagnosis = pipeline(
        {
            0: [peer(1, sent=(40, 40), received=(41, 40))],
            1: [
                peer(0, received=(41, 40), sent=(40, 40), opens=False),
                peer(2, sent=(40, 40), received=(40, 40)),
            ],
            2: [
                peer(1, received=(41, 40), sent=(40, 40), opens=False),
                peer(3, sent=(40, 40), received=(40, 40)),
            ],
            3: [peer(2, received=(41, 40), sent=(40, 40), opens=False)],
        }
    )
    assert named(diagnosis) == ("missing_send", [0])


def test_a_stage_that_went_on_to_the_barrier():
    """Forward only, a barrier behind each batch."""
    open_barrier = {"w": calls("barrier", open=1)}
    closed = {"w": calls("")}
    diagnosis = pipeline(
        {
            0: [peer(1, sent=(41, 41))],
            1: [peer(0, received=(41, 41), opens=False), peer(2, sent=(40, 40))],
            2: [peer(1, received=(41, 40), opens=False), peer(3, sent=(40, 40))],
            3: [peer(2, received=(41, 40), opens=False)],
        },
        groups={"w": [0, 1, 2, 3]},
        made={0: open_barrier, 1: open_barrier, 2: closed, 3: closed},
    )
    assert named(diagnosis) == ("missing_send", [1])


def test_the_last_stage_that_answers_not_and_goes_on():
    """It left out gradient 41, made its step, and waits for the next activations."""
    diagnosis = pipeline(
        {
            0: [peer(1, sent=(41, 41), received=(41, 40))],
            1: [
                peer(0, received=(41, 41), sent=(40, 40), opens=False),
                peer(2, sent=(41, 41), received=(41, 40)),
            ],
            2: [
                peer(1, received=(41, 41), sent=(40, 40), opens=False),
                peer(3, sent=(41, 41), received=(41, 40)),
            ],
            3: [peer(2, received=(42, 41), sent=(40, 40), opens=False)],
        }
    )
    assert named(diagnosis) == ("missing_send", [3])


FORWARD, BACKWARD = (
    RECEIVING.replace("main.py:41", f"main.py:{line}").replace("train", "run_step")
    for line in (42, 48)
)
LOOPS = {42: (30, 40), 48: (30, 46), 80: ()}
"""A loop over steps, and in it one over micro-batches forward and one backward."""


@pytest.mark.parametrize("has_source", [True, False])
@pytest.mark.parametrize("left_out_by", [1, 2])
def test_a_stage_of_a_pipeline_that_takes_all_micro_batches_before_it_answers(
    left_out_by, has_source
):
    """Four micro-batches: a stage left out the last one, and waits for the first gradient."""
    sent = [84 if rank < left_out_by else 83 for rank in range(4)]
    built = [a_rank(rank, BACKWARD if rank <= left_out_by else FORWARD) for rank in range(4)]
    transfers = {0: [peer(1, sent=(84, 84), received=(81, 80))]}
    for rank in (1, 2, 3):
        is_behind = rank > left_out_by
        received = (84, 83) if is_behind else (84, 84)
        transfers[rank] = [peer(rank - 1, received=received, sent=(80, 80), opens=False)]
        if rank < 3:
            gradients = (80, 80) if is_behind else (81, 80)
            transfers[rank].append(
                peer(rank + 1, sent=(sent[rank], sent[rank]), received=gradients)
            )
    diagnosis = pipeline(
        built=[with_loops(each, LOOPS) if has_source else each for each in built],
        transfers=transfers,
    )
    assert named(diagnosis) == ("missing_send", [left_out_by])
    assert "message 84" in diagnosis.summary


def test_the_last_stage_of_such_a_pipeline():
    """It left out one of four gradients, and waits for the first micro-batch of a new step."""
    diagnosis = pipeline(
        {
            0: [peer(1, sent=(84, 84), received=(84, 83))],
            1: [
                peer(0, received=(84, 84), sent=(83, 83), opens=False),
                peer(2, sent=(84, 84), received=(84, 83)),
            ],
            2: [
                peer(1, received=(84, 84), sent=(83, 83), opens=False),
                peer(3, sent=(84, 84), received=(84, 83)),
            ],
            3: [peer(2, received=(85, 84), sent=(83, 83), opens=False)],
        }
    )
    assert named(diagnosis) == ("missing_send", [3])


def test_both_receive_first_is_a_cycle():
    diagnosis = pipeline(
        {
            0: [peer(1, received=(41, 40), sent=(40, 40), opens=False)],
            1: [peer(0, received=(41, 40), sent=(40, 40), opens=False)],
        },
        made={0: {}, 1: {}, 2: {}, 3: {}},
    )
    assert named(diagnosis) == ("collective_cycle", [0, 1])


def test_who_never_sent_by_a_blocking_call_may_have_sent_by_another():
    diagnosis = pipeline(
        {
            0: [peer(1, received=(1, 0), opens=False)],
            1: [peer(0, received=(1, 0), opens=False)],
        },
        made={0: {}, 1: {}, 2: {}, 3: {}},
    )
    assert named(diagnosis) == ("unknown", [])
    assert [each.cause.value for each in diagnosis.alternatives] == ["collective_cycle"]


@pytest.mark.parametrize("before", [0, 41])
def test_a_ring_that_sends_without_blocking_is_no_cycle_when_its_network_is_cut(before):
    rows = {
        rank: [peer((rank - 1) % 4, received=(before + 1, before), opens=False)]
        for rank in range(4)
    }
    diagnosis = pipeline(rows, made={rank: {} for rank in range(4)})
    assert diagnosis.suspects == ()


def test_a_stage_asleep_in_its_loader_is_the_laggard():
    built = with_rank(ranks_in(4, RECEIVING), a_rank(0, FETCHING))
    transfers = {
        0: [peer(1, sent=(40, 40))],
        1: [peer(0, received=(41, 40), opens=False), peer(2, sent=(40, 40))],
        2: [peer(1, received=(41, 40), opens=False), peer(3, sent=(40, 40))],
        3: [peer(2, received=(41, 40), opens=False)],
    }
    diagnosis = diagnose(a_recorded_case(built, {}, {rank: {} for rank in range(4)}, transfers))
    assert named(diagnosis) == ("dataloader_stall", [0])


def calls_for_a_ring(size):
    """Return how many calls the search makes in a ring whose ranks all wait for the one before."""
    transfers = {
        rank: [
            peer((rank - 1) % size, received=(41, 40), opens=False),
            peer((rank + 1) % size, sent=(40, 40)),
        ]
        for rank in range(size)
    }
    made = {rank: {} for rank in range(size)}
    picture = take_picture(a_recorded_case(ranks_in(size, RECEIVING), {}, made, transfers))
    count = 0

    def note(frame, event, _):
        nonlocal count
        count += event == "call" and frame.f_code.co_filename == module.__file__

    sys.setprofile(note)
    try:
        find_missing_sends(picture, None)
    finally:
        sys.setprofile(None)
    return count


def test_twice_as_many_ranks_take_about_twice_as_many_calls():
    few, many = calls_for_a_ring(20), calls_for_a_ring(40)
    assert few > 20
    assert many < 2.5 * few
