"""Orders waiting for their node's next report, which is the only way they reach it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from watchtower.wire.orders import MAX_ORDERS, Order

EXPIRES_S = 10.0
"""A dump ordered longer ago than this answers a question nobody asks any more."""


class OrderBook:
    """Pending orders by node. An order is handed out once: what it asks for is worth one try, and
    the next look at the stall orders again."""

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, tuple[float, Order]]] = {}

    def place(
        self,
        nodes: Mapping[str, tuple[str, str]],
        job: str,
        order_id: str,
        now: float,
        *,
        glance: bool,
        jitter_s: float = 0.0,
    ) -> None:
        """Order dumps of a job's ranks on `nodes`; a newer order of a job replaces an older one,
        but a glance no whole dump. The nodes spread their dumps over `jitter_s`.

        With each node comes what its agent calls the job: its name and owner.
        """
        self._expire(now)
        for node, (name, owner) in nodes.items():
            pending = self._pending.setdefault(node, {})
            if glance and _holds_whole(pending.get(job), now):
                continue
            if job in pending or _has_room(pending, owner):
                order = Order(
                    id=order_id,
                    job=name,
                    owner=owner,
                    expires_s=EXPIRES_S,
                    glance=glance,
                    jitter_s=jitter_s,
                )
                pending[job] = (now, order)

    def collect(self, node: str, now: float) -> tuple[Order, ...]:
        """Take what waits for `node`, less what has expired."""
        waiting = self._pending.pop(node, {})
        return tuple(
            replace(order, expires_s=EXPIRES_S - (now - placed_at))
            for placed_at, order in waiting.values()
            if now - placed_at < EXPIRES_S
        )

    def drop(self, job: str) -> None:
        """Forget the orders of a job that is over."""
        for pending in self._pending.values():
            pending.pop(job, None)

    def _expire(self, now: float) -> None:
        """Forget nodes that nobody hears of any more; what still waits there has expired."""
        self._pending = {
            node: pending
            for node, pending in self._pending.items()
            if any(now - placed_at < EXPIRES_S for placed_at, _ in pending.values())
        }


def _has_room(pending: Mapping[str, tuple[float, Order]], owner: str) -> bool:
    """Whether one more order of an owner may wait: it has fewer than there is room left for."""
    left = MAX_ORDERS - len(pending)
    taken = sum(order.owner == owner for _, order in pending.values())
    return left > 0 and (not owner or taken < left)


def _holds_whole(waiting: tuple[float, Order] | None, now: float) -> bool:
    return waiting is not None and not waiting[1].glance and now - waiting[0] < EXPIRES_S
