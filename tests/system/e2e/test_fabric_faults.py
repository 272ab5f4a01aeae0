"""The fabric manager and the InfiniBand ports of one of two nodes, with devices that are not there.

The driver is a library with its functions, which the real binding loads. The ports are files below
the agent's root. Each fault has a counterpart: the same evidence where it is old, or where one rank
holds up the job.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.e2e.test_error_texts import named
from tests.system.frameworks import needs
from tests.system.small_jobs import CULPRIT, DETECTION, SmallJob, beside, started
from watchtower.drills.gpus import IDLES, SPINS, Gpus
from watchtower.drills.kernel_log import KernelLogs
from watchtower.drills.launching import MARK, node_mark

pytestmark = [*needs("torch"), pytest.mark.e2e]

DEADLINE_S = 90.0
RANKS, FAULTY = 3, "drill-b"
"""The last rank is on the faulty node."""

NOT_STARTED, READY = 1, 3
"""States of the fabric of a GPU (nvml.h)."""


@contextlib.contextmanager
def two_nodes(folder: Path, fault: str, port_counts: dict[str, int]) -> Iterator[SmallJob]:
    """Start a job on two nodes with GPUs and InfiniBand ports."""
    place = beside(folder, {**DETECTION, "startup_grace_s": 10.0}, nodes=2)
    place.kernel_logs, place.gpus = KernelLogs(folder), Gpus(folder)
    for node in ("drill-a", FAULTY):
        write_port(folder, node, "4: ACTIVE", **port_counts)
    with place:
        on_faulty = {RANKS - 1: {MARK: node_mark(place.folder, 1)}}
        with started(
            place, "meets", name="fabric", ranks=RANKS, of_rank=on_faulty, FAULT=fault
        ) as job:
            yield job


def write_port(folder: Path, node: str, state: str, **counts: int) -> None:
    port = folder / f"root-{node}" / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True, exist_ok=True)
    values = {"link_downed": 0, "port_rcv_data": 250, "port_xmit_data": 500, **counts}
    files = {"state": state, "rate": "400 Gb/sec (4X NDR)"}
    files |= {f"counters/{name}": str(value) for name, value in values.items()}
    for name, text in files.items():
        new = port / f"{name}.new"
        new.write_text(f"{text}\n", "utf-8")
        os.replace(new, port / name)


def show_gpus(job: SmallJob, load: str, state: int = READY) -> None:
    """Show the GPUs of all ranks, with the fabric state of those on the faulty node."""
    assert job.place.gpus is not None
    others = [(pid, f"{load}fabric_state {{gpu}} {READY}\n") for pid in job.pids[:-1]]
    job.place.gpus.show("drill-a", others)
    job.place.gpus.show(FAULTY, [(job.pids[-1], f"{load}fabric_state {{gpu}} {state}\n")])


def until_hung(job: SmallJob) -> dict:
    return job.wait_for(lambda verdict: verdict["status"] == "hung", DEADLINE_S)


def reach(job: SmallJob, step: int) -> None:
    job.wait_for(lambda verdict: (verdict["step"] or 0) >= step, DEADLINE_S)


def test_a_node_whose_fabric_is_not_set_up_is_named_while_all_wait_in_set_up(tmp_path: Path):
    with two_nodes(tmp_path, "waits", {}) as job:
        show_gpus(job, IDLES, NOT_STARTED)
        verdict = until_hung(job)
    assert named(verdict) == ("fabric_fault", [RANKS - 1], "gpu")
    assert FAULTY in verdict["summary"]
    assert "systemctl status nvidia-fabricmanager" in verdict["next_steps"][0]


@pytest.mark.parametrize(
    ("fault", "cause", "ranks"),
    [("waits_later", None, []), ("sleeps_later", "busy_loop", [CULPRIT])],
)
def test_a_fabric_with_which_the_job_made_steps_is_innocent(
    tmp_path: Path, fault: str, cause: str | None, ranks: list[int]
):
    with two_nodes(tmp_path, fault, {}) as job:
        show_gpus(job, IDLES, NOT_STARTED)
        verdict = until_hung(job)
    assert verdict["cause"] != "fabric_fault"
    if cause:
        assert [each["rank"] for each in verdict["suspects"]] == ranks


@pytest.mark.parametrize(
    ("state", "counts", "says"),
    [
        ("1: DOWN", {"link_downed": 1}, "mlx5_0"),
        ("4: ACTIVE", {"symbol_error": 900_000}, "symbol_error"),
    ],
    ids=["down", "errors"],
)
def test_a_port_that_fails_at_the_stall_names_its_node(
    tmp_path: Path, state: str, counts: dict[str, int], says: str
):
    with two_nodes(tmp_path, "waits_later", {"symbol_error": 90_000}) as job:
        show_gpus(job, SPINS)
        reach(job, 36)
        write_port(tmp_path, FAULTY, state, **{"symbol_error": 90_000, **counts})
        verdict = job.wait_for(
            lambda verdict: verdict["status"] == "hung" and verdict["cause"] == "fabric_fault",
            DEADLINE_S,
        )
    assert named(verdict) == ("fabric_fault", [], "network")
    assert FAULTY in verdict["summary"]
    assert says in verdict["summary"]


def test_old_errors_of_a_port_are_innocent(tmp_path: Path):
    with two_nodes(tmp_path, "waits_later", {"symbol_error": 900_000, "link_downed": 7}) as job:
        show_gpus(job, SPINS)
        verdict = until_hung(job)
    assert verdict["cause"] != "fabric_fault"


def test_a_port_that_fails_while_one_rank_sleeps_is_innocent(tmp_path: Path):
    with two_nodes(tmp_path, "sleeps_later", {}) as job:
        show_gpus(job, SPINS)
        reach(job, 36)
        write_port(tmp_path, FAULTY, "1: DOWN", link_downed=1)
        verdict = until_hung(job)
    assert [each["rank"] for each in verdict["suspects"]] == [CULPRIT]
    assert verdict["cause"] != "fabric_fault"
