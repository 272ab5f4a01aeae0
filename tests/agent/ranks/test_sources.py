"""What shows the rank of a process: its environment, its page, both. By value."""

from __future__ import annotations

from typing import Any

import pytest

from agent.ranks import sources
from agent.ranks.sources import (
    SOURCES,
    find_claim,
    find_inherited_claim,
    find_member,
    find_mistake,
)
from agent.ranks.sources.environment import claim_rank, find_rank_mistake
from agent.ranks.sources.source import RankClaim, Shown, Source
from tests.agent.agent_scene import a_view


@pytest.mark.parametrize(
    ("environment", "rank", "world_size"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}, 3, 8),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, 1, 2),
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "16"}, 5, 16),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, 0, 4),
        ({"SLURM_PROCID": "7", "SLURM_NTASKS": "8"}, 7, 8),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "RANK": "6", "WORLD_SIZE": "8"}, 6, 8),
        ({"NODE_RANK": "0", "LOCAL_RANK": "2", "WORLD_SIZE": "8"}, 2, 8),
    ],
)
def test_every_launcher_names_the_rank_in_its_own_words(
    environment: dict[str, str], rank: int, world_size: int
) -> None:
    claim = claim_rank(environment)
    assert claim is not None
    assert (claim.rank, claim.world_size) == (rank, world_size)


@pytest.mark.parametrize("value", ["", "-1", "one", "99999999", "3.0", "²"])
def test_what_cannot_be_a_rank_is_none(value: str) -> None:
    assert claim_rank({"RANK": value}) is None


@pytest.mark.parametrize(
    ("environment", "mistake"),
    [
        ({"RANK": "7", "WORLD_SIZE": "2"}, "RANK=7 is not below WORLD_SIZE=2"),
        ({"RANK": "abc", "WORLD_SIZE": "2"}, "RANK=abc is not a number from 0 to 262143"),
        ({"PMI_RANK": "4", "PMI_SIZE": "4"}, "PMI_RANK=4 is not below PMI_SIZE=4"),
        ({"RANK": "x" * 99}, f"RANK={'x' * 32} is not a number from 0 to 262143"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ""),
        ({"RANK": "1"}, ""),
        ({"RANK": "${RANK}", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, ""),
        ({"WORLD_SIZE": "2"}, ""),
        ({}, ""),
    ],
)
def test_a_rank_that_cannot_be_right_is_described(environment: dict[str, str], mistake: str):
    assert find_rank_mistake(environment) == mistake


def test_the_ranks_of_lightning_s_other_nodes_are_not_known() -> None:
    assert claim_rank({"NODE_RANK": "1", "LOCAL_RANK": "2", "WORLD_SIZE": "8"}) is None
    assert claim_rank({"NODE_RANK": "0", "LOCAL_RANK": "2"}) is None


def test_restarts_are_read_from_torchrun() -> None:
    claim = claim_rank({"RANK": "0", "TORCHELASTIC_RESTART_COUNT": "2"})
    assert claim is not None
    assert claim.restart_count == 2


def shown(environment: dict[str, str], **page: Any) -> Shown:
    return Shown(variables=environment, view=a_view(**{"local_rank": -1, **page}) if page else None)


TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "2"}


@pytest.mark.parametrize(
    ("page", "claim"),
    [
        ({}, RankClaim(rank=3, local_rank=1, restart_count=2)),
        ({"rank": -1}, RankClaim(rank=3, local_rank=1, restart_count=2)),
        (
            {"rank": 3, "world_size": 8},
            RankClaim(rank=3, local_rank=1, world_size=8, restart_count=2),
        ),
        ({"rank": 3, "local_rank": 0}, RankClaim(rank=3, local_rank=0, restart_count=2)),
        ({"rank": 5, "world_size": 8}, RankClaim(rank=5, world_size=8)),
    ],
)
def test_the_page_decides_and_the_environment_adds_to_the_same_rank(
    page: dict[str, int], claim: RankClaim
) -> None:
    assert find_claim(shown(TORCHRUN, **page)) == claim


def test_a_rank_of_lightning_that_has_a_page_still_starts_the_others() -> None:
    lightning = {"NODE_RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    claim = find_claim(shown(lightning, rank=0))
    assert claim is not None
    assert claim.starts_others


def test_wrappers_and_children_inherit_the_environment_and_not_the_page() -> None:
    both = shown(TORCHRUN, rank=5)
    assert find_inherited_claim(both) == claim_rank(TORCHRUN)
    assert find_inherited_claim(shown({}, rank=5)) is None


def test_of_a_process_without_a_rank_nothing_is_said() -> None:
    nothing = Shown(variables={})
    assert (find_claim(nothing), find_inherited_claim(nothing), find_mistake(nothing)) == (
        None,
        None,
        "",
    )


def test_a_further_source_is_one_more_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_argument(shown: Shown) -> RankClaim | None:
        _, found, number = "".join(shown.command).partition("--rank=")
        return RankClaim(rank=int(number), world_size=4) if found else None

    monkeypatch.setattr(sources, "SOURCES", (*SOURCES, Source(find_claim=read_argument)))
    worker = Shown(variables={}, command=["train", "--rank=2"])
    assert find_claim(worker) == RankClaim(rank=2, world_size=4)
    assert find_inherited_claim(worker) is None
    first = Shown(variables={"RANK": "1"}, command=["train", "--rank=2"])
    assert find_claim(first) == RankClaim(rank=1)


def place_of(title: str) -> tuple[str, str, bool] | None:
    place = find_member(Shown(variables={}, title=title))
    return (place.group, place.role, place.leads) if place is not None else None


@pytest.mark.parametrize(
    ("title", "place"),
    [
        ("VLLM::EngineCore", ("vllm", "EngineCore", True)),
        ("VLLM::EngineCore_DP1", ("vllm.DP1", "EngineCore_DP1", True)),
        ("VLLM::Worker", ("vllm", "Worker", False)),
        ("VLLM::Worker_TP0", ("vllm", "Worker_TP0", False)),
        ("VLLM::Worker_PP1_TP0", ("vllm", "Worker_PP1_TP0", False)),
        ("VLLM::Worker_DP0_TP1", ("vllm.DP0", "Worker_DP0_TP1", False)),
        ("team-a::VLLM::Worker_TP0", ("vllm", "Worker_TP0", False)),
        ("sglang::scheduler", ("sglang", "scheduler", False)),
        ("sglang::scheduler_DP1_TP0_EP2", ("sglang", "scheduler_DP1_TP0_EP2", False)),
        ("VLLM::APIServer_0", None),
        ("VLLM::DPCoordinator", None),
        ("sglang::detokenizer", None),
        ("VLLM::Worker_TP", None),
        ("VLLM::Worker_TP0 ", None),
        ("trainer: step 12", None),
        ("", None),
    ],
)
def test_a_title_shows_the_place_in_an_inference_server(
    title: str, place: tuple[str, str, bool] | None
) -> None:
    assert place_of(title) == place


def test_workers_are_ordered_by_replica_stage_and_tensor_and_the_engine_is_the_last() -> None:
    names = ["Worker_PP0_TP0", "Worker_PP0_TP1", "Worker_PP1_TP0", "Worker_PP1_TP10", "EngineCore"]
    places = [find_member(Shown(variables={}, title=f"VLLM::{name}")) for name in names]
    positions = [place.position for place in places if place is not None]
    assert positions == sorted(positions)
    assert len(positions) == len(names)


@pytest.mark.parametrize(
    ("actor", "group"),
    [
        ("Trainer", "Trainer"),
        ("RayWorkerWrapper", "RayWorkerWrapper"),
        ("", None),
        ("MapWorker(ReadRange->Map(decode))", None),
        ("ServeReplica:app:Model", None),
    ],
)
def test_actors_of_one_class_are_a_group_unless_each_serves_a_queue(
    actor: str, group: str | None
) -> None:
    place = find_member(Shown(variables={}, actor=actor))
    assert (place and place.group) == group
