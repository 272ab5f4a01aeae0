"""A thread keeps Python's interpreter lock (GIL): no other thread of its rank can run."""

from __future__ import annotations

from dataclasses import replace

from watchtower.diagnosis.accusation import MAX_QUOTED, Accusation, Doubt, of_rank
from watchtower.diagnosis.domain import Line
from watchtower.diagnosis.elsewhere import accuse_elsewhere
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.wire.dumps import RankDump, ThreadDump
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.text import clean

WHOM = (Line(Domain.USER_CODE),)

OWNER_WEIGHT = 0.7
"""The same thread owned the lock at the same line in two dumps; one that computes in Python gives
it up every 5 ms (sys.getswitchinterval), so it is seldom caught twice in one line."""

GIL_INSIDE_CALL = Doubt(
    "gil_inside_call",
    0.6,
    "the main thread of {suspects} is in a collective and may wait for others",
)

DUMP_NATIVE = "`py-spy dump --native --pid {pid}` shows the native code that holds the GIL"
RELEASE_GIL = "release the GIL around native code that waits or computes for long"


def find(picture: Picture) -> Accusation | None:
    """Accuse the ranks in which one thread holds the GIL in native code in every dump."""
    places = (*picture.sinks, *picture.unseen, *picture.waiting)
    held = {item.rank: owner for item in places if (owner := _find_owner(item))}
    suspects = [item for item in places if item.rank in held]
    outside = [item for item in suspects if not item.waits]
    if not suspects or (not outside and picture.sinks):
        return None
    suspects = outside or suspects

    def place_of(position: Position) -> str | None:
        known = picture.stacks.get(held[position.rank].digest)
        return known.reading.where if known and known.reading else None

    def write_owner(position: Position) -> str:
        owner, place = held[position.rank], place_of(position)
        thread = "its main thread" if owner.main else f"its thread `{clean(owner.name, 60)}`"
        return f"{thread} holds the GIL" + (f" at {clean(place, 120)}" if place else "")

    accusation = accuse_elsewhere(
        picture,
        suspects,
        Cause.GIL_HELD,
        reasons=[
            of_rank("gil", OWNER_WEIGHT, item, f"{write_owner(item)}, in two dumps")
            for item in suspects[:MAX_QUOTED]
        ],
        why_not=[] if outside else [GIL_INSIDE_CALL],
        besides=write_owner,
        advice=(DUMP_NATIVE, RELEASE_GIL),
    )
    return accusation and replace(accusation, where=place_of)


def _find_owner(position: Position) -> ThreadDump | None:
    """Return the thread that owned the lock at one line in the last two dumps."""
    owners = [_owner_of(dump) for dump in position.evidence.dumps[-2:]]
    if len(owners) < 2 or owners[0] is None or owners[1] is None:
        return None
    stays = (owners[0].name, owners[0].digest) == (owners[1].name, owners[1].digest)
    # The main thread at work in Python owns the lock too; asleep it has no reason to.
    return owners[1] if stays and (not owners[1].main or position.asleep) else None


def _owner_of(dump: RankDump) -> ThreadDump | None:
    return next((thread for thread in dump.threads if thread.owns_gil), None)
