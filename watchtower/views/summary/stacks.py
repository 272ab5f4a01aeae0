"""The part of a summary with the stacks: a tree whose chains without a fork are one branch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from watchtower.diagnosis.picture import Picture
from watchtower.views.case_summary import StackBranch, StackTree, make_rank_set
from watchtower.wire.dumps import RankDump
from watchtower.wire.stacks import Frame

MAX_STACKS = 48
"""Distinct stacks in a tree: those of the suspects, then those of the most ranks. A tree has at
most twice as many branches."""

MAX_FRAME_BYTES = 48_000
"""Bytes of the names of all frames of a tree. 48 different stacks of a real job have 20 kB."""

MAX_DEPTH = 16
"""Branches below each other. What forks more often is left out below."""


@dataclass(slots=True)
class _Class:
    """Ranks with the same stack."""

    ranks: list[int]
    frames: tuple[Frame, ...]
    """Innermost first."""
    has_suspect: bool = False


@dataclass(slots=True)
class _Budget:
    """The frames of a tree, numbered, and what does not fit."""

    numbers: dict[Frame, int] = field(default_factory=dict)
    bytes_left: int = MAX_FRAME_BYTES

    def number(self, frames: Sequence[Frame]) -> tuple[int, ...] | None:
        """Return the numbers of these frames; None if there is no room for them."""
        new = dict.fromkeys(frame for frame in frames if frame not in self.numbers)
        size = sum(_size_of(frame) for frame in new)
        if size > self.bytes_left:
            return None
        self.bytes_left -= size
        for frame in new:
            self.numbers[frame] = len(self.numbers)
        return tuple(self.numbers[frame] for frame in frames)


_Path = tuple[_Class, tuple[int, ...]]


def merge_main_stacks(picture: Picture, suspects: Collection[int]) -> StackTree:
    """Return the tree of the main-thread stacks of the last dumps."""
    classes = _group(picture, suspects)
    budget, paths, left_out = _Budget(), list[_Path](), list[_Class]()
    for item in classes:
        numbers = budget.number(item.frames) if len(paths) < MAX_STACKS else None
        if not numbers:
            left_out.append(item)
        else:
            paths.append((item, numbers[::-1]))
    branches, too_deep = _fork(paths, 0, MAX_DEPTH)
    left_out += too_deep
    return StackTree(
        frames=tuple(budget.numbers),
        branches=branches,
        rank_count=sum(len(item.ranks) for item in classes),
        stacks_left_out=len(left_out),
        ranks_left_out=sum(len(item.ranks) for item in left_out),
    )


def main_digest(dump: RankDump, known: Mapping[str, object]) -> str | None:
    """Return the digest of the main thread's stack; None if the case does not contain it."""
    for thread in dump.threads:
        if thread.main and thread.digest in known:
            return thread.digest
    return None


def _group(picture: Picture, suspects: Collection[int]) -> list[_Class]:
    """Return the classes of ranks with equal stacks, in the order in which they get room."""
    stacks = picture.stacks
    classes: dict[str, _Class] = {}
    for item in picture.case.ranks:
        digest = main_digest(item.dumps[-1], stacks) if item.dumps else None
        if digest is None:
            continue
        found = classes.get(digest)
        if found is None:
            found = classes[digest] = _Class([], stacks[digest].stack.frames)
        found.ranks.append(item.rank)
        found.has_suspect |= item.rank in suspects
    return sorted(classes.values(), key=lambda one: (not one.has_suspect, -len(one.ranks)))


def _fork(
    paths: Sequence[_Path], start: int, depth: int
) -> tuple[tuple[StackBranch, ...], list[_Class]]:
    """Return the branches of paths that are equal up to `start`, and what is too deep."""
    below: dict[int, list[_Path]] = {}
    for path in paths:
        if len(path[1]) > start:
            below.setdefault(path[1][start], []).append(path)
    if below and depth == 0:
        return (), [item for item, numbers in paths if len(numbers) > start]
    made = [_follow(group, start, depth) for group in below.values()]
    branches = [branch for branch, _ in made]
    branches.sort(key=lambda one: (not one.has_suspect, -one.rank_set.count, one.frame_numbers))
    return tuple(branches), [item for _, deep in made for item in deep]


def _follow(paths: Sequence[_Path], start: int, depth: int) -> tuple[StackBranch, list[_Class]]:
    """Return the branch of paths that have the same frame at `start`."""
    first, end = paths[0][1], start + 1
    while all(len(numbers) > end and numbers[end] == first[end] for _, numbers in paths):
        end += 1
    branches, too_deep = _fork(paths, end, depth - 1)
    ending = [rank for item, numbers in paths if len(numbers) == end for rank in item.ranks]
    return (
        StackBranch(
            frame_numbers=first[start:end],
            rank_set=make_rank_set(rank for item, _ in paths for rank in item.ranks),
            has_suspect=any(item.has_suspect for item, _ in paths),
            ending=make_rank_set(ending),
            branches=branches,
        ),
        too_deep,
    )


def _size_of(frame: Frame) -> int:
    """Return the bytes of a frame in a message, about."""
    names = f"{frame.function}{frame.file}".encode("utf-8", "surrogatepass")
    return len(names) + 8 * (1 + len(frame.loops))
