"""Logs show more than the hang, and that accuses no rank: calls that are over, other threads."""

from tests.diagnosis.builders import (
    IN_LOCK,
    IN_TORCH_ALL_REDUCE,
    SAVING,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.recording import Calls, a_recorded_case, calls
from watchtower.diagnosis.diagnosis import diagnose

WORLD = {"w": range(8)}
CHECKPOINT_THREAD = (
    "gather_object @torch/distributed/distributed_c10d.py:3011"
    " < save_state_dict @torch/distributed/checkpoint/state_dict_saver.py:3"
    " < run @concurrent/futures/thread.py:58 < Thread._bootstrap @threading.py:1002"
)


def uneven(size: int, *, open: int) -> Calls:
    return calls(f"all_gather:float32[{size}] all_reduce all_reduce", open=open)


def test_sizes_that_differed_in_a_call_that_is_over_are_no_reason():
    made = {rank: {"w": uneven(3 if rank == 7 else 4, open=1)} for rank in range(8)}
    diagnosis = diagnose(a_recorded_case(ranks_in(8, IN_TORCH_ALL_REDUCE), WORLD, made))
    assert diagnosis.cause.value == "symmetric_hang"
    assert diagnosis.suspects == ()


def test_nor_do_they_stand_beside_the_true_one():
    made = {rank: {"w": uneven(3 if rank == 7 else 4, open=1)} for rank in range(8)}
    made[3] = {"w": calls("all_gather:float32[4] all_reduce")}
    built = with_rank(ranks_in(8, IN_TORCH_ALL_REDUCE), a_rank(3, IN_LOCK, syscall="futex"))
    diagnosis = diagnose(a_recorded_case(built, WORLD, made))
    assert [each.rank for each in diagnosis.suspects] == [3]
    assert diagnosis.alternatives == ()


def test_a_checkpoint_in_the_background_blocks_no_rank_whose_own_thread_is_elsewhere():
    """Rank 2 hangs in a lock; its checkpoint thread waits, like all others', for slow rank 5."""
    inside, over = calls("all_reduce all_reduce", open=1), calls("all_reduce")
    saved, saving = calls("gather gather"), calls("gather gather gather", open=1)
    threads = (("saver", CHECKPOINT_THREAD),)
    built = ranks_in(8, IN_TORCH_ALL_REDUCE, threads=threads)
    built = with_rank(built, a_rank(2, IN_LOCK, syscall="futex", threads=threads))
    built = with_rank(built, a_rank(5, IN_TORCH_ALL_REDUCE, threads=(("saver", SAVING),)))
    made = {rank: {"w": inside, "saves": saving} for rank in range(8)}
    made[2] = {"w": over, "saves": saving}
    made[5] = {"w": inside, "saves": saved}
    diagnosis = diagnose(a_recorded_case(built, {**WORLD, "saves": range(8)}, made))
    assert (diagnosis.cause.value, [each.rank for each in diagnosis.suspects]) == (
        "lock_deadlock",
        [2],
    )
