"""Claims: a process says it is a rank of a job. Is it, and of which generation?

Whoever is reported as a rank may be the rank itself, its successor after a restart, a survivor of
one, the same process on a node that was renamed, or something that was run beside the rank and
inherited its environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from watchtower.core.fleet.generation import (
    Generation,
    NodeRecord,
    ProcessKey,
    RankRecord,
    has_died,
)
from watchtower.core.policy import Policy
from watchtower.wire.report import RankVitals


@dataclass(frozen=True, slots=True)
class Claim:
    """One process of one report, with what is needed to judge it."""

    key: ProcessKey
    vitals: RankVitals
    reported: Set[ProcessKey]
    """Every process of that report."""
    nodes: Mapping[str, NodeRecord]
    policy: Policy
    now: float

    def goes_on(self, retired_at: float) -> bool:
        """Whether a process of the last generation lives on in this one.

        Most launchers end every rank when one comes back; some replace only that one. Who steps, or
        is still there after a while, was not ended.
        """
        if self.vitals.ended is not None:
            return False
        stepped = self.vitals.beat is not None and self.vitals.beat.advanced > 0
        return stepped or self.now - retired_at > self.policy.vanish_s

    def comes_after(self, gen: Generation) -> bool:
        """Whether a rank not seen before is of the next generation, because this one has ended.

        A rank that crashes at once may be gone before the others have appeared.
        """
        if not gen.ranks or self.key in gen.known or any(True for _ in gen.live()):
            return False
        is_young = self.now - gen.began_at < self.policy.startup_grace_s
        return not (is_young and any(has_died(record) for record in gen.ranks.values()))

    def is_history(self, gen: Generation) -> bool:
        """Whether this is what remains of an earlier generation: the tower was restarted since, and
        knows who the processes of this one are."""
        return self.vitals.ended is not None and bool(gen.known) and self.key not in gen.known

    def is_renamed(self, record: RankRecord) -> bool:
        """Whether this is the record's own process, on a node that goes by another name now."""
        same = (record.key.pid, record.key.start_time) == (self.key.pid, self.key.start_time)
        return same and not self._is_held(record)

    def is_rival(self, gen: Generation, record: RankRecord | None) -> bool:
        """Whether this process only claims a rank that is another's.

        What is run beside a rank inherits its environment, and with it the rank; but a heartbeat
        page is made by training code alone. A restarted rank has its page after its imports. A
        process that was started by hand comes after what a launcher started.
        """
        before = [record] if record is not None else list(gen.ranks.values())
        if self._is_outside(gen, before):
            return True
        if self.vitals.beat is None and any(r.vitals.beat is not None for r in before):
            return True
        return record is not None and self._is_held(record)

    def takes_over(self, record: RankRecord) -> bool:
        """Whether a rank that is taken is this process's all the same: a launcher started it, or it
        has a page, and neither is so of the one that holds the rank. That may be something that
        outlived an earlier run."""
        comes_before = _standing(self.vitals) > _standing(record.vitals)
        return comes_before and self._is_held(record)

    def is_of_another_agent(self, record: RankRecord) -> bool:
        """Whether another agent than this report's has reported a rank just now.

        A node's name is not a proof: whatever has an agent's token can report under it.
        """
        reporter = self.nodes[self.key.node].agent_id
        return record.reporter not in ("", reporter) and self.now < record.held_until

    def _is_outside(self, gen: Generation, before: Iterable[RankRecord]) -> bool:
        """Whether a launcher started the ranks `before` it, but not this process.

        It may begin the next generation when this one has ended, unless it was there before.
        """
        if self.vitals.launched or not any(record.vitals.launched for record in before):
            return False
        return self.key in gen.rivals or any(record.vitals.launched for record in gen.live())

    def _is_held(self, record: RankRecord) -> bool:
        """Whether the process that holds a rank is still there."""
        if not record.is_live:
            return False
        if record.key.node == self.key.node:
            return record.key in self.reported or self.is_of_another_agent(record)
        holder = self.nodes.get(record.key.node)
        return holder is not None and self.now - holder.seen_at <= self.policy.silence_s


def precedence(vitals: RankVitals) -> tuple[bool, bool, bool, int]:
    """Order processes that claim the same rank: the first one gets it.

    Those that a launcher started first, ended or not: what was started by hand beside them takes no
    rank of theirs. Then live ones before the remains of their predecessors, and of those the
    youngest; with a page before without; of the live ones the oldest, since what a rank starts is
    younger than the rank.
    """
    has_ended = vitals.ended is not None
    age = -vitals.start_time if has_ended else vitals.start_time
    return not vitals.launched, has_ended, vitals.beat is None, age


def _standing(vitals: RankVitals) -> tuple[bool, bool]:
    return vitals.launched, vitals.beat is not None
