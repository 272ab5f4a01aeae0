"""A small world for detection tests: nodes report ranks to a fleet, and the test moves the time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from watchtower.fleet.fleet import Fleet
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.condition import Condition
from watchtower.jobs.detector import Detector
from watchtower.jobs.pace import Pauses
from watchtower.policy import Policy
from watchtower.wire.observations import Observation
from watchtower.wire.report import (
    Beat,
    Ending,
    EndingKind,
    Movement,
    ProcessId,
    ProcessState,
    RankVitals,
    Report,
)

JOB = "llama"


@dataclass
class Rank:
    """One imagined rank process. A test changes its fields; `World.report` reports them."""

    rank: int
    node: str
    pid: int
    step: int = -1
    beat_at: float = 0.0
    started_at: float = 0.0
    advanced: int = 0
    interval_s: float = 0.0
    phase: str = ""
    phase_at: float | None = None
    launch: str = ""
    """When the phase began; by default, when it was first reported."""
    cpu_cores: float = 0.0
    blocked_at: float | None = None
    """Since when its main thread does not run."""
    state: ProcessState = ProcessState.SLEEPING
    ended: Ending | None = None
    ended_at: float = 0.0
    has_page: bool = True
    owner: str = ""
    launched: bool = False
    moves: dict[str, float] = field(default_factory=dict)
    """Bytes per second, by the field of `Movement`."""

    def vitals(self, world_size: int, now: float) -> RankVitals:
        return RankVitals(
            job=JOB,
            rank=self.rank,
            pid=self.pid,
            start_time=self.pid * 10,
            owner=self.owner,
            launch=self.launch,
            launched=self.launched,
            world_size=world_size,
            found_age_s=now - self.started_at,
            beat=self._beat(now) if self.has_page else None,
            state=self.state,
            movement=Movement(cpu_cores=self.cpu_cores, **self.moves),
            blocked_s=0.0 if self.blocked_at is None else now - self.blocked_at,
            ended=replace(self.ended, age_s=now - self.ended_at) if self.ended else None,
        )

    def _beat(self, now: float) -> Beat:
        if not self.phase:
            self.phase_at = None
        elif self.phase_at is None:
            self.phase_at = now
        return Beat(
            step=self.step,
            age_s=now - self.beat_at,
            phase=self.phase,
            phase_age_s=0.0 if self.phase_at is None else now - self.phase_at,
            advanced=self.advanced,
            interval_s=self.interval_s,
        )


@dataclass
class World:
    """Ranks on nodes, a fleet that receives their reports, and a detector."""

    size: int = 4
    per_node: int = 2
    policy: Policy = field(default_factory=Policy)
    now: float = 1000.0
    ranks: dict[int, Rank] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    errors: dict[int, tuple[str, float]] = field(default_factory=dict)
    """The line of the kernel log about a rank, and when it came, by rank."""
    hidden: set[int] = field(default_factory=set)
    """Ranks that their agents do not report, whether they run or not."""

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.policy)
        self.detector = Detector(self.policy)
        self.pauses = Pauses()
        if not self.ranks:
            self.launch(pids_from=100)

    def launch(self, pids_from: int, absent: frozenset[int] = frozenset()) -> None:
        """Start every rank as a new process."""
        self.ranks = {
            r: Rank(
                rank=r,
                node=f"n{r // self.per_node}",
                pid=pids_from + r,
                beat_at=self.now,
                started_at=self.now,
            )
            for r in range(self.size)
            if r not in absent
        }

    @property
    def attempt(self) -> Attempt:
        return self.fleet.jobs[JOB].attempt

    def report(self, seconds: float = 0.0) -> Condition:
        """Report all nodes now, then once a second for `seconds`. Returns the last condition."""
        condition = self._report_once()
        for _ in range(round(seconds)):
            self.now += 1.0
            condition = self._report_once()
        return condition

    def _report_once(self) -> Condition:
        nodes = {r.node for r in self.ranks.values()}
        for node in sorted(nodes - self.silent):
            missing = self.fleet.nodes[node].missing if node in self.fleet.nodes else ()
            self.fleet.take_report(self.make_report(node, f"a-{node}", missing), self.now)
        for rank in self.ranks.values():
            rank.advanced = 0
        self.attempt.end_tick(self.now)
        return self.judge()

    def make_report(self, node: str, agent_id: str, missing: tuple[ProcessId, ...]) -> Report:
        """Return the report of a node, with an answer about the processes that the tower misses."""
        mine = [(r, rank) for r, rank in self.ranks.items() if rank.node == node]
        exist = {(rank.pid, rank.pid * 10) for _, rank in mine if not rank.ended}
        return Report(
            version=1,
            node=node,
            agent_id=agent_id,
            interval_s=1.0,
            ranks=tuple(k.vitals(self.size, self.now) for r, k in mine if r not in self.hidden),
            boot=f"boot of {node}",
            gone=tuple(each for each in missing if (each.pid, each.start_time) not in exist),
            observations=tuple(
                Observation(
                    source="kernel_log",
                    subject="pci:0000:3b:00",
                    name=self.errors[r][0],
                    pid=rank.pid,
                    age_s=self.now - self.errors[r][1],
                )
                for r, rank in mine
                if r in self.errors
            ),
        )

    def judge(self) -> Condition:
        return self.detector.judge(self.attempt, self.fleet.nodes, self.pauses, self.now)

    def step(
        self, times: int = 1, step_s: float = 1.0, but: frozenset[int] = frozenset()
    ) -> Condition:
        """Let all ranks except `but` make `times` steps, with reports once a second."""
        condition = self.judge() if JOB in self.fleet.jobs else self.report()
        for _ in range(times):
            end = self.now + step_s
            while self.now + 1.0 < end:
                self.now += 1.0
                condition = self._report_once()
            self.now = end
            for r, rank in self.ranks.items():
                if r in but or rank.ended:
                    continue
                rank.advanced, rank.interval_s = 1, self.now - rank.beat_at
                rank.step, rank.beat_at = rank.step + 1, self.now
            condition = self._report_once()
        return condition

    def end(self, rank: int, kind: EndingKind = EndingKind.EXIT, code: int | None = 0) -> None:
        """End a rank's process now."""
        self.ranks[rank].ended = Ending(kind=kind, age_s=0.0, code=code)
        self.ranks[rank].ended_at = self.now
