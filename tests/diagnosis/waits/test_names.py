"""Beside an open recorded call the name of a function alone does not place a rank."""

import pytest

from tests.diagnosis.builders import SAVING, a_rank, ranks_in, with_rank
from tests.diagnosis.recording import a_recorded_case, calls
from watchtower.diagnosis.diagnosis import diagnose

WORLD = {"w": range(4)}
INSIDE, BEFORE = calls("all_reduce", before=40, open=1), calls("", before=40)
MAIN = " < train /home/ann/job/main.py:40 < <module> main.py:80"
NAMED = (
    f"step /home/ann/job/main.py:51 < run_with_checkpoint /home/ann/job/main.py:30{MAIN}",
    f"Checkpointer.run /home/ann/job/main.py:30{MAIN}",
    f"save_model /home/ann/job/main.py:30{MAIN}",
    f"next_batch /home/ann/job/main.py:30{MAIN}",
    f"Rounds.__next__ /home/ann/job/main.py:30{MAIN}",
    f"state_dict @acme/nn.py:9{MAIN}",
)
"""Users call their functions as they like, and a library may, too."""


def verdict(stack, *others, made=None, **values):
    built = with_rank(ranks_in(4, stack, **values), *others)
    made = {rank: {"w": INSIDE} for rank in range(4)} | {2: {"w": BEFORE}} | (made or {})
    diagnosis = diagnose(a_recorded_case(built, WORLD, made))
    return (
        diagnosis.cause.value,
        [suspect.rank for suspect in diagnosis.suspects],
        diagnosis.waiting,
    )


@pytest.mark.parametrize("stack", NAMED)
def test_ranks_in_an_open_call_wait_whatever_the_function_is_called(stack):
    asleep = a_rank(2, f"score /home/ann/job/loss.py:17{MAIN}", syscall="clock_nanosleep")
    assert verdict(stack, asleep, syscall="futex") == ("behind_collective", [2], "0-1,3")


def test_the_rank_that_has_not_called_is_named_with_what_its_function_says():
    stack = f"save_checkpoint /home/ann/job/main.py:30{MAIN}"
    assert verdict(stack, syscall="futex") == ("checkpoint_stall", [2], "0-1,3")


@pytest.mark.parametrize(
    ("stack", "syscall", "target"),
    [
        (SAVING, "futex", ""),
        (f"save_checkpoint /home/ann/job/main.py:30{MAIN}", "write", "/mnt/out.fifo"),
        (f"next_batch /home/ann/job/main.py:30{MAIN}", "read", "/mnt/shards/0042.tar"),
    ],
    ids=["the library's file", "the kernel: writes a pipe", "the kernel: reads a file"],
)
def test_more_than_a_name_shows_that_an_open_call_is_in_the_background(stack, syscall, target):
    """Rank 2 started one call ahead and then went to work; in it the others wait for rank 2."""
    groups = {**WORLD, "v": range(4)}
    waits = f"step /home/ann/job/main.py:51{MAIN}"
    built = with_rank(
        ranks_in(4, waits, syscall="futex"), a_rank(2, stack, syscall=syscall, target=target)
    )
    made = {rank: {"w": INSIDE, "v": BEFORE} for rank in (0, 1, 3)}
    made[2] = {"w": BEFORE, "v": INSIDE}
    diagnosis = diagnose(a_recorded_case(built, groups, made))
    assert [suspect.rank for suspect in diagnosis.suspects] == [2]
    assert diagnosis.cause.value in ("checkpoint_stall", "dataloader_stall")
