"""What one dumper reads is in the dump of its rank, and what it cannot read costs only itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agent.children import ChildRunner
from agent.dumpers.dumper import Dumper, RanksOfRound, Step, Target
from agent.dumpers.python_stacks import PythonStacks
from agent.dumps.round import RoundTaker, make_taker
from tests.agent.ranks.test_guarded_reads import Node
from tests.waiting import PATIENCE_S
from watchtower.wire.dumps import NativeKind, NativePlace, RankDump

PLACE = NativePlace(kind=NativeKind.LIBC)


class Reads:
    """A dumper that calls a function for each rank."""

    name, at_once = "test", 1

    def __init__(self, read: Callable[[RanksOfRound], None], *, needs_stacks: bool = False) -> None:
        self._read, self.needs_stacks = read, needs_stacks

    def plan(self, ranks: RanksOfRound) -> Sequence[Step]:
        return [lambda: self._read(ranks)]


def find_place(ranks: RanksOfRound) -> None:
    for tree in ranks.trees:
        tree.evidence["native"] = PLACE


def fail(_: RanksOfRound) -> None:
    raise OSError("it cannot be read")


@pytest.fixture
def take(tmp_path: Path) -> Callable[..., RankDump]:
    node = Node(tmp_path)
    node.start(7)
    target = Target(rank=0, pid=7, start_time=7, read_page=lambda: None)

    def take_one(*dumpers: Dumper) -> RankDump:
        taker = RoundTaker(node.proc, dumpers, lambda _: None)
        (dump,) = taker.take([target], deadline=time.monotonic() + PATIENCE_S).ranks
        return dump

    return take_one


def test_what_a_dumper_read_is_a_field_of_the_dump(take):
    assert take(Reads(find_place)).native == PLACE


def test_a_dumper_that_fails_costs_only_its_own_evidence(take, caplog):
    assert take(Reads(fail), Reads(find_place)).native == PLACE
    assert "it cannot be read" in caplog.text


def test_a_dumper_that_needs_stacks_is_later_than_those_before_and_after_it(take):
    order: list[str] = []
    take(
        Reads(lambda _: order.append("second"), needs_stacks=True),
        Reads(lambda _: (time.sleep(0.05), order.append("first"))),
    )
    assert order == ["first", "second"]


def test_the_dumpers_of_an_agent_have_names_of_their_own(tmp_path):
    proc, runner = Node(tmp_path).proc, ChildRunner()
    stacks = PythonStacks(runner, "")
    taker = make_taker(proc, runner, stacks, lambda _: None, read_source=False)
    names = [dumper.name for dumper in taker._dumpers]
    assert len(names) == len(set(names)) > 3
