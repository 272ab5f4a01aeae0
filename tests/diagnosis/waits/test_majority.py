import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_ALL_REDUCE,
    IN_HIDDEN_WAIT,
    IN_LOCK,
    IN_USER_CODE,
    a_native,
    a_rank,
    picture_of,
    ranks_in,
    with_rank,
)
from watchtower.diagnosis.waits.majority import find_majority
from watchtower.writing.ranksets import format_ranks


def presumed(built):
    return format_ranks(item.rank for item in picture_of(built).waiting if item.presumed)


def hidden(count):
    return ranks_in(count, IN_HIDDEN_WAIT, syscall="futex")


def test_most_ranks_still_at_one_line_are_presumed_to_wait_for_the_few():
    assert presumed(with_rank(hidden(8), a_rank(3, IN_LOCK, syscall="futex"))) == "0-2,4-7"


def test_a_ring_whose_neighbours_send_and_receive_is_one_majority():
    ring = "exchange /job/links.py:{} < train_step /job/main.py:51 < <module> main.py:80"
    built = [
        a_rank(rank, f"{'send' if rank % 2 else 'take'} /job/links.py:7 < " + ring.format(9))
        for rank in range(8)
    ]
    other = a_rank(3, "draw /job/plots.py:4 < train_step /job/main.py:40 < <module> main.py:80")
    assert presumed(with_rank(built, other)) == "0-2,4-7"


HUB = "<genexpr> /job/links.py:36 < combine /job/links.py:36 < <module> main.py:80"
LEAF = "combine /job/links.py:39 < <module> main.py:80"


def star(*others, **values):
    return with_rank([a_rank(0, HUB, **values), *ranks_in(4, LEAF, **values)[1:]], *others)


def test_a_hub_and_its_leaves_in_one_function_are_one_majority_when_sockets_block_them():
    other = a_rank(2, "poll_device /job/probe.py:7 < <module> main.py:80", syscall="read")
    assert presumed(star(other, syscall="recvfrom")) == "0-1,3"
    assert presumed(star(other, syscall="futex")) == ""


STAGE = "exchange /job/links.py:12 < {} < schedule /job/main.py:{} < <module> main.py:80"


def test_who_is_not_in_the_function_of_all_other_stages_is_outside_wherever_it_is_called():
    give, take = (
        STAGE.format("give /job/links.py:17", 32),
        STAGE.format("take /job/links.py:15", 33),
    )
    built = [a_rank(rank, take if rank == 3 else give, syscall="futex") for rank in range(4)]
    other = "forward /job/main.py:26 < schedule /job/main.py:32 < <module> main.py:80"
    assert presumed(with_rank(built, a_rank(2, other, syscall="futex"))) == "0-1,3"


def test_of_several_outside_the_function_of_the_most_only_who_is_at_another_line_counts():
    give, take = (
        STAGE.format("give /job/links.py:17", 32),
        STAGE.format("take /job/links.py:15", 33),
    )
    built = [a_rank(rank, take if rank > 5 else give, syscall="futex") for rank in range(8)]
    others = [
        f"forward /job/main.py:26 < schedule /job/main.py:{line} < <module> main.py:80"
        for line in (32, 33)
    ]
    built = with_rank(built, *(a_rank(2 + i, others[i], syscall="futex") for i in (0, 1)))
    assert presumed(built) == "0-2,4-7"


def test_one_function_that_holds_the_whole_loop_is_no_majority():
    loop = "train /job/main.py:{} < <module> main.py:80"
    built = [a_rank(rank, loop.format(40 + rank % 2)) for rank in range(4)]
    assert presumed(built) == ""


def test_a_named_collective_leaves_nothing_to_presume():
    built = with_rank(hidden(8), a_rank(3, IN_ALL_REDUCE))
    assert presumed(built) == ""


def test_two_ranks_have_no_majority():
    assert presumed(with_rank(hidden(2), a_rank(1, IN_LOCK, syscall="futex"))) == ""


def test_a_half_is_no_majority():
    others = [a_rank(rank, f"a{rank} /job/x.py:{rank}") for rank in range(4)]
    assert presumed(with_rank(hidden(8), *others)) == ""


def test_ranks_that_change_are_no_majority():
    built = ranks_in(8, IN_HIDDEN_WAIT, before=IN_USER_CODE)
    assert presumed(with_rank(built, a_rank(3, IN_LOCK))) == ""


def test_data_loaders_are_no_majority():
    assert presumed(with_rank(ranks_in(8, FETCHING), a_rank(3, IN_LOCK))) == ""


def test_all_ranks_at_one_place_wait_for_no_known_rank():
    assert presumed(hidden(8)) == ""


def test_ranks_scattered_below_the_majority_branch_are_none():
    built = [a_rank(rank, f"leaf{rank} /job/x.py:{rank}") for rank in range(8)]
    assert find_majority(picture_of(built).live) == frozenset()


def test_a_majority_branch_of_moving_ranks_is_no_majority():
    changing = [a_rank(rank, IN_HIDDEN_WAIT, before=IN_USER_CODE) for rank in range(4)]
    still = [a_rank(rank, f"s{rank} /job/x.py:1 < <module> main.py:80") for rank in range(4, 9)]
    assert find_majority(picture_of([*changing, *still]).live) == frozenset()


HELPER = "wait_for /job/links.py:17 < <module> /job/main.py:{}"
IN_TORCH, IN_PYTHON = a_native("native", library="libtorch_cpu.so"), a_native("python")


@pytest.mark.parametrize(
    ("native", "waiting"),
    [(IN_TORCH, "0-3"), (IN_PYTHON, "0-2"), (None, "0-2")],
)
def test_who_is_in_the_same_call_of_a_helper_waits_too(native, waiting):
    built = [a_rank(r, HELPER.format(52), syscall="futex", native=IN_TORCH) for r in range(3)]
    other = a_rank(3, HELPER.format(49), syscall="futex", native=native)
    assert presumed([*built, other]) == waiting


def test_without_native_places_a_line_of_a_helper_is_one_call():
    built = [a_rank(r, HELPER.format(49 if r == 3 else 52), syscall="futex") for r in range(4)]
    assert presumed(built) == "0-3"


@pytest.mark.parametrize(
    ("other", "waiting"),
    [
        ({"syscall": "read", "target": "/mnt/shards/0042.tar"}, "0-2"),
        ({"syscall": "read", "target": "/mnt/shards/0042.tar", "state": "D"}, "0-2"),
        ({"syscall": "clock_nanosleep"}, "0-2"),
        ({"syscall": "", "state": "R", "active": True, "cpu": 1.0}, "0-2"),
        ({"syscall": "poll"}, "0-3"),
        ({"syscall": "futex"}, "0-3"),
    ],
)
def test_a_helper_may_call_what_the_kernel_shows_to_be_no_wait_for_ranks(other, waiting):
    built = [a_rank(r, HELPER.format(52), syscall="recvfrom") for r in range(3)]
    assert presumed([*built, a_rank(3, HELPER.format(49), **other)]) == waiting


def test_ranks_that_poll_with_a_timer_in_one_call_of_a_helper_all_wait():
    built = [a_rank(r, HELPER.format(52), syscall="clock_nanosleep") for r in range(3)]
    other = a_rank(3, HELPER.format(49), syscall="clock_nanosleep")
    assert presumed([*built, other]) == "0-3"


@pytest.mark.parametrize(
    ("other", "waiting"),
    [
        ({"syscall": "read", "target": "/mnt/shards/0042.tar", "state": "D"}, "0-1,3-7"),
        ({"syscall": "clock_nanosleep"}, "0-1,3-7"),
        ({"syscall": "futex"}, "0-7"),
    ],
)
def test_a_function_of_all_stages_may_call_it_too(other, waiting):
    give, take = (
        STAGE.format("give /job/links.py:17", 32),
        STAGE.format("take /job/links.py:15", 33),
    )
    built = [a_rank(rank, take if rank in (3, 7) else give, syscall="futex") for rank in range(8)]
    push = STAGE.format("push /job/links.py:19", 32)
    assert presumed(with_rank(built, a_rank(2, push, **other))) == waiting
