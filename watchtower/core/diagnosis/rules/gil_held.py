"""A thread keeps Python's interpreter lock (GIL): no other thread of its rank can run."""

from __future__ import annotations

from dataclasses import replace

from watchtower.core.diagnosis.accusation import accuse_by_stack
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Place, Position
from watchtower.core.phrases import clean
from watchtower.core.reading.frames import describe_place
from watchtower.wire.dumps import RankDump, ThreadDump
from watchtower.wire.stacks import Stack
from watchtower.wire.verdict import Cause, Evidence

OWNER_WEIGHT = 0.7
"""The same thread owned the lock at the same line in two dumps; one that computes in Python gives
it up every 5 ms (sys.getswitchinterval), so it is seldom caught twice in one line."""

WAITING_CEILING = 0.6
"""Its main thread is inside a collective and may wait for others as well."""


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks in which one thread holds the GIL in native code in every dump."""
    stacks = {stack.digest: stack for stack in picture.case.stacks}
    places = (*picture.sinks, *picture.unseen, *picture.waiting)
    held = {item.rank: owner for item in places if (owner := _find_owner(item))}
    suspects = [item for item in places if item.rank in held]
    outside = [item for item in suspects if item.place is not Place.INSIDE]
    if not suspects or (not outside and picture.sinks):
        return None
    suspects = outside or suspects
    finding = accuse_by_stack(
        picture,
        suspects,
        cause=Cause.GIL_HELD,
        extra=[_evidence(item, held[item.rank], stacks) for item in suspects[:3]],
        says=lambda item: f"; {_say_owner(held[item.rank], stacks)}",
        ceiling=1.0 if outside else WAITING_CEILING,
        next_steps=(
            f"`py-spy dump --native --pid {suspects[0].evidence.pid}` shows the native code that "
            "keeps the lock",
            "native code that waits or computes for long must release the GIL around it",
        ),
    )
    return finding and replace(
        finding,
        suspects=tuple(
            replace(each, where=_place(held[each.rank], stacks) or each.where)
            for each in finding.suspects
        ),
    )


def _find_owner(position: Position) -> ThreadDump | None:
    """Find the thread that owned the lock at one line in the last two dumps."""
    owners = [_owner_of(dump) for dump in position.evidence.dumps[-2:]]
    if len(owners) < 2 or owners[0] is None or owners[1] is None:
        return None
    stays = (owners[0].name, owners[0].digest) == (owners[1].name, owners[1].digest)
    # The main thread at work in Python owns the lock too; asleep it has no reason to.
    return owners[1] if stays and (not owners[1].main or position.asleep) else None


def _owner_of(dump: RankDump) -> ThreadDump | None:
    return next((thread for thread in dump.threads if thread.owns_gil), None)


def _place(owner: ThreadDump, stacks: dict[str, Stack]) -> str | None:
    return describe_place(stacks[owner.digest].frames) if owner.digest in stacks else None


def _say_owner(owner: ThreadDump, stacks: dict[str, Stack]) -> str:
    who = "its main thread" if owner.main else f"its thread `{clean(owner.name, 60)}`"
    place = _place(owner, stacks)
    return f"{who} keeps the GIL" + (f" at {clean(place, 120)}" if place else "")


def _evidence(position: Position, owner: ThreadDump, stacks: dict[str, Stack]) -> Evidence:
    return Evidence(
        source="gil",
        text=f"rank {position.rank}: {_say_owner(owner, stacks)}, in two dumps",
        ranks=str(position.rank),
        weight=OWNER_WEIGHT,
    )
