"""process_stopped, process_traced, process_frozen, uninterruptible_io."""

from tests.diagnosis.builders import (
    FETCHING,
    IN_ALL_REDUCE,
    IN_USER_CODE,
    SAVING,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import abstains, answer, ask, ranks_of
from watchtower.diagnosis.advice import name_tracer
from watchtower.diagnosis.causes.held import ALL_BLOCKED
from watchtower.wire.verdict import Cause

TRACER = {"tracer_pid": 77, "tracer_name": "gdb"}


def job_with(*others, count=8):
    return with_rank(ranks_in(count), *others)


class TestProcessStopped:
    def test_wins_even_inside_a_collective(self):
        built = job_with(a_rank(3, IN_ALL_REDUCE, state="T"))
        assert answer(built) == ("process_stopped", [3])
        assert ask("process_stopped", built).entries[0] == "continue_it"

    def test_wins_without_any_stack(self):
        built = job_with(a_rank(3, dumps=0, state="T"))
        assert answer(built) == ("process_stopped", [3])

    def test_names_several(self):
        built = job_with(a_rank(3, state="T"), a_rank(5, state="T"))
        assert answer(built) == ("process_stopped", [3, 5])
        (waiting,) = ranks_of(ask("process_stopped", built), "peers")
        assert len(waiting) == 6

    def test_loses_a_suspended_job(self):
        assert answer(ranks_in(8, state="T")) == ("unknown", [])

    def test_loses_a_rank_that_goes_on_again(self):
        built = job_with(a_rank(3, IN_USER_CODE, state="S"))
        assert ask("process_stopped", built) is None


class TestProcessTraced:
    def test_wins_and_names_the_tracer(self):
        built = job_with(a_rank(3, state="t", kernel=TRACER))
        assert answer(built) == ("process_traced", [3])
        assert name_tracer(ask("process_traced", built).accusation.suspects[0]) == "gdb (pid 77)"

    def test_wins_without_knowing_who(self):
        assert answer(job_with(a_rank(3, state="t"))) == ("process_traced", [3])
        nameless = a_rank(3, state="t", kernel={"tracer_pid": 77})
        assert answer(job_with(nameless)) == ("process_traced", [3])

    def test_a_tracer_that_lets_a_still_rank_run_is_less_sure(self):
        watched = job_with(a_rank(3, IN_USER_CODE, kernel=TRACER))
        held = job_with(a_rank(3, state="t", kernel=TRACER))
        assert answer(watched) == ("process_traced", [3])
        assert ask("process_traced", watched).confidence < ask("process_traced", held).confidence

    def test_loses_a_waiting_rank_under_strace(self):
        assert ask("process_traced", job_with(a_rank(3, kernel=TRACER))) is None

    def test_loses_a_moving_rank_under_strace(self):
        built = job_with(a_rank(3, IN_USER_CODE, cpu=1.0, kernel=TRACER))
        assert ask("process_traced", built) is None

    def test_loses_a_job_whose_ranks_are_all_held(self):
        assert ask("process_traced", ranks_in(4, state="t")) is None


class TestUninterruptibleIo:
    def stuck(self, rank=3, **values):
        values = {"state": "D", "syscall": "write", **values}
        return a_rank(rank, SAVING, **values)

    def test_wins_and_says_what_it_waits_on(self):
        kernel = {"wchan": "request_wait_answer"}
        built = job_with(self.stuck(target="/mnt/fuse/ckpt.pt", kernel=kernel))
        assert answer(built) == ("uninterruptible_io", [3])
        finding = ask("uninterruptible_io", built)
        assert finding.accusation.suspects[0].wait.wait_class == "fuse"
        assert finding.entries[0] == "blocked_fuse"

    def test_says_so_when_the_kernel_gives_no_name(self):
        finding = ask("uninterruptible_io", job_with(self.stuck(syscall="")))
        assert finding.cause is Cause.UNINTERRUPTIBLE_IO
        assert finding.entries[0] == "blocked"

    def test_loses_one_look_at_an_ordinary_disk(self):
        assert ask("uninterruptible_io", job_with(self.stuck(dumps=1))) is None
        assert ask("uninterruptible_io", job_with(a_rank(3, SAVING, state="S"))) is None

    def test_loses_a_rank_in_the_collective(self):
        built = job_with(a_rank(3, IN_ALL_REDUCE, state="D"))
        assert ask("uninterruptible_io", built) is None

    def test_a_whole_job_in_d_names_candidates_only(self):
        built = [self.stuck(rank) for rank in range(8)]
        assert abstains("uninterruptible_io", built)
        assert ask("uninterruptible_io", built).doubts == (ALL_BLOCKED,)

    def test_all_ranks_of_the_only_node_are_named(self):
        built = [a_rank(rank, FETCHING, state="D", syscall="read") for rank in range(4)]
        assert answer(built) == ("uninterruptible_io", [0, 1, 2, 3])


FROZEN_V1 = {"wchan": "__refrigerator"}
FROZEN_V2 = {"wchan": "do_freezer_trap"}


class TestProcessFrozen:
    def test_wins_over_state_d_on_cgroup_v1(self):
        built = job_with(a_rank(3, FETCHING, state="D", syscall="", kernel=FROZEN_V1))
        assert answer(built) == ("process_frozen", [3])
        assert ask("process_frozen", built).entries[0] == "find_cgroup"

    def test_wins_over_sleep_on_cgroup_v2_inside_a_collective(self):
        built = job_with(a_rank(3, IN_ALL_REDUCE, state="S", syscall="", kernel=FROZEN_V2))
        assert answer(built) == ("process_frozen", [3])

    def test_loses_a_job_that_is_frozen_as_a_whole(self):
        assert answer(ranks_in(8, state="D", syscall="", kernel=FROZEN_V1)) == ("unknown", [])

    def test_loses_a_disk_wait(self):
        built = job_with(a_rank(3, SAVING, state="D", kernel={"wchan": "io_schedule"}))
        assert answer(built)[0] == "uninterruptible_io"
