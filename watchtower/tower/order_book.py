"""Orders that wait for an agent's next report. Only the reply to a report can contain orders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from watchtower.jobs.ranks import LaunchKey, RankRecord
from watchtower.service.sharing import Quota
from watchtower.wire.orders import MAX_NATIVE_RANKS, MAX_ORDERS, Order

EXPIRES_S = 10.0
"""Seconds until an order expires: its dump would be too late for the check that ordered it."""


Agent = tuple[str, str]
"""A node and the id of its agent. Another agent with the same node name does not get the orders."""

Asked = dict[tuple[Agent, LaunchKey], None]
"""The launches that are dumped, each by the agent that reports it."""


def find_asked(records: Iterable[RankRecord]) -> Asked:
    """Return which launches of which agents have these ranks."""
    return {
        ((record.key.node, record.reporter.agent_id), record.launch): None for record in records
    }


class OrderBook:
    """Pending orders by agent. An order is sent once. If it is lost, the next check of the stall
    orders again."""

    def __init__(self) -> None:
        self._pending: dict[Agent, dict[tuple[str, str], tuple[float, Order]]] = {}
        """By job and launch."""

    def place(
        self,
        asked: Iterable[tuple[Agent, LaunchKey]],
        job: str,
        order_id: str,
        now: float,
        *,
        sample: bool,
        jitter_s: float = 0.0,
        native: tuple[int, ...] = (),
    ) -> None:
        """Order dumps of the ranks of these launches, which are all of one job.

        A newer order of a job replaces an older one, but a sample does not replace a full dump. The
        agents spread their dumps over `jitter_s` seconds. `native`: ranks whose native functions
        are wanted, and no other rank. A newer native order adds its ranks to those of an older one,
        up to `MAX_NATIVE_RANKS`.
        """
        self._expire(now)
        for agent, launch in asked:
            pending, key = self._pending.setdefault(agent, {}), (job, launch.id)
            if sample and _is_full_dump(pending.get(key), now):
                continue
            if key in pending or _has_room(pending, launch.owner):
                order = Order(
                    id=f"{order_id}.{launch.id}" if launch.id else order_id,
                    job=launch.name,
                    owner=launch.owner,
                    launch=launch.id,
                    expires_s=EXPIRES_S,
                    glance=sample,
                    jitter_s=jitter_s,
                    ranks=_unite(pending.get(key), native, now),
                    native=bool(native),
                )
                pending[key] = (now, order)

    def collect(self, agent: Agent, now: float) -> tuple[Order, ...]:
        """Remove and return the orders for `agent` that have not expired."""
        return tuple(order for _, order in self.collect_by_job(agent, now))

    def collect_by_job(self, agent: Agent, now: float) -> list[tuple[str, Order]]:
        """Remove and return the same orders, each with its job."""
        waiting = self._pending.pop(agent, None)
        if not waiting:
            return []
        return [
            (job, replace(order, expires_s=EXPIRES_S - (now - placed_at)))
            for (job, _), (placed_at, order) in waiting.items()
            if now - placed_at < EXPIRES_S
        ]

    def drop(self, job: str) -> None:
        """Drop the orders of a job that is over."""
        for pending in self._pending.values():
            for key in [key for key in pending if key[0] == job]:
                del pending[key]

    def _expire(self, now: float) -> None:
        """Drop the expired orders of agents that no longer report."""
        self._pending = {
            agent: pending
            for agent, pending in self._pending.items()
            if any(now - placed_at < EXPIRES_S for placed_at, _ in pending.values())
        }


def _has_room(pending: Mapping[tuple[str, str], tuple[float, Order]], owner: str) -> bool:
    quota = Quota()
    for _, order in pending.values():
        quota.add(order.owner, 1)
    return quota.has_room(owner, MAX_ORDERS)


def _unite(
    waiting: tuple[float, Order] | None, native: tuple[int, ...], now: float
) -> tuple[int, ...]:
    """Return the ranks of a native order and of the one that it replaces, the older ones first."""
    if not native or waiting is None or now - waiting[0] >= EXPIRES_S or not waiting[1].native:
        return native
    return tuple(sorted(list(dict.fromkeys((*waiting[1].ranks, *native)))[:MAX_NATIVE_RANKS]))


def _is_full_dump(waiting: tuple[float, Order] | None, now: float) -> bool:
    return waiting is not None and not waiting[1].glance and now - waiting[0] < EXPIRES_S
