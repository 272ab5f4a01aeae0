"""Dumper: the versions of the libraries of a rank and of its node, on which known bugs depend.

A process maps the files of its libraries. Some have their version in their name (the driver), and
for those of a package, a folder beside the package has it. A child process reads both: the list of
mappings takes a lock of the target, and a folder on a network file system may never answer.
"""

from __future__ import annotations

import platform
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import msgspec

from agent.children import ChildRunner, Program
from agent.dumpers.dumper import RanksOfRound, Step
from agent.dumpers.native_places import READ_NATIVELY
from agent.procfs import Proc
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.dumps import MAX_SOFTWARE, Software
from watchtower.writing.printable import printable

VERSIONS_DEADLINE_S = 1.0
"""Seconds for all ranks of a node. Reading the mappings of eight takes 50 ms."""

MAX_KNOWN = 1024
"""Processes whose versions are remembered: a process does not change its libraries."""

MAX_OUTPUT_BYTES = 1 << 18
"""Bytes of an output. A rank has five libraries of 40 bytes."""


class Answer(msgspec.Struct):
    """A line of the child: the versions of one process, by library."""

    pid: int
    versions: dict[str, str] = {}


VERSIONS_CHILD = Program(
    name="agent.dumpers.software_child",
    answers=msgspec.json.Decoder(Answer),
    purpose="the versions of libraries are not known",
    max_output_bytes=MAX_OUTPUT_BYTES,
)


class SoftwareVersions:
    """Reads the versions of each process once."""

    name, at_once, needs_stacks = "software", 1, False

    def __init__(self, proc: Proc, runner: ChildRunner) -> None:
        self._proc, self._runner = proc, runner
        self._known: OrderedDict[tuple[int, int], tuple[Software, ...]] = OrderedDict()
        self._lock = threading.Lock()
        self._node = (
            Software(name="machine", version=printable(platform.machine(), MAX_NAME)),
            Software(name="linux", version=printable(platform.release(), MAX_NAME)),
        )

    def plan(self, ranks: RanksOfRound) -> Sequence[Step]:
        """Return one step for all ranks. A sample is not diagnosed alone, and has none."""
        return [] if ranks.is_sample else [partial(self._fill, ranks)]

    def _fill(self, ranks: RanksOfRound) -> None:
        trees = {(t.target.pid, t.target.start_time): t for t in ranks.trees}
        with self._lock:
            new = [key for key in trees if key not in self._known]
        live = [key for key in new if trees[key].process.kernel.state in READ_NATIVELY]
        left_s = min(VERSIONS_DEADLINE_S, ranks.deadline - time.monotonic())
        self.find(live, left_s, ranks.owner)
        with self._lock:
            for key, tree in trees.items():
                if key in self._known:
                    tree.evidence["software"] = self._known[key]

    def find(
        self, keys: Sequence[tuple[int, int]], left_s: float, owner: str
    ) -> dict[tuple[int, int], tuple[Software, ...]]:
        """Return the versions of these processes (pid, start time), those that are known."""
        with self._lock:
            new = [key for key in keys if key not in self._known]
        if new and left_s > 0:
            self._learn(new, left_s, owner)
        with self._lock:
            return {key: self._known[key] for key in keys if key in self._known}

    def _learn(self, keys: Sequence[tuple[int, int]], left_s: float, owner: str) -> None:
        words = [self._proc.path, *(str(pid) for pid, _ in keys)]
        answers = {
            a.pid: a.versions for a in self._runner.ask(VERSIONS_CHILD, words, left_s, owner).found
        }
        with self._lock:
            for key in keys:
                if key[0] in answers:
                    self._known[key] = (*self._node, *_as_software(answers[key[0]]))
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)


def _as_software(versions: dict[str, str]) -> list[Software]:
    found = [
        Software(name=printable(name, MAX_NAME), version=printable(version, MAX_NAME))
        for name, version in sorted(versions.items())
    ]
    return found[: MAX_SOFTWARE - 2]
