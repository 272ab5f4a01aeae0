"""Dumper: the settings by which ranks find each other, of ranks that have not made a step yet.

The program itself may have set them. So the present environment is read, and that of the start only
if the present one is not readable.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from agent.dumpers.dumper import RanksOfRound, Step, Tree
from agent.procfs import Proc, parse_environ
from agent.ranks.guarded_reads import GuardedReads
from agent.ranks.launchers import load_facts
from agent.ranks.live_environ import LiveEnviron, NoLiveEnviron
from agent.ranks.owners import Owners
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.dumps import Setting
from watchtower.wire.sockets import is_listening
from watchtower.writing.printable import printable


class SetUp:
    """Reads the settings of each rank that is still in set-up."""

    name, at_once, needs_stacks = "set-up", 1, False

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._reads = GuardedReads(Owners(proc).find_quietly)

    def plan(self, ranks: RanksOfRound) -> Sequence[Step]:
        """Return one step for each rank without a step. A sample is not diagnosed: it has those of
        ranks that wait for a connection, which may be one of their own job."""
        trees = [
            tree
            for tree in ranks.trees
            if not ranks.is_sample or is_listening(tree.process.kernel.target)
        ]
        return [
            partial(self._fill, tree, ranks.deadline)
            for tree in trees
            if tree.view is None or tree.view.step < 0
        ]

    def _fill(self, tree: Tree, deadline: float) -> None:
        if time.monotonic() > deadline:
            return
        pid, born = tree.target.pid, tree.target.start_time
        raw = self._reads.run(pid, lambda: self._read(pid, born)) or b""
        variables = parse_environ(raw)
        tree.evidence["settings"] = tuple(
            Setting(name=name, value=printable(variables[name].strip(), MAX_NAME))
            for name in load_facts().equal
            if variables.get(name, "").strip()
        )

    def _read(self, pid: int, start_time: int) -> bytes:
        try:
            found = LiveEnviron().read_process(self._proc, pid, start_time)
        except NoLiveEnviron:
            found = None
        return found.raw if found is not None else self._proc.try_read(pid, "environ")
