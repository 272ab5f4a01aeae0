"""Every call of torch on gloo, made by real processes: which of them leave holes in the records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.system.agent.agent_processes import PROGRAMS, clean_environment
from tests.system.frameworks import needs
from watchtower.readers.collective_calls import settle
from watchtower.readers.torch_records import parse_records

pytestmark = needs("torch")

RANKS = 3
LONGEST_S = 150.0
"""Ends a job that hangs. Torch alone is imported in 3 s on a free machine."""
CALLS = (
    *("monitored_barrier", "collectives", "objects", "messages", "late_waits", "new_groups"),
    *("failed_calls", "many_calls", "join_anew", "hole_and_hang"),
)


class Known(NamedTuple):
    """What the records of one rank show about its group of all ranks."""

    numbers: list[int]
    called: int
    open: int | None
    unknown: tuple[int, ...]


def known_after(text: str) -> tuple[Known, list[Known]]:
    """Return what is known about the group "0", and about all groups."""
    records = parse_records(text.encode())
    found = {}
    for group in records.groups:
        settled = settle("gloo", records, group.calls)
        found[group.name] = Known(
            [call.number for call in group.calls],
            settled.calls[-1].number,
            settled.first_open.number if settled.first_open else None,
            settled.unknown,
        )
    return found["0"], list(found.values())


def run_job(folder: Path, *calls: str, **environment: str) -> list[dict[str, str]]:
    """Return the records of each rank after each of these calls."""
    program = str(PROGRAMS / "gloo_calls.py")
    processes = []
    try:
        for rank in range(RANKS):
            with (folder / f"rank-{rank}.json").open("w") as file:
                command = [sys.executable, program, str(rank), str(RANKS), str(folder), *calls]
                process = subprocess.Popen(
                    command,
                    env=clean_environment(**environment),
                    stdout=file,
                    stderr=subprocess.DEVNULL,
                )
            processes.append(process)
        for process in processes:
            process.wait(LONGEST_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    found = []
    for rank in range(RANKS):
        lines = (folder / f"rank-{rank}.json").read_text("utf-8").splitlines()
        found.append({line["call"]: line["records"] for line in map(json.loads, lines)})
    return found


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return run_job(tmp_path_factory.mktemp("job"), *CALLS)


@pytest.mark.parametrize("call", CALLS[:-1])
def test_no_call_that_a_job_has_left_is_open_or_unknown(
    after: list[dict[str, str]], call: str
) -> None:
    for rank in range(RANKS):
        _, groups = known_after(after[rank][call])
        assert [(each.open, each.unknown) for each in groups] == [(None, ())] * len(groups)


@pytest.mark.parametrize("call", CALLS[:-1])
def test_all_members_count_alike(after: list[dict[str, str]], call: str) -> None:
    assert len({known_after(after[rank][call])[0].called for rank in range(RANKS)}) == 1


def test_a_monitored_barrier_uses_two_numbers_and_has_no_record(
    after: list[dict[str, str]],
) -> None:
    world, _ = known_after(after[0]["monitored_barrier"])
    assert world.numbers == [1, 6]


def test_messages_use_no_numbers(after: list[dict[str, str]]) -> None:
    before, _ = known_after(after[0]["objects"])
    world, _ = known_after(after[0]["messages"])
    assert world.called == before.called + 2


def test_a_group_that_was_joined_anew_begins_anew(after: list[dict[str, str]]) -> None:
    assert known_after(after[1]["join_anew"])[0].numbers == [1]


def test_the_rank_behind_is_known_after_a_hole(after: list[dict[str, str]]) -> None:
    (last, _), *others = (known_after(after[rank]["hole_and_hang"]) for rank in range(RANKS))
    assert (last.called, last.open, last.unknown) == (2, None, ())
    for world, _ in others:
        assert (world.called, world.open, world.unknown) == (5, 5, (3, 4))


def test_a_ring_that_was_overwritten_forgets_its_holes(tmp_path: Path) -> None:
    found = run_job(tmp_path, "many_calls", "hole_and_hang", TORCH_FR_BUFFER_SIZE="10")
    world, _ = known_after(found[0]["many_calls"])
    assert (len(world.numbers), world.called, world.open, world.unknown) == (10, 27, None, ())
    world, _ = known_after(found[1]["hole_and_hang"])
    assert (world.called, world.open, world.unknown) == (31, 31, (29, 30))
