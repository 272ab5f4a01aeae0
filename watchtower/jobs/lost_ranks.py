"""Live ranks that are not watched: the sentence for it."""

from __future__ import annotations

from collections.abc import Iterable, Set

from watchtower.fleet.generation import RankRecord
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean

MAX_NODES = 5
"""Most nodes that a sentence names."""


def explain_loss(lost: Iterable[RankRecord], silent: Set[str]) -> str:
    """Return why these ranks are not watched. `silent`: nodes whose agent stopped reporting."""
    lost = list(lost)
    left_out = [record for record in lost if record.key.node not in silent]
    texts = []
    if left_out:
        ranks = name_ranks(record.vitals.rank for record in left_out)
        texts.append(f"no longer reported by the agent on {_name_nodes(left_out)}: {ranks}")
    if len(left_out) < len(lost):
        names = _name_nodes(record for record in lost if record.key.node in silent)
        texts.append(f"the agent on {names} stopped reporting")
    return "; ".join(texts)


def _name_nodes(records: Iterable[RankRecord]) -> str:
    names = sorted({record.key.node for record in records})[:MAX_NODES]
    return ", ".join(clean(name, 64) for name in names)
