"""Orders the series of an incident's ranks, stores them, and returns them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw

from watchtower.fleet.fleet import Fleet
from watchtower.jobs.generation import Generation
from watchtower.jobs.incident_reads import Tracing, choose_suspects
from watchtower.jobs.ranks import ProcessKey
from watchtower.tower.clock import Clock
from watchtower.tower.inputs import Record, Traced
from watchtower.tower.live import LiveJob
from watchtower.tower.store_writer import StoreWriter
from watchtower.wire.dumps import DumpReceipt
from watchtower.wire.orders import MAX_ORDERS
from watchtower.wire.series import SeriesBatch, SeriesOrder

EXPIRES_S = 10.0
"""Seconds for which an order waits: its agent is silent then."""

LATE_S = 60.0
"""Seconds after the end of an incident in which its series are still ordered: an incident about the
end of a job is over when it opens."""

Agent = tuple[str, str]
"""A node and the id of its agent."""


class TraceOrders:
    """Orders that wait for the next report of their agents."""

    def __init__(
        self,
        fleet: Fleet,
        live: Mapping[str, LiveJob],
        store_writer: StoreWriter,
        clock: Clock,
        record: Record,
    ) -> None:
        self._fleet, self._live, self._store_writer = fleet, live, store_writer
        self._clock, self._record = clock, record
        self._waiting: dict[Agent, dict[tuple[str, str], tuple[float, SeriesOrder]]] = {}
        """By agent, and by job and launch, with the time of the order. A newer order of a launch
        replaces the older one."""

    def check(self, live: LiveJob, gen: Generation, now: float) -> None:
        """Order series if the incident of a job is new, has other suspects, or lacks series."""
        incident, tracing = live.incident, live.tracing
        if incident is None:
            return
        if incident.closed_at is not None and self._clock.wall() - incident.closed_at > LATE_S:
            return
        suspects = choose_suspects(incident.verdict)
        if (incident.id, suspects) != (tracing.incident, tracing.suspects):
            tracing.begin(incident.id, suspects, gen)
        if tracing.is_due(now):
            self._place(tracing, gen, now)

    def _place(self, tracing: Tracing, gen: Generation, now: float) -> None:
        ident = self._clock.new_id(f"series of {gen.job}")
        self._waiting = {
            agent: waiting
            for agent, waiting in self._waiting.items()
            if any(now - placed_at < EXPIRES_S for placed_at, _ in waiting.values())
        }
        for launch, ranks in tracing.take_due(gen, now).items():
            order = SeriesOrder(
                id=f"{ident}.{launch.id}" if launch.id else ident,
                incident=tracing.incident,
                job=launch.name,
                owner=launch.owner,
                launch=launch.id,
                ranks=ranks,
                suspects=tuple(rank for rank in ranks if rank in tracing.suspects),
            )
            agent = launch.node, gen.ranks[ranks[0]].reporter.agent_id
            waiting, key = self._waiting.setdefault(agent, {}), (gen.job, launch.id)
            if key in waiting or len(waiting) < MAX_ORDERS:
                waiting[key] = now, order

    def collect(self, agent: Agent) -> tuple[SeriesOrder, ...]:
        """Remove and return the orders for an agent."""
        return tuple(order for _, order in self._waiting.pop(agent, {}).values())

    def drop(self, job: str) -> None:
        """Drop the orders of a job that is over."""
        for waiting in self._waiting.values():
            for key in [key for key in waiting if key[0] == job]:
                del waiting[key]

    async def take(self, batch: SeriesBatch, body: bytes) -> DumpReceipt:
        """Store series of the current incident of a job, from the node of its ranks.

        Series of another incident, or of a process that is none of its ranks, are dropped: the
        agent need not send them again. Raises StoreFailedError.
        """
        self._record(Traced(at=self._clock.now(), batch=Raw(body)))
        live, receipt = self._find_live(batch), DumpReceipt(id=batch.id)
        if live is not None:
            sharer = self._fleet.jobs[live.name].sharer
            saving = self._store_writer.begin_series(batch, body, sharer)
            await self._store_writer.wait(saving, "the series")
            live.tracing.take(one.rank for one in batch.series)
        return receipt

    def _find_live(self, batch: SeriesBatch) -> LiveJob | None:
        """Return the job whose incident these series are about; None if they are not wanted."""
        live = self._live.get(
            self._fleet.placing.find_label(batch.node, batch.job, batch.owner, batch.launch)
        )
        job = self._fleet.jobs.get(live.name) if live is not None else None
        if live is None or job is None or live.tracing.incident != batch.incident:
            return None
        keys = [(one.rank, one.pid, one.start_time) for one in batch.series]
        keys += [(one.rank, one.pid, one.start_time) for one in batch.outputs]
        is_own = all(_is_of(job.generation, batch.node, *key) for key in keys)
        return live if keys and is_own else None


def _is_of(gen: Generation, node: str, rank: int, pid: int, start_time: int) -> bool:
    record = gen.ranks.get(rank)
    return record is not None and record.key == ProcessKey(node, pid, start_time)
