"""What a known text adds to a verdict: its meaning, its advice, and what shows the same fault."""

from dataclasses import replace

import pytest

from tests.diagnosis.builders import (
    IN_ALL_REDUCE,
    a_case,
    a_dead_rank,
    a_rank,
    ranks_in,
    with_rank,
)
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.wire.observations import NODE, Observation
from watchtower.wire.report import Beat

SHM = (
    "DistBackendError: NCCL error in: a.cpp:1970, unhandled system error, NCCL version 2.21.5 | "
    "ncclSystemError: System call failed | Last error: | Error: failed to extend /dev/shm/nccl-Xk"
)
SYSTEM = "DistBackendError: NCCL error in: a.cpp:1970, unhandled system error, NCCL version 2.21.5"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
FULL = "/dev/shm is 100% full; files of NCCL that ended jobs left behind hold 3.1 GiB of it"
COUNTED = "2 uncorrected errors of its memory since the agent started"


def shm_full(age_s=5.0):
    return Observation(
        source="shared_memory", subject=NODE, name="shm_full", age_s=age_s, text=FULL
    )


def ecc(pid, age_s=4.0):
    return Observation(
        source="nvml",
        subject="pci:0000:3b:00",
        name="gpu_errors.ecc_uncorrected",
        age_s=age_s,
        pid=pid,
        text=COUNTED,
    )


def job(error, *observations, node="gpu-00", others=()):
    """Rank 3 on gpu-00 has raised the error, or has the exit code, and the others wait."""
    end = {"code": error} if isinstance(error, int) else {"error": error}
    case = a_case(with_rank(ranks_in(8, IN_ALL_REDUCE), a_dead_rank(3, **end), *others))
    nodes = tuple(
        replace(each, observations=observations) if each.node == node else each
        for each in case.nodes
    )
    return diagnose(replace(case, nodes=nodes))


def named(found):
    return found.cause.value, [each.rank for each in found.suspects], found.domain.value


def test_a_full_shared_memory_and_the_error_of_it_are_one_fault():
    found = job(SHM, shm_full())
    assert named(found) == ("exception", [3], "node")
    assert FULL in found.summary
    assert "on gpu-00" in found.next_steps[0]
    assert "/dev/shm" in found.next_steps[0]
    shown = [each for each in found.evidence if FULL in each.text]
    assert [each.ranks for each in shown] == ["3"]
    assert all("names no suspect" not in each.text for each in found.evidence)
    assert found.doubts == ()


def test_a_general_text_has_the_advice_of_what_its_node_shows():
    alone, beside = job(SYSTEM), job(SYSTEM, shm_full())
    assert "/dev/shm" not in " ".join(alone.next_steps)
    assert "/dev/shm" in beside.next_steps[0]


@pytest.mark.parametrize(
    ("observation", "node"),
    [(shm_full(age_s=300.0), "gpu-00"), (shm_full(), "gpu-01")],
    ids=["long before", "another node"],
)
def test_an_innocent_observation_is_not_joined(observation, node):
    found = job(SHM, observation, node=node)
    assert named(found) == ("exception", [3], "node")
    assert FULL not in found.summary


def test_a_general_text_is_of_a_victim_if_another_rank_died_and_its_node_shows_nothing():
    first = a_dead_rank(5, signal=9, age_s=3.2)
    assert named(job(SYSTEM, others=[first]))[:2] == ("process_died", [5])


def test_what_the_node_shows_makes_a_general_text_the_rank_s_own():
    first = a_dead_rank(5, signal=9, age_s=3.2)
    assert named(job(SYSTEM, shm_full(), others=[first]))[:2] == ("exception", [3])


def test_errors_of_the_memory_of_a_gpu_are_joined_to_the_rank_that_uses_it():
    dead = a_dead_rank(3, error=ECC).evidence.pid
    found = job(ECC, ecc(dead))
    assert named(found) == ("exception", [3], "gpu")
    assert COUNTED in found.summary
    assert "0000:3b:00" in found.summary


@pytest.mark.parametrize(("of_rank", "age_s"), [(5, 4.0), (3, 900.0)], ids=["other", "old"])
def test_errors_of_another_gpu_or_of_long_ago_are_not_joined(of_rank, age_s):
    other = a_dead_rank(of_rank, error=ECC).evidence.pid
    found = job(ECC, ecc(other, age_s))
    assert named(found) == ("exception", [3], "gpu")
    assert COUNTED not in found.summary


def test_an_error_of_all_ranks_has_its_meaning_and_advice():
    found = diagnose(a_case(a_dead_rank(rank, error=SHM) for rank in range(8)))
    assert named(found) == ("exception", [], "node")
    assert "no room in /dev/shm" in found.summary
    assert "on gpu-00" in found.next_steps[0]


def test_a_rank_whose_process_stays_has_the_advice_for_its_error():
    kind, _, text = SHM.partition(": ")
    words = Beat(step=41, age_s=9.0, exception_type=kind, exception_text=text)
    stays = a_rank(3, "_shutdown @threading.py:1560", syscall="futex", beat=words)
    found = diagnose(a_case(with_rank(ranks_in(8, IN_ALL_REDUCE), stays)))
    assert named(found)[:2] == ("exception", [3])
    assert "no room in /dev/shm" in found.summary
    assert "/dev/shm" in found.next_steps[0]
    assert "end pid" in found.next_steps[1]


def test_a_process_of_an_ended_job_on_the_gpu_is_one_fault_with_its_full_memory():
    error = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    dead = a_dead_rank(3, error=error).evidence.pid
    uses = replace(ecc(dead), name=f"gpu_process.{dead}", text="")
    orphan = replace(ecc(None), name="gpu_orphan", text="pid 40 (pt main) uses it")
    found = job(error, uses, orphan)
    assert named(found) == ("exception", [3], "user_code")
    assert "GPU 0000:3b:00 of gpu-00: pid 40 (pt main) uses it" in found.summary
    elsewhere = replace(orphan, subject="pci:0000:5e:00")
    assert "pt main" not in job(error, uses, elsewhere).summary


def test_a_file_server_of_another_job_is_no_part_of_an_error():
    silent = replace(shm_full(), source="kernel_log", name="nfs_not_responding", text="nfs: gone")
    for error in ("ValueError: bad shard", "OSError: [Errno 28] No space left on device"):
        found = job(error, silent)
        assert named(found)[:2] == ("exception", [3])
        assert "nfs" not in found.summary


def test_a_lost_connection_between_ranks_is_not_said_to_lead_outside_of_the_job():
    closed = "DistBackendError: NCCL error | ncclRemoteError: x | socketProgress: Connection closed"
    assert [each.kind for each in job(closed).doubts] == ["peer_lost"]
    assert [each.kind for each in job("ConnectionResetError: x").doubts] == ["connection_lost"]


@pytest.mark.parametrize("error", ["ValueError: bad shard", "KeyError: 'x'"])
def test_an_unknown_error_has_the_usual_advice(error):
    found = job(error, shm_full())
    assert FULL not in found.summary
    assert "traceback" in found.next_steps[0]


IN_USE = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
    "network address. port: 29500, code: -98, name: EADDRINUSE, message: address already in use"
)
LISTENS = "pid 812 (python3, job other, uid:1000) listens at 0.0.0.0:29500"


def port_in_use(rank=3, age_s=2.0):
    pid = a_dead_rank(rank).evidence.pid
    return Observation(
        source="listeners",
        subject=f"pid:{pid}",
        name="port_in_use",
        age_s=age_s,
        pid=pid,
        text=LISTENS,
    )


def small_shm(rank):
    """What a rank has had since its start."""
    pid = a_dead_rank(rank).evidence.pid
    text = "/dev/shm of its container has only 64 MiB"
    return replace(
        port_in_use(rank), source="shared_memory", name="shm_small", subject=f"pid:{pid}", text=text
    )


def test_the_process_that_listens_at_the_port_of_a_rank_is_one_fault_with_its_error():
    found = job(IN_USE, port_in_use())
    assert named(found) == ("exception", [3], "user_code")
    assert LISTENS in found.summary


def test_it_explains_the_end_of_a_rank_whose_error_is_not_known():
    found = job(1, port_in_use())
    assert named(found) == ("process_died", [3], "user_code")
    assert LISTENS in found.summary
    assert "ss -ltnp" in found.next_steps[0]


@pytest.mark.parametrize(
    "seen", [port_in_use(rank=4), port_in_use(age_s=120.0), small_shm(3)], ids=str
)
def test_what_is_about_another_process_or_older_does_not_explain_an_unknown_error(seen):
    found = job(1, seen)
    assert named(found) == ("process_died", [3], "user_code")
    assert seen.text not in found.summary


def test_a_port_does_not_explain_another_error():
    found = job("ValueError: bad shard", port_in_use())
    assert named(found) == ("exception", [3], "user_code")
    assert LISTENS not in found.summary
