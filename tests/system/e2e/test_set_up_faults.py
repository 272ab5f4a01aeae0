"""Faults of set-up with real ranks: a port that another process has, and a GPU for all ranks."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.e2e.test_error_texts import NODE, SETTLES, end_of, named
from tests.system.frameworks import needs
from tests.system.small_jobs import CULPRIT, DETECTION, SmallJob, beside, launched, started
from tests.waiting import wait_until
from watchtower.drills.environment import Environment
from watchtower.drills.gpus import WORKS
from watchtower.drills.launching import free_port

pytestmark = [*needs("torch"), pytest.mark.e2e]

DEADLINE_S = 90.0
RANKS = 3
"""Each imports torch."""

raising = functools.partial(launched, "raises", detection=SETTLES, ranks=RANKS)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """The tower and the agent of jobs without GPUs."""
    with beside(tmp_path_factory.mktemp(f"set-up-{os.getpid()}-"), SETTLES) as running:
        yield running


@contextlib.contextmanager
def taken_port() -> Iterator[tuple[int, int]]:
    """Start a server that is no part of a job. Yields its port and pid."""
    port = free_port()
    words = ["-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            wait_until(lambda: can_connect(port), "the server listens")
            yield port, server.pid
        finally:
            server.kill()


def can_connect(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_the_process_at_the_port_of_the_store_is_named(place: Environment):
    with (
        taken_port() as (port, pid),
        started(
            place, "raises", "leave", name="error-known", ranks=RANKS, MASTER_PORT=str(port)
        ) as job,
    ):
        verdict = end_of(job)
    # It may end before the agent has found its heartbeat file, which has the error.
    cause, *others = named(verdict)
    assert cause in ("exception", "process_died")
    assert others == [[0], "user_code"]
    assert f"pid {pid} ({Path(sys.executable).name} -m http.server" in verdict["summary"]
    assert f"listens at 127.0.0.1:{port}" in verdict["summary"]
    assert "ss -ltnp" in verdict["next_steps"][0]


def test_it_is_named_if_the_error_is_not_known(place: Environment):
    with (
        taken_port() as (port, pid),
        started(place, "meets", name="error-unknown", ranks=RANKS, MASTER_PORT=str(port)) as job,
    ):
        verdict = end_of(job)
    assert named(verdict) == ("process_died", [0], "user_code")
    assert f"pid {pid} (" in verdict["summary"]
    assert f"listens at 127.0.0.1:{port}" in verdict["summary"]


def test_a_server_at_another_port_is_not_named(place: Environment):
    with (
        taken_port(),
        started(place, "meets", name="another-error", ranks=RANKS, FAULT="fails") as job,
    ):
        verdict = end_of(job)
    assert named(verdict) == ("process_died", [0], "user_code")
    # What the node showed of the job before may stand in the evidence, without weight.
    assert "listens" not in verdict["summary"] + str(verdict["next_steps"])


def test_a_port_that_refuses_one_rank_is_named_with_the_rank_that_listens(tmp_path: Path):
    detection = {**DETECTION, "startup_grace_s": 10.0}
    with launched("meets", tmp_path, detection=detection, FAULT="closed") as job:
        verdict = job.wait_for(lambda verdict: verdict["status"] == "hung", DEADLINE_S)
    assert named(verdict) == ("init_stuck", [CULPRIT], "network")
    assert "gets no answer" not in verdict["summary"], "it is refused, and tries again"
    assert "It connects to 127.0.0.1:" in verdict["summary"]
    assert "Rank 0 (drill-a) listens there" in verdict["summary"]


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    disk = folder / "scratch"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "drill", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "old"])
def test_a_full_disk_explains_a_rank_that_tries_again(tmp_path: Path, is_new: bool):
    """A disk that was full before says nothing about a rank that sleeps there."""
    fault = "try_again_on_full_disk" if is_new else "rest"
    with small_disk(tmp_path) as disk:
        if not is_new:
            (disk / "old").write_bytes(bytes(1 << 20))
        with launched("raises", tmp_path, fault, ranks=RANKS, DISK=str(disk)) as job:
            verdict = job.wait_for(
                lambda verdict: (
                    verdict["status"] == "hung" and (not is_new or "is full" in verdict["summary"])
                ),
                DEADLINE_S,
            )
    assert [each["rank"] for each in verdict["suspects"]] == [CULPRIT]
    assert (f"file system {disk}, in which it works, is full" in verdict["summary"]) is is_new
    assert (verdict["domain"] == "storage") is is_new
    assert ("`df -h`" in verdict["next_steps"][0]) is is_new


@contextlib.contextmanager
def working_gpus(_: Environment) -> Iterator[None]:
    yield


def use_gpus(job: SmallJob, *, share: bool) -> None:
    """Let all ranks use the first GPU, or each rank its own."""
    assert job.place.gpus is not None
    first, *others = job.pids
    more = "".join(f"pid 0 {pid}\n" for pid in others)
    own = [(pid, WORKS) for pid in job.pids]
    job.place.gpus.show(NODE, [(first, WORKS + more)] if share else own)


@pytest.mark.parametrize("share", [True, False], ids=["all on one", "one each"])
def test_ranks_that_share_a_gpu_are_named_if_its_memory_is_too_small(tmp_path: Path, share: bool):
    with raising(tmp_path, "run_out_of_memory", "60", prepare=working_gpus) as job:
        use_gpus(job, share=share)
        verdict = end_of(job)
    cause = "misconfigured" if share else "exception"
    assert named(verdict) == (cause, [CULPRIT], "user_code")
    assert ("while no process uses 7 other GPUs" in verdict["summary"]) is share
    assert ("set_device(LOCAL_RANK)" in verdict["next_steps"][0]) is share


@pytest.mark.parametrize("share", [True, False], ids=["all on one", "one each"])
def test_ranks_that_share_a_gpu_are_named_if_all_wait_before_the_first_step(
    tmp_path: Path, share: bool
):
    settings = {**DETECTION, "startup_grace_s": 10.0}
    with launched(
        "meets",
        tmp_path,
        prepare=working_gpus,
        detection=settings,
        ranks=RANKS,
        FAULT="waits",
    ) as job:
        use_gpus(job, share=share)
        verdict = job.wait_for(lambda verdict: verdict["status"] == "hung", DEADLINE_S)
    assert (verdict["cause"] == "misconfigured") is share
    if share:
        assert named(verdict) == ("misconfigured", list(range(RANKS)), "user_code")


def test_a_healthy_job_may_share_a_gpu(tmp_path: Path):
    with raising(tmp_path, "handle", prepare=working_gpus) as job:
        use_gpus(job, share=True)
        verdict = job.wait_for(lambda verdict: (verdict["step"] or 0) >= 60, DEADLINE_S)
    assert (verdict["status"], verdict["incident"]) == ("healthy", None)
