"""Advisories of real jobs: what is wrong is listed by a command, and healthy jobs show none."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.system.e2e import test_before_ranks
from tests.system.small_jobs import CULPRIT, PROGRAMS, beside, launched, started
from watchtower.commands.client import TowerClient
from watchtower.drills.compiling import find_compiler
from watchtower.drills.gpus import IDLES, THROTTLED, WORKS, Gpus
from watchtower.drills.kernel_log import KernelLogs
from watchtower.drills.launching import MARK, node_mark
from watchtower.drills.wall_clock import WallClock
from watchtower.fleet.advisories import BY_NAME
from watchtower.service.interpreter import module_command

pytestmark = pytest.mark.system


def advise(job, *words):
    """Return what `watchtower advisories` prints of a job."""
    command = module_command("watchtower", "advisories", job.name, "--tower", job.place.tower_url)
    return subprocess.run([*command, *words], stdout=subprocess.PIPE, text=True, check=False).stdout


def wait_for(job, text, deadline_s=20.0):
    until = time.monotonic() + deadline_s
    while text not in (shown := advise(job)):
        assert time.monotonic() < until, shown
        time.sleep(0.3)
    return shown


@contextlib.contextmanager
def restarted(job, folder, **environment):
    """End the ranks of a job, and start it again."""
    for pid in job.pids:
        os.kill(pid, signal.SIGKILL)
    time.sleep(2.0)
    with contextlib.ExitStack() as stack:
        for rank in range(len(job.pids)):
            process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "advised.py")],
                env={
                    **os.environ,
                    MARK: node_mark(folder, 0),
                    "WATCHTOWER_JOB": job.name,
                    "WORLD_SIZE": str(len(job.pids)),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "TMPDIR": str(folder),
                    **environment,
                },
                stdin=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def test_a_nan_loss_is_an_advisory_and_no_incident(tmp_path):
    with launched("advised", tmp_path, FIRST="0", BAD_LOSS="1") as job:
        shown = wait_for(job, "nan_loss")
        assert "FATAL nan_loss: advised rank 1: rank 1 reported a NaN or infinite loss" in shown
        assert "do: stop advised, and start it from a checkpoint before that step" in shown
        assert job.verdict()["status"] == "healthy"


@pytest.mark.parametrize("first", [0, 30])
def test_a_job_that_begins_anew_has_lost_its_steps_unless_it_goes_on(tmp_path, first):
    with launched("advised", tmp_path, FIRST="0", SAVES="1") as job:
        job.wait_for(lambda verdict: (verdict["step"] or 0) >= 35, 60.0)
        assert "No advisories" in advise(job), "the healthy job is silent"
        with restarted(job, tmp_path, FIRST=str(first)):
            if first == 0:
                shown = wait_for(job, "lost_steps", 30.0)
                assert "; attempt 1 had reached step " in shown
                assert "; its last complete checkpoint was at step " in shown
            else:
                job.wait_for(lambda verdict: verdict["generation"] == 2, 30.0)
                time.sleep(2.0)
                assert "No advisories" in advise(job)


def configure(job):
    """Return the values that the tower knows of a job, by name: each value with its ranks."""
    found = job.client.configuration(job.name)
    return {
        each["name"]: {group["value"]: group["members"] for group in each["value_groups"]}
        for each in found["items"]
        if not each["is_of_nodes"]
    }


def test_a_rank_with_another_setting_is_found_and_secrets_stay_on_the_node(tmp_path):
    odd = {CULPRIT: {"NCCL_ALGO": "Tree"}}
    with launched(
        "advised",
        tmp_path,
        of_rank=odd,
        FIRST="0",
        NCCL_ALGO="Ring",
        HF_TOKEN="hf_abcdefghijklmnop",
        NCCL_NET_PLUGIN="password=hunter22",
        DECLARED="1",
    ) as job:
        shown = wait_for(job, "configuration_unfit", 60.0)
        assert "NCCL_ALGO is Tree on rank 1, and Ring on ranks 0,2-3" in shown
        values = configure(job)
        assert values["NCCL_NET_PLUGIN"] == {"password=[hidden]": "0-3"}
        assert "HF_TOKEN" not in values
        assert values["declared lr"] == {"0.1": "0,2-3", "0.2": "1"}
        assert "declared lr is 0.2 on rank 1, and 0.1 on ranks 0,2-3" in shown
        assert "limit memlock" in values
        assert "hunter22" not in str(job.client.configuration(job.name))
        command = module_command("watchtower", "doctor", job.name, "--tower", job.place.tower_url)
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        assert ended.returncode == 1
        assert "NCCL_ALGO (fatal)\n    Ring: ranks 0,2-3\n    Tree: ranks 1\n" in ended.stdout
        assert "[x] every rank of the world size lives" in ended.stdout
        assert "[!] NCCL is set up alike on all ranks" in ended.stdout
        assert "[?] no firewall drops what the ranks send" in ended.stdout


def test_ranks_with_one_configuration_have_no_advisory(tmp_path):
    with launched("advised", tmp_path, FIRST="0", NCCL_ALGO="Ring", LATE="1") as job:
        job.wait_for(lambda verdict: verdict["status"] == "healthy", 30.0)
        until = time.monotonic() + 30.0
        while job.client.configuration(job.name)["known_ranks"] < 4:
            assert time.monotonic() < until
            time.sleep(0.3)
        until = time.monotonic() + 40.0  # longer than any advisory waits for the last reading
        while time.monotonic() < until:
            assert "No advisories" in advise(job)
            time.sleep(1.0)


LINKS = "links {gpu} 18\n"
GPU_FAULTS = {
    2: "rc {gpu} 15\n",
    3: "remap_failed {gpu} 1\n",
    4: "remap_pending {gpu} 1\n",
    5: "links_up {gpu} 17\n",
    6: THROTTLED,
    7: "fabric_state {gpu} 1\n",
}
"""By number of the GPU. Ranks share GPU 0, an orphan uses GPU 1."""

OF_NODE = {
    "fabric_down": "pci:0000:41:00: its NVLink fabric is not set up yet",
    "gpu_lost": "pci:0000:3c:00: NVML cannot reach the GPU",
    "gpu_memory": "pci:0000:3d:00: it could not replace a row of its memory",
    "gpu_memory_wears": "pci:0000:3e:00: it replaces memory with errors at its next reset",
    "gpu_links": "pci:0000:3f:00: 1 of its 18 NVLinks were lost",
    "gpu_throttled": "pci:0000:40:00: 97% busy",
    "gpu_orphan": "pci:0000:3b:00: pid ",
    "network_link": "nic:mlx5_0: mlx5_0 is no longer active",
    "shm": "/dev/shm of its container has only 32 MiB",
    "node_unfit": "mlx5_0 has a link and is not active: no subnet manager has set it up",
    "node_limited": "mlx5_1 runs at 200 Gbit/s, another port at 400",
}
OF_JOB = {
    "shared_gpu": "shares: ranks 0-1 use GPU 0 (0000:3a:00) of drill-a, while no process uses ",
    "missing_ranks": "lacks: 1 rank of 4 was never reported: rank 3",
    "configuration_unfit": "differs: NCCL_PROTO is LL on rank 1, and Simple on ranks 0,2",
    "configuration_differs": "differs: OMP_NUM_THREADS is 1 on rank 2, and 4 on ranks 0-1",
    "shared_checkpoint": "writes: ranks 0-1 write one file: ",
    "old_checkpoint": "stops-saving: its last complete checkpoint was at step 20, ",
    "tcp": "slow: rank 0 of drill-a: no card of InfiniBand or RoCE is in use, and 2 ports of the "
    "node are active (mlx5_1/1, 200 Gb/sec); NCCL_IB_DISABLE is 1",
    "no_gpudirect": "copies: NCCL's network channels of rank 0 of drill-a are without GPUDirect",
    "no_nvlink": "near: NCCL's channels of ranks 0-1 of drill-a go through shared memory, and ",
    "attempt_changed": "changes: attempt 2 has 3 ranks, attempt 1 had 2",
}
ELSEWHERE = {
    "nan_loss": test_a_nan_loss_is_an_advisory_and_no_incident,
    "lost_steps": test_a_job_that_begins_anew_has_lost_its_steps_unless_it_goes_on,
    "places_held": test_before_ranks.test_two_jobs_that_hold_each_others_places_are_one_outage,
    "waits_for_nodes": test_before_ranks.test_launchers_that_wait_for_a_node_have_an_advisory,
}
AT_LAST = {"clock": "the wall clock was set forward by 90.0 s"}


def make_ports(root, states, rates):
    """Give a node ports of InfiniBand."""
    for number, (state, rate) in enumerate(zip(states, rates, strict=True)):
        port = root / f"sys/class/infiniband/mlx5_{number}/ports/1"
        port.mkdir(parents=True, exist_ok=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text(f"{rate} Gb/sec (4X NDR)\n")


@contextlib.contextmanager
def orphan():
    """A process whose session has ended."""
    words = ["setsid", "sh", "-c", "sleep 600 >/dev/null & echo $!"]
    pid = int(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


def list_until(client, wanted, deadline_s=100.0, **chosen):
    """Return the advisories when all that are wanted are there."""
    until = time.monotonic() + deadline_s
    while True:
        items = client.list_advisories(**chosen)["items"]
        shown = {
            f"{each['advisory']}: {each['job'] or each['subject']}: {each['text']}"
            for each in items
        }
        missing = {
            name
            for name, text in wanted.items()
            if not any(each.startswith(f"{name}: ") and text in each for each in shown)
        }
        if not missing:
            return shown
        assert time.monotonic() < until, f"{missing} of {sorted(shown)}"
        time.sleep(0.5)


@pytest.mark.timeout(240)
@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a /dev/shm for a rank")
def test_each_fault_is_listed_and_beside_it_a_sound_node_and_its_job_are_silent(tmp_path):
    """Two nodes with GPUs and ports, one of which becomes faulty. The other one must be silent."""
    assert {*OF_NODE, *OF_JOB, *ELSEWHERE, *AT_LAST} == set(BY_NAME)
    place = beside(tmp_path, nodes=2)
    place.kernel_logs, place.gpus = KernelLogs(tmp_path), Gpus(tmp_path)
    place.clock = WallClock(tmp_path)
    place.agent_options = ("--output-lines", "20")
    roots = {name: tmp_path / f"root-{name}" for name in ("drill-a", "drill-b")}
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(place)
        for root in roots.values():
            (root / "dev/shm").symlink_to("/dev/shm")
            make_ports(root, ("4: ACTIVE", "4: ACTIVE"), (400, 400))

        def start(name, ranks, **chosen):
            return stack.enter_context(
                started(place, "advised", name=name, ranks=ranks, FIRST="0", **chosen)
            )

        sound = start("sound", 2, node=1)
        on_node = {
            "drill-a": [(0, IDLES + LINKS)] * 8,
            "drill-b": [(pid, WORKS + LINKS) for pid in sound.pids],
        }
        for node, gpus in on_node.items():
            place.gpus.show(node, gpus)
        with started(place, "advised", name="changes", ranks=2, FIRST="0") as job:
            job.wait_for(lambda verdict: (verdict["step"] or 0) > 1, 60.0)
        start("lacks", 3, WORLD_SIZE="4")
        odd = {1: {"NCCL_PROTO": "LL"}, 2: {"OMP_NUM_THREADS": "1"}}
        start("differs", 3, of_rank=odd, OMP_NUM_THREADS="4", NCCL_PROTO="Simple")
        shares = start("shares", 2, of_rank={1: {"SMALL_SHM": "1"}})
        start("stops-saving", 1, SAVES="1", LAST="20")
        start("saves", 1, SAVES="1")
        start("writes", 2, FILE=str(tmp_path / "model.pt"))
        start("writes-too", 1, FILE=str(tmp_path / "other.pt"))
        start("and-that", 1, FILE=str(tmp_path / "other.pt"))
        start("writes-its-own", 1, FILE=str(tmp_path / "own.pt"))
        on_both = {1: {MARK: node_mark(tmp_path, 1)}}
        gdr, host, shm = ("via NET/IB/0/GDRDMA", "via NET/IB/0", "via SHM/direct/direct")
        start("fast", 2, of_rank=on_both, CARD="1", LOG=f"0[0] -> 1[0] [send] {gdr}")
        start("slow", 2, of_rank=on_both, NCCL_IB_DISABLE="1")
        start("copies", 2, of_rank=on_both, CARD="1", LOG=f"0[0] -> 1[0] [send] {host}")
        start("near", 2, LOG=f"0[0] -> 1[1] {shm}")
        time.sleep(12.0)  # states are read every 10 s
        client = TowerClient(place.tower_url)
        found = client.list_advisories(node="drill-a")["items"]
        assert {each["advisory"] for each in found} <= {"shm"}, "it is a rank's, from its start"
        start("changes", 3)
        left = stack.enter_context(orphan())
        faulty = dict.fromkeys(range(8), "")
        faulty |= GPU_FAULTS
        gpus = [(0, IDLES + LINKS + load) for load in faulty.values()]
        gpus[0] = shares.pids[0], WORKS + LINKS + f"pid {{gpu}} {shares.pids[1]}\n"
        gpus[1] = left, IDLES + LINKS
        place.gpus.show("drill-a", gpus)
        make_ports(roots["drill-a"], ("2: INIT", "4: ACTIVE", "4: ACTIVE"), (400, 200, 400))
        list_until(client, OF_NODE, node="drill-a")
        list_until(client, OF_JOB)
        for job in ("sound", "saves", "fast", "writes-its-own"):
            found = client.list_advisories(job)["items"]
            assert [each for each in found if each["job"]] == [], job
        assert {"writes-too", "and-that"} <= {
            each["job"]
            for each in client.list_advisories()["items"]
            if each["advisory"] == "shared_checkpoint"
        }
        assert client.list_advisories(node="drill-b")["items"] == []
        assert {each["job"] for each in client.incidents()} <= {"changes"}, "its ranks were killed"
        place.clock.shift(90.0)
        list_until(client, AT_LAST, node="drill-b")
