"""Merges the stacks of many ranks into one prefix tree whose nodes contain rank sets.

Ranks with the same stack form one class. Equal stacks are grouped by their digest first. Therefore
the cost depends on the number of different stacks, and 16,384 ranks have only a few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from watchtower.evidence.frames import last_component, name_line
from watchtower.wire.stacks import Frame, Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class StackNode:
    """One frame of the tree, and the ranks whose stacks contain it."""

    frame: Frame | None
    """None at the root."""
    ranks: frozenset[int]
    """Ranks whose stack contains this node."""
    children: tuple[StackNode, ...] = ()
    """Frames called from here, the one with the most ranks first."""

    @property
    def ending(self) -> frozenset[int]:
        """Ranks whose innermost frame this is."""
        return self.ranks.difference(*(child.ranks for child in self.children))


@dataclass(frozen=True, slots=True, kw_only=True)
class StackClass:
    """Ranks with the same stack."""

    ranks: frozenset[int]
    frames: tuple[Frame, ...]
    """Innermost first."""


def merge_stacks(stacks: Mapping[int, Stack]) -> StackNode:
    """Return the tree of these ranks' stacks. `stacks` is by rank."""
    return _build(None, [(item.ranks, item.frames[::-1]) for item in group_stacks(stacks)])


def group_stacks(stacks: Mapping[int, Stack]) -> tuple[StackClass, ...]:
    """Return the classes of ranks with equal stacks, the largest first, then by lowest rank."""
    members: dict[str, set[int]] = {}
    frames: dict[str, tuple[Frame, ...]] = {}
    for rank, stack in stacks.items():
        members.setdefault(stack.digest, set()).add(rank)
        frames[stack.digest] = stack.frames
    classes = [
        StackClass(ranks=frozenset(ranks), frames=frames[digest])
        for digest, ranks in members.items()
    ]
    return tuple(sorted(classes, key=lambda item: (-len(item.ranks), min(item.ranks))))


def _build(frame: Frame | None, paths: list[tuple[frozenset[int], tuple[Frame, ...]]]) -> StackNode:
    below: dict[Frame, list[tuple[frozenset[int], tuple[Frame, ...]]]] = {}
    for ranks, frames in paths:
        if frames:
            below.setdefault(frames[0], []).append((ranks, frames[1:]))
    children = [_build(child, rest) for child, rest in below.items()]
    children.sort(key=lambda node: (-len(node.ranks), min(node.ranks)))
    return StackNode(
        frame=frame,
        ranks=frozenset().union(*(ranks for ranks, _ in paths)),
        children=tuple(children),
    )


def describe_frames(frames: tuple[Frame, ...], limit: int = 6) -> str:
    """Return a stack as one line, innermost first: "__next__ data.py:88 < train train.py:20"."""
    shown = [f"{last_component(frame.function)} {name_line(frame)}" for frame in frames[:limit]]
    return " < ".join([*shown, "…"] if len(frames) > limit else shown)
