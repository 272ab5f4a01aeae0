"""Ranks whose program is over while their process is still there.

The interpreter has left the program and runs what is to be done at exit, or waits for a thread that
is no daemon: after an exception as after the last line. Their main stack does not begin in a module
any more, while that of most other ranks does. (An embedded interpreter has such roots everywhere.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchtower.core.diagnosis.accusation import find_ceiling
from watchtower.core.diagnosis.deaths.wording import say_words
from watchtower.core.diagnosis.evidence_wording import (
    accuse,
    beat_evidence,
    name_rank,
    peers_evidence,
    say_likewise,
    say_others,
    stack_evidence,
    where_of,
)
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.diagnosis.weighing import weigh
from watchtower.core.phrases import clean, say_duration
from watchtower.core.reading.frames import last_component
from watchtower.wire.dumps import RankDump
from watchtower.wire.stacks import Stack
from watchtower.wire.verdict import Cause, Evidence

PROGRAM_ROOTS = frozenset({"<module>", "_run_module_as_main"})
"""Where the main stack of a Python program begins, started as a file or by `python -m`."""

LEFT_WEIGHT = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """A rank that is on its way out and does not get there."""

    position: Position
    raised: str
    """The exception that ended its program, empty when none is known."""


def find_leavers(picture: Picture) -> tuple[Leaver, ...]:
    """List the ranks that left their program while others wait, in ascending order."""
    stacks = {stack.digest: stack for stack in picture.case.stacks}
    roots = {
        item.rank: [_root_of(dump, stacks) for dump in item.evidence.dumps[-2:]]
        for item in picture.live
    }
    inside = sum(bool(seen) and seen[-1] in PROGRAM_ROOTS for seen in roots.values())
    if 2 * inside <= len(picture.live) or not picture.waiting:
        return ()
    return tuple(
        Leaver(position=item, raised=_raised(item))
        for item in picture.sinks
        if _is_outside(roots[item.rank])
    )


def accuse_leavers(
    picture: Picture, leavers: Sequence[Leaver], *, cause: Cause, next_steps: Sequence[str]
) -> Finding | None:
    """Write the finding that these ranks left, and what keeps their processes. Null of none."""
    if not leavers:
        return None
    suspects = [leaver.position for leaver in leavers]
    evidence = [*map(_evidence, leavers[:3]), *peers_evidence(picture, suspects)]
    for item in suspects[:3]:
        evidence += stack_evidence(item)
        evidence += beat_evidence(picture, item)
    first = leavers[0]
    return Finding(
        cause=cause,
        tier=Tier.CANNOT_ANSWER,
        confidence=weigh(evidence, ceiling=find_ceiling(picture, suspects)),
        suspects=tuple(accuse(leaver.position, cause, _say(leaver)) for leaver in leavers),
        summary=(
            f"{name_rank(first.position)} {_say(first)}"
            f"{say_likewise(suspects)}{say_others(picture, suspects)}"
        ),
        evidence=tuple(evidence),
        next_steps=tuple(next_steps),
    )


def _is_outside(roots: Sequence[str]) -> bool:
    """Tell whether two dumps agree on a root that is none of a program; a torn stack has any."""
    return len(roots) > 1 and len(set(roots)) == 1 and not {"", *PROGRAM_ROOTS} & set(roots)


def _root_of(dump: RankDump, stacks: dict[str, Stack]) -> str:
    """Name the outermost function of the main thread, empty without its stack."""
    main = next((thread for thread in dump.threads if thread.main), None)
    stack = stacks.get(main.digest) if main else None
    return last_component(stack.frames[-1].function) if stack and stack.frames else ""


def _raised(position: Position) -> str:
    beat = position.evidence.beat
    return say_words(beat.exception_type, beat.exception_text) if beat else ""


def _say(leaver: Leaver) -> str:
    item = leaver.position
    after = "" if item.step is None else f" after step {item.step}"
    left = f"raised {leaver.raised}" if leaver.raised else "left its program"
    place = where_of(item)
    kept = f", kept at {place}" if place else ""
    return f"{left}{after}; its process is still there{kept} for {say_duration(item.age_s)}"


def _evidence(leaver: Leaver) -> Evidence:
    rank = leaver.position.rank
    words = f", its last word is {clean(leaver.raised)}" if leaver.raised else ""
    return Evidence(
        source="ending",
        text=f"rank {rank}: its main thread has left the program and is at exit{words}",
        ranks=str(rank),
        weight=LEFT_WEIGHT,
    )
