"""Reads the configuration of ranks and node in the background, once and again every minute.

A thread reads: a process whose memory map is locked, and the firmware of a network card, may
answer late or never. Reports contain digests, and the bodies that the tower asked for.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.children import ChildRunner
from agent.dumpers.outputs import Outputs
from agent.dumpers.software import SoftwareVersions
from agent.procfs import Proc, parse_environ
from agent.ranks.configuration import choose_variables, read_declared, read_limits, read_node
from agent.ranks.guarded_reads import GuardedReads
from agent.ranks.live_environ import LiveEnviron, NoLiveEnviron
from agent.ranks.owners import Owners
from agent.watching.rank import WatchedRank
from agent.watching.rank_network import RankNetworks
from watchtower.wire.configuration import MAX_WANTED, Configuration

log = logging.getLogger(__name__)

AGAIN_S = 60.0
"""Seconds between two readings of a process: a program may change its environment."""

LOADED_S = 20.0
"""Seconds after which a process has loaded its libraries, if it has made no step before."""

VERSIONS_S = 2.0
"""Seconds for the versions of the libraries of all ranks of a node. Eight take 50 ms."""

_Key = tuple[int, int]


@dataclass(slots=True)
class _Known:
    read_at: float
    is_loaded: bool
    """Whether it was read after its libraries were loaded."""


class Configurations:
    """The configurations of a node. All methods are for the thread of the agent."""

    def __init__(
        self,
        proc: Proc,
        root: str,
        runner: ChildRunner,
        outputs: Outputs | None = None,
        find_facts: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`outputs`: of ranks, if the agent may read them. `find_facts`: more of the node."""
        self._proc, self._root = proc, root
        self._reads = GuardedReads(Owners(proc).find_quietly)
        self._software = SoftwareVersions(proc, runner)
        self._networks = RankNetworks(proc, root, runner, outputs)
        self._find_facts = find_facts
        self._known: dict[_Key, _Known] = {}
        self._found: dict[_Key, Configuration] = {}
        self._node: Configuration | None = None
        self._node_at = float("-inf")
        self._wanted: tuple[str, ...] = ()
        self._asked: queue.SimpleQueue[tuple[Sequence[WatchedRank], Mapping[str, str] | None]] = (
            queue.SimpleQueue()
        )
        self._is_busy = False
        self._thread: threading.Thread | None = None

    @property
    def node(self) -> str:
        """The digest of the node; empty until it is read."""
        return self._node.digest if self._node is not None else ""

    def update(self, ranks: Iterable[WatchedRank], now: float) -> None:
        """Note what is known of these living ranks in them, and have read what is due."""
        living = {rank.key: rank for rank in ranks}
        for key, rank in living.items():
            if (found := self._found.get(key)) is not None:
                rank.configuration = found.digest
        if self._is_busy:
            return
        for key in [key for key in self._known if key not in living]:
            del self._known[key]
            self._found.pop(key, None)
        due = [rank for key, rank in living.items() if self._is_due(key, rank, now)]
        if due or now - self._node_at >= AGAIN_S:
            self._begin(due, now)

    def want(self, digests: tuple[str, ...]) -> None:
        """Note which bodies the tower wants with the next report."""
        self._wanted = digests[:MAX_WANTED]

    def take_wanted(self) -> tuple[Configuration, ...]:
        """Return the bodies that the tower wants, once."""
        wanted, self._wanted = set(self._wanted), ()
        if not wanted:
            return ()
        known = [*list(self._found.values()), *([self._node] if self._node is not None else [])]
        by_digest = {each.digest: each for each in known}
        return tuple(each for digest, each in by_digest.items() if digest in wanted)

    def _is_due(self, key: _Key, rank: WatchedRank, now: float) -> bool:
        known = self._known.get(key)
        if known is None or now - known.read_at >= AGAIN_S:
            return True
        return not known.is_loaded and _has_loaded(rank, now)

    def _begin(self, due: Sequence[WatchedRank], now: float) -> None:
        for rank in due:
            self._known[rank.key] = _Known(now, _has_loaded(rank, now))
        facts = None
        if now - self._node_at >= AGAIN_S:
            self._node_at, facts = now, self._find_facts()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="configuration", daemon=True)
            self._thread.start()
        self._is_busy = True
        self._asked.put((due, facts))

    def _run(self) -> None:
        while True:
            due, facts = self._asked.get()
            try:
                if facts is not None:
                    self._node = Configuration.of({**read_node(self._root), **facts})
                self._read(due)
            except Exception:
                log.exception("the configuration of ranks cannot be read")
            self._is_busy = False

    def _read(self, due: Sequence[WatchedRank]) -> None:
        loaded = [rank for rank in due if (k := self._known.get(rank.key)) and k.is_loaded]
        keys = [rank.key for rank in loaded]
        owner = loaded[0].found.job.owner if loaded else ""
        versions = self._software.find(keys, VERSIONS_S, owner)
        networks = self._networks.find(due)
        for rank in due:
            pid, born = rank.key
            raw = self._reads.run(pid, lambda pid=pid, born=born: self._read_environ(pid, born))  # type: ignore[misc]
            if not raw:
                continue
            values = choose_variables(parse_environ(raw)) | read_limits(self._proc, pid)
            view = rank.heartbeat.view if rank.heartbeat is not None else None
            values |= read_declared(view.declared) if view is not None else {}
            values |= {each.name: each.version for each in versions.get(rank.key, ())}
            self._found[rank.key] = Configuration.of(values | networks.get(rank.key, {}))

    def _read_environ(self, pid: int, born: int) -> bytes:
        try:
            found = LiveEnviron().read_process(self._proc, pid, born)
        except NoLiveEnviron:
            found = None
        return found.raw if found is not None else self._proc.try_read(pid, "environ")


def _has_loaded(rank: WatchedRank, now: float) -> bool:
    view = rank.heartbeat.view if rank.heartbeat is not None else None
    return now - rank.found_at >= LOADED_S or (view is not None and view.step >= 0)
