"""The settings of ranks that have made no step yet."""

from __future__ import annotations

import time
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.dumpers.dumper import Process, RanksOfRound, Target, Tree
from agent.dumpers.kernel_state import KernelTables
from agent.dumpers.set_up import SetUp
from agent.dumps.round import RoundTaker
from tests.agent.ranks.test_guarded_reads import Node
from watchtower.wire.dumps import KernelWait

ENVIRON = "MASTER_ADDR=node1\0MASTER_PORT=29500 \0WORLD_SIZE=\0AWS_SECRET_ACCESS_KEY=wJalr\0"


def read(folder: Path, step: int | None, **round_values: bool) -> dict[str, str]:
    node = Node(folder)
    node.start(4000)
    (folder / "proc/4000/environ").write_text(ENVIRON)
    view = None if step is None else SimpleNamespace(step=step, record_socket=b"", transfers=())
    target = Target(rank=0, pid=4000, start_time=4000, read_page=lambda: view)
    taker = RoundTaker(node.proc, [SetUp(node.proc)], lambda _: None)
    (dump,) = taker.take([target], deadline=time.monotonic() + 30, **round_values).ranks
    return {each.name: each.value for each in dump.settings}


def test_only_the_settings_that_must_be_equal_are_read(tmp_path: Path):
    wanted = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    assert read(tmp_path / "without", None) == wanted
    assert read(tmp_path / "first", -1) == wanted


@pytest.mark.parametrize(("target", "count"), [("tcp 0.0.0.0:29500 listening", 1), ("", 0)])
def test_a_sample_has_those_of_a_rank_that_waits_for_a_connection(tmp_path, target, count):
    node = Node(tmp_path)
    process = Process(pid=4000, owner="uid:1", kernel=KernelWait(target=target))
    rank = Target(rank=0, pid=4000, start_time=4000, read_page=lambda: None)
    tree = Tree(target=rank, view=None, process=process, children=[])
    tables = KernelTables(node.proc)
    ranks = RanksOfRound(trees=[tree], owner="uid:1", deadline=inf, tables=tables, is_sample=True)
    assert len(SetUp(node.proc).plan(ranks)) == count


def test_of_a_rank_that_trains_and_for_a_sample_nothing_is_read(tmp_path: Path):
    assert read(tmp_path / "trains", 0) == {}
    assert read(tmp_path / "sample", None, is_sample=True) == {}
