"""Sends and receives that ranks queue on their devices: which message a device waits for."""

from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import POLLS, a_rank, ranks_in, with_rank
from tests.diagnosis.recording import a_recorded_case, peer
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.waits.collective_logs import MAX_AHEAD, limit_to_sent

READS_LOSS = "read_loss train.py:63 < step train.py:31 < main train.py:9"
SLEEPS = "__getitem__ data.py:7 < main train.py:9"


def stages(transfers, *others):
    """Four stages that wait for their devices, and how many messages each has queued."""
    built = with_rank(ranks_in(4, READS_LOSS, native=POLLS, state="R", syscall=""), *others)
    return diagnose(a_recorded_case(built, {}, {rank: {} for rank in range(4)}, transfers))


def test_a_message_that_was_not_sent_has_not_come():
    queued = {0: (peer(1, sent=(16, 16)),), 1: (peer(0, received=(17, 17)),)}
    limited = limit_to_sent(queued, {1})
    assert limited[0] == queued[0]
    assert (limited[1][0].receives_begun, limited[1][0].receives_done) == (17, 16)


def test_messages_of_a_sender_that_is_not_counted_have_come():
    none_sent = {0: (peer(1, received=(2, 2)),), 1: (peer(0, received=(17, 17)),)}
    assert limit_to_sent(none_sent, {1}) == none_sent
    other_way = {0: (peer(1, sent=(1, 1)),), 1: (peer(0, received=(MAX_AHEAD + 2,) * 2),)}
    assert limit_to_sent(other_way, {1}) == other_way


rows = st.builds(
    lambda rank, sent, received: peer(rank, sent=(sent, sent), received=(received, received)),
    st.integers(-1, 3),
    st.integers(0, 60),
    st.integers(0, 60),
)


@given(
    st.dictionaries(st.integers(0, 3), st.lists(rows, max_size=4).map(tuple)),
    st.sets(st.integers(0, 3)),
)
def test_only_receives_of_queued_ranks_change_and_none_grows(transfers, queued):
    limited = limit_to_sent(transfers, queued)
    assert limited.keys() == transfers.keys()
    for rank, before in transfers.items():
        after = limited[rank]
        assert after == before if rank not in queued else len(after) == len(before)
        assert all(
            now.receives_done <= was.receives_done for now, was in zip(after, before, strict=True)
        )
    assert limit_to_sent(limited, queued) == limited


def test_the_stage_that_left_out_a_queued_send():
    """Stage 1 left out message 41 to stage 2. Each host stands where it reads a value."""
    diagnosis = stages(
        {
            0: [peer(1, sent=(41, 41), received=(41, 41))],
            1: [
                peer(0, received=(41, 41), sent=(40, 40), opens=False),
                peer(2, sent=(40, 40), received=(41, 41)),
            ],
            2: [
                peer(1, received=(41, 41), sent=(40, 40), opens=False),
                peer(3, sent=(40, 40), received=(40, 40)),
            ],
            3: [peer(2, received=(41, 41), sent=(40, 40), opens=False)],
        }
    )
    assert diagnosis.cause.value == "missing_send"
    assert [suspect.rank for suspect in diagnosis.suspects] == [1]
    assert "message 41" in diagnosis.summary
    assert diagnosis.confidence == 0.75
    assert [doubt.kind for doubt in diagnosis.doubts] == ["other_sends"]


def test_a_send_that_cannot_be_queued_any_more_has_not_been_sent():
    """The last stage takes four micro-batches before it answers; stage 2 left out the last one.

    The host of stage 3 ran ahead, and is in a send behind the receive that its device waits in.
    """
    diagnosis = stages(
        {
            0: [peer(1, sent=(84, 84), received=(84, 83))],
            1: [
                peer(0, received=(84, 84), sent=(82, 82), opens=False),
                peer(2, sent=(84, 84), received=(83, 82)),
            ],
            2: [
                peer(1, received=(84, 84), sent=(82, 82), opens=False),
                peer(3, sent=(83, 83), received=(83, 82)),
            ],
            3: [peer(2, received=(84, 84), sent=(83, 82), opens=False)],
        }
    )
    assert diagnosis.cause.value == "missing_send"
    assert [suspect.rank for suspect in diagnosis.suspects] == [2]
    assert "message 84" in diagnosis.summary


def test_a_stage_that_sleeps_has_left_out_nothing():
    sleeping = a_rank(1, SLEEPS, syscall="clock_nanosleep")
    diagnosis = stages(
        {
            0: [peer(1, sent=(41, 41), received=(41, 41))],
            1: [
                peer(0, received=(40, 40), sent=(40, 40), opens=False),
                peer(2, sent=(40, 40), received=(40, 40)),
            ],
            2: [
                peer(1, received=(41, 41), sent=(40, 40), opens=False),
                peer(3, sent=(40, 40), received=(40, 40)),
            ],
            3: [peer(2, received=(41, 41), sent=(40, 40), opens=False)],
        },
        sleeping,
    )
    assert diagnosis.cause.value != "missing_send"
    assert [suspect.rank for suspect in diagnosis.suspects] == [1]


def test_one_device_of_a_pipeline_is_stuck():
    """Every message was sent, as far as the hosts know: none left one out."""
    diagnosis = stages(
        {
            0: [peer(1, sent=(41, 41), received=(41, 41))],
            1: [
                peer(0, received=(41, 41), sent=(41, 41), opens=False),
                peer(2, sent=(41, 41), received=(41, 41)),
            ],
            2: [
                peer(1, received=(41, 41), sent=(41, 41), opens=False),
                peer(3, sent=(41, 41), received=(41, 41)),
            ],
            3: [peer(2, received=(41, 41), sent=(41, 41), opens=False)],
        }
    )
    assert not diagnosis.suspects


def test_messages_that_are_not_counted_show_no_cycle():
    """At warm-up, three messages in each direction were sent by isend."""
    diagnosis = stages(
        {
            rank: [
                peer(other, sent=(41, 41), received=(44, 44), opens=rank < other)
                for other in (rank - 1, rank + 1)
                if 0 <= other < 4
            ]
            for rank in range(4)
        }
    )
    assert not diagnosis.suspects
