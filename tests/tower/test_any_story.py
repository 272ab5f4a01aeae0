"""Reports, lost reports, dumps, restarts of agents, ranks and towers, in any order."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.jobs.scenes import JOB
from tests.properties import examples
from tests.tower.simulator import Simulation
from watchtower.wire.report import EndingKind

NODES = st.sampled_from(["n0", "n1"])
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A folder in memory, because every write is synced, and a disk would take most of the time."""

LEARNED = 6
"""Number of steps after which an attempt's pace is known in all cases."""


class AnyStory(RuleBasedStateMachine):
    """One job through its hangs, and a tower that must find each of them once."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="any-story-", dir=IN_MEMORY)
        self.loop = asyncio.new_event_loop()
        self.sim = self.run(self.begin())
        self.steps = 0
        self.pids = 100
        self.culprit: int | None = None
        self.has_died = False
        self.known: set[str] = set()
        self.of_stall: set[str] = set()
        self.acknowledged: set[str] = set()
        self.go_on(LEARNED)

    def run(self, work):
        return self.loop.run_until_complete(work)

    async def begin(self) -> Simulation:
        return Simulation(Path(self.folder.name) / "watchtower.db")

    def go_on(self, steps: int) -> None:
        self.run(self.sim.step(steps))
        self.steps += steps

    def teardown(self) -> None:
        self.run(self.sim.close())
        self.loop.close()
        self.folder.cleanup()

    @precondition(lambda self: self.culprit is None)
    @rule(steps=st.integers(1, 5))
    def step(self, steps: int) -> None:
        self.go_on(steps)

    @precondition(lambda self: self.culprit is None and self.steps >= LEARNED)
    @rule(rank=st.integers(0, 3), dies=st.booleans())
    def stall(self, rank: int, dies: bool) -> None:
        self.culprit, self.has_died, self.of_stall = rank, dies, set()
        if dies:
            self.sim.world.end(rank, EndingKind.SIGNAL, 9)

    @precondition(lambda self: self.culprit is not None)
    @rule(seconds=st.integers(1, 25))
    def wait(self, seconds: int) -> None:
        self.run(self.sim.report(seconds))

    @precondition(lambda self: self.culprit is not None)
    @rule(rounds=st.integers(1, 2))
    def dump(self, rounds: int) -> None:
        for number in range(1, rounds + 1):
            for node in ("n0", "n1"):
                batch = self.sim.batch(node, number, behind=self.culprit)
                self.acknowledged.add(self.run(self.sim.take(batch)).id)

    @precondition(lambda self: self.culprit is not None)
    @rule()
    def wait_for_the_incident(self) -> None:
        self.dump(rounds=2)
        self.run(self.sim.report(45))
        self.every_hang_is_one_incident_and_nothing_else_is()
        assert len(self.of_stall) == 1, self.sim.verdict
        self.dump(rounds=1)

    @precondition(lambda self: self.culprit is not None and not self.has_died)
    @rule()
    def mend(self) -> None:
        self.culprit = None
        self.go_on(LEARNED)
        self.check_closed("recovered")

    @rule()
    def relaunch(self) -> None:
        was_stalled, self.culprit = self.culprit is not None, None
        self.pids += 100
        self.sim.world.launch(pids_from=self.pids)
        self.go_on(LEARNED)
        self.steps = LEARNED
        if was_stalled:
            self.check_closed("ended")

    def check_closed(self, status: str) -> None:
        for incident in self.run(self.sim.incidents()):
            if incident.id in self.of_stall:
                assert incident.status.value == status
            assert incident.closed_at is not None

    @rule(node=NODES, seconds=st.integers(1, 4))
    def lose_reports(self, node: str, seconds: int) -> None:
        self.sim.world.silent.add(node)
        if self.culprit is None:
            self.go_on(seconds)
        else:
            self.run(self.sim.report(seconds))
        self.sim.world.silent.clear()

    @rule(node=NODES)
    def restart_agent(self, node: str) -> None:
        self.sim.restart_agent(node)

    @rule(node=NODES)
    def double_an_agent(self, node: str) -> None:
        self.sim.doubled ^= {node}

    @rule(kill=st.booleans(), away_s=st.integers(0, 20))
    def restart_tower(self, kill: bool, away_s: int) -> None:
        if self.culprit is not None:
            self.sim.world.now += away_s
        self.run(self.sim.kill_tower() if kill else self.sim.restart_tower())
        self.run(self.sim.report(1))

    @rule(node=NODES)
    def restart_tower_and_agent(self, node: str) -> None:
        self.sim.restart_agent(node)
        self.restart_tower(kill=True, away_s=0)

    @invariant()
    def every_hang_is_one_incident_and_nothing_else_is(self) -> None:
        incidents = self.run(self.sim.incidents())
        assert sum(1 for one in incidents if one.closed_at is None) <= 1
        new = {one.id for one in incidents} - self.known
        assert not new or self.culprit is not None, "an incident opened for a job that steps"
        self.known |= new
        self.of_stall |= new
        assert len(self.of_stall) <= 1, "one stall is two incidents"

    @invariant()
    def what_was_acknowledged_is_stored(self) -> None:
        stored = self.run(self.stored())
        assert self.acknowledged <= stored

    async def stored(self) -> set[str]:
        found, last = set(), None
        while page := await asyncio.wrap_future(self.sim.store.dumps(JOB, 0.0, after=last)):
            found |= {stored.sent.batch.id for stored in page}
            last = page[-1]
        return found


AnyStory.TestCase.settings = examples(
    60,
    stateful_step_count=14,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestAnyStory = AnyStory.TestCase
