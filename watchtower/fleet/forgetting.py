"""Decides what the fleet forgets if it has too many nodes or too many ended jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from watchtower.fleet.generation import PastGeneration
from watchtower.fleet.job import Job
from watchtower.fleet.node import NodeRecord
from watchtower.service.sharing import keep_fairly

MAX_NODES_CHECKED = 256
"""Nodes that are checked for ranks to find a silent one, so that a refusal costs little."""

NODE_MEMORY_S = 3600.0
"""A node without ranks that has been silent for this long is no longer part of the fleet."""


def find_old_nodes(nodes: Mapping[str, NodeRecord], jobs: Iterable[Job], now: float) -> set[str]:
    """Return the nodes that are no longer part of the fleet."""
    old = {name for name, node in nodes.items() if now - node.seen_at > NODE_MEMORY_S}
    if old:
        old -= {record.key.node for job in jobs for record in job.generation.ranks.values()}
    return old


def find_silent_node(longest_silent_first: Mapping[str, NodeRecord]) -> str | None:
    """Return the node without ranks that was silent for longest; None if the first ones have ranks.

    A holder of an agent's token can invent nodes. They must not keep a real one out.
    """
    first = islice(longest_silent_first.items(), MAX_NODES_CHECKED)
    return next((name for name, node in first if not node.ranks), None)


def drop_past(past: dict[str, PastGeneration], limit: int) -> None:
    """Drop ended jobs so that `limit` of them are left, if there are an eighth more.

    `past` is in the order of the ends. Dropping is rare, because it checks every job.
    """
    if len(past) <= limit + limit // 8:
        return
    kept = keep_fairly(((past[name].owner, name) for name in reversed(past)), limit)
    for name in past.keys() - kept:
        del past[name]
