"""Orders that wait for an agent's next report. Only the reply to a report can contain orders.

An order is sent once. If it is lost, the next check of its job orders again. An order that its
agent does not collect soon expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from watchtower.jobs.dump_timing import jitter_s
from watchtower.jobs.effects import DumpsWanted, SeriesWanted
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.ranks import LaunchKey, RankRecord
from watchtower.service.sharing import Quota
from watchtower.tower.clock import Clock
from watchtower.wire.orders import MAX_ORDERS, Order
from watchtower.wire.series import SeriesOrder

EXPIRES_S = 10.0
"""Seconds until an order expires: its dump would be too late for the check that ordered it."""

Agent = tuple[str, str]
"""A node and the id of its agent. Another agent with the same node name does not get the orders."""


def agent_of(record: RankRecord) -> Agent:
    """Return the agent that reports a rank."""
    return record.key.node, record.reporter.agent_id


@dataclass(frozen=True, slots=True)
class _Waiting:
    placed_at: float
    order: Order

    def is_due(self, now: float) -> bool:
        return now - self.placed_at < EXPIRES_S


class OrderBook:
    """Orders for dumps by agent, one of each launch."""

    def __init__(self) -> None:
        self._waiting: dict[Agent, dict[LaunchKey, _Waiting]] = {}

    def place(
        self,
        asked: Iterable[tuple[Agent, LaunchKey]],
        order_id: str,
        now: float,
        *,
        sample: bool,
        jitter_s: float = 0.0,
    ) -> None:
        """Order dumps of the ranks of these launches, which are all of one job.

        A newer order of a launch replaces an older one, but a sample does not replace a full dump.
        The agents spread their dumps over `jitter_s` seconds.
        """
        self._waiting = {  # without the expired orders of agents that no longer report
            agent: waiting
            for agent, waiting in self._waiting.items()
            if any(each.is_due(now) for each in waiting.values())
        }
        for agent, launch in asked:
            waiting = self._waiting.setdefault(agent, {})
            before = waiting.get(launch)
            valid = before.order if before is not None and before.is_due(now) else None
            if sample and valid is not None and not valid.sample:
                continue
            if before is None and not _has_room(waiting, launch.owner):
                continue
            order = Order(
                id=f"{order_id}.{launch.id}" if launch.id else order_id,
                job=launch.name,
                owner=launch.owner,
                launch=launch.id,
                expires_s=EXPIRES_S,
                sample=sample,
                jitter_s=jitter_s,
            )
            waiting[launch] = _Waiting(now, order)

    def collect(self, agent: Agent, now: float) -> tuple[Order, ...]:
        """Remove and return the orders for an agent that have not expired."""
        return tuple(
            replace(each.order, expires_s=EXPIRES_S - (now - each.placed_at))
            for each in self._waiting.pop(agent, {}).values()
            if each.is_due(now)
        )


def _has_room(waiting: Mapping[LaunchKey, _Waiting], owner: str) -> bool:
    quota = Quota()
    for each in waiting.values():
        quota.add(each.order.owner, 1)
    return quota.has_room(owner, MAX_ORDERS)


class Dispatcher:
    """All orders. Those for dumps and for series do not replace each other."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.dumps = OrderBook()
        self._series: dict[Agent, dict[LaunchKey, tuple[float, SeriesOrder]]] = {}

    def order_dumps(self, keeper: Keeper, wanted: DumpsWanted, now: float) -> None:
        """Order dumps of a job from the agents that report its ranks."""
        self.dumps.place(
            {(agent_of(r), r.launch): None for r in keeper.find_undumped(wanted, now)},
            self._clock.new_id(f"dumps of {keeper.name}"),
            now,
            sample=wanted.sample,
            jitter_s=max(wanted.spread_s, jitter_s(len(keeper.attempt.ranks))),
        )

    def order_series(self, keeper: Keeper, wanted: SeriesWanted, now: float) -> None:
        """Order series of ranks of an incident."""
        ident = self._clock.new_id(f"series of {keeper.name}")
        self._series = {
            agent: waiting
            for agent, waiting in self._series.items()
            if any(now - placed_at < EXPIRES_S for placed_at, _ in waiting.values())
        }
        for launch, ranks in wanted.ranks.items():
            order = SeriesOrder(
                id=f"{ident}.{launch.id}" if launch.id else ident,
                incident=wanted.incident,
                job=launch.name,
                owner=launch.owner,
                launch=launch.id,
                ranks=ranks,
                suspects=tuple(rank for rank in ranks if rank in wanted.suspects),
            )
            agent = agent_of(keeper.attempt.ranks[ranks[0]])
            waiting = self._series.setdefault(agent, {})
            if launch in waiting or len(waiting) < MAX_ORDERS:
                waiting[launch] = now, order

    def collect(self, agent: Agent, now: float) -> tuple[Order, ...]:
        """Remove and return the orders for an agent, at most `MAX_ORDERS`."""
        return self.dumps.collect(agent, now)[:MAX_ORDERS]

    def collect_series(self, agent: Agent) -> tuple[SeriesOrder, ...]:
        """Remove and return the orders of series for an agent."""
        return tuple(order for _, order in self._series.pop(agent, {}).values())
