"""Jobs whose launchers wait for other nodes: they exist before they have ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.e2e.test_set_up_faults import taken_port
from tests.system.frameworks import needs
from tests.system.small_jobs import FAST, beside, started
from watchtower.commands.client import NotFoundError, TowerClient
from watchtower.drills.environment import Environment
from watchtower.drills.launching import MARK, free_port, node_mark

pytestmark = [
    *needs("torch"),
    pytest.mark.e2e,
]

DEADLINE_S = 90.0
GRACE_S = 15.0
"""Two torchruns import torch and start their ranks in less, also beside other work."""
ENDS_S = 40.0
"""Seconds in which torchrun ends. It gives its ranks 30 s."""
TRAIN = """
import time
import watchtower_heartbeat as w
for step in range(10_000):
    w.beat(step)
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    detection = {**FAST, "startup_grace_s": GRACE_S}
    with beside(tmp_path_factory.mktemp("before-ranks"), detection, nodes=2) as running:
        yield running


@contextlib.contextmanager
def launcher(
    environment: Environment, folder: Path, job: str, node: int, *words: str, **variables: str
) -> Iterator[None]:
    """Start the program of a launcher on one of two nodes."""
    (folder / "train.py").write_text(TRAIN)
    with (folder / f"{job}-{node}.log").open("wb") as log:
        process = subprocess.Popen(
            words,
            env={
                **os.environ,
                "WATCHTOWER_JOB": job,
                "TMPDIR": str(folder),
                MARK: node_mark(environment.folder, node),
                **variables,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()  # it ends its ranks, which have sessions of their own
        try:
            process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def torchrun(
    environment: Environment, folder: Path, job: str, node: int, port: int, **variables: str
) -> contextlib.AbstractContextManager[None]:
    """Start torchrun on one of two nodes."""
    words = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
        *("--node-rank", str(node), "--nproc-per-node", "1"),
        *("--master-addr", "127.0.0.1", "--master-port", str(port)),
        str(folder / "train.py"),
    ]
    return launcher(environment, folder, job, node, *words, **variables)


def read_page(environment: Environment, job: str) -> str:
    """Return the page of a job. Raises an error if the tower cannot make it."""
    with urllib.request.urlopen(f"{environment.tower_url}/jobs/{job}", timeout=10) as reply:
        return reply.read().decode()


def wait_for(client: TowerClient, job: str, is_right) -> dict:
    until, verdict = time.monotonic() + DEADLINE_S, {}
    while time.monotonic() < until:
        with contextlib.suppress(NotFoundError):
            verdict = client.verdict(job)
            if is_right(verdict):
                return verdict
        time.sleep(0.2)
    pytest.fail(f"not within {DEADLINE_S:.0f} s: {verdict}")


def test_a_node_that_does_not_join_is_named_and_the_job_starts_when_it_does(
    environment: Environment, tmp_path: Path
):
    client, port = TowerClient(environment.tower_url), free_port()
    nodes = {"SLURM_JOB_NODELIST": "drill-a,drill-b"}
    with torchrun(environment, tmp_path, "lacks-a-node", 0, port, **nodes):
        starting = wait_for(client, "lacks-a-node", lambda v: v["progress"] == "starting")
        assert "1 of 2 nodes joined, waiting for 1 (drill-b); since" in starting["summary"]
        (listed,) = [each for each in client.jobs() if each["job"] == "lacks-a-node"]
        assert listed["not_judged"]["text"] == "starting"
        assert "1 of 2 nodes joined" in read_page(environment, "lacks-a-node")
        hung = wait_for(client, "lacks-a-node", lambda v: v["status"] == "hung")
        assert (hung["cause"], hung["domain"], hung["suspects"]) == (
            "never_started",
            "scheduler",
            [],
        )
        assert "drill-b" in hung["summary"]
        assert "drill-b" in hung["next_steps"][0]
        with torchrun(environment, tmp_path, "lacks-a-node", 1, port, **nodes):
            wait_for(client, "lacks-a-node", lambda v: v["progress"] == "stepping")
            (incident,) = client.incidents("lacks-a-node")
            assert incident["closed_at"] is not None


def test_launchers_that_wait_for_a_node_have_an_advisory(environment: Environment, tmp_path: Path):
    client, port, job = TowerClient(environment.tower_url), free_port(), "waits"
    with torchrun(environment, tmp_path, job, 0, port):
        wait_for(client, job, lambda v: v["progress"] == "starting")
        until = time.monotonic() + DEADLINE_S  # an advisory waits for a minute
        while not (found := client.list_advisories(job)["items"]):
            assert time.monotonic() < until
            time.sleep(1.0)
        assert [each["advisory"] for each in found] == ["waits_for_nodes"]
        assert "1 of 2 nodes joined" in found[0]["text"]
        with torchrun(environment, tmp_path, job, 1, port):
            wait_for(client, job, lambda v: v["progress"] == "stepping")
            assert client.list_advisories(job)["items"] == []


def test_launchers_that_meet_at_different_addresses(environment: Environment, tmp_path: Path):
    client, job = TowerClient(environment.tower_url), "two-addresses"
    ports = free_port(), free_port()
    with (
        torchrun(environment, tmp_path, job, 0, ports[0]),
        torchrun(environment, tmp_path, job, 1, ports[1]),
    ):
        hung = wait_for(client, job, lambda v: v["status"] == "hung")
    assert hung["cause"] == "misconfigured"
    assert f"drill-b waits at 127.0.0.1:{ports[1]}" in hung["summary"]
    assert f"127.0.0.1:{ports[0]}" in hung["summary"]


def test_a_job_whose_nodes_join_is_not_late(environment: Environment, tmp_path: Path):
    client, port, job = TowerClient(environment.tower_url), free_port(), "joins"
    with (
        torchrun(environment, tmp_path, job, 0, port),
        torchrun(environment, tmp_path, job, 1, port),
    ):
        wait_for(client, job, lambda v: v["status"] == "healthy" and v["progress"] == "stepping")
    assert client.incidents(job) == []


def test_two_jobs_that_hold_each_others_places_are_one_outage(
    environment: Environment, tmp_path: Path
):
    client, jobs = TowerClient(environment.tower_url), ("gang-a", "gang-b")
    with contextlib.ExitStack() as stack:
        for node, job in enumerate(jobs):
            stack.enter_context(torchrun(environment, tmp_path, job, node, free_port()))
        for job, other in zip(jobs, reversed(jobs), strict=True):
            hung = wait_for(client, job, lambda v: v["status"] == "hung" and v["shared_with"])
            assert (hung["cause"], hung["domain"]) == ("never_started", "scheduler")
            assert f"ob {other} holds drill-" in hung["summary"]
            # Nothing shows that they are not one job with two addresses.
            assert "if they are one job" in hung["next_steps"][0]
            assert "gang scheduling" in hung["next_steps"][1]
            assert hung["shared_cause"] == {"kind": "places", "name": "gang-a, gang-b"}
        (outage,) = client.list_outages()["items"]
        assert sorted(each["job"] for each in outage["incidents"]) == list(jobs)
        found = [each for each in client.list_advisories(jobs[0])["items"] if each["job"]]
        assert [each["advisory"] for each in found] == ["places_held"], found
        assert "gang-b holds drill-" in found[0]["text"]


def test_ranks_of_two_jobs_that_hold_each_others_places(environment: Environment):
    """Of each job, one of two ranks has started, and waits in set-up."""
    client, jobs = TowerClient(environment.tower_url), ("half-a", "half-b")
    with contextlib.ExitStack() as stack:
        for node, job in enumerate(jobs):
            words = {"WORLD_SIZE": "2", "FAULT": "waits", MARK: node_mark(environment.folder, node)}
            stack.enter_context(started(environment, "meets", name=job, ranks=1, **words))
        for job, other in zip(jobs, reversed(jobs), strict=True):
            hung = wait_for(client, job, lambda v: v["status"] == "hung" and v["shared_with"])
            assert (hung["cause"], [each["rank"] for each in hung["suspects"]]) == (
                "never_started",
                [1],
            )
            assert f"ob {other} holds drill-" in hung["summary"]
            assert hung["shared_cause"] == {"kind": "places", "name": "half-a, half-b"}


def test_two_jobs_that_start_late_hold_nothing_of_each_other(
    environment: Environment, tmp_path: Path
):
    client, jobs = TowerClient(environment.tower_url), ("late-a", "late-b")
    ports = [free_port() for _ in jobs]
    with contextlib.ExitStack() as stack:
        for turn in range(2):
            for job, port, node in zip(jobs, ports, (turn, 1 - turn), strict=True):
                stack.enter_context(torchrun(environment, tmp_path, job, node, port))
            for job in jobs:
                wait_for(client, job, lambda v: v["status"] == "healthy")
        for job in jobs:
            wait_for(client, job, lambda v: v["progress"] == "stepping")
            assert client.incidents(job) == []


def script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def test_accelerate_and_a_node_that_does_not_join(environment: Environment, tmp_path: Path):
    pytest.importorskip("accelerate")
    client, job, port = TowerClient(environment.tower_url), "accelerate-short", str(free_port())
    words = [
        *(sys.executable, script("accelerate"), "launch", "--num_machines", "2"),
        *("--num_processes", "2", "--machine_rank", "0", "--cpu", "--mixed_precision", "no"),
        *("--dynamo_backend", "no", "--main_process_ip", "127.0.0.1"),
        *("--main_process_port", port, str(tmp_path / "train.py")),
    ]
    with launcher(environment, tmp_path, job, 0, *words, SLURM_JOB_NODELIST="drill-a,drill-b"):
        starting = wait_for(client, job, lambda v: v["progress"] == "starting")
        assert "1 of 2 nodes joined, waiting for 1 (drill-b)" in starting["summary"]
        hung = wait_for(client, job, lambda v: v["status"] == "hung")
    assert (hung["cause"], hung["suspects"]) == ("never_started", [])
    assert hung["summary"].startswith("Accelerate has started no rank"), hung["summary"]


def test_a_node_of_ray_that_waits_for_a_head(environment: Environment, tmp_path: Path):
    pytest.importorskip("ray")
    client, job, head = (
        TowerClient(environment.tower_url),
        "ray-no-head",
        f"127.0.0.1:{free_port()}",
    )
    words = [sys.executable, script("ray"), "start", "--address", head, "--block"]
    with launcher(environment, tmp_path, job, 0, *words):
        starting = wait_for(client, job, lambda v: v["progress"] == "starting")
        assert f"1 of 2 nodes joined, waiting for 1 ({head})" in starting["summary"]
        hung = wait_for(client, job, lambda v: v["status"] == "hung")
    assert (hung["cause"], hung["suspects"]) == ("never_started", [])
    assert head in hung["summary"]


@pytest.mark.parametrize(
    "words",
    [
        "mpirun -np 4 -H drill-a:2,drill-b:2 python train.py",
        "horovodrun -np 4 -H drill-a:2,drill-b:2 python train.py",
        "deepspeed --num_nodes 2 train.py",
        "srun -N 2 -w drill-a,drill-b python train.py",
    ],
    ids=lambda words: words.split()[0],
)
def test_a_launcher_of_ranks_elsewhere_is_starting_and_never_late(
    environment: Environment, tmp_path: Path, words: str
):
    """The program has the name and the command line of the launcher: none is installed here."""
    name, *options = words.split()
    client, job = TowerClient(environment.tower_url), f"waits-{name}"
    program = tmp_path / name
    program.write_text("import time; time.sleep(300)")
    words = [sys.executable, str(program), *options]
    with launcher(environment, tmp_path, job, 0, *words, SLURM_JOB_NODELIST="drill-a,drill-b"):
        starting = wait_for(client, job, lambda v: v["progress"] == "starting")
        assert "no rank was seen yet on drill-a, drill-b; since" in starting["summary"]
        time.sleep(GRACE_S + 5.0)
        assert (client.verdict(job)["status"], client.incidents(job)) == ("healthy", [])


def test_a_launcher_that_ends_because_another_process_has_its_port(
    environment: Environment, tmp_path: Path
):
    client, job = TowerClient(environment.tower_url), "port-taken"
    with (
        taken_port() as (port, pid),
        torchrun(environment, tmp_path, job, 1, port),
        torchrun(environment, tmp_path, job, 0, port),
    ):
        hung = wait_for(client, job, lambda v: v["status"] == "hung")
    assert (hung["cause"], hung["domain"], hung["suspects"]) == ("misconfigured", "user_code", [])
    assert f"pid {pid} (" in hung["summary"]
    assert f"listens at 127.0.0.1:{port}" in hung["summary"]
    assert "`ss -ltnp`" in hung["next_steps"][0]
