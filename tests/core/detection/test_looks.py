"""Sequences of looks at ranks that do not beat: what agrees, what changed, how many it takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import FETCHING, IN_ALL_REDUCE, IN_USER_CODE, a_kernel, a_stack
from watchtower.core.detection.looks import MAX_LOOKS, Looks
from watchtower.wire.collectives import PeerTransfers, RankCollectives
from watchtower.wire.dumps import DumpFailure, FailureKind, RankDump, ThreadDump

RANKS = {0, 1}
FAILED = DumpFailure(kind=FailureKind.TORN, help_text="")


def a_dump(rank: int, stack: str, *, state: str = "S", pid: int = 10, **values) -> RankDump:
    main = ThreadDump(name="MainThread", digest=a_stack(stack).digest, main=True)
    threads = (main,) if stack else ()
    return RankDump(
        rank=rank, pid=pid, start_time=1, kernel=a_kernel(state), threads=threads, **values
    )


def look(looks: Looks, at: float, *stacks: str, **values) -> int:
    """Look at ranks 0, 1 ... standing there; returns how many looks agree."""
    looks.begin(RANKS, at)
    dumps = [a_dump(rank, stack, **values) for rank, stack in enumerate(stacks)]
    looks.take(dumps, [a_stack(stack) for stack in stacks if stack], at)
    return looks.agreed(RANKS)


def looked(*sequence: tuple[str, str]) -> Looks:
    looks = Looks()
    for number, stacks in enumerate(sequence):
        look(looks, 20.0 * number, *stacks)
    return looks


SAME = (IN_ALL_REDUCE, FETCHING)
OTHER = (IN_ALL_REDUCE, IN_USER_CODE)


def test_looks_that_find_everybody_where_they_were_agree():
    looks = Looks()
    assert [look(looks, 20.0 * n, *SAME) for n in range(4)] == [1, 2, 3, 4]
    assert looks.since == 0.0


def test_one_rank_that_went_on_begins_anew():
    looks = looked(SAME, SAME, SAME)
    assert look(looks, 60.0, *OTHER) == 1
    assert looks.since == 60.0
    assert looks.changed_since(1, 50.0)
    assert not looks.changed_since(0, 50.0)


def test_what_was_seen_first_is_no_change():
    looks = looked(SAME)
    assert not looks.changed_since(0, -1.0)
    assert not looks.changed_since(7, -1.0)


def test_a_look_that_a_rank_did_not_answer_counts_for_nothing():
    looks = looked(SAME, SAME)
    assert look(looks, 40.0, IN_ALL_REDUCE) == 2
    assert look(looks, 60.0, *SAME) == 3


def test_a_dump_that_failed_is_no_sight_unless_the_rank_is_held():
    looks = looked(SAME)
    assert look(looks, 20.0, *SAME, failure=FAILED) == 1
    assert look(looks, 40.0, "", "", failure=FAILED, state="D") == 1
    assert look(looks, 60.0, "", "", failure=FAILED, state="D") == 2


@pytest.mark.parametrize(
    "records",
    [RankCollectives(logs=("b",)), RankCollectives(logs=("a",), peers=(PeerTransfers(peer=1),))],
)
def test_collectives_and_transfers_that_go_on_are_progress_at_the_same_line(records):
    looks = looked()
    look(looks, 0.0, *SAME, collectives=RankCollectives(logs=("a",)))
    assert look(looks, 20.0, *SAME, collectives=RankCollectives(logs=("a",))) == 2
    assert look(looks, 40.0, *SAME, collectives=records) == 1


def test_looks_that_show_nobody_are_blind_after_some():
    looks = Looks()
    for number in range(3):
        look(looks, 20.0 * number, *SAME, failure=FAILED)
        assert not looks.is_blind
    look(looks, 60.0, *SAME, failure=FAILED)
    assert looks.is_blind
    look(looks, 80.0, *SAME)
    assert not looks.is_blind


def test_another_process_is_another_sight():
    looks = looked(SAME, SAME)
    assert look(looks, 40.0, *SAME, pid=11) == 1


def test_a_rank_that_comes_later_begins_the_count_anew():
    looks = Looks()
    for number in range(3):
        looks.begin({0}, 20.0 * number)
        looks.take([a_dump(0, FETCHING)], [a_stack(FETCHING)], 20.0 * number)
    assert looks.agreed({0}) == 3
    assert look(looks, 60.0, FETCHING, FETCHING) == 1


def test_a_dump_that_arrives_late_says_nothing_of_now():
    looks = looked(SAME, SAME)
    looks.take([a_dump(1, IN_USER_CODE)], [a_stack(IN_USER_CODE)], 5.0)
    assert looks.agreed(RANKS) == 2


def test_the_more_looks_agree_by_chance_the_more_are_needed():
    assert Looks().needed_by_chance() == 10
    assert looked(*[SAME, OTHER] * 20).needed_by_chance() == 2
    often = looked(*([SAME] * 9 + [OTHER]) * 10)
    assert 20 < often.needed_by_chance() < 50
    assert often.longest(still=False) == 9
    assert looked(*([SAME] * 300 + [OTHER])).longest(still=False) == MAX_LOOKS


def test_how_long_all_stood_still_before_is_remembered_by_itself():
    looks = looked(SAME, SAME, SAME, SAME)
    looks.note_still(3)
    look(looks, 80.0, *OTHER)
    assert (looks.longest(still=True), looks.longest(still=False)) == (3, 4)


@given(st.lists(st.sampled_from([SAME, OTHER]), max_size=40))
def test_as_many_looks_agree_as_are_alike_at_the_end(sequence):
    looks = looked(*sequence)
    alike = 0
    for stacks in reversed(sequence):
        if stacks != sequence[-1]:
            break
        alike += 1
    assert looks.agreed(RANKS) == alike
    assert 2 <= looks.needed_by_chance() <= MAX_LOOKS
