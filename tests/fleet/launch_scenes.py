"""Imagined launches on nodes whose agents report once a second, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from watchtower.fleet.fleet import Fleet
from watchtower.fleet.labels import CONFIRM_S
from watchtower.wire.report import Beat, Ending, EndingKind, Launch, RankVitals, Report

USER = "uid:1000"
STEPS = Beat(step=5, age_s=0.1, advanced=1, interval_s=1.0)
AT_ONCE, CONFIRMED = 1, int(CONFIRM_S) + 3


@dataclass(frozen=True)
class Start:
    """One launch on one node."""

    node: str
    pid: int
    """Pid of the launcher. Its ranks have the pids after it."""
    ranks: tuple[int, ...]
    at: str = ""
    """Its rendezvous."""
    network: str = ""
    world: int | None = 4
    scheduler: str = ""
    run: str = ""
    has_launcher: bool = True
    launched: bool = True
    beat: Beat | None = STEPS
    ended: bool = False
    name: str = "mine"
    owner: str = USER
    boot: str = ""
    """Boot of the kernel; each node has its own by default."""
    round: int = 0
    """How often the launcher has restarted its ranks."""

    @property
    def id(self) -> str:
        return f"{self.pid}.{self.at}"

    def launch(self) -> Launch:
        return Launch(
            id=self.id,
            launcher=f"{self.pid} {self.pid}" if self.has_launcher else "",
            rendezvous=self.at,
            network=self.network,
            scheduler_id=self.scheduler,
            run_id=self.run,
        )

    def vitals(self) -> list[RankVitals]:
        return [
            RankVitals(
                job=self.name,
                owner=self.owner,
                launch=self.id,
                rank=rank,
                pid=self.pid + 100 * self.round + 1 + index,
                start_time=self.pid + self.round,
                launched=self.launched,
                world_size=self.world,
                beat=self.beat,
                ended=Ending(kind=EndingKind.EXIT, code=1, age_s=0.1) if self.ended else None,
            )
            for index, rank in enumerate(self.ranks)
        ]


@dataclass
class Sim:
    """A fleet whose nodes report once a second, one after the other."""

    fleet: Fleet
    now: float = 100.0

    def make_report(self, *starts: Start) -> Report:
        """Return the report of the node of these starts."""
        ranks = tuple(vitals for start in starts for vitals in start.vitals())
        node = starts[0].node
        return Report(
            version=1,
            node=node,
            agent_id=f"agent-{node}",
            boot=starts[0].boot or f"boot-{node}",
            interval_s=1.0,
            ranks=ranks,
            launches=tuple({start.id: start.launch() for start in starts}.values()),
        )

    def report(self, *starts: Start) -> None:
        """Report the starts of one node."""
        self.fleet.take_report(self.make_report(*starts), self.now)

    def run(self, *starts: Start, seconds: int = AT_ONCE) -> None:
        """Report all nodes of these starts each second, in the order of their first start."""
        nodes = dict.fromkeys(start.node for start in starts)
        for _ in range(seconds):
            for number, node in enumerate(nodes):
                self.now += 1 / len(nodes) if number else 0.1
                self.report(*(start for start in starts if start.node == node))
            self.now = float(int(self.now) + 1)

    def jobs(self) -> dict[str, set[tuple[str, int]]]:
        """Return the node and pid of every rank, by job."""
        return {
            label: {record.key[:2] for record in job.attempt.ranks.values()}
            for label, job in self.fleet.jobs.items()
        }


def processes(*starts: Start) -> set[tuple[str, int]]:
    return {(start.node, each.pid) for start in starts for each in start.vitals()}


A = Start("n0", 1000, (0, 1, 2, 3), at="127.0.0.1:29500", network="net:1")
B = replace(A, pid=2000, at="127.0.0.1:29600")

A1 = Start("n0", 1000, (0, 1), at="node0:29500")
A2 = Start("n1", 1100, (2, 3), at="node0:29500")
B1 = Start("n0", 2000, (0, 1), at="node0:29600")
B2 = Start("n1", 2100, (2, 3), at="node0:29600")


def without_rendezvous(start: Start) -> Start:
    return replace(start, at="", network="")
