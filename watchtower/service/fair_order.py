"""A fair order of items of several owners: the owners take turns. Standard library only.

`fair_places` decides the same over time, for places that are released again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")


def by_turns(
    items: Iterable[tuple[Hashable, _T]], had: Mapping[Any, int] | None = None
) -> Iterator[_T]:
    """Yield items by turns: the first item of each key, then the second item of each key, etc.

    `had` is the number of turns that a key has already had. Such a key waits until the others have
    had as many.
    """
    places: Counter[Hashable] = Counter(had)
    turns = []
    for key, item in items:
        turns.append((places[key], item))
        places[key] += 1
    turns.sort(key=lambda turn: turn[0])
    return (item for _, item in turns)
