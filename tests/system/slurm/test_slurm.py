"""A hung job of a real Slurm: its names, its verdict, and the commands that the page prints."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.system.agent.agent_processes import clean_environment
from tests.system.slurm.cluster import (
    CHECKED_EVERY_S,
    NODES,
    PARTITION,
    Cluster,
    running_cluster,
    why_not,
)
from tests.towers import running_tower
from tests.waiting import wait_until
from watchtower.commands.client import NotFoundError, TowerClient
from watchtower.drills.launching import free_port
from watchtower.incidents.incident import JobFacts
from watchtower.service.interpreter import module_command
from watchtower.views.scheduler_commands import write_commands
from watchtower.wire.verdict import Domain

ROOT = Path(__file__).parents[3]
SLURM = ROOT / "deploy/slurm"
PROGRAM = Path(__file__).parent / "programs/two_tasks.py"
PATIENCE_S = 120.0
FAST = """
[detection]
suspect_floor_s = 5
hung_floor_s = 6
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.ptrace,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


class Scene(NamedTuple):
    cluster: Cluster
    client: TowerClient


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that every user may pass through."""
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture
def scene(folder: Path) -> Iterator[Scene]:
    """A cluster with our snippets, a tower, and an agent for each of its nodes."""
    (folder / "tower.toml").write_text(FAST)
    with contextlib.ExitStack() as stack:
        config = ("--config", str(folder / "tower.toml"))
        tower = stack.enter_context(running_tower(folder / "tower", *config))
        write_snippets(folder, tower.url)
        cluster = stack.enter_context(running_cluster(folder))
        for node in NODES:
            words = ("run", "--tower", tower.url, "--node", node, "--port", "0")
            match = ("--match", f"SLURMD_NODENAME={node}")
            log = stack.enter_context((folder / f"agent-{node}.log").open("wb"))
            agent = subprocess.Popen(
                module_command("agent", *words, *match),
                env=clean_environment(),
                stdout=log,
                stderr=log,
            )
            stack.callback(agent.wait)
            stack.callback(agent.terminate)
        yield Scene(cluster, TowerClient(tower.url))


def write_snippets(folder: Path, url: str) -> None:
    """Place the scripts as docs/slurm.md says, with the paths of this test."""
    zero_touch = str(ROOT / "heartbeat/watchtower_heartbeat/zero_touch")
    paths = {
        "/opt/watchtower-client/watchtower_heartbeat/zero_touch": zero_touch,
        "/etc/watchtower/slurm.env": str(folder / "slurm.env"),
        "/run/watchtower-health-check": str(folder / "handled"),
        "PATH=/usr/local/bin": f"export SLURM_CONF={folder}/slurm.conf\nPATH={folder}",
    }
    for script in SLURM.glob("*.sh"):
        text = script.read_text()
        for before, after in paths.items():
            text = text.replace(before, after)
        (folder / script.name).write_text(text)
        (folder / script.name).chmod(0o755)
    (folder / "slurm.env").write_text(f"WATCHTOWER_URL={url}\n")
    for name in ("watchtower", "agent"):
        program = folder / {"agent": "watchtower-agent"}.get(name, name)
        # The node of the doctor: below a root of its own, in which a test breaks what it likes.
        more = ' --root "$(dirname "$0")/root-$SLURMD_NODENAME"' if name == "agent" else ""
        command = shlex.join(module_command(name))
        program.write_text(f'#!/bin/sh\nexec {command} "$@"{more}\n')
        program.chmod(0o755)
    for node in NODES:
        (folder / f"root-{node}/proc").mkdir(parents=True)
        (folder / f"root-{node}/dev").mkdir()
        (folder / f"root-{node}/dev/shm").symlink_to("/dev/shm")


def submit(scene: Scene, name: str, *options: str) -> str:
    words = shlex.join([sys.executable, str(PROGRAM), str(free_port())])
    layout = ("--nodes=2", "--ntasks=2", "--requeue", "--account=physics")
    return scene.cluster.submit(f"exec srun {words}", f"--job-name={name}", *layout, *options)


def verdict_of(client: TowerClient, job: str) -> dict[str, Any]:
    try:
        return client.verdict(job)
    except NotFoundError:
        return {"status": "unseen", "step": None}


def ranks_of(client: TowerClient, job: str) -> list[dict[str, Any]]:
    return client._json(f"/api/v1/jobs/{job}", "rank_states")["rank_states"]


def hang_on(scene: Scene, job: str, node: str) -> dict[str, Any]:
    """Stop the task on a node; returns the verdict on the hung job."""
    wait_until(lambda: (verdict_of(scene.client, job)["step"] or 0) > 5, "steps", PATIENCE_S)
    wait_until(lambda: len(ranks_of(scene.client, job)) == 2, "both ranks", PATIENCE_S)
    (pid,) = (each["pid"] for each in ranks_of(scene.client, job) if each["node"] == node)
    subprocess.run(["kill", f"-{signal.SIGUSR1.value}", str(pid)], check=True)
    return wait_until(
        lambda: (found := verdict_of(scene.client, job))["status"] == "hung" and found,
        "the job is hung",
        PATIENCE_S,
    )


def test_a_job_hangs_its_node_is_drained_and_the_commands_of_its_page_are_run(
    scene: Scene,
) -> None:
    hung_job_has_the_names_of_slurm_and_its_node_is_named(scene)
    slurm_drains_a_node_that_was_blamed_once_and_not_the_other(scene)
    slurm_drains_a_node_that_is_unfit_while_few_are_drained(scene)
    commands_of_the_page_do_what_they_say(scene)
    each_task_of_an_array_is_a_job(scene)
    no_job_starts_on_a_node_that_is_unfit(scene)
    a_job_is_requeued_without_its_suspect_once(scene)
    a_hung_job_writes_its_verdict_ends_itself_and_starts_again(scene)


def hung_job_has_the_names_of_slurm_and_its_node_is_named(scene: Scene) -> None:
    job = submit(scene, "llama")
    found = hang_on(scene, f"slurm-{job}.0", "n2")
    assert {each["node"] for each in found["suspects"]} == {"n2"}
    (listed,) = (each for each in scene.client.jobs() if each["job"] == f"slurm-{job}.0")
    assert listed["labels"] == {
        "scheduler": "slurm",
        "scheduler_id": job,
        "name": "llama",
        "user": "root",
        "partition": PARTITION,
    }
    assert {each["node"] for each in ranks_of(scene.client, f"slurm-{job}.0")} == set(NODES)


def slurm_drains_a_node_that_was_blamed_once_and_not_the_other(scene: Scene) -> None:
    slurm, (listed,) = scene.cluster, scene.client.incidents()
    verdict = scene.client.incident(listed["id"])["verdict"]
    time.sleep(2 * CHECKED_EVERY_S)
    assert not slurm.states()["n2"].startswith("dr")  # the cause is neither the GPU nor the node
    guards = f"--domain {verdict['domain']} --settled 1s --min-confidence 0.1"
    set_health_check(slurm, f"condition_options='{guards}'")
    time.sleep(3 * CHECKED_EVERY_S)
    assert not slurm.states()["n2"].startswith("dr")  # it observes
    set_health_check(slurm, "mode=drain")
    wait_until(lambda: slurm.states()["n2"].startswith("dr"), "n2 drains", PATIENCE_S)
    reason = f"Reason=watchtower: {verdict['cause']} incident {listed['id']}"
    assert reason in slurm.run("scontrol", "show", "node", "n2")
    assert not slurm.states()["n1"].startswith("dr")
    slurm.run("scontrol", "update", "NodeName=n2", "State=RESUME")
    time.sleep(3 * CHECKED_EVERY_S)
    assert not slurm.states()["n2"].startswith("dr")


def slurm_drains_a_node_that_is_unfit_while_few_are_drained(scene: Scene) -> None:
    slurm = scene.cluster
    slurm.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=watchtower: a test")
    break_link(slurm)
    time.sleep(4 * CHECKED_EVERY_S)
    assert not slurm.states()["n1"].startswith("dr")  # one of two nodes is drained already
    slurm.run("scontrol", "update", "NodeName=n2", "State=RESUME")
    wait_until(lambda: slurm.states()["n1"].startswith("dr"), "n1 drains", PATIENCE_S)
    shown = slurm.run("scontrol", "show", "node", "n1")
    assert "Reason=watchtower: FAIL InfiniBand and RoCE: mlx5_0 has a link" in shown
    assert not slurm.states()["n2"].startswith("dr")
    shutil.rmtree(slurm.folder / "root-n1/sys")  # memlock may be limited here: no card is left
    slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")


def break_link(slurm: Cluster) -> None:
    port = slurm.folder / "root-n1/sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("2: INIT\n")


def set_health_check(slurm: Cluster, line: str) -> None:
    with (slurm.folder / "slurm.env").open("a") as settings:
        settings.write(f"{line}\n")


def commands_of_the_page_do_what_they_say(scene: Scene) -> None:
    slurm, (incident,) = scene.cluster, scene.client.incidents()
    page = unescape(scene.client._get(f"/incidents/{incident['id']}"))
    job = incident["job"].removeprefix("slurm-").partition(".")[0]
    printed = re.findall(r"<code>((?:scontrol|scancel) [^<]*)</code>", page)
    assert printed == [f"scontrol requeue {job}", f"scancel {job}"]
    for command in write_commands(JobFacts(scheduler="slurm", scheduler_id=job), Domain.NODE, "n2"):
        slurm.run(*shlex.split(command.text))
        check = AFTER[command.purpose.partition(" n2")[0]]
        wait_until(lambda check=check: check(slurm, job), command.text, PATIENCE_S)


AFTER = {
    "Drain": lambda slurm, job: slurm.states()["n2"].startswith("dr"),
    "Requeue the job without": lambda slurm, job: slurm.job_state(job) == "PENDING",
    "Once it is pending, exclude": lambda slurm, job: "ExcNodeList=n2" in slurm.show(job),
    "Release the job (it stays held until then)": lambda slurm, job: "held" not in slurm.show(job),
    "Cancel the job": lambda slurm, job: slurm.job_state(job) == "",
}
"""What each command leads to, by the beginning of its purpose."""


def each_task_of_an_array_is_a_job(scene: Scene) -> None:
    slurm = scene.cluster
    slurm.run("scontrol", "update", "NodeName=n2", "State=RESUME")
    words = shlex.join([sys.executable, str(PROGRAM), "$PORT"]).replace("'$PORT'", "$PORT")
    ports = f"PORT=$(({free_port()} + SLURM_ARRAY_TASK_ID))"
    array = slurm.submit(f"{ports}; exec srun {words}", "--array=0-1", "--ntasks=2", "--nodes=1")
    wait_until(lambda: len(jobs_of(scene.client, array)) == 2, "two jobs", PATIENCE_S)
    slurm.run("scancel", array)


def jobs_of(client: TowerClient, array: str) -> set[str]:
    """The jobs whose ids in the scheduler follow each other from the one of the array."""
    wanted = {f"slurm-{int(array) + more}.0" for more in range(3)}
    stepping = (each for each in client.jobs() if (each["step"] or 0) > 2)
    return {each["job"] for each in stepping} & wanted


def no_job_starts_on_a_node_that_is_unfit(scene: Scene) -> None:
    """The same script as Prolog, and not as HealthCheckProgram."""
    slurm = scene.cluster
    wait_until(lambda: set(slurm.states().values()) == {"idle"}, "both nodes are idle", PATIENCE_S)
    slurm.configure("HealthCheckInterval=0", f"Prolog={slurm.folder}/health_check.sh")
    break_link(slurm)
    started = slurm.folder / "started"
    job = slurm.submit(f"touch {started}", "--nodelist=n1", "--requeue")
    wait_until(lambda: slurm.states()["n1"].startswith("dr"), "n1 drains", PATIENCE_S)
    assert "Reason=watchtower: FAIL InfiniBand" in slurm.run("scontrol", "show", "node", "n1")
    wait_until(lambda: slurm.job_state(job) == "PENDING", "the job waits", PATIENCE_S)
    assert not started.exists()
    slurm.run("scancel", job)
    shutil.rmtree(slurm.folder / "root-n1/sys")
    slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")
    job = slurm.submit(f"touch {started}", "--nodelist=n1")
    wait_until(started.exists, "a job runs on the node that is fit again", PATIENCE_S)
    slurm.configure(f"HealthCheckInterval={CHECKED_EVERY_S}")


def a_job_is_requeued_without_its_suspect_once(scene: Scene) -> None:
    slurm = scene.cluster
    set_health_check(slurm, "mode=observe")  # what hangs below is not to drain the nodes
    wait_until(lambda: set(slurm.states().values()) == {"idle"}, "both nodes are idle", PATIENCE_S)
    job = submit(scene, "again")
    name = f"slurm-{job}.0"
    wait_until(lambda: (verdict_of(scene.client, name)["step"] or 0) > 5, "steps", PATIENCE_S)
    code, text = run_watchtower(scene, "requeue", name, "--without-suspect", "--yes")
    assert (code, "has no incident: it is" in text) == (2, True), text
    found = hang_on(scene, name, "n2")
    asked = ("requeue", name, "--without-suspect", "--settled", "1s", "--min-confidence", "0.1")
    code, text = run_watchtower(scene, *asked)
    assert (code, "nothing was done" in text) == (2, True), text  # the program is to blame
    asked = (*asked, "--domain", found["domain"])
    answers: list[str] = []  # evidence settles for a second: refused until then

    def may_act() -> bool:
        code, text = run_watchtower(scene, *asked)
        answers.append(text)
        return code == 0

    wait_until(may_act, "the requeue is offered")
    assert "scontrol requeuehold" in answers[-1], answers
    assert "add --yes" in answers[-1], answers
    assert slurm.job_state(job) == "RUNNING"
    code, text = run_watchtower(scene, *asked, "--yes")
    assert code == 0, text
    assert slurm.job_state(job) == "PENDING"
    shown = slurm.show(job)
    assert "ExcNodeList=n2" in shown
    assert f"Comment=watchtower: {found['cause']} incident {found['incident']}" in shown
    code, text = run_watchtower(scene, *asked, "--yes")
    assert code != 0, text
    slurm.run("scancel", job)


def a_hung_job_writes_its_verdict_ends_itself_and_starts_again(scene: Scene) -> None:
    slurm = scene.cluster
    program = shlex.join([sys.executable, str(PROGRAM), str(free_port())])
    guard = f"{slurm.folder}/watchtower run --tower {scene.client.url} --every 1s"
    script = (
        f"srun {guard} --end-when-hung 3s -- {program}; code=$?\n"
        'echo "ended with $code"; [ $code -eq 86 ] && scontrol requeue $SLURM_JOB_ID'
    )
    layout = ("--nodes=2", "--ntasks=2", "--requeue", "--open-mode=append")
    job = slurm.submit(script, "--job-name=guarded", *layout)
    hang_on(scene, f"slurm-{job}.0", "n2")
    wait_until(lambda: "Restarts=1" in slurm.show(job), "it is requeued", PATIENCE_S)
    log = (slurm.folder / "job.out").read_text()
    assert f"[watchtower] slurm-{job}.0: hung" in log
    assert "ended with 86" in log
    slurm.run("scancel", job)


def run_watchtower(scene: Scene, *words: str) -> tuple[int, str]:
    """Run a command as a user of Slurm would; returns its exit code and its output."""
    done = subprocess.run(
        [str(scene.cluster.folder / "watchtower"), *words, "--tower", scene.client.url],
        env=scene.cluster.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
