"""Causes that the wait-for graph adds: cascades, cycles, messages left out, no rank to blame."""

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_DDP_BACKWARD,
    IN_TORCH_ALL_REDUCE,
    IN_USER_CODE,
    a_case,
    a_dead_rank,
    a_failure,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import ask_of_case, named, reasons_of
from tests.diagnosis.recording import a_recorded_case, calls
from watchtower.diagnosis.causes.symmetric_hang import COMPARE_ROOTS
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.wire.verdict import Cause

GRID = {"tp0": [0, 1], "tp1": [2, 3], "dp0": [0, 2], "dp1": [1, 3]}
DONE = calls("all_reduce", before=3)
INSIDE = calls("all_reduce", before=3, open=1)
HOOK = "scale_gradient /home/ann/job/hooks.py:9"
POLLING = "_poll /home/ann/job/tracking.py:50 < Thread._bootstrap @threading.py:1002"


def test_a_cascade_names_the_one_asleep_and_the_way_to_it():
    built = with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), a_rank(3, FETCHING))
    made = {
        0: {"tp0": DONE, "dp0": INSIDE},
        1: {"tp0": DONE, "dp1": INSIDE},
        2: {"tp1": INSIDE, "dp0": calls("", before=3)},
        3: {"tp1": calls("", before=3), "dp1": calls("", before=3)},
    }
    diagnosis = diagnose(a_recorded_case(built, GRID, made))
    assert named(diagnosis) == ("dataloader_stall", [3])
    (path,) = (item.text for item in diagnosis.evidence if item.source == "records")
    way = ("rank 0", "number 4 of group dp0", "rank 2", "number 4 of group tp1", "rank 3")
    assert sorted(way, key=path.index) == list(way)


def test_a_rank_that_idles_in_backward_without_having_entered_is_behind():
    """Stacks alone say that all four wait inside DDP's reducer."""
    built = ranks_in(4, IN_DDP_BACKWARD)
    made = {rank: {"w": INSIDE} for rank in (0, 1, 3)} | {2: {"w": calls("", before=3)}}
    diagnosis = diagnose(a_recorded_case(built, {"w": [0, 1, 2, 3]}, made))
    assert named(diagnosis) == ("behind_collective", [2])


def test_a_hook_that_hangs_in_a_thread_of_autograd_is_where_the_rank_is():
    hooked = a_rank(2, IN_DDP_BACKWARD, threads=(("poll", POLLING), ("Dummy-1", HOOK)))
    diagnosis = diagnose(a_case(with_rank(ranks_in(4, IN_DDP_BACKWARD), hooked)))
    assert named(diagnosis) == ("behind_collective", [2])
    assert diagnosis.suspects[0].where == "hooks.py:9 in scale_gradient"


def test_who_is_elsewhere_and_keeps_nobody_is_no_suspect():
    """Rank 0 computes ahead of the others; they wait for rank 3 only."""
    built = with_rank(
        ranks_in(4, IN_TORCH_ALL_REDUCE),
        a_rank(0, IN_USER_CODE, cpu=1.0, active=True, state="R"),
        a_rank(3, FETCHING),
    )
    made = {
        0: {"w": calls("all_reduce", before=4)},
        1: {"w": INSIDE},
        2: {"w": INSIDE},
        3: {"w": calls("", before=3)},
    }
    diagnosis = diagnose(a_recorded_case(built, {"w": [0, 1, 2, 3]}, made))
    assert named(diagnosis) == ("dataloader_stall", [3])


def test_two_independent_faults_are_both_named():
    built = with_rank(
        ranks_in(4, IN_TORCH_ALL_REDUCE),
        a_rank(1, FETCHING),
        a_rank(3, IN_USER_CODE, cpu=1.0, active=True, state="R"),
    )
    made = {0: {"a": INSIDE}, 1: {"a": DONE}, 2: {"b": INSIDE}, 3: {"b": DONE}}
    made |= {1: {"a": calls("", before=3)}, 3: {"b": calls("", before=3)}}
    diagnosis = diagnose(a_recorded_case(built, {"a": [0, 1], "b": [2, 3]}, made))
    assert sorted(named(diagnosis)[1]) == [1, 3]
    assert {suspect.cause for suspect in diagnosis.suspects} == {
        Cause.DATALOADER_STALL,
        Cause.BUSY_LOOP,
    }


def test_records_alone_name_the_rank_that_is_missing():
    """py-spy failed everywhere; the flight recorders answered."""
    built = [a_rank(rank, failure=a_failure()) for rank in range(4)]
    made = {rank: {"w": INSIDE} for rank in (0, 1, 3)} | {2: {"w": calls("", before=3)}}
    diagnosis = diagnose(a_recorded_case(built, {"w": [0, 1, 2, 3]}, made))
    assert named(diagnosis) == ("behind_collective", [2])
    assert "3 ranks wait for rank 2 in a collective" in diagnosis.summary


class TestSymmetric:
    def test_records_alone_tell_that_all_are_inside(self):
        built = [a_rank(rank, failure=a_failure()) for rank in range(4)]
        made = {rank: {"w": INSIDE} for rank in range(4)}
        diagnosis = diagnose(a_recorded_case(built, {"w": [0, 1, 2, 3]}, made))
        assert named(diagnosis) == ("symmetric_hang", [])

    def test_all_inside_by_records_is_nobody(self):
        made = {rank: {"w": INSIDE} for rank in range(4)}
        case = a_recorded_case(ranks_in(4, IN_DDP_BACKWARD), {"w": [0, 1, 2, 3]}, made)
        diagnosis = diagnose(case)
        assert named(diagnosis) == ("symmetric_hang", [])
        assert diagnosis.confidence > 0.85

    def test_queued_is_not_entered(self):
        queued = calls("all_reduce", before=3, open=1, queued=True)
        made = {rank: {"w": queued} for rank in range(4)}
        case = a_recorded_case(ranks_in(4, IN_TORCH_ALL_REDUCE), {"w": [0, 1, 2, 3]}, made)
        diagnosis = diagnose(case)
        assert named(diagnosis) == ("unknown", [])
        assert diagnosis.alternatives[0].cause is Cause.SYMMETRIC_HANG

    @pytest.mark.parametrize(("ahead", "cause"), [(1, "symmetric_hang"), (7, "unknown")])
    def test_of_a_call_that_some_have_left_it_is_less_sure(self, ahead, cause):
        """The root leaves a broadcast at once; further ahead, somebody has counted anew."""
        made = {rank: {"w": calls("all_reduce", before=1 + ahead, open=1)} for rank in (0, 1, 2)}
        made[3] = {"w": calls("all_reduce", before=1, open=1)}
        case = a_recorded_case(ranks_in(4, IN_DDP_BACKWARD), {"w": [0, 1, 2, 3]}, made)
        diagnosis = diagnose(case)
        assert named(diagnosis) == (cause, [])
        assert diagnosis.confidence <= 0.7
        (entered,) = reasons_of(ask_of_case("symmetric_hang", case), "records")
        assert "all_reduce number 2 of" in entered
        assert entered.endswith("only ranks 0-2 left it")

    def rooted(self, operation, left):
        """Four ranks in a call with a root that `left` have left for the next one."""
        begun = f"{operation}:float32[8]"
        inside, beyond = (
            calls(begun, before=3, open=1),
            calls(f"{begun} all_reduce", open=1, before=3),
        )
        there = IN_TORCH_ALL_REDUCE.replace("all_reduce @", f"{operation} @").replace(":41", ":40")
        built = [a_rank(rank, IN_TORCH_ALL_REDUCE if rank in left else there) for rank in range(4)]
        made = {rank: {"w": beyond if rank in left else inside} for rank in range(4)}
        return diagnose(a_recorded_case(built, {"w": [0, 1, 2, 3]}, made))

    def test_of_a_broadcast_that_its_first_member_has_not_left_the_root_is_in_question(self):
        """Rank 2 passed itself as the root, so that it and rank 0 wait for each other."""
        diagnosis = self.rooted("broadcast", left=[1, 3])
        assert named(diagnosis) == ("unknown", [])
        assert [each.cause for each in diagnosis.alternatives] == [Cause.SYMMETRIC_HANG]
        assert diagnosis.next_steps[0] == (
            "compare the root (src / dst) that each rank passed: the collective log does not "
            "contain it"
        )
        (stacks,) = (item.text for item in diagnosis.evidence if item.source == "stacks")
        assert stacks == (
            "the ranks wait: ranks 0,2 in broadcast at distributed_c10d.py:2911 and ranks 1,3 in "
            "all_reduce at distributed_c10d.py:2911, unchanged in two dumps"
        )
        assert "All 4 ranks wait in broadcast (ranks 0,2) and all_reduce (ranks 1,3)" in (
            diagnosis.summary
        )

    @pytest.mark.parametrize(
        ("operation", "left", "cause"),
        [
            ("broadcast", [0], "symmetric_hang"),
            ("broadcast", [0, 1], "symmetric_hang"),
            ("broadcast", [0, 1, 3], "symmetric_hang"),
            ("broadcast", [1, 2, 3], "symmetric_hang"),
            ("broadcast", [], "symmetric_hang"),
            ("scatter", [2], "unknown"),
            ("reduce", [1, 2, 3], "symmetric_hang"),
            ("reduce", [1, 3], "unknown"),
            ("gather", [1], "unknown"),
        ],
    )
    def test_a_cut_network_keeps_the_usual_root_no_longer_than_the_others(
        self, operation, left, cause
    ):
        diagnosis = self.rooted(operation, left)
        assert named(diagnosis) == (cause, [])
        assert diagnosis.next_steps[0].startswith(COMPARE_ROOTS)

    def test_one_without_an_answer_keeps_it_open(self):
        made = {rank: {"w": INSIDE} for rank in (0, 1, 3)}
        built = with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), a_rank(2, failure=a_failure()))
        diagnosis = diagnose(a_recorded_case(built, {"w": [0, 1, 2, 3]}, made))
        assert named(diagnosis) == ("unknown", [])

    def test_a_dead_rank_is_somebody(self):
        made = {rank: {"w": INSIDE} for rank in (0, 1, 3)}
        built = with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), a_dead_rank(2, signal=9))
        diagnosis = diagnose(a_recorded_case(built, {"w": [0, 1, 2, 3]}, made))
        assert named(diagnosis) == ("process_died", [2])


class TestCycle:
    def test_two_groups_in_two_orders_name_both_call_sites(self):
        second = IN_TORCH_ALL_REDUCE.replace("main.py:41", "main.py:43")
        built = [a_rank(0, IN_TORCH_ALL_REDUCE), a_rank(1, second)]
        made = {
            0: {"a": calls("all_reduce", before=3, open=1), "b": calls("", before=3)},
            1: {"a": calls("", before=3), "b": calls("all_reduce", before=3, open=1)},
        }
        diagnosis = diagnose(a_recorded_case(built, {"a": [0, 1], "b": [0, 1]}, made))
        assert named(diagnosis) == ("collective_cycle", [0, 1])
        assert [suspect.where for suspect in diagnosis.suspects] == [
            "main.py:41 in train",
            "main.py:43 in train",
        ]
        assert diagnosis.confidence > 0.85

    def test_members_without_records_make_no_cycle_that_is_sure(self):
        """A process that joined anew counts groups apart from those that have been there before."""
        built = ranks_in(4, IN_DDP_BACKWARD)
        made = {rank: {"again": INSIDE} for rank in (0, 1, 3)} | {2: {"first": INSIDE}}
        both = {"first": [0, 1, 2, 3], "again": [0, 1, 2, 3]}
        assert named(diagnose(a_recorded_case(built, both, made))) == ("unknown", [])


def test_ranks_that_wait_by_their_records_alone_need_no_stack():
    """py-spy gave nothing, the records came all the same."""
    made = {rank: {"w": INSIDE} for rank in range(4)}
    bare = [a_rank(rank, failure=a_failure()) for rank in range(4)]
    everybody = diagnose(a_recorded_case(bare, {"w": range(4)}, made))
    assert "4 ranks" in everybody.summary
    assert "a collective" in everybody.summary
    one = diagnose(
        a_recorded_case(
            [*bare[:3], a_rank(3, FETCHING)],
            {"w": range(4)},
            made | {3: {"w": calls("", before=3)}},
        )
    )
    assert named(one) == ("dataloader_stall", [3])
    assert "in a collective" in one.summary
