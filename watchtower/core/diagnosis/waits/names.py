"""Names of groups and wait points, as sentences use them."""

from __future__ import annotations

from watchtower.core.diagnosis.waits.collective_logs import Group
from watchtower.core.diagnosis.waits.points import WaitPoint
from watchtower.core.phrases import clean
from watchtower.core.ranksets import name_ranks

MAX_MEMBERS = 6
"""Members of a group that are listed beside its name."""


def describe_group(group: Group) -> str:
    """Return "group tensor_parallel (ranks 2-3)"."""
    ranks = name_ranks(group.members) if len(group.members) <= MAX_MEMBERS else ""
    size = ranks or f"{len(group.members)} ranks"
    name = clean(group.name, 40)
    return f"group {name} ({size})" if name else f"the group of {size}"


def name_point(point: WaitPoint) -> str:
    """Return "all_reduce number 41 of group tensor_parallel (ranks 2-3)", or "recv number 41"."""
    operation = clean(point.operation, 60) or "collective"
    where = "" if point.group is None else f" of {describe_group(point.group)}"
    return f"{operation} number {point.number}{where}"
