"""Names that a process chose to cost the tower time: a whole diagnosis stays as quick as it was."""

import functools
import time

import pytest

from tests.diagnosis.builders import (
    RING,
    a_case,
    a_child,
    a_dead_rank,
    a_rank,
    ranks_in,
    with_rank,
)
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence import error_texts
from watchtower.evidence import frames as reading

NAMES = {
    "underscores": "_" * 1000,
    "one word": "w" * 1000,
    "checkpoints": "_checkpoint" * 90 + "-",
    "loaders": "DataLoader" * 100 + "-",
    "folders": "megatron/" * 110,
    "libraries": "torch/distributed/pipelining/" * 33 + "-",
    "dots": "a." * 500,
    "time-outs": "timed-out_recv" * 70,
}
MOST = 10.0
"""Times what plain names cost: each is fifty times as long, and is cut to a quarter."""


def case_of(name):
    """A rank hangs in a stack where each frame, child and death has a name of its own like this."""

    def stack(rank, depth):
        return " < ".join(f"{name}{rank}x{at} /job/{name}{at}:{at + 1}" for at in range(depth))

    built = ranks_in(16, f"Ring.{RING} < train /job/train.py:9")
    hostile = [
        a_rank(
            rank,
            stack(rank, 40),
            step=40,
            target=f"/job/{name}",
            threads=((f"{name[:200]}", stack(rank + 100, 20)),),
            children=(a_child(5000 + rank, stack=stack(rank + 200, 20), target=f"/{name}"),),
            child_stacks=(stack(rank + 200, 20),),
        )
        for rank in range(3, 9)
    ]
    dead = a_dead_rank(2, error=f"{name[:200]}: {name}")
    return a_case(with_rank(built, *hostile, dead))


def least_cpu_s(case):
    def cpu_s():
        for cached in (reading.find_pattern, error_texts.read_error, error_texts.shape_of):
            cached.cache_clear()
        began = time.thread_time()
        diagnose(case)
        return time.thread_time() - began

    return min(cpu_s() for _ in range(3))


@functools.cache
def plain_cpu_s():
    return least_cpu_s(case_of("a_plain_name"))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_no_name_makes_a_diagnosis_slow(name):
    plain = plain_cpu_s()
    hostile = least_cpu_s(case_of(name))
    assert hostile < MOST * plain + 0.02
