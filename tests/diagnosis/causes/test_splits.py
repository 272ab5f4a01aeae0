"""Ranks that are in another call than the others: by records, and by stacks without them."""

import pytest

from tests.diagnosis.builders import (
    IN_ALL_REDUCE,
    IN_BARRIER,
    IN_TORCH_ALL_REDUCE,
    a_failure,
    a_rank,
    ranks_in,
    with_loops,
    with_rank,
)
from tests.diagnosis.causes.asking import answer, named
from tests.diagnosis.recording import a_recorded_case, calls
from watchtower.diagnosis.diagnosis import diagnose

WORLD = {"default_pg": [0, 1, 2, 3]}
BARRIER = (
    "barrier @torch/distributed/distributed_c10d.py:4600"
    " < _exception_logger.<locals>.wrapper @torch/distributed/c10d_logger.py:81"
    " < train /home/ann/job/main.py:{line} < <module> /home/ann/job/main.py:80"
)
GATHER = (
    "all_gather @torch/distributed/distributed_c10d.py:3900"
    " < _exception_logger.<locals>.wrapper @torch/distributed/c10d_logger.py:81"
    " < train /home/ann/job/main.py:44 < <module> /home/ann/job/main.py:80"
)
LOOPS = {41: (30,), 44: (30,), 39: (30,), 60: ()}
"""The loop of `train` begins in line 30; line 60 is behind it."""

REDUCING = calls("all_reduce", before=6, open=1)


def diagnose_job(odd_stack, odd_calls, others=REDUCING, *, sourced=True, odd=2, count=4):
    built = with_rank(ranks_in(count, IN_TORCH_ALL_REDUCE), a_rank(odd, odd_stack))
    if sourced:
        built = [with_loops(item, LOOPS) for item in built]
    made = {rank: {"default_pg": others} for rank in range(count)}
    made[odd] = {"default_pg": odd_calls}
    return diagnose(a_recorded_case(built, {"default_pg": list(range(count))}, made))


class TestByRecords:
    def test_a_barrier_behind_the_loop_is_uneven_inputs(self):
        diagnosis = diagnose_job(BARRIER.format(line=60), calls("barrier", before=6, open=1))
        assert named(diagnosis) == ("uneven_inputs", [2])
        assert diagnosis.confidence > 0.9
        assert all(value in diagnosis.summary for value in ("loop", "number 7", "default_pg"))

    @pytest.mark.parametrize(
        ("step", "cause"), [(41, "uneven_inputs"), (42, "mismatched_collective")]
    )
    def test_a_rank_in_the_micro_batches_of_the_next_step_is_not_in_a_loop_that_others_left(
        self, step, cause
    ):
        """Rank 2 has left out a gather behind the loop over micro-batches in line 38."""
        built = with_rank(ranks_in(4, GATHER, step=41), a_rank(2, IN_TORCH_ALL_REDUCE, step=step))
        built = [with_loops(item, LOOPS | {41: (30, 38)}) for item in built]
        made = {rank: {"default_pg": calls("all_gather", before=6, open=1)} for rank in range(4)}
        made[2] = {"default_pg": REDUCING}
        diagnosis = diagnose(a_recorded_case(built, WORLD, made))
        assert named(diagnosis) == (cause, [2])

    @pytest.mark.parametrize(
        ("line", "step", "cause"),
        [
            (60, 40, "uneven_inputs"),
            (60, 41, "mismatched_collective"),
            (41, 40, "mismatched_collective"),
        ],
    )
    def test_hosts_ahead_of_their_devices_meet_behind_the_loop(self, line, step, cause):
        """Their steps show that one left the loop early, where their lines are the same."""
        stack = BARRIER.format(line=line)
        built = with_rank(ranks_in(4, stack), a_rank(2, stack, step=step))
        made = {rank: {"default_pg": REDUCING} for rank in range(4)}
        made[2] = {"default_pg": calls("barrier", before=6, open=1)}
        built = [with_loops(item, LOOPS) for item in built]
        diagnosis = diagnose(a_recorded_case(built, WORLD, made))
        assert named(diagnosis) == (cause, [2])
        assert ("fewer steps" in diagnosis.summary) is (cause == "uneven_inputs")

    def test_a_barrier_inside_the_loop_is_a_condition(self):
        diagnosis = diagnose_job(BARRIER.format(line=39), calls("barrier", before=6, open=1))
        assert named(diagnosis) == ("conditional_collective", [2])
        assert diagnosis.confidence > 0.9

    def test_a_barrier_further_down_the_loop_may_follow_a_call_left_out(self):
        diagnosis = diagnose_job(BARRIER.format(line=44), calls("barrier", before=6, open=1))
        assert named(diagnosis) == ("conditional_collective", [2])
        assert [doubt.kind for doubt in diagnosis.doubts] == ["may_have_left_out"]

    def test_without_source_the_rank_is_named_with_less_confidence(self):
        diagnosis = diagnose_job(
            BARRIER.format(line=60), calls("barrier", before=6, open=1), sourced=False
        )
        assert named(diagnosis) == ("uneven_inputs", [2])
        assert 0.5 < diagnosis.confidence <= 0.8

    def test_equal_steps_are_advised_only_where_a_loop_was_left(self):
        """The source of a framework's loop is not read: a callback may make the call alone."""
        behind, own_calls = BARRIER.format(line=60), calls("barrier", before=6, open=1)
        assert any("drop_last" in step for step in diagnose_job(behind, own_calls).next_steps)
        steps = diagnose_job(behind, own_calls, sourced=False).next_steps
        assert not any("drop_last" in step for step in steps)
        assert any("callback" in step for step in steps)

    def test_calls_in_another_order_are_a_mismatch(self):
        usual = calls("all_reduce all_gather all_reduce all_gather all_reduce", open=1)
        swapped = calls("all_reduce all_gather all_reduce all_gather all_gather", open=1)
        assert named(diagnose_job(GATHER, swapped, usual)) == ("mismatched_collective", [2])

    def test_another_size_is_a_mismatch(self):
        usual = calls("all_reduce:float32[256]", before=6, open=1)
        other = calls("all_reduce:float32[128]", before=6, open=1)
        diagnosis = diagnose_job(IN_TORCH_ALL_REDUCE, other, usual)
        assert named(diagnosis) == ("mismatched_collective", [2])
        assert "all_reduce of float32[128]" in diagnosis.summary

    def test_uneven_sizes_of_an_all_to_all_are_none(self):
        usual = calls("all_to_all:float32[256]", before=6, open=1)
        other = calls("all_to_all:float32[128]", before=6, open=1)
        assert named(diagnose_job(IN_TORCH_ALL_REDUCE, other, usual)) == ("symmetric_hang", [])

    def test_of_two_ranks_neither_is_named(self):
        barrier = calls("barrier", before=6, open=1)
        diagnosis = diagnose_job(BARRIER.format(line=39), barrier, odd=1, count=2)
        assert diagnosis.cause.value == "unknown"
        assert diagnosis.alternatives[0].cause.value == "conditional_collective"

    def test_a_stray_call_in_another_group_is_no_cycle(self):
        built = with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), a_rank(2, BARRIER.format(line=39)))
        made = {rank: {"default_pg": REDUCING} for rank in range(4)}
        made[2] = {"default_pg": calls("", before=6), "side": calls("barrier", open=1)}
        case = a_recorded_case(built, {**WORLD, "side": [0, 1, 2, 3]}, made)
        # Nothing tells that the others never come to the side group: they gave no log of it.
        assert named(diagnose(case)) in (("conditional_collective", [2]), ("unknown", []))


class TestByThreads:
    """Main and a saver use one group. Of rank 2 the saver is late, so that main is before it."""

    TASK = " < save_wrapper @torch/distributed/checkpoint/a.py:30 < Thread.run @threading.py:982"
    GATHERS = f"all_gather @torch/distributed/distributed_c10d.py:4287{TASK}"
    OPENS = f"open @pathlib.py:1044 < write @torch/distributed/checkpoint/fs.py:42{TASK}"

    def diagnose(self, of_others, of_odd, main=IN_TORCH_ALL_REDUCE):
        built = ranks_in(4, main, threads=(("saver", of_others),))
        built = with_rank(built, a_rank(2, IN_TORCH_ALL_REDUCE, threads=(("saver", of_odd),)))
        made = {rank: {"default_pg": calls("all_gather", before=6, open=1)} for rank in range(4)}
        made[2] = {"default_pg": REDUCING}
        return diagnose(a_recorded_case(built, WORLD, made))

    def test_the_thread_that_is_late_is_named(self):
        diagnosis = self.diagnose(self.GATHERS, self.OPENS)
        assert named(diagnosis) == ("mismatched_collective", [2])
        assert "saver is still at fs.py:42 in write" in diagnosis.summary
        assert "thread saver of rank 2" in diagnosis.next_steps[0]
        assert "new_group" in diagnosis.next_steps[1]

    @pytest.mark.parametrize(
        ("of_others", "of_odd", "main"),
        [
            (GATHERS, GATHERS, IN_TORCH_ALL_REDUCE),
            (OPENS, OPENS, IN_TORCH_ALL_REDUCE),
            (GATHERS, OPENS, GATHER),
        ],
    )
    def test_it_is_not_where_another_thread_may_have_made_the_call(self, of_others, of_odd, main):
        diagnosis = self.diagnose(of_others, of_odd, main)
        assert named(diagnosis) == ("mismatched_collective", [2])
        assert "saver" not in " ".join([diagnosis.summary, *diagnosis.next_steps])


class TestByStacks:
    def test_a_barrier_behind_the_loop_is_uneven_inputs(self):
        built = with_rank(ranks_in(8), a_rank(5, IN_BARRIER))
        built = [with_loops(item, {52: (40,), 63: (), 130: (), 134: ()}) for item in built]
        loop_left = IN_BARRIER.replace("train.py:52", "train.py:70")
        left = with_loops(a_rank(5, loop_left), {70: ()})
        assert answer(with_rank(built, left)) == ("uneven_inputs", [5])

    def test_a_barrier_in_the_loop_is_a_condition(self):
        built = [with_loops(item, {52: (40,), 50: (40,)}) for item in ranks_in(8)]
        inside = a_rank(5, IN_BARRIER.replace("train.py:52", "train.py:50"))
        inside = with_loops(inside, {50: (40,)})
        assert answer(with_rank(built, inside)) == ("conditional_collective", [5])

    def test_another_operation_at_the_same_place_is_a_mismatch(self):
        other = IN_ALL_REDUCE.replace("Ring.all_reduce ring.py:88", "Ring.all_gather ring.py:99")
        built = with_rank(ranks_in(8), a_rank(5, other))
        assert answer(built) == ("mismatched_collective", [5])

    @pytest.mark.parametrize("dumps", [0, 1])
    def test_somebody_unseen_keeps_it_open(self, dumps):
        built = with_rank(ranks_in(8), a_rank(5, IN_BARRIER), a_rank(6, dumps=dumps))
        assert answer(built)[0] in ("unknown", "conditional_collective")
        assert diagnose_confidence(built) < 0.85

    def test_halves_accuse_nobody(self):
        built = with_rank(ranks_in(4), a_rank(2, IN_BARRIER), a_rank(3, IN_BARRIER))
        assert answer(built) == ("unknown", [])

    def test_a_rank_that_is_elsewhere_explains_both(self):
        built = with_rank(ranks_in(8), a_rank(5, IN_BARRIER), a_rank(6, failure=a_failure()))
        assert answer(built)[1] in ([], [5])


def diagnose_confidence(built):
    from tests.diagnosis.builders import a_case

    return diagnose(a_case(built)).confidence
