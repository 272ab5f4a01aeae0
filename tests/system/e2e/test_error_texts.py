"""Ranks that end by errors of real libraries: rank, cause, domain, and what their node shows."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.frameworks import needs
from tests.system.small_jobs import CULPRIT, DETECTION, SmallJob, beside, launched, started
from tests.waiting import wait_until
from watchtower.drills.environment import Environment
from watchtower.drills.gpus import WORKS, name_address
from watchtower.drills.launching import node_name

pytestmark = [
    *needs("torch"),
    pytest.mark.e2e,
]

NODE = node_name(0)
DEADLINE_S = 90.0
SETTLES = {**DETECTION, "suspect_floor_s": 10.0, "hung_floor_s": 30.0, "settle_s": 1.5}
"""On a busy machine a process needs seconds to end. These jobs are judged when they have ended."""

SIZE = 1 << 20
"""Bytes of a /dev/shm that is full."""


RANKS = 3
"""One is odd among three. Each imports torch."""

raising = functools.partial(launched, "raises", detection=SETTLES, ranks=RANKS)
"""A job beside an agent with a root of its own."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """The tower and the agent of jobs whose node has no fault."""
    with beside(tmp_path_factory.mktemp(f"errors-{os.getpid()}-"), SETTLES) as running:
        yield running


def failing(
    place: Environment, fault: str, **environment: str
) -> contextlib.AbstractContextManager[SmallJob]:
    """Start the job of this fault."""
    return started(place, "raises", fault, name=fault, ranks=RANKS, **environment)


def end_of(job: SmallJob) -> dict[str, Any]:
    """Return the verdict on the end of the job."""
    return job.wait_for(lambda verdict: bool(verdict.get("incident")), DEADLINE_S)


def named(verdict: dict[str, Any]) -> tuple[str, list[int], str]:
    suspects = [suspect["rank"] for suspect in verdict["suspects"]]
    return verdict["cause"], suspects, verdict["domain"]


@contextlib.contextmanager
def full_shared_memory(place: Environment) -> Iterator[None]:
    """Mount a small /dev/shm below the root of the agent. An ended job has left a file there."""
    folder = place.folder / f"root-{NODE}/dev/shm"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "watchtower-drill", str(folder)]
    subprocess.run(mount, check=True)
    try:
        left = folder / "nccl-Left01"
        left.write_bytes(bytes(SIZE))
        changed_at = left.stat().st_ctime
        wait_until(lambda: time.time() > changed_at + 2.0, "ranks start later than this file")
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_a_full_shared_memory_is_one_fault_with_the_error_of_the_rank(tmp_path: Path):
    words = {"SHM": str(tmp_path / f"root-{NODE}/dev/shm")}
    with raising(tmp_path, "allocate", prepare=full_shared_memory, **words) as job:
        verdict = end_of(job)
    assert named(verdict) == ("exception", [CULPRIT], "node")
    assert f"On {NODE}, /dev/shm is 100% full; files of NCCL that ended" in verdict["summary"]
    assert "/dev/shm/nccl-*" in verdict["next_steps"][0]
    assert verdict["doubts"] == []
    assert not any("names no suspect" in each["text"] for each in verdict["evidence"])


@contextlib.contextmanager
def working_gpus(place: Environment) -> Iterator[None]:
    yield


def show_gpus(job: SmallJob, *, errors: int, gpu: int = CULPRIT) -> None:
    """Set what NVML says: each rank has the GPU of its number, and one has counted errors."""
    more = "".join(f"field.4 {each} {errors if each == gpu else 0}\n" for each in range(RANKS))
    loads = [(pid, WORKS) for pid in job.pids]
    assert job.place.gpus is not None
    job.place.gpus.show(NODE, [*loads[:-1], (loads[-1][0], WORKS + more)])


@pytest.mark.parametrize("gpu", [CULPRIT, CULPRIT + 1], ids=["its own", "of another rank"])
def test_uncorrectable_errors_of_its_own_gpu_are_one_fault_with_the_error(tmp_path: Path, gpu: int):
    with raising(tmp_path, "fail_of_memory", "120", prepare=working_gpus) as job:
        show_gpus(job, errors=0)
        job.wait_for(lambda verdict: (verdict["step"] or 0) >= 60, DEADLINE_S)
        show_gpus(job, errors=3, gpu=gpu)
        verdict = end_of(job)
    assert named(verdict) == ("exception", [CULPRIT], "gpu")
    is_own = gpu == CULPRIT
    assert (f"GPU {name_address(gpu)} of {NODE}: 3 new uncorrected" in verdict["summary"]) is is_own
    assert "ECC" in verdict["next_steps"][0]


def test_the_odd_rank_of_a_mismatch_is_named_by_the_texts_of_all(place: Environment):
    with failing(place, "differ", TORCH_DISTRIBUTED_DEBUG="DETAIL") as job:
        verdict = end_of(job)
    assert named(verdict) == ("exception", [CULPRIT], "user_code")
    assert "compare both calls" in verdict["next_steps"][0]


def test_a_rank_that_gave_up_at_the_store_is_not_to_blame(place: Environment):
    with failing(place, "wait_for_key") as job:
        verdict = end_of(job)
    assert named(verdict) == ("exception", [], "unknown")
    assert "DistStoreError" in verdict["summary"]


def test_a_full_disk_is_named(place: Environment):
    with failing(place, "write_to_full_disk") as job:
        verdict = end_of(job)
    assert named(verdict) == ("exception", [CULPRIT], "storage")
    assert "df -i" in verdict["next_steps"][0]


def test_victims_of_a_rank_that_ends_in_silence_are_not_named(place: Environment):
    with failing(place, "leave") as job:
        verdict = end_of(job)
    assert named(verdict) == ("process_died", [CULPRIT], "user_code")


def test_a_rank_that_catches_an_error_and_goes_on_is_healthy(place: Environment):
    with failing(place, "handle") as job:
        verdict = job.wait_for(lambda verdict: (verdict["step"] or 0) >= 60, DEADLINE_S)
    assert (verdict["status"], verdict["incident"]) == ("healthy", None)
