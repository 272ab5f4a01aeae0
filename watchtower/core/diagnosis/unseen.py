"""What is left to show, and to do, when no rule has a candidate: often for want of stacks.

The kernel's words and the heartbeats need no py-spy. Of ranks with a stack their places are told.
The ranks that differ from the others come first: where nobody is named, they are what a person
would look at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from watchtower.core.diagnosis.evidence_wording import ranks_of
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.phrases import clean, say_duration
from watchtower.core.ranksets import name_ranks
from watchtower.core.reading.stacktree import describe_frames
from watchtower.wire.verdict import Evidence

MAX_GROUPS = 2
"""Sentences of a kind: those that differ, and the many. More would push each other off a page."""


def show_unseen(picture: Picture) -> tuple[Evidence, ...]:
    """Quote stacks, and what kernel and heartbeats say of ranks without one, alike ones together.

    Steps are told where there is no stack, or where they differ.
    """
    bare = [item for item in picture.live if item.stack is None]
    seen = [item for item in picture.live if item.stack is not None]
    steps = {item.step for item in seen}
    paged = [item for item in (picture.live if len(steps) > 1 else bare) if item.step is not None]
    return (
        *_tell("stacks", seen, _say_stack),
        *_tell("kernel", bare, _say_kernel),
        *_tell("heartbeat", paged, _say_step),
    )


def advise_unseen(picture: Picture) -> tuple[str, ...]:
    """Say whom to look at by hand."""
    live = picture.live
    if not live:
        return ("read the end of the job's own log: no process of it is left to look at",)
    groups = _group([item for item in live if item.stack is None] or live, _say_kernel)
    first = max(groups[0], key=lambda item: item.age_s)
    node, pid = clean(first.evidence.node, 64) or "its node", first.evidence.pid
    look = f"look at rank {first.rank} on {node}: `py-spy dump --pid {pid}`"
    if first.stack is not None:
        return (look,)
    return (
        look,
        f"if that gives no stack either: `py-spy --version`, `cat /proc/{pid}/stack` as root, and "
        "`watchtower-agent check` there",
    )


def _tell(
    source: str, picture: Sequence[Position], say: Callable[[Position], str]
) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            source=source,
            text=f"{name_ranks(item.rank for item in group)}: {say(group[0])}",
            ranks=ranks_of(group),
            weight=0.0,
        )
        for group in _group(picture, say)[:MAX_GROUPS]
    )


def _group(positions: Sequence[Position], say: Callable[[Position], str]) -> list[list[Position]]:
    """Put alike ones together, the fewest first."""
    groups: dict[str, list[Position]] = defaultdict(list)
    for item in positions:
        groups[say(item)].append(item)
    return sorted(groups.values(), key=len)


def _say_stack(position: Position) -> str:
    return clean(describe_frames(position.stack.frames), 400) if position.stack else ""


def _say_kernel(position: Position) -> str:
    kernel = position.kernel
    call = f"in {clean(kernel.syscall, 32)}()" if kernel.syscall else clean(kernel.wchan, 64)
    said = position.wait.says or call
    return f"state {position.state.value}{said and f', {said}'}"


def _say_step(position: Position) -> str:
    return f"last step {position.step}, {say_duration(position.age_s)} ago"
