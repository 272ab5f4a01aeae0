"""Orders native functions of ranks: of the suspects of an incident, and for an operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from watchtower.jobs.generation import Generation
from watchtower.jobs.ranks import LaunchKey
from watchtower.policy import Policy
from watchtower.tower.clock import Clock
from watchtower.tower.live import LiveJob
from watchtower.tower.order_book import Agent, OrderBook, find_asked
from watchtower.wire.orders import MAX_DUMPS_PER_MINUTE, MAX_NATIVE_RANKS, Order
from watchtower.wire.verdict import Status

MINUTE_S = 60.0


class NativeOrders:
    """Orders that wait for the next report of their agents, apart from those for dumps: neither
    replaces the other."""

    def __init__(self, policy: Policy, clock: Clock, live: Mapping[str, LiveJob]) -> None:
        """`live` are the monitored jobs."""
        self._policy, self._clock, self._book = policy, clock, OrderBook()
        self._live = live
        self._collected_at: dict[tuple[Agent, str], list[float]] = {}
        """When an agent collected orders for a job, in the last minute."""

    def check(self, live: LiveJob, gen: Generation, now: float) -> None:
        """Order the functions of suspects that wait for their device, once an incident is open."""
        incident, diagnosis = live.incident, live.watch.diagnosis
        if incident is None or diagnosis is None or live.watch.status is not Status.HUNG:
            return
        most = round(self._policy.native_ranks)
        due = live.native_reads.take_due(incident.id, diagnosis.unread_natively, most, now)
        if due:
            self.place(gen, due, now)

    def place(self, gen: Generation, ranks: Iterable[int], now: float) -> None:
        """Order the functions of these ranks."""
        named: dict[tuple[Agent, LaunchKey], list[int]] = {}
        for rank in ranks:
            record = gen.ranks.get(rank)
            if record is not None and record.is_live:
                for each in find_asked([record]):
                    named.setdefault(each, []).append(rank)
        for each, of_launch in named.items():
            self._book.place(
                [each],
                gen.job,
                self._clock.new_id(f"native functions of {gen.job}"),
                now,
                sample=False,
                native=tuple(sorted(of_launch)[:MAX_NATIVE_RANKS]),
            )

    def wait_s(self, gen: Generation, rank: int, now: float) -> float:
        """Return the seconds until the agent of a rank carries out another order for this job; 0
        if it does now."""
        record = gen.ranks.get(rank)
        if record is None:
            return 0.0
        agent = record.key.node, record.reporter.agent_id
        times = _within_a_minute(self._collected_at.get((agent, gen.job), []), now)
        if len(times) < MAX_DUMPS_PER_MINUTE:
            return 0.0
        return times[-MAX_DUMPS_PER_MINUTE] + MINUTE_S - now

    def collect(self, agent: Agent, now: float) -> tuple[Order, ...]:
        """Remove and return the orders for an agent, and count them as tries of their ranks."""
        collected = self._book.collect_by_job(agent, now)
        if collected:
            recent = {key: _within_a_minute(at, now) for key, at in self._collected_at.items()}
            self._collected_at = {key: times for key, times in recent.items() if times}
        for job, order in collected:
            self._collected_at.setdefault((agent, job), []).append(now)
            if job in self._live:
                self._live[job].native_reads.count(order.ranks)
        return tuple(order for _, order in collected)

    def drop(self, job: str) -> None:
        """Drop the orders of a job that is over."""
        self._book.drop(job)


def _within_a_minute(times: list[float], now: float) -> list[float]:
    return [at for at in times if now - at < MINUTE_S]
