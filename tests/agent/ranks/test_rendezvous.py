"""Launchers that wait for other nodes: what their command line and environment show."""

import pytest

from agent.ranks.process_table import Process
from agent.ranks.rendezvous import read_rendezvous

TORCHRUN = ["/usr/bin/python3", "/usr/bin/torchrun"]


@pytest.mark.parametrize(
    ("command", "environment", "launcher", "nodes", "endpoint"),
    [
        ("torchrun --nnodes=2 --rdzv-endpoint n1 train.py", {}, "torchrun", (2, 2), "n1:29500"),
        ("torchrun --nnodes 2:4 train.py --nnodes 9", {}, "torchrun", (2, 4), ""),
        (
            "torchrun x.py",
            {"PET_NNODES": "3", "PET_MASTER_ADDR": "a"},
            "torchrun",
            (3, 3),
            "a:29500",
        ),
        (
            "python -m torch.distributed.run --nnodes 2 --master-addr n1 --master-port 7 t.py",
            {},
            "torchrun",
            (2, 2),
            "n1:7",
        ),
        (
            "python -m accelerate.commands.launch --num_machines 2 --main_process_ip n1 t.py",
            {},
            "accelerate",
            (2, 2),
            "n1:29500",
        ),
        (
            "python /usr/bin/accelerate launch --num_machines 2 --main_process_ip n1 t.py",
            {},
            "accelerate",
            (2, 2),
            "n1:29500",
        ),
        ("python /usr/bin/ray start --address n1:6379", {}, "ray start", (2, 2), "n1:6379"),
        ("deepspeed --num_nodes 2 t.py", {}, "deepspeed", (2, 2), ""),
        ("python /usr/bin/horovodrun -H a:1,b:1 python t.py", {}, "horovodrun", (2, 2), ""),
        ("mpirun --host a:4,b:4 python t.py", {}, "mpirun", (2, 2), ""),
        ("srun -N 2 -w n[1-2] python t.py", {}, "srun", (2, 2), ""),
    ],
)
def test_a_launcher_shows_how_many_nodes_it_waits_for(
    command, environment, launcher, nodes, endpoint
):
    found = read_rendezvous(command.split(), environment)
    assert found is not None
    assert (found.row.name, (found.least, found.most)) == (launcher, nodes)
    assert found.endpoint == endpoint


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --nnodes 2",
        "mpirun -np 2 torchrun",
        "bash run.sh",
        "",
        "torchrun train.py",
        "torchrun --nnodes 1:4 train.py",
        "torchrun --nnodes x:y t.py",
        "torchrun --nnodes",
        "accelerate launch t.py",
        "accelerate config",
        "accelerate config --num_machines 2",
        "ray start --head",
        "ray start --address auto",
        "ray job submit --address n1:6379",
        "mpirun -np 2 --host n1:2 python t.py",
        "mpirun --host n1,n2 hostname",
        "srun -N 2 -w n[1-2] sleep 100",
        "srun -N 1 python t.py",
    ],
)
def test_programs_that_need_no_other_node_do_not_wait(command):
    """A launcher may run once on each node of a scheduler's job, each for itself."""
    assert read_rendezvous(command.split(), {"SLURM_NNODES": "4"}) is None


def test_only_what_names_the_job_is_kept_and_the_id_of_the_run_is_that_of_its_ranks():
    environment = {"AWS_SECRET_ACCESS_KEY": "wJalr", "SLURM_JOB_ID": "7"}
    found = read_rendezvous([*TORCHRUN, "--nnodes", "2", "--rdzv_id", "run-7", "t.py"], environment)
    assert found is not None
    assert found.variables == {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "run-7"}


def test_slots_are_no_part_of_the_names_of_nodes():
    found = read_rendezvous(["mpirun", "-H", "n1:4,n2:4", "python", "t.py"], {})
    assert found is not None
    assert found.node_list == "n1,n2"


@pytest.mark.parametrize(
    ("command", "program", "has_rank", "is_answered"),
    [
        ("ray start --address n1:6379", "raylet", False, True),
        ("ray start --address n1:6379", "gcs_server", False, False),
        ("mpirun -H a,b python t.py", "python", True, True),
        ("mpirun -H a,b python t.py", "ssh", False, False),
        ("torchrun --nnodes 2 t.py", "python", True, False),
    ],
)
def test_what_runs_below_a_launcher_shows_that_it_waits_no_more(
    command, program, has_rank, is_answered
):
    found = read_rendezvous(command.split(), {})
    assert found is not None
    launcher, below = (
        Process(pid=pid, ppid=1, start_time=1, comm=comm) for pid, comm in ((7, "x"), (8, program))
    )
    launcher.children[below] = None
    assert found.is_answered(launcher, {8} if has_rank else set()) is is_answered
