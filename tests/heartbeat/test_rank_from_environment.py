"""Which rank is this, in the words of each launcher, and of JAX."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from watchtower_heartbeat.launchers import LAUNCHERS, read_identity, read_jax


@pytest.mark.parametrize("names", LAUNCHERS)
def test_every_launcher_is_understood_by_its_own_variables(names: tuple[str, str, str]) -> None:
    values = zip(names, ("5", "1", "8"), strict=True)
    identity = read_identity({name: value for name, value in values if name})
    assert identity["rank"] == 5
    assert identity["local_rank"] == (1 if names[1] else -1)
    assert identity["world_size"] == (8 if names[2] else -1)


def test_an_environment_without_a_rank_says_unknown() -> None:
    assert read_identity({"WORLD_SIZE": "8"}) == {"rank": -1, "local_rank": -1, "world_size": -1}


def test_a_rank_of_torchrun_wins_over_the_slurm_task_that_started_torchrun() -> None:
    environment = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "RANK": "13", "WORLD_SIZE": "16"}
    assert read_identity(environment) == {"rank": 13, "local_rank": -1, "world_size": 16}


def test_the_world_size_of_one_launcher_is_not_mixed_with_the_rank_of_another() -> None:
    assert read_identity({"RANK": "3", "SLURM_NTASKS": "2"})["world_size"] == -1


@pytest.mark.parametrize("text", ["", "-1", "node3", "3.0", " 3", "٣", "9" * 30])
def test_a_rank_that_is_no_plain_number_is_no_rank(text: str) -> None:
    assert read_identity({"RANK": text})["rank"] == -1


def test_a_launcher_whose_rank_is_unreadable_gives_way_to_the_next() -> None:
    assert read_identity({"RANK": "", "OMPI_COMM_WORLD_RANK": "2"})["rank"] == 2


def test_a_program_that_jax_has_connected_has_the_rank_of_its_process() -> None:
    state = SimpleNamespace(client=object(), process_id=3, num_processes=16)
    modules = {"jax._src.distributed": SimpleNamespace(global_state=state)}
    assert read_jax(modules) == {"rank": 3, "world_size": 16}
    state.client = None
    assert read_jax(modules) == {}
    assert read_jax({"jax._src.distributed": SimpleNamespace()}) == {}
    assert read_jax({}) == {}
