"""Answers that are used again until something changes: open pages ask every two seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

MAX_ANSWERS = 128
"""Answers that are kept, the least recently used is dropped first: as many as pages."""

Value = TypeVar("Value")


class RecentAnswers(Generic[Value]):
    """Answers by key, each valid for one version of what it was made from."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[Hashable, Value]] = OrderedDict()

    def find(self, key: Hashable, version: Hashable) -> Value | None:
        """Return the answer of this version; None if there is none."""
        kept = self._kept.get(key)
        if kept is None or kept[0] != version:
            return None
        self._kept.move_to_end(key)
        return kept[1]

    def put(self, key: Hashable, version: Hashable, value: Value) -> None:
        """Keep an answer, in place of that of another version."""
        self._kept[key] = (version, value)
        self._kept.move_to_end(key)
        if len(self._kept) > MAX_ANSWERS:
            self._kept.popitem(last=False)
