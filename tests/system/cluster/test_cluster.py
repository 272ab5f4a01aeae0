"""Towers that share a database lose nothing, and alert once, whatever dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.cluster.cluster import running_cluster
from tests.system.cluster.history import Operation, check_registers
from tests.system.cluster.rounds import FAULTS, Scene
from tests.system.store.server import find_programs

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_programs() is None, reason="needs PostgreSQL: apt install postgresql"),
]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    with running_cluster(folder) as cluster:
        scene = Scene(cluster, seed=1)
        try:
            yield scene
        finally:
            scene.close()


def test_a_killed_owner_costs_no_dump_and_no_second_alert(scene: Scene):
    found = scene.run("kill -9 of the owner")
    assert found.wrong == []
    assert found.away_s < 30, "12 s, and the start of a tower on a busy machine"


@pytest.mark.cluster
@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "kill -9 of the owner"])
def test_after_each_other_fault_all_is_as_promised(scene: Scene, fault: str):
    assert scene.run(fault).wrong == []


def write(value: str, began: float, ended: float) -> Operation:
    return Operation("x", value, True, began, ended)


def read(value: str, began: float, ended: float) -> Operation:
    return Operation("x", value, False, began, ended)


def test_the_checker_finds_a_lost_write_and_accepts_one_whose_answer_was_lost():
    old, new = write("old", 0, 1), write("new", 2, 3)
    assert list(check_registers([old, new, read("new", 4, 5)])) == []
    assert list(check_registers([old, new, read("old", 4, 5)])), "an acknowledged write is lost"
    assert list(check_registers([old, read("", 4, 5)])), "the first one, too"
    unknown = write("new", 2, float("inf"))
    for value in ("old", "new"):
        assert list(check_registers([old, unknown, read(value, 4, 5)])) == []
    assert list(check_registers([old, unknown, read("other", 4, 5)])), "it was never written"
    assert list(check_registers([new, read("new", 0, 1)])), "it was not written yet"
