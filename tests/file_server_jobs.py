"""Many jobs whose data comes from one file server, which dies; their agents are imagined."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.diagnosis.builders import FETCHING, IN_ALL_REDUCE, a_stack
from watchtower.wire.dumps import DumpBatch, KernelWait, Mount, RankDump, ThreadDump
from watchtower.wire.report import Beat, ProcessState, RankVitals, Report

RANKS = 8
BLOCKED = (3, 5)
"""Ranks of each job that read when the server dies; the others wait for them."""

JOBS_PER_NODE = 10
INTERVAL_S = 1.0

SERVER = Mount(kind="nfs4", source="nfs1:/data", point="/mnt/data")
ALIVE = KernelWait(state=ProcessState.SLEEPING)


@dataclass
class FileServerJobs:
    """Jobs of eight ranks, ten on a node, which make a step with each report until they hang."""

    owners: Sequence[str]
    """Of each job, in the order of their numbers."""
    clock: Callable[[], float] = time.monotonic
    mount: Mount = SERVER
    hung_at: float = 0.0
    step: int = 0
    beat_at: float = 0.0

    @property
    def names(self) -> list[str]:
        return [f"job-{number}" for number in range(len(self.owners))]

    def hang(self) -> None:
        """The file server dies."""
        self.hung_at = self.clock()

    def reports(self) -> list[Report]:
        """The reports of all agents now. Each job makes a step before, until it hangs."""
        advanced = 0
        if not self.hung_at:
            self.step, advanced, self.beat_at = self.step + 1, 1, self.clock()
        firsts = range(0, len(self.owners), JOBS_PER_NODE)
        return [self._report(first, advanced) for first in firsts]

    def batches(self, number: int) -> Iterator[DumpBatch]:
        """Yield the dumps of one round."""
        return (self._batch(job, number) for job in range(len(self.owners)))

    def _report(self, first: int, advanced: int) -> Report:
        node = self._node_of(first)
        numbers = range(first, min(first + JOBS_PER_NODE, len(self.owners)))
        ranks = [self._vitals(job, rank, advanced) for job in numbers for rank in range(RANKS)]
        return Report(
            version=1, node=node, agent_id=node, interval_s=INTERVAL_S, ranks=tuple(ranks)
        )

    def _vitals(self, job: int, rank: int, advanced: int) -> RankVitals:
        beat = Beat(
            step=self.step,
            age_s=self.clock() - self.beat_at,
            advanced=advanced,
            interval_s=INTERVAL_S if advanced else 0.0,
        )
        pid = 1000 + RANKS * job + rank
        return RankVitals(
            job=f"job-{job}",
            owner=self.owners[job],
            launched=True,
            rank=rank,
            pid=pid,
            start_time=pid,
            world_size=RANKS,
            found_age_s=100.0,
            beat=beat,
            state=self._wait_of(rank).state,
        )

    def _wait_of(self, rank: int) -> KernelWait:
        if not self.hung_at or rank not in BLOCKED:
            return ALIVE
        return KernelWait(
            state=ProcessState.UNINTERRUPTIBLE,
            wchan="rpc_wait_bit_killable",
            syscall="read",
            target=f"{self.mount.point}/0042.tar",
            mounts=(self.mount,),
        )

    def _batch(self, job: int, number: int) -> DumpBatch:
        stacks = {
            rank: a_stack(FETCHING if rank in BLOCKED else IN_ALL_REDUCE) for rank in range(RANKS)
        }
        first_pid = 1000 + RANKS * job
        dumps = [
            RankDump(
                rank=rank,
                pid=first_pid + rank,
                start_time=first_pid + rank,
                kernel=self._wait_of(rank),
                threads=(ThreadDump(name="MainThread", digest=stack.digest, main=True),),
            )
            for rank, stack in stacks.items()
        ]
        return DumpBatch(
            version=1,
            id=f"job-{job}-{number}",
            node=self._node_of(job),
            job=f"job-{job}",
            owner=self.owners[job],
            round=number,
            reason="deadline",
            held_s=0.0,
            ranks=tuple(dumps),
            stacks=tuple({stack.digest: stack for stack in stacks.values()}.values()),
        )

    def _node_of(self, job: int) -> str:
        return f"node-{job // JOBS_PER_NODE}"
