"""Where the stack of the suspects parts from the stacks of the other ranks."""

from __future__ import annotations

from collections.abc import Sequence, Set

from watchtower.incidents.postmortem.facts import StackGroup
from watchtower.wire.stacks import Frame
from watchtower.writing.ranksets import parse_ranks
from watchtower.writing.text import capitalise, clean, count_ranks

MAX_FRAMES = 24
"""Frames of one stack: the innermost ones. A training stack rarely has more frames of its own."""


def show_frames(frames: Sequence[Frame]) -> tuple[str, ...]:
    """Return one line for each frame, innermost first."""
    shown = [name_frame(frame) for frame in frames[:MAX_FRAMES]]
    more = len(frames) - MAX_FRAMES
    return (*shown, f"... {more} outer frames") if more > 0 else tuple(shown)


def name_frame(frame: Frame) -> str:
    """Return "__next__ (data.py:88)"."""
    return f"{clean(frame.function)} ({clean(frame.file)}:{frame.line})"


def find_divergence(groups: Sequence[StackGroup], suspects: Set[int]) -> str:
    """Return a sentence on the first frame in which the suspects and most other ranks differ."""
    accused = [group for group in groups if parse_ranks(group.ranks) & suspects]
    others = [group for group in groups if not parse_ranks(group.ranks) & suspects]
    if not suspects:
        return "No single rank was named, so there is no point of divergence."
    if not accused:
        return "The suspects have no stack, so the point of divergence is not known."
    if not others:
        return "The suspects and the other ranks had the same stack."
    largest = max(others, key=lambda group: len(parse_ranks(group.ranks)))
    return _compare(accused[0], largest)


def _compare(suspect: StackGroup, peers: StackGroup) -> str:
    ours, theirs = suspect.frames[::-1], peers.frames[::-1]
    shared = 0
    for mine, other in zip(ours, theirs, strict=False):
        if name_frame(mine) != name_frame(other):
            break
        shared += 1
    count = count_ranks(len(parse_ranks(peers.ranks)))
    suspect_at = name_frame(ours[shared]) if shared < len(ours) else "no other frame"
    peers_at = name_frame(theirs[shared]) if shared < len(theirs) else "no other frame"
    of = f"{'rank' if suspect.ranks.isdigit() else 'ranks'} {clean(suspect.ranks, 120)}"
    begun = f"The stacks were equal up to {name_frame(ours[shared - 1])}. Then" if shared else ""
    apart = f"{of} continued with {suspect_at}, and {count} with {peers_at}."
    return f"{begun} {apart}" if begun else capitalise(apart)
