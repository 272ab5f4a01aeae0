"""Collects the observations of the node, and joins them to the ranks that they are about."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from agent.collectors.collector import Collector, Measured, name_pid
from agent.metric_table import NODE_PROBLEM, SOURCE_LAST_SUCCESS
from agent.procfs import CLOCK_TICKS_PER_S
from agent.ranks.process_table import Process
from agent.watching.rank import WatchedRank
from watchtower.service.metric_spec import Sample
from watchtower.service.sharing import by_turns
from watchtower.wire.bounds import MAX_TEXT
from watchtower.wire.observations import MAX_OBSERVATIONS, NODE, Observation
from watchtower.wire.report import EndingKind, RankVitals

log = logging.getLogger(__name__)

MAX_SAMPLES = 2048
"""Series of one collector. 16 GPUs have some 40 each."""

OOM_KILL = "oom_kill"
SIGKILL = 9

PROBLEMS = {
    "gpu_lost": "gpu_lost",
    "gpu_reset_required": "recovery_recommended",
    "gpu_recovery": "recovery_recommended",
    "gpu_errors.ecc_uncorrected": "uncorrected_memory_errors",
    "gpu_remap.failed": "row_remapping",
    "gpu_remap.pending": "row_remapping",
    "gpu_nvlink_lost": "nvlinks_lost",
    "gpu_fabric": "fabric_not_ready",
    "fabric_manager": "fabric_manager_down",
    "gpu_orphan": "orphan_on_gpu",
    "gpus_missing": "gpus_missing",
    "shm_full": "shm_full",
}
"""Observations after which a person should test the node before its next job, also while no job
hangs, and the problem in the metric. Xid errors and stuck drivers have metrics of their own."""

MAX_PROBLEMS = 128
"""Problems of one node in the metric."""

MAX_PIDS = 65_536
"""Processes of ranks that are remembered. If there are more, those seen first are dropped."""

STARTS_AFTER_S = 0.05
"""The kernel counts the start of a process in ticks of 10 ms, and its log in microseconds."""

ENDED_FOR_S = 60.0
"""Longest time from the end of a process to a line of the kernel log about it."""


class _Member(NamedTuple):
    """A process of a rank's tree, which may have ended."""

    rank: Process
    start_time: int
    seen_at: float
    """When it was last seen alive, in seconds since boot."""


SAMPLES_S = 5.0
"""Seconds between two looks at the metrics of the collectors: a scrape every 15 s is usual, and a
node with 8 GPUs has some 400 of them."""


class Observer:
    """Asks every collector. A collector that fails is logged once and does not stop the others."""

    def __init__(self, collectors: Sequence[Collector], *, is_contained: bool = False) -> None:
        """`is_contained`: this agent has its own pid namespace. The kernel and NVML write pids of
        the host, which are other processes here."""
        self._collectors = collectors
        self._is_contained = is_contained
        self._troubles: dict[str, str] = {}
        self._members: dict[int, _Member] = {}
        self._succeeded_at: dict[str, float] = {}
        """Time of day of the last success of each collector, by name."""
        self._problems: dict[tuple[str, str, str], bool] = {}
        """By collector, GPU and problem: whether the node had it when the collector last read."""
        self._samples: tuple[Sample, ...] = ()
        self._sampled_at = float("-inf")

    def note_processes(self, ranks: Iterable[WatchedRank], boot_now: float) -> None:
        """Remember which processes belong to which rank. The kernel log names only their pids."""
        for rank in ranks:
            top = rank.found.process
            for process in (top, *top.descendants()):
                self._members[process.pid] = _Member(top, process.start_time, boot_now)
        if len(self._members) > MAX_PIDS:
            self._members = dict(islice(self._members.items(), MAX_PIDS // 2, None))

    def observe(self, now: float, boot_now: float) -> tuple[Observation, ...]:
        """Return the observations of all collectors. If there are too many, collectors take turns.

        `now` is a time of `time.monotonic`, `boot_now` of CLOCK_BOOTTIME.
        """
        found: list[tuple[str, Observation]] = []
        for collector in self._collectors:
            found += ((collector.name, each) for each in self._collect(collector, now))
        if now - self._sampled_at >= SAMPLES_S:
            self._note_problems(found)
            self._samples, self._sampled_at = tuple(self._take_samples()), now
        chosen = islice(by_turns(found), MAX_OBSERVATIONS)
        return tuple(self._join(each, boot_now) for each in chosen)

    def measured(self, boot_now: float) -> Iterator[Measured]:
        """Return what the last `observe` measured, with the pids of ranks only."""
        for collector in self._collectors:
            if collector.name in self._troubles:
                continue
            for each in islice(collector.series(), MAX_SAMPLES):
                ranks = tuple(dict.fromkeys(self._find_ranks(each.pids, boot_now)))
                yield each if each.pids == ranks else replace(each, pids=ranks)

    def _find_ranks(self, pids: Iterable[int], boot_now: float) -> Iterator[int]:
        """Return the ranks to whose trees these living processes belong."""
        for pid in () if self._is_contained else pids:
            member = self._members.get(pid)
            if member is not None and boot_now - member.seen_at <= ENDED_FOR_S:
                yield member.rank.pid

    def samples(self) -> tuple[Sample, ...]:
        """Return the metrics of all collectors, at most `SAMPLES_S` older than the last `observe`.

        For any thread.
        """
        return self._samples

    def facts(self) -> dict[str, str]:
        """Return what the collectors add to the configuration of the node."""
        found: dict[str, str] = {}
        for collector in self._collectors:
            found |= collector.facts()
        return found

    def gap(self) -> str:
        """Return what the collectors cannot observe; empty if nothing."""
        gaps = [*(collector.gap() for collector in self._collectors), *self._troubles.values()]
        return "; ".join(filter(None, gaps))[:MAX_TEXT]

    def stop(self) -> None:
        """Stop every collector."""
        for collector in self._collectors:
            collector.stop()

    def _collect(self, collector: Collector, now: float) -> list[Observation]:
        try:
            found = list(islice(collector.collect(now), MAX_OBSERVATIONS))
        except Exception as error:
            trouble = f"{collector.name}: {type(error).__name__}: {error}"
            if self._troubles.get(collector.name) != trouble:
                log.warning("a collector failed: %s", trouble, exc_info=True)
            self._troubles[collector.name] = trouble
            return []
        self._troubles.pop(collector.name, None)
        if collector.can_read:
            self._succeeded_at[collector.name] = time.time()
        return found

    def _take_samples(self) -> Iterator[Sample]:
        wall_now = time.time()
        for collector in self._collectors:
            yield from islice(collector.samples(wall_now), MAX_SAMPLES)
        for name, at in self._succeeded_at.items():
            yield Sample(SOURCE_LAST_SUCCESS, (name,), at)
        problems: dict[tuple[str, str], bool] = {}
        for (_, gpu, problem), is_seen in self._problems.items():
            problems[gpu, problem] = is_seen or problems.get((gpu, problem), False)
        for each, is_seen in problems.items():
            yield Sample(NODE_PROBLEM, each, float(is_seen))

    def _note_problems(self, found: Iterable[tuple[str, Observation]]) -> None:
        """Record which problems the node has now. One that has ended stays, as ended.

        A collector that cannot read its source does not know whether its problems have ended.
        """
        read = {each.name for each in self._collectors if self._has_read(each)}
        for key in self._problems:
            if key[0] in read:
                self._problems[key] = False
        for source, each in found:
            gpu = "" if each.subject == NODE else each.subject.removeprefix("pci:")
            key = (source, gpu, PROBLEMS.get(each.name, ""))
            has_room = key in self._problems or len(self._problems) < MAX_PROBLEMS
            if each.name in PROBLEMS and has_room:
                self._problems[key] = True

    def _has_read(self, collector: Collector) -> bool:
        """Return whether the last `collect` of a collector could read its source."""
        return collector.name not in self._troubles and collector.can_read

    def _join(self, observation: Observation, boot_now: float) -> Observation:
        """Replace the pid of a rank's child by the pid of the rank.

        A pid is used again: the pid of an event before the start of its process, or long after its
        end, belongs to another process.
        """
        if self._is_contained:
            return replace(observation, pid=None)
        member = None if observation.pid is None else self._members.get(observation.pid)
        if member is None:
            return observation
        at = boot_now - observation.age_s
        started_at = member.start_time / CLOCK_TICKS_PER_S
        is_same = started_at - STARTS_AFTER_S <= at <= member.seen_at + ENDED_FOR_S
        pid = member.rank.pid if is_same else None
        return observation if pid == observation.pid else replace(observation, pid=pid)


def mark_oom_kills(
    ranks: Iterable[RankVitals], observations: Iterable[Observation]
) -> tuple[RankVitals, ...]:
    """Return the ranks. Those that the OOM killer ended, according to the kernel log, say so.

    The kernel may also kill a child of a rank. Then the rank itself lives, or ends by other means.
    """
    kills = (each for each in observations if each.name == OOM_KILL and each.pid is not None)
    killed = {each.pid for each in kills if each.subject == name_pid(each.pid or 0)}
    return tuple(
        replace(rank, ended=replace(rank.ended, oom_killed=True))
        if rank.ended is not None
        and (rank.ended.kind, rank.ended.code) == (EndingKind.SIGNAL, SIGKILL)
        and rank.pid in killed
        else rank
        for rank in ranks
    )
