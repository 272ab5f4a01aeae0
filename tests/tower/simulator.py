"""A real tower with a real store. The test moves its clock and simulates the nodes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.diagnosers import InThread
from tests.diagnosis.builders import FETCHING, IN_ALL_REDUCE, a_stack, as_sent
from tests.jobs.scenes import JOB, World
from watchtower.incidents.incident import NO_SHADOW, Incident
from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.judgement import Judgement
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.diagnosis_runner import Diagnoser, DiagnosisRunner
from watchtower.tower.incident_events import IncidentListener
from watchtower.tower.recording import Header, RecordedClock, Recorder, unrecorded
from watchtower.tower.tower import Tower
from watchtower.views.verdict import live_verdict
from watchtower.wire.dumps import (
    DumpBatch,
    DumpReceipt,
    KernelWait,
    NativePlace,
    RankDump,
    ThreadDump,
)
from watchtower.wire.report import ProcessId, Report
from watchtower.wire.stacks import Stack
from watchtower.wire.verdict import Verdict


@dataclass(frozen=True)
class WorldClock(Clock):
    """The clock of an imagined world."""

    world: World = field(default_factory=World)

    def now(self) -> float:
        return self.world.now

    def wall(self) -> float:
        return 1.7e9 + self.world.now


class Simulation:
    """Nodes of a `World` that report to a tower, once a second."""

    def __init__(self, path: Path, world: World | None = None) -> None:
        self.world = world or World()
        self.missing: dict[str, tuple[ProcessId, ...]] = {}
        """Processes that the tower missed in the latest report, by node."""
        self.agents: dict[str, str] = {}
        """Ids of agents by node, if they differ from the node's name."""
        self.doubled: set[str] = set()
        """Nodes under whose name a second agent reports, without any rank."""
        self.start_diagnoser: Callable[[], Diagnoser] = InThread
        self.listeners: tuple[IncidentListener, ...] = ()
        """Listeners of the next tower: restart the tower after a change."""
        self.shadow = NO_SHADOW
        """Shadow mode of the next tower."""
        self._path = path
        self.natives: dict[int, NativePlace] = {}
        """Where the training threads of ranks are in native code."""
        self.targets: dict[int, str] = {}
        """The targets of the system calls of ranks."""
        self._batches = 0
        self.start()

    def start(self, record_to: Path | None = None) -> None:
        """Start a tower, after the last one was closed."""
        self.store = SqliteStore(self._path)
        clock: Clock = WorldClock(world=self.world)
        startup = self.store.recall()
        startup = replace(startup, incidents=self.shadow.settle_all(startup.incidents))
        self.recorder: Recorder | None = None
        if record_to is not None:
            policy, now, wall = self.world.policy, clock.now(), clock.wall()
            header = Header(policy=policy, shadow=self.shadow, startup=startup, now=now, wall=wall)
            self.recorder = Recorder(record_to, header)
            clock = RecordedClock(clock, self.recorder.note)
        self.tower = Tower(
            self.world.policy,
            self.store,
            startup,
            clock,
            lambda clock, record: DiagnosisRunner(clock, record, self.start_diagnoser),
            self.listeners,
            self.shadow,
            self.recorder.note if self.recorder is not None else unrecorded,
        )

    async def restart_tower(self) -> None:
        """Stop the tower normally, and start another one on the same data."""
        await self.close()
        self.start()

    async def kill_tower(self) -> None:
        """End the tower as kill -9 would: data that were not written yet are lost."""
        if self.tower._judging is not None:
            self.tower._judging.cancel()
        for task in self.tower.effects.tasks:
            task.cancel()
        await asyncio.gather(*self.tower.effects.tasks, return_exceptions=True)
        self.tower.runner.stop()
        self.store.close()
        self.start()

    def restart_agent(self, node: str) -> None:
        """Replace the agent of this node. The new agent finds only live processes."""
        self.agents[node] = f"{node}-{len(self.agents)}-{self.world.now}"
        gone = [r.rank for r in self.world.ranks.values() if r.node == node and r.ended]
        for rank in gone:
            del self.world.ranks[rank]

    async def close(self) -> None:
        await self.tower.close()
        self.store.close()
        if self.recorder is not None:
            self.recorder.close(self.world.now)

    @property
    def live(self) -> Judgement:
        return self.tower.fleet.jobs[JOB].judged

    @property
    def attempt(self) -> Attempt:
        return self.tower.fleet.jobs[JOB].attempt

    @property
    def verdict(self) -> Verdict:
        verdict = live_verdict(self.tower.moment(), JOB)
        assert verdict is not None
        return verdict

    @property
    def status(self) -> str:
        return self.verdict.status.value

    async def incidents(self) -> list[Incident]:
        """Incidents as stored, oldest first."""
        stored = await asyncio.wrap_future(self.store.incidents(IncidentFilter(job=JOB)))
        return stored[::-1]

    async def report(self, seconds: float = 0.0, every: float = 0.0) -> None:
        """Report all nodes and advance the tower, now or `every` so many seconds for `seconds`.

        By default every second, and less often the more seconds are to pass.
        """
        every = every or (1.0 if seconds <= 20 else 2.0 if seconds < 60 else 4.0)
        end = self.world.now + seconds
        for _ in range(max(1, math.ceil(seconds / every))):
            self.world.now = min(self.world.now + every, end)
            nodes = {r.node for r in self.world.ranks.values()} | self.agents.keys()
            for node in sorted(nodes - self.world.silent):
                agent, missing = self.agents.get(node, node), self.missing.get(node, ())
                report = self.world.make_report(node, agent, missing)
                self.missing[node] = self.tower.take_report(report).missing
            for node in sorted(self.doubled):
                other = Report(version=1, node=node, agent_id="other", interval_s=1.0)
                self.tower.take_report(other)
            for rank in self.world.ranks.values():
                rank.advanced = 0
            self.tower.tick()
            await self.settle()

    async def settle(self) -> None:
        """Wait for running diagnoses, and for the writer thread, which runs in real time."""
        while tasks := list(self.tower.effects.tasks):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)
        for saving in list(self.tower.store_writer._saving.values()):
            with contextlib.suppress(OSError, sqlite3.Error):
                await asyncio.wrap_future(saving.future)

    async def step(self, times: int, step_s: float = 1.0) -> None:
        """Let all live ranks make `times` steps of whole seconds."""
        for _ in range(times):
            if step_s > 1:
                await self.report(step_s - 1)
            self.world.now += min(step_s, 1.0)
            for rank in self.world.ranks.values():
                if rank.ended is None:
                    rank.advanced, rank.interval_s = 1, self.world.now - rank.beat_at
                    rank.step, rank.beat_at = rank.step + 1, self.world.now
            await self.report()

    async def dump(
        self, behind: int, stack: str = FETCHING, rounds: int = 2, nodes: tuple[str, ...] = ()
    ) -> None:
        """Send dumps of all ranks: one is elsewhere, the others wait in all_reduce."""
        for number in range(1, rounds + 1):
            for node in nodes or sorted({r.node for r in self.world.ranks.values()}):
                await self.take(self.batch(node, number, behind, stack))

    async def take(self, batch: DumpBatch) -> DumpReceipt:
        """Send a batch of dumps."""
        return await self.tower.take_dumps(as_sent(batch))

    def batch(self, node: str, number: int, behind: int, stack: str = FETCHING) -> DumpBatch:
        """Return a batch with one node's dumps."""
        self._batches += 1
        stacks: dict[str, Stack] = {}
        dumps = []
        for rank in self.world.ranks.values():
            if rank.node != node or rank.ended is not None:
                continue
            taken = a_stack(stack if rank.rank == behind else IN_ALL_REDUCE)
            stacks[taken.digest] = taken
            thread = ThreadDump(name="MainThread", digest=taken.digest, main=True)
            kernel = KernelWait(state=rank.state, target=self.targets.get(rank.rank, ""))
            dumps.append(
                RankDump(
                    rank=rank.rank,
                    pid=rank.pid,
                    start_time=rank.pid * 10,
                    kernel=kernel,
                    threads=(thread,),
                    native=self.natives.get(rank.rank),
                )
            )
        return DumpBatch(
            version=1,
            id=f"batch-{self._batches}",
            node=node,
            job=JOB,
            owner=next((r.owner for r in self.world.ranks.values() if r.node == node), ""),
            round=number,
            reason="deadline",
            held_s=0.0,
            ranks=tuple(dumps),
            stacks=tuple(stacks.values()),
        )


async def hang(sim: Simulation, rank: int = 2) -> None:
    """Make ten steps; then one rank fetches data for ever. Returns when an incident is open."""
    await sim.step(10)
    await sim.report(6)
    await sim.dump(behind=rank)
    await sim.report(12)
    assert sim.status == "hung"
