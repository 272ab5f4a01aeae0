"""Answers the tower's samples of a job without heartbeats, as agents would."""

from __future__ import annotations

from dataclasses import replace

from tests.diagnosis.builders import FETCHING
from tests.jobs.scenes import World
from tests.tower.simulator import Simulation
from watchtower.policy import Policy

LINES = [f"train_step /home/ann/job/main.py:{line} < <module> main.py:80" for line in range(9)]


def without_heartbeats(**policy: float) -> World:
    """Return four ranks on two nodes without heartbeat files. Only samples make them suspect."""
    base = Policy(no_heartbeat_sample_s=20, no_step_floor_s=86400)
    world = World(policy=replace(base, **policy))
    for rank in world.ranks.values():
        rank.has_page = False
    return world


class Watching:
    """Answers the tower's samples and dumps as agents would."""

    def __init__(self, sim: Simulation) -> None:
        self.sim, self.samples, self.dumps = sim, 0, 0
        self.statuses: list[str] = []
        self.every_s = 4
        """How often nodes report. Most samples are 20 s apart: more reports decide nothing."""

    async def go(self, seconds: int, behind: int = 2, stack: str = FETCHING) -> None:
        """Let time pass while rank `behind` has another stack and the others wait in all_reduce."""
        for passed in range(0, seconds, self.every_s):
            step = min(self.every_s, seconds - passed)
            await self.sim.report(step, every=step)
            for node, (order,) in self.orders().items():
                self.samples += order.sample
                self.dumps += not order.sample
                for number in (1,) if order.sample else (1, 2):
                    batch = self.sim.batch(node, number, behind, stack)
                    await self.sim.take(replace(batch, sample=order.sample))
            await self.sim.settle()
            if self.statuses[-1:] != [self.sim.status]:
                self.statuses.append(self.sim.status)

    async def until(self, status: str, **where) -> int:
        """Let time pass until the job has this status. Returns the seconds."""
        for second in range(self.every_s, 1000, self.every_s):
            await self.go(self.every_s, **where)
            if self.sim.status == status:
                return second
        raise AssertionError(f"never {status}: {self.statuses}")

    def orders(self) -> dict:
        book = self.sim.tower.effects.orders
        now = self.sim.world.now
        return {node: found for node in ("n0", "n1") if (found := book.collect((node, node), now))}

    async def work(self, seconds: int) -> None:
        """Let time pass in a job that trains: every sample finds another line."""
        for rank in self.sim.world.ranks.values():
            rank.cpu_cores = 1.0
        for second in range(0, seconds, self.every_s):
            await self.go(
                self.every_s,
                behind=second // self.every_s % 4,
                stack=LINES[second // 7 % len(LINES)],
            )

    def be_still(self) -> None:
        for rank in self.sim.world.ranks.values():
            rank.cpu_cores = 0.0
