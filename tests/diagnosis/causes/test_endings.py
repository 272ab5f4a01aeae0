"""oom_killed, exception, process_died, exited_early."""

from dataclasses import replace

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_INIT,
    IN_LOCK,
    IN_TORCH_ALL_REDUCE,
    IN_USER_CODE,
    Built,
    a_dead_rank,
    a_missing_rank,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import abstains, answer, ask, ranks_of
from watchtower.diagnosis.elsewhere import GAVE_UP
from watchtower.wire.report import Beat


def job_with(*others, count=8):
    return with_rank(ranks_in(count), *others)


class TestOomKilled:
    def test_wins_over_a_plain_sigkill(self):
        built = job_with(a_dead_rank(3, signal=9, oom=True))
        assert answer(built) == ("oom_killed", [3])
        assert "gpu-00" in ask("oom_killed", built).next_steps[0]

    def test_loses_a_sigkill_without_evidence_of_memory(self):
        assert ask("oom_killed", job_with(a_dead_rank(3, signal=9))) is None
        assert ask("oom_killed", job_with()) is None


AT_EXIT = "Event.wait @threading.py:629 < finish /home/ann/job/metrics.py:6"
IN_SHUTDOWN = "_shutdown @threading.py:1560"


def leaving(stack, error="", **values):
    beat = Beat(step=41, age_s=9.0, exception_type=error, exception_text="'x'" if error else "")
    return a_rank(3, stack, syscall="futex", beat=beat, **values)


class TestLeaving:
    """The program is over, and something keeps the process."""

    def test_an_exception_wins_while_a_thread_keeps_the_process(self):
        pump = ("pump", "pump /home/ann/job/data.py:6 < Thread.run @threading.py:982")
        built = job_with(leaving(IN_SHUTDOWN, "KeyError", threads=(pump,)))
        assert answer(built) == ("exception", [3])
        finding = ask("exception", built)
        assert ranks_of(finding, "ending") == [(3,)]
        assert finding.entries == ("read_traceback", "end_process")

    def test_the_end_of_the_program_wins_over_the_lock_it_waits_for_at_exit(self):
        built = job_with(leaving(AT_EXIT))
        assert answer(built) == ("exited_early", [3])
        assert ask("exception", built) is None

    def test_loses_an_exception_that_was_survived(self):
        assert answer(job_with(leaving(IN_LOCK, "KeyError"))) == ("lock_deadlock", [3])

    def test_loses_where_all_stacks_begin_like_that(self):
        embedded = "all_reduce ring.py:88 < train_entry /home/ann/job/embedded.py:5"
        built = with_rank(ranks_in(8, embedded), leaving(AT_EXIT))
        assert answer(built) == ("lock_deadlock", [3])

    def test_loses_a_stack_that_was_torn_once(self):
        built = job_with(leaving(AT_EXIT, before=f"{AT_EXIT} < <module> main.py:80"))
        assert ask("exited_early", built) is None

    def test_loses_while_nobody_waits(self):
        built = with_rank(ranks_in(8, FETCHING), leaving(AT_EXIT))
        assert ask("exited_early", built) is None


class TestGaveUp:
    """Ranks that wait give up before the rank that they wait for ends."""

    def given_up(self, rank, **values):
        waiting = a_rank(rank, IN_TORCH_ALL_REDUCE).evidence.dumps
        stacks = a_rank(rank, IN_TORCH_ALL_REDUCE).stacks
        return Built(replace(a_dead_rank(rank, **values).evidence, dumps=waiting), stacks)

    @pytest.mark.parametrize(
        "end",
        [
            {"error": "RuntimeError: Timed out waiting 4000ms for recv operation to complete"},
            {"error": "TrainingAborted: no progress"},
            {"code": 1},
            {"signal": 6},
        ],
    )
    def test_those_that_waited_and_ended_are_witnesses(self, end):
        built = [self.given_up(rank, **end) for rank in range(4)]
        built = with_rank(built, a_rank(2, IN_USER_CODE, syscall="clock_nanosleep"))
        assert answer(built) == ("behind_collective", [2])
        finding = ask("behind_collective", built)
        assert ranks_of(finding, "peers") == [(0, 1, 3)]
        assert GAVE_UP in finding.limits
        assert finding.confidence == 0.8

    def test_those_that_raised_of_waiting_and_cannot_end_are_witnesses(self):
        text = "Operation timed out!"
        words = Beat(step=41, age_s=9.0, exception_type="RuntimeError", exception_text=text)
        built = [a_rank(rank, "", beat=words) for rank in range(4)]
        sleeps = a_rank(2, IN_USER_CODE, syscall="clock_nanosleep")
        assert answer(with_rank(built, sleeps)) == ("behind_collective", [2])
        own = replace(words, exception_text="this is over")
        built = [a_rank(rank, "", beat=own) for rank in range(4)]
        assert answer(with_rank(built, sleeps)) == ("unknown", [])

    def test_a_crash_in_a_collective_is_no_giving_up(self):
        built = with_rank(
            ranks_in(4), self.given_up(3, signal=11), a_rank(2, IN_USER_CODE, syscall="futex")
        )
        assert answer(built) == ("process_died", [3])

    def test_who_died_elsewhere_is_the_culprit_though_others_gave_up(self):
        built = [self.given_up(rank, error="TimeoutError: rank 3") for rank in range(4)]
        built = with_rank(
            built, a_dead_rank(3, error="KeyError: x", age_s=9), a_rank(2, IN_USER_CODE)
        )
        assert answer(built) == ("exception", [3])

    def test_without_a_live_rank_elsewhere_an_exception_is_its_own(self):
        built = with_rank(ranks_in(4), self.given_up(3, error="ValueError: shapes"))
        assert answer(built) == ("exception", [3])


class TestException:
    def test_victims_and_kills_are_the_aftermath(self):
        victims = [a_dead_rank(rank, error="EOFError", age_s=2) for rank in (0, 1)]
        built = job_with(a_dead_rank(3, error="KeyError"), *victims, a_dead_rank(2, signal=15))
        finding = ask("exception", built)
        assert [suspect.rank for suspect in finding.suspects] == [3]
        assert ranks_of(finding, "aftermath") == [(2, 0, 1)]

    def test_loses_connection_errors_of_victims(self):
        victims = [a_dead_rank(rank, error="EOFError", age_s=2) for rank in (0, 1)]
        built = job_with(a_dead_rank(3, code=3), *victims)
        assert ask("exception", built) is None

    def test_a_lost_connection_alone_may_be_the_ranks_own(self):
        built = job_with(a_dead_rank(3, error="ConnectionResetError: s3"))
        assert answer(built) == ("exception", [3])
        assert ask("exception", built).confidence == 0.6

    def test_a_lost_connection_beside_an_unseen_rank_is_a_candidate_only(self):
        built = job_with(a_dead_rank(3, error="ConnectionResetError: x"), a_rank(4, dumps=0))
        assert abstains("exception", built)

    def test_nobody_died_nobody_raised(self):
        assert ask("exception", job_with()) is None


class TestProcessDied:
    def test_wins_a_bare_exit_whose_peers_die_louder(self):
        victims = [
            a_dead_rank(rank, error="RuntimeError: Connection closed by peer", age_s=2.9)
            for rank in range(8)
            if rank != 3
        ]
        assert answer([*victims, a_dead_rank(3, code=3)]) == ("process_died", [3])

    def test_wins_a_sigkill_whose_peers_wait(self):
        built = job_with(a_dead_rank(5, signal=9))
        assert answer(built) == ("process_died", [5])
        finding = ask("process_died", built)
        assert all(value in finding.next_steps[0] for value in ("SIGKILL", "gpu-01"))
        assert "SIGKILL" in finding.summary

    def test_tells_several_signals_apart_from_one(self):
        built = job_with(a_dead_rank(2, signal=15), a_dead_rank(5, signal=15))
        finding = ask("process_died", built)
        assert [suspect.rank for suspect in finding.suspects] == [2, 5]
        assert "The same is true for rank 5" in finding.summary

    def test_an_unknown_ending_is_less_sure(self):
        built = job_with(a_dead_rank(5))
        assert ask("process_died", built).confidence < 0.9
        assert "exited (exit status unknown)" in ask("process_died", built).summary

    def test_a_zombie_whose_ending_is_not_told_is_gone(self):
        assert answer(job_with(a_rank(5, state="Z", dumps=0, node=""))) == ("process_died", [5])

    def test_loses_a_rank_that_left_with_0(self):
        assert ask("process_died", job_with(a_dead_rank(5, code=0))) is None

    def test_loses_a_cancelled_job(self):
        assert answer([a_dead_rank(rank, signal=15) for rank in range(8)]) == ("unknown", [])


class TestExitedEarly:
    def test_wins_while_peers_wait(self):
        assert answer(job_with(a_dead_rank(3, code=0))) == ("exited_early", [3])

    def test_wins_when_peers_died_of_it(self):
        victims = [a_dead_rank(rank, error="EOFError", age_s=2) for rank in range(8) if rank != 3]
        assert answer([*victims, a_dead_rank(3, code=0)]) == ("exited_early", [3])

    def test_wins_when_the_launcher_then_ends_the_rest(self):
        victims = [a_dead_rank(rank, error="EOFError", age_s=2) for rank in (0, 1)]
        ended = [a_dead_rank(2, signal=15, age_s=1.9), a_dead_rank(4, signal=9, age_s=1)]
        assert answer([*victims, *ended, a_dead_rank(3, code=0)]) == ("exited_early", [3])

    def test_loses_a_rank_killed_before_its_peers_lost_their_connections(self):
        victims = [a_dead_rank(rank, error="EOFError", age_s=2) for rank in (0, 1)]
        built = [*victims, a_dead_rank(2, signal=9, age_s=2.1), a_dead_rank(3, code=0)]
        assert answer(built) == ("process_died", [2])

    def test_loses_ranks_that_leave_one_after_the_other(self):
        built = [a_dead_rank(rank, code=0) for rank in range(1, 8)]
        assert ask("exited_early", [*built, a_rank(0, IN_USER_CODE)]) is None

    def test_loses_a_rank_that_writes_its_results_last(self):
        built = [a_dead_rank(rank, code=0) for rank in range(1, 8)]
        assert ask("exited_early", [*built, a_rank(0, FETCHING)]) is None

    def test_loses_when_most_left_and_one_waits_for_nobody(self):
        built = [a_dead_rank(rank, code=0) for rank in range(1, 8)]
        assert abstains("exited_early", [*built, a_rank(0)])

    def test_loses_beside_a_real_death(self):
        built = job_with(a_dead_rank(3, code=0), a_dead_rank(4, signal=11))
        assert ask("exited_early", built) is None
        assert answer(built) == ("process_died", [4])

    def test_loses_a_connection_error_from_before(self):
        dead = [a_dead_rank(0, error="EOFError", age_s=9), a_dead_rank(1, code=0)]
        assert ask("exited_early", [*dead, a_rank(2, FETCHING), a_rank(3, FETCHING)]) is None


def test_a_death_during_set_up_beats_the_missing_rank():
    built = with_rank(
        ranks_in(8, IN_INIT, step=None), a_dead_rank(3, code=2, step=None), a_missing_rank(4)
    )
    assert answer(built) == ("process_died", [3])
