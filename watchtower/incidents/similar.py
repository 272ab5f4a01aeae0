"""Which earlier incidents are like one, and why: the same node, line or cause.

A cause alone is a weak reason, because a cluster may have many incidents with it. A node or a line
is a strong one. So incidents with more reasons are chosen first, and the chosen ones are in the
order of their time, as people remember them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from watchtower.incidents.incident_filter import Position
from watchtower.wire.verdict import Cause, Suspect

MAX_SUBJECTS = 3
"""Nodes, and lines, of one incident whose history is searched. More of them have one cause outside,
such as a switch: then the cause finds more than the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties of an incident that another one may share."""

    nodes: tuple[str, ...] = ()
    """Nodes of the ranks that the verdict names, in the order of the verdict."""
    lines: tuple[str, ...] = ()
    """Lines of these ranks, such as "data.py:88 in __next__"."""
    cause: Cause | None = None
    """None if it is not known."""

    def subjects(self) -> Traits:
        """Return the traits whose history is searched."""
        return Traits(
            nodes=self.nodes[:MAX_SUBJECTS], lines=self.lines[:MAX_SUBJECTS], cause=self.cause
        )


def traits_of(cause: Cause | None, suspects: Sequence[Suspect]) -> Traits:
    """Return the traits of a verdict."""
    return Traits(
        nodes=tuple(dict.fromkeys(each.node for each in suspects if each.node)),
        lines=tuple(dict.fromkeys(each.where for each in suspects if each.where)),
        cause=None if cause is Cause.UNKNOWN else cause,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """Properties that two incidents share."""

    nodes: tuple[str, ...]
    lines: tuple[str, ...]
    cause: bool

    @property
    def count(self) -> int:
        """The number of reasons, 0 to 3."""
        return bool(self.nodes) + bool(self.lines) + self.cause


def compare(one: Traits, other: Traits) -> Likeness:
    """Return which of the traits of `one` the other incident has, too."""
    return Likeness(
        nodes=tuple(node for node in one.nodes if node in other.nodes),
        lines=tuple(line for line in one.lines if line in other.lines),
        cause=one.cause is not None and one.cause is other.cause,
    )


def choose(found: Iterable[tuple[Position, Likeness]], limit: int) -> list[Position]:
    """Return the positions of at most `limit` incidents, newest first.

    Those with the most reasons are chosen, the newest of them first.
    """
    best = sorted(found, key=lambda each: (each[1].count, each[0]), reverse=True)
    return sorted((position for position, likeness in best[:limit] if likeness.count), reverse=True)
