"""Environments and command lines: job name, launch, launcher or not. By value."""

from __future__ import annotations

import pytest

from agent.ranks.launchers import (
    Signs,
    describe_launch,
    find_signs,
    is_launcher,
    is_loopback,
    is_wrapper,
    label_job,
    name_job,
    naming_variables,
)
from watchtower.wire.bounds import MAX_NAME


def a_name(**environment: str) -> str:
    return name_job(environment, host="gpu-1", program="train.py", started="05:31")


def test_the_name_given_to_us_wins() -> None:
    assert a_name(WATCHTOWER_JOB="llama", SLURM_JOB_ID="1") == "llama"


def test_a_slurm_job_is_named_with_its_step() -> None:
    assert a_name(SLURM_JOB_ID="12", SLURM_STEP_ID="0", TORCHELASTIC_RUN_ID="x") == "slurm-12.0"
    assert a_name(SLURM_JOB_ID="12") == "slurm-12"


def test_a_ray_job_is_named_by_its_id() -> None:
    assert a_name(RAY_JOB_ID="01000000") == "ray-01000000"


def test_a_job_of_mpi_is_named_by_its_namespace() -> None:
    assert a_name(PMIX_NAMESPACE="1853620225") == "mpi-1853620225"


def test_workers_that_ray_started_before_they_had_a_job_share_no_name() -> None:
    assert not a_name(RAY_JOB_ID="ffffffff").startswith("ray-")


@pytest.mark.parametrize(
    ("names", "collectives", "gpu"),
    [
        (["python", "pt_gloo_runloop"], True, False),
        (["python", "pt_nccl_watchdg", "cuda-EvtHandlr"], True, True),
        (["python", "pt_tcpstore_uv", "jemalloc_bg_thd"], False, False),
        ([], False, False),
    ],
)
def test_names_of_threads_show_collectives_and_gpus(
    names: list[str], collectives: bool, gpu: bool
) -> None:
    assert find_signs(names) == Signs(collectives=collectives, gpu=gpu)


def test_a_run_id_counts_only_when_it_is_unique() -> None:
    assert a_name(TORCHELASTIC_RUN_ID="4a1c-55") == "4a1c-55"
    nameless = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert a_name(**nameless) == "train.py on 10.0.0.1:29500"


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1", ""])
def test_a_job_of_one_machine_is_called_after_program_machine_user_and_start(address: str) -> None:
    meeting = {"MASTER_ADDR": address, "MASTER_PORT": "29500"}
    assert a_name(**meeting, USER="alice") == "train.py on gpu-1 (alice, 05:31)"
    assert a_name(**meeting) == "train.py on gpu-1 (05:31)"
    assert a_name(JAX_COORDINATOR_ADDRESS="127.0.0.1:1") == "train.py on gpu-1 (05:31)"


def test_a_job_that_other_nodes_reach_has_a_name_without_what_differs_by_node() -> None:
    meeting = {"MASTER_ADDR": "gpu-7", "MASTER_PORT": "1", "USER": "alice"}
    names = {
        name_job(meeting, host=host, program="train.py", started=started)
        for host, started in (("gpu-7", "05:31"), ("gpu-8", "05:32"))
    }
    assert names == {"train.py on gpu-7:1 (alice)"}
    assert a_name(JAX_COORDINATOR_ADDRESS="gpu-7:1") == "train.py on gpu-7:1"


def test_a_program_that_is_not_known_leaves_the_rest_of_the_name() -> None:
    assert name_job({}, host="g", program="", started="05:31") == "a program on g (05:31)"


def test_long_parts_of_a_name_do_not_displace_the_time() -> None:
    name = name_job({"USER": "u" * 999}, host="h" * 999, program="p" * 999, started="05:31")
    assert name.endswith("u, 05:31)")
    assert len(name) <= MAX_NAME
    assert "\n" not in a_name(USER="a\nb")


def test_a_name_is_never_longer_than_the_wire_allows() -> None:
    assert len(a_name(WATCHTOWER_JOB="x" * 1000)) == 256


@pytest.mark.parametrize("address", ["localhost", "127.0.1.1", "::1", "LOCALHOST"])
def test_loopback_addresses_are_known(address: str) -> None:
    assert is_loopback(address)
    assert not is_loopback("10.0.0.1")


@pytest.mark.parametrize(
    "command",
    [
        "/usr/bin/python3 /venv/bin/torchrun --nproc-per-node 8 train.py",
        "python3.11 -m torch.distributed.run train.py",
        "python -u -m torch.distributed.launch train.py",
        "torchrun train.py",
        "/usr/bin/srun -n 8 train.py",
        "mpirun -np 8 python train.py",
        "python /venv/bin/accelerate launch train.py",
        "python /venv/bin/watchtower-agent run",
    ],
)
def test_launchers_are_known_by_their_command_line(command: str) -> None:
    assert is_launcher(command.split())


@pytest.mark.parametrize(
    "command", ["python train.py", "python -m train", "python train.py torchrun", "./train", ""]
)
def test_programs_are_no_launchers(command: str) -> None:
    assert not is_launcher(command.split())


def test_shells_are_wrappers() -> None:
    assert is_wrapper(["/bin/bash", "-c", "python train.py"])
    assert is_wrapper(["-bash"])
    assert not is_wrapper(["python", "train.py"])
    assert not is_wrapper([])


def test_a_job_has_the_labels_of_its_scheduler() -> None:
    environment = {
        "SLURM_JOB_ID": "48213",
        "SLURM_JOB_NAME": "llama-70b-pt",
        "SLURM_JOB_USER": "alice",
        "USER": "root",
        "SLURM_JOB_PARTITION": "train",
    }
    labels = label_job(environment, "slurm-48213", "namespace:team-a", "l")
    assert labels.known() == {
        "scheduler": "slurm",
        "scheduler_id": "48213",
        "name": "llama-70b-pt",
        "user": "alice",
        "partition": "train",
        "namespace": "team-a",
    }
    assert (labels.job, labels.owner) == ("slurm-48213", "namespace:team-a")
    assert labels.launch == "l"


def test_the_words_of_labels_are_kept_of_an_environment() -> None:
    wanted = {"SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "PBS_QUEUE", "USER", "WATCHTOWER_DRILL_NODE"}
    assert wanted <= set(naming_variables())


def test_labels_are_clean_and_bounded() -> None:
    labels = label_job({"SLURM_JOB_NAME": "a\x1b[2J\u202e" + "b" * 10_000}, "j", "uid:0", "l")
    assert labels.name.isprintable()
    assert len(labels.name) <= MAX_NAME
    assert labels.known().keys() == {"name"}


TORCHRUN = {
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "WATCHTOWER_JOB": "mine",
}
LAUNCHER = "7 70"


def test_a_launch_is_where_its_ranks_meet_who_started_them_and_for_which_scheduler() -> None:
    launch = describe_launch({**TORCHRUN, "SLURM_JOB_ID": "4711"}, LAUNCHER, "net:[1]")
    assert (launch.rendezvous, launch.network, launch.launcher) == ("node1:29500", "", LAUNCHER)
    assert (launch.scheduler_id, launch.run_id) == ("slurm 4711", "")
    local = describe_launch({**TORCHRUN, "MASTER_ADDR": "127.0.0.1"}, LAUNCHER, "net:[1]")
    assert (local.rendezvous, local.network) == ("127.0.0.1:29500", "net:[1]")
    unreadable = describe_launch({**TORCHRUN, "MASTER_ADDR": "127.0.0.1"}, LAUNCHER, "")
    assert unreadable.network == "unknown"
    jax = describe_launch({"JAX_COORDINATOR_ADDRESS": "[::1]:1234"}, LAUNCHER, "net:[1]")
    assert (jax.rendezvous, jax.network) == ("::1:1234", "net:[1]")
    mpi = describe_launch({"PMIX_NAMESPACE": "prterun-n1-7@1"}, "", "net:[1]")
    assert (mpi.rendezvous, mpi.network, mpi.launcher) == ("pmix prterun-n1-7@1", "", "")
    run = describe_launch({"TORCHELASTIC_RUN_ID": "exp-7", "RAY_JOB_ID": "ff"}, LAUNCHER, "")
    assert (run.run_id, run.scheduler_id, run.rendezvous) == ("exp-7", "", "")


def test_equal_launches_have_one_id_and_others_another_one() -> None:
    ids = {
        describe_launch(environment, launcher, network).id
        for _ in range(2)
        for launcher in (LAUNCHER, "7 71", "")
        for network in ("net:[1]", "net:[2]")
        for environment in (
            {**TORCHRUN, "MASTER_ADDR": "localhost"},
            {**TORCHRUN, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
        )
    }
    assert len(ids) == 12


def test_a_launch_is_clean_and_bounded() -> None:
    environment = {name: "a\x1b[2J" + "b" * 10_000 for name in naming_variables()}
    launch = describe_launch(environment, LAUNCHER, "n" * 10_000)
    for text in (launch.rendezvous, launch.network, launch.scheduler_id, launch.run_id):
        assert len(text) <= MAX_NAME
        assert text.isprintable()
