import pytest

from tests.core.builders import (
    IN_ALL_REDUCE,
    a_case,
    a_dead_rank,
    a_missing_rank,
    a_rank,
    ranks_in,
    standings_of,
    with_rank,
)
from watchtower.core.diagnosis.deaths.endings import DeathKind, classify_ending
from watchtower.core.diagnosis.deaths.order import find_culprits, is_cancelled
from watchtower.core.diagnosis.held_ranks import is_suspended
from watchtower.core.diagnosis.standings import take_standings
from watchtower.core.ranksets import format_ranks
from watchtower.wire.report import Ending, EndingKind


def kind_of(**values):
    return classify_ending(a_dead_rank(0, **values).evidence.ended).value


def culprits(*dead, count=8, stack=IN_ALL_REDUCE):
    case = a_case(with_rank(ranks_in(count, stack), *dead))
    found = find_culprits(case, standings_of(with_rank(ranks_in(count, stack), *dead)))
    return format_ranks(death.rank for death in found)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"signal": 9, "oom": True}, "oom"),
        ({"signal": 11}, "crash"),
        ({"code": 139}, "crash"),
        ({"signal": 60}, "crash"),
        ({"signal": 9}, "killed"),
        ({"code": 137}, "killed"),
        ({"signal": 6}, "aborted"),
        ({"signal": 15}, "terminated"),
        ({"code": 143}, "terminated"),
        ({"code": 3}, "exit_code"),
        ({"code": 1}, "exit_one"),
        ({"code": 0}, "clean"),
        ({}, "vanished"),
        ({"error": "ValueError: bad shard"}, "own_exception"),
        ({"error": "KeyboardInterrupt"}, "terminated"),
        ({"error": "ConnectionResetError: [Errno 104]"}, "consequential"),
        ({"error": "torch.distributed.DistBackendError: NCCL error in ..."}, "consequential"),
        ({"error": "RuntimeError: [pair.cc:553] Connection closed by peer"}, "consequential"),
        (
            {"error": "RuntimeError: Timed out waiting 1800000ms for recv operation"},
            "consequential",
        ),
        ({"error": "RuntimeError: CUDA out of memory"}, "own_exception"),
        ({"error": "TimeoutError: peer 3 timed out"}, "consequential"),
    ],
)
def test_endings_are_told_apart(values, expected):
    assert kind_of(**values) == expected


def test_an_exit_without_a_code_left_a_page_that_says_finished():
    assert classify_ending(None) is DeathKind.VANISHED
    assert classify_ending(Ending(kind=EndingKind.EXIT, age_s=1)) is DeathKind.CLEAN
    assert classify_ending(Ending(kind=EndingKind.OTHER, age_s=1, code=4)) is DeathKind.VANISHED


def test_a_bare_exit_beats_connection_errors_that_were_seen_before_it():
    victims = [a_dead_rank(rank, error="EOFError", age_s=3.1) for rank in (1, 2)]
    assert culprits(a_dead_rank(3, code=3, age_s=3.0), *victims) == "3"


def test_an_exception_beats_the_launchers_kills():
    others = [a_dead_rank(rank, signal=9, age_s=2.5) for rank in range(8) if rank != 5]
    assert culprits(a_dead_rank(5, error="ValueError: x", age_s=3.0), *others) == "5"


def test_an_oom_kill_beats_a_crash():
    assert culprits(a_dead_rank(1, signal=11, age_s=4), a_dead_rank(2, signal=9, oom=True)) == "2"


def test_deaths_further_apart_than_the_settling_time_are_ordered_by_time():
    assert culprits(a_dead_rank(1, code=3, age_s=9), a_dead_rank(2, signal=11, age_s=3)) == "1"


def test_a_slow_death_still_explains_victims_that_were_faster():
    fast = a_dead_rank(1, error="BrokenPipeError: x", age_s=9)
    assert culprits(fast, a_dead_rank(2, error="ValueError: x", age_s=3)) == "2"


def test_equal_deaths_on_one_node_are_ordered_by_time():
    dead = [a_dead_rank(1, error="ValueError: a", age_s=3.2), a_dead_rank(2, error="OSError: b")]
    assert culprits(*dead) == "1"


def test_equal_deaths_at_one_moment_on_two_nodes_have_no_order():
    dead = [a_dead_rank(1, code=4, age_s=3.2), a_dead_rank(6, code=5, age_s=3.0)]
    assert culprits(*dead) == "1,6"
    assert culprits(a_dead_rank(1, code=4, age_s=4.2), a_dead_rank(6, code=5, age_s=3.0)) == "1"


def test_the_same_exception_on_many_ranks_is_one_fault():
    dead = [a_dead_rank(rank, error="KeyError: lr", age_s=3 + rank / 10) for rank in (1, 2, 3)]
    assert culprits(*dead) == "1-3"


def test_a_process_that_vanished_has_no_exception_to_share():
    dead = [a_dead_rank(1, age_s=3.1), a_dead_rank(2, age_s=3.0)]
    assert culprits(*dead) == "1"


def test_ranks_that_left_with_0_are_no_culprits():
    assert culprits(a_dead_rank(1, code=0)) == ""


def cancelled(case):
    return is_cancelled(take_standings(case), case.settle_s)


def all_stopped(case):
    return is_suspended(take_standings(case))


class TestCancelled:
    def all_dead(self, **values):
        return [a_dead_rank(rank, **values) for rank in range(8)]

    def test_sigterm_to_all_is_a_cancelled_job(self):
        case = a_case(self.all_dead(signal=15))
        assert cancelled(case)
        assert find_culprits(case, standings_of(self.all_dead(signal=15))) == ()

    def test_some_may_die_of_the_broken_connection_or_leave_with_0(self):
        dead = [a_dead_rank(2, error="EOFError", age_s=2.9), a_dead_rank(5, code=0, age_s=2.8)]
        assert cancelled(a_case(with_rank(self.all_dead(signal=15), *dead)))

    def test_the_scheduler_may_have_to_kill_the_rest(self):
        dead = a_dead_rank(2, signal=9, age_s=0.1)
        assert cancelled(a_case(with_rank(self.all_dead(signal=15), dead)))

    def test_sigkill_to_all_at_once_is_a_cancelled_job(self):
        victim = a_dead_rank(2, error="EOFError", age_s=2.8)
        assert cancelled(a_case(with_rank(self.all_dead(signal=9, age_s=3.0), victim)))

    def test_one_rank_killed_and_the_others_somewhat_later_is_not(self):
        first = a_dead_rank(2, signal=9, age_s=4.0)
        assert not cancelled(a_case(with_rank(self.all_dead(signal=9, age_s=3.0), first)))

    @pytest.mark.parametrize(
        "values",
        [
            {"error": "ValueError: x"},
            {"code": 3},
            {"signal": 9, "age_s": 3.5},
            {"error": "ConnectionResetError: s3", "age_s": 3.2},
        ],
    )
    def test_a_death_with_a_reason_of_its_own_is_not(self, values):
        assert not cancelled(a_case(with_rank(self.all_dead(signal=15), a_dead_rank(2, **values))))

    def test_a_job_with_survivors_is_not(self):
        assert not cancelled(a_case(with_rank(self.all_dead(signal=15), a_rank(2))))
        assert not cancelled(a_case(with_rank(self.all_dead(signal=15), a_missing_rank(2))))

    def test_signals_spread_over_minutes_are_not(self):
        dead = a_dead_rank(2, signal=15, age_s=60)
        assert not cancelled(a_case(with_rank(self.all_dead(signal=15), dead)))

    def test_a_job_that_finished_is_not(self):
        assert not cancelled(a_case(self.all_dead(code=0)))

    def test_an_empty_job_is_not(self):
        assert not cancelled(a_case([]))


def test_all_ranks_stopped_is_a_suspended_job():
    assert all_stopped(a_case(ranks_in(4, state="T")))
    assert not all_stopped(a_case(with_rank(ranks_in(4, state="T"), a_rank(2))))
    assert not all_stopped(a_case([a_missing_rank(0)]))
