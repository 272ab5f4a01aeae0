"""Orders that wait for an agent's next report. Only the reply to a report can contain orders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from watchtower.core.fleet.quotas import Quota
from watchtower.wire.orders import MAX_NATIVE_RANKS, MAX_ORDERS, Order

EXPIRES_S = 10.0
"""Seconds until an order expires: its dump would be too late for the check that ordered it."""


Agent = tuple[str, str]
"""A node and the id of its agent. Another agent with the same node name does not get the orders."""


class OrderBook:
    """Pending orders by agent. An order is sent once. If it is lost, the next check of the stall
    orders again."""

    def __init__(self) -> None:
        self._pending: dict[Agent, dict[str, tuple[float, Order]]] = {}

    def place(
        self,
        agents: Mapping[Agent, tuple[str, str]],
        job: str,
        order_id: str,
        now: float,
        *,
        sample: bool,
        jitter_s: float = 0.0,
        native: tuple[int, ...] = (),
    ) -> None:
        """Order dumps of a job's ranks from `agents`, which have each agent's name and owner of the
        job.

        A newer order of a job replaces an older one, but a sample does not replace a full dump. The
        agents spread their dumps over `jitter_s` seconds. `native`: ranks whose native functions
        are wanted, and no other rank. A newer native order adds its ranks to those of an older one,
        up to `MAX_NATIVE_RANKS`.
        """
        self._expire(now)
        for agent, (name, owner) in agents.items():
            pending = self._pending.setdefault(agent, {})
            if sample and _is_full_dump(pending.get(job), now):
                continue
            if job in pending or _has_room(pending, owner):
                order = Order(
                    id=order_id,
                    job=name,
                    owner=owner,
                    expires_s=EXPIRES_S,
                    glance=sample,
                    jitter_s=jitter_s,
                    ranks=_unite(pending.get(job), native, now),
                    native=bool(native),
                )
                pending[job] = (now, order)

    def collect(self, agent: Agent, now: float) -> tuple[Order, ...]:
        """Remove and return the orders for `agent` that have not expired."""
        return tuple(self.collect_by_job(agent, now).values())

    def collect_by_job(self, agent: Agent, now: float) -> dict[str, Order]:
        """Remove and return the same orders by job."""
        waiting = self._pending.pop(agent, {})
        return {
            job: replace(order, expires_s=EXPIRES_S - (now - placed_at))
            for job, (placed_at, order) in waiting.items()
            if now - placed_at < EXPIRES_S
        }

    def drop(self, job: str) -> None:
        """Drop the orders of a job that is over."""
        for pending in self._pending.values():
            pending.pop(job, None)

    def _expire(self, now: float) -> None:
        """Drop the expired orders of agents that no longer report."""
        self._pending = {
            agent: pending
            for agent, pending in self._pending.items()
            if any(now - placed_at < EXPIRES_S for placed_at, _ in pending.values())
        }


def _has_room(pending: Mapping[str, tuple[float, Order]], owner: str) -> bool:
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
