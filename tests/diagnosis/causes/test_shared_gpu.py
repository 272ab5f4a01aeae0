"""Ranks that share a GPU by mistake, and those that share one on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from tests.diagnosis.builders import (
    IN_ALL_REDUCE,
    IN_INIT,
    a_case,
    a_dead_rank,
    a_rank,
    ranks_in,
    with_rank,
)
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.shared_gpus import find_shared_gpus
from watchtower.wire.observations import GPUS_ALLOWED, MIG_IS_ON, SHARES_GPU, Observation

NODE, RANKS = "gpu-00", 4
PIDS = {4000 + rank: rank for rank in range(RANKS)}
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
SAME_GPU = "DistBackendError: NCCL error in: a.cpp:1, Duplicate GPU detected : rank 1 and rank 0"


def gpu(number: int, *pids: int, text: str = "", age_s: float = 1.0) -> list[Observation]:
    """What an agent observes of one GPU and its processes."""
    usual = {"source": "nvml", "subject": f"pci:0000:{number:02x}:00", "age_s": age_s}
    state = "working" if pids else "idle"
    first = Observation(
        **usual, name=f"gpu_pattern.{state}", value=number, text=text, pid=next(iter(pids), None)
    )
    return [first, *(Observation(**usual, name=f"gpu_process.{pid}", pid=pid) for pid in pids[1:])]


def node(*users: Sequence[int], **values: object) -> list[Observation]:
    """The GPUs of a node, by their processes."""
    return [each for number, pids in enumerate(users) for each in gpu(number, *pids, **values)]


def allows(count: int, text: str = "SLURM_JOB_GPUS=0-3", pid: int = 4000) -> Observation:
    usual = {"source": "gpu_files", "subject": f"pid:{pid}", "name": GPUS_ALLOWED}
    return Observation(**usual, age_s=1.0, value=count, text=text, pid=pid)


ALL_ON_ONE = node([4000, 4001, 4002, 4003], (), (), ())


def shared(observations: Iterable[Observation]) -> list[tuple[int, ...]]:
    return [each.ranks for each in find_shared_gpus(NODE, observations, PIDS)]


def test_ranks_on_one_gpu_beside_free_ones_are_found():
    (found,) = find_shared_gpus(NODE, ALL_ON_ONE, PIDS)
    assert (found.ranks, found.unused) == ((0, 1, 2, 3), 3)
    assert found.describe() == "GPU 0 (0000:00:00) of gpu-00, while no process uses 3 other GPUs"
    assert shared(node([4000, 4001], [4002], [4003], ())) == [(0, 1)]


def test_the_others_are_free_for_the_job_only_if_it_may_use_them():
    assert shared([*ALL_ON_ONE, allows(4)]) == [(0, 1, 2, 3)]
    assert shared([*ALL_ON_ONE, allows(1)]) == []
    assert shared([*ALL_ON_ONE, allows(1, pid=77)]) == [(0, 1, 2, 3)]


@pytest.mark.parametrize(
    "innocent",
    [
        node([4000], [4001], [4002], [4003]),
        node([4000, 4001], [4002, 4003]),
        node([4000, 4001], [4002, 4003], [99], [98]),
        node([4000, 4001, 4002, 4003], (), text=f"{MIG_IS_ON}, so its load is not known"),
        [*ALL_ON_ONE, allows(0, f"{SHARES_GPU} (CUDA_MPS_PIPE_DIRECTORY)")],
        node([4000, 4001], [4000, 4001], ()),
        node([4000, 99], [4001], [4002], [4003], ()),
        node([4000, 4001], (), age_s=300.0),
        [
            replace(each, name="gpu_pattern.lost") if each.pid is None else each
            for each in ALL_ON_ONE
        ],
    ],
    ids=[
        "one each",
        "two each",
        "others use the rest",
        "MIG",
        "MPS",
        "all drive all",
        "a process of another job",
        "long ago",
        "the rest is lost",
    ],
)
def test_ranks_that_share_on_purpose_or_not_at_all_are_left_alone(innocent):
    assert shared(innocent) == []


def judge(built, observations=ALL_ON_ONE):
    case = a_case(built)
    nodes = [replace(n, observations=tuple(observations)) for n in case.nodes if n.node == NODE]
    return diagnose(replace(case, nodes=tuple(nodes)))


def named(found):
    return found.cause.value, [each.rank for each in found.suspects], found.domain.value


def test_a_job_that_waits_before_its_first_step_is_misconfigured():
    found = judge(ranks_in(RANKS, IN_INIT, step=None))
    assert named(found) == ("misconfigured", [0, 1, 2, 3], "user_code")
    assert "Ranks 0-3 use GPU 0 (0000:00:00) of gpu-00, while no process uses 3" in found.summary
    assert "set_device(LOCAL_RANK)" in found.next_steps[0]


def test_a_job_that_has_made_steps_hangs_for_another_reason():
    assert judge(ranks_in(RANKS, IN_ALL_REDUCE)).cause.value != "misconfigured"
    without_heartbeats = ranks_in(RANKS, IN_ALL_REDUCE, step=None)
    assert judge(without_heartbeats).cause.value != "misconfigured"


def test_a_rank_that_keeps_the_others_waiting_is_named_instead():
    stuck = a_rank(2, "load main.py:9 < <module> main.py:90", step=None, syscall="read")
    built = with_rank(ranks_in(RANKS, IN_INIT, step=None), stuck)
    assert named(judge(built))[1] == [2]
    assert judge(built).cause.value != "misconfigured"


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, SAME_GPU])
@pytest.mark.parametrize("step", [None, 41])
def test_a_rank_that_ends_because_it_shares_its_gpu(error, step):
    dead = a_dead_rank(1, error=error, step=step)
    found = judge(with_rank(ranks_in(RANKS, IN_ALL_REDUCE), dead))
    assert named(found) == ("misconfigured", [1], "user_code")
    assert "Ranks 0-3 use GPU 0" in found.summary
    assert "CUDA" in found.summary or "NCCL" in found.summary
    assert "set_device(LOCAL_RANK)" in found.next_steps[0]


def test_a_job_of_which_all_ranks_end_so_is_misconfigured():
    found = judge([a_dead_rank(rank, error=OUT_OF_MEMORY) for rank in range(RANKS)])
    assert found.cause.value == "misconfigured"
    assert "Ranks 0-3 use GPU 0" in found.summary


@pytest.mark.parametrize(
    ("error", "observations"),
    [
        (OUT_OF_MEMORY, node([4000], [4001], [4002], [4003], ())),
        (OUT_OF_MEMORY, node([4000, 4002], [4001], [4003], ())),
        ("ValueError: bad shard", ALL_ON_ONE),
    ],
    ids=["one each", "two others share", "another error"],
)
def test_another_error_or_a_gpu_of_its_own_is_no_fault_of_sharing(error, observations):
    dead = a_dead_rank(1, error=error)
    found = judge(with_rank(ranks_in(RANKS, IN_ALL_REDUCE), dead), observations)
    assert named(found)[:2] == ("exception", [1])
