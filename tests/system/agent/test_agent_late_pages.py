"""A rank hangs before discovery has found its heartbeat page: the dump searches the page itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from agent.children import ChildRunner
from agent.dumpers.dumper import Target
from agent.dumpers.python_stacks import PythonStacks
from agent.procfs import Proc
from tests.agent.agent_scene import PATIENCE_S, a_taker
from tests.system.agent.agent_processes import Victim

STEP = 4


def steps_of(victim: Victim, *, is_sample: bool) -> int:
    """Return the step in a dump of a rank without a known page."""
    stat = Proc().stat(victim.pid)
    assert stat is not None
    target = Target(rank=0, pid=victim.pid, start_time=stat.start_time, read_page=lambda: None)
    taker = a_taker(Proc(), PythonStacks(ChildRunner(), ""))
    taken = taker.take([target], deadline=time.monotonic() + PATIENCE_S, is_sample=is_sample)
    return taken.ranks[0].step


def test_a_dump_finds_the_page_itself(start: Callable[..., Victim]) -> None:
    victim = start(RANK="0")
    victim.do(f"for step in range({STEP + 1}): beat(step)")
    assert steps_of(victim, is_sample=False) == STEP


def test_a_sample_searches_none(start: Callable[..., Victim]) -> None:
    victim = start(RANK="0")
    victim.do(f"for step in range({STEP + 1}): beat(step)")
    assert steps_of(victim, is_sample=True) == -1


def test_the_page_of_a_parent_is_not_that_of_its_child(start: Callable[..., Victim]) -> None:
    victim = start(RANK="0")
    victim.do(f"for step in range({STEP + 1}): beat(step)")
    pid = int(victim.do("pid = os.fork(); pid or sleep_in_a_loader(); print(pid)"))
    stat = Proc().stat(pid)
    assert stat is not None
    target = Target(rank=0, pid=pid, start_time=stat.start_time, read_page=lambda: None)
    taker = a_taker(Proc(), PythonStacks(ChildRunner(), ""))
    (dump,) = taker.take([target], deadline=time.monotonic() + PATIENCE_S).ranks
    assert dump.step == -1
