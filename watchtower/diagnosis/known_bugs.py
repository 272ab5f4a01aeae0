"""Known bugs that fit what the ranks of a verdict run and do: a sentence and advice for each.

They never name a rank, and have no weight: many jobs run a library with a known bug and hang for
another reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from watchtower.diagnosis.advice import Step
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.evidence.known_bugs import KNOWN_BUGS, KnownBug, versions_of
from watchtower.wire.verdict import Evidence
from watchtower.writing.ranksets import format_ranks
from watchtower.writing.text import clean

MAX_CHECKED = 64
"""Ranks that are compared with each bug: others of the job run the same software."""

MAX_SHOWN = 2
"""Bugs of one verdict. Several entries may describe one bug of a library."""

Found = tuple[KnownBug, str, Sequence[Position]]
"""A bug, the version that has it, and the ranks that show it."""


def find_known_bugs(picture: Picture, accused: Sequence[Position]) -> list[Found]:
    """Return the bugs that all of the accused show; without any, all live ranks."""
    concerned = (accused or picture.live)[:MAX_CHECKED]
    versions = [versions_of(item.evidence.dumps) for item in concerned]
    if not any(versions):
        return []
    found: list[Found] = []
    for bug in KNOWN_BUGS:
        pairs = zip(concerned, versions, strict=True)
        if all(bug.has(known) and _shows(bug, item) for item, known in pairs):
            found.append((bug, versions[0][bug.library], concerned))
    return found[:MAX_SHOWN]


def _shows(bug: KnownBug, position: Position) -> bool:
    beat = position.evidence.beat
    return bug.shows(
        position.frame_class,
        in_device=position.waits_for_device,
        error=beat.exception_text if beat is not None else "",
    )


def show_known_bugs(found: Sequence[Found]) -> Iterator[Evidence]:
    """Yield evidence of these bugs, without a weight."""
    for bug, version, ranks in found:
        text = f"{bug.library} {clean(version, 64)}: {bug.text} ({bug.link})"
        yield Evidence(
            source="known bug", text=text, ranks=format_ranks(item.rank for item in ranks)
        )


def advise_about_bugs(found: Sequence[Found]) -> Iterator[Step]:
    """Yield what helps if it is this bug. It stays useful when the processes have ended."""
    for bug, _, _ in found:
        yield Step(f"{bug.advice} ({bug.link})", lasts=True)
