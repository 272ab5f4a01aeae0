"""Ranks that have ended, or whose program is over: by the kernel, by an exception, by an exit.

Exceptions by which a rank notices that a peer is gone are those of victims. Only when no other rank
is gone, missing or held can one of them be the rank's own trouble. If no rank is left, they are the
cause of the end: those of the first or the odd rank, else those of no rank.

Ranks that exit with 0 one after the other at the end of a job are healthy: some rank must be inside
a collective without them, or have died of their leaving.

The program of a rank may be over while its process is still there. The interpreter has left the
program and runs what is to be done at exit, or waits for a thread that is not a daemon: after an
exception as after the last line. The main stack of such a rank does not begin in a module any more,
while that of most other ranks does. (An embedded interpreter has such roots everywhere.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import MAX_QUOTED, Accusation, Reason, ReasonKind, Tier
from watchtower.diagnosis.deaths import Death, find_put_to_death
from watchtower.diagnosis.doubts import Doubt
from watchtower.diagnosis.elsewhere import find_doubts
from watchtower.diagnosis.first_hand import Basis, FirstHand
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Place
from watchtower.diagnosis.reasons import peers_reason, stack_reason, step_reason
from watchtower.diagnosis.subjects import Deaths, Lingering, LingeringRanks
from watchtower.diagnosis.waits.mismatches import Ground
from watchtower.evidence.exits import DeathKind
from watchtower.evidence.frames import last_component
from watchtower.evidence.threads import KnownStack
from watchtower.wire.dumps import RankDump
from watchtower.wire.verdict import Cause

KINDS = {
    Cause.OOM_KILLED: frozenset({DeathKind.OOM}),
    Cause.EXCEPTION: frozenset({DeathKind.OWN_EXCEPTION, DeathKind.CONSEQUENTIAL}),
    Cause.PROCESS_DIED: frozenset(
        {
            DeathKind.CRASH,
            DeathKind.EXIT_CODE,
            DeathKind.KILLED,
            DeathKind.EXIT_ONE,
            DeathKind.VANISHED,
            DeathKind.ABORTED,
            DeathKind.TERMINATED,
        }
    ),
}
"""Ends that have a cause of their own."""

WEIGHTS = {
    DeathKind.OOM: 0.95,
    DeathKind.CRASH: 0.9,
    DeathKind.OWN_EXCEPTION: 0.9,
    DeathKind.EXIT_CODE: 0.85,
    DeathKind.KILLED: 0.85,
    DeathKind.EXIT_ONE: 0.75,
    DeathKind.VANISHED: 0.6,
    DeathKind.ABORTED: 0.6,
    DeathKind.CONSEQUENTIAL: 0.4,
    DeathKind.TERMINATED: 0.6,
    DeathKind.CLEAN: 0.6,
}
"""How likely a death of this kind is first-hand when nothing stronger was found."""

SHARED_WEIGHT = 0.9
"""That these deaths ended the job, if no rank is left and it is known how they ended."""

AFTERMATH_WEIGHT = 0.3
LINGERS_WEIGHT = 0.8

PROGRAM_ROOTS = frozenset({"<module>", "_run_module_as_main"})
"""Where the main stack of a Python program begins, started as a file or by `python -m`."""

ADVICE = {
    DeathKind.OOM: ("compare_memory", "use_less_memory"),
    DeathKind.OWN_EXCEPTION: ("read_traceback", "fix_and_restart"),
    DeathKind.CONSEQUENTIAL: ("read_traceback", "fix_and_restart"),
    DeathKind.CRASH: ("find_core_dump", "restart"),
    DeathKind.KILLED: ("find_sigkill", "restart"),
    DeathKind.ABORTED: ("read_what_gave_up", "restart"),
    DeathKind.TERMINATED: ("find_signal", "restart"),
    DeathKind.CLEAN: ("find_why_it_left", "restart"),
}
LAST_LINES = ("read_last_lines", "restart")


def find_ended(cause: Cause, picture: Picture) -> Accusation | None:
    """Accuse the ranks whose deaths explain the others, if they are of this cause."""
    found = picture.first_hand
    if not found.deaths:
        return _accuse_lingering(picture, cause) if cause is Cause.EXCEPTION else None
    if found.deaths[0].kind not in KINDS[cause]:
        return None
    if not found.blamed:
        return _accuse_none(picture, found, cause)
    return _accuse(picture, found.deaths, cause, _doubt_first(picture, found))


def find_exited_early(picture: Picture) -> Accusation | None:
    """Accuse the ranks that exited with 0 while their peers still need them."""
    deaths = picture.deaths
    left = [death for death in deaths if death.kind is DeathKind.CLEAN]
    if not deaths:
        return _accuse_lingering(picture, Cause.EXITED_EARLY)
    if not left or _is_another_reason(deaths):
        return None
    waiting = [item for item in picture.waiting if not item.presumed]
    victims = [death for death in deaths if _followed(death, left)]
    if not waiting and not victims:
        return None
    why_not = () if waiting else (doubts.LEFT_AFTERWARDS,)
    if len(left) > len(waiting) + len(victims):
        why_not = (doubts.MOST_LEFT,)
    return _accuse(picture, left, Cause.EXITED_EARLY, why_not)


def _accuse(
    picture: Picture, dead: Sequence[Death], cause: Cause, why_not: tuple[Doubt, ...]
) -> Accusation:
    suspects = tuple(death.position for death in dead)
    accused = {death.rank for death in dead}
    others = tuple(death for death in picture.deaths if death.rank not in accused)
    reasons = [
        *(Reason(ReasonKind.ENDING, WEIGHTS[d.kind], (d.rank,), d) for d in dead[:MAX_QUOTED]),
        *peers_reason(picture, suspects),
        *step_reason(picture, suspects[0]),
        *_aftermath(dead[0], others),
    ]
    return Accusation(
        cause=cause,
        tier=Tier.STACKS if _may_follow_mismatch(picture, dead) else Tier.CANNOT_ANSWER,
        suspects=suspects,
        reasons=tuple(reasons),
        doubts=(*why_not, *((doubts.SEVERAL_DEATHS,) if len(dead) > 1 else ())),
        advice=ADVICE.get(dead[0].kind, LAST_LINES),
        about=Deaths(tuple(dead), others),
    )


def _accuse_none(picture: Picture, found: FirstHand, cause: Cause) -> Accusation:
    """Return the cause of the end of a job, in which no death separates a rank from the others."""
    dead = found.deaths
    is_known = dead[0].kind is not DeathKind.VANISHED
    weight = SHARED_WEIGHT if is_known else WEIGHTS[DeathKind.VANISHED]
    alike: dict[str, list[Death]] = {}
    for death in dead:
        alike.setdefault(death.shape, []).append(death)
    shown = {death.rank for death in dead}
    others = tuple(death for death in picture.deaths if death.rank not in shown)
    reasons = [
        Reason(ReasonKind.ENDING, weight, tuple(sorted(d.rank for d in each)), each[0])
        for each in list(alike.values())[:MAX_QUOTED]
    ]
    return Accusation(
        cause=cause,
        tier=Tier.CANNOT_ANSWER,
        reasons=(*reasons, *_aftermath(dead[0], others)),
        doubts=(doubts.MAY_HAVE_GIVEN_UP,) if found.awaited else (),
        advice=ADVICE.get(dead[0].kind, LAST_LINES),
        about=Deaths(dead, others),
        witnesses=tuple(death.position for death in dead),
    )


def _aftermath(first: Death, others: tuple[Death, ...]) -> Iterator[Reason]:
    if others:
        ranks, about = tuple(death.rank for death in others), Deaths((first,), others)
        yield Reason(ReasonKind.AFTERMATH, AFTERMATH_WEIGHT, ranks, about)


def _doubt_first(picture: Picture, found: FirstHand) -> tuple[Doubt, ...]:
    """Return why the deaths may not be the cause, by what separates them from the others."""
    is_victim = found.deaths[0].kind is DeathKind.CONSEQUENTIAL
    if found.basis is Basis.TEXT:
        return (doubts.ODD_TEXT,)
    if found.basis is Basis.TIME:
        return (doubts.FIRST_OF_VICTIMS if is_victim else doubts.FIRST_OF_SAME,)
    return _doubt_connection(picture) if is_victim else ()


def _may_follow_mismatch(picture: Picture, dead: Sequence[Death]) -> bool:
    """Return whether the communication library may have ended these ranks because of another rank.

    It aborts a process that received other sizes than it asked for, or that waited too long. If the
    collective logs of other ranks disagree, that came before.
    """
    if any(death.kind is not DeathKind.ABORTED for death in dead):
        return False
    split = picture.split
    accused = {death.rank for death in dead}
    return (
        split is not None
        and split.ground is Ground.COLLECTIVE_LOGS
        and split.certain
        and accused.isdisjoint(item.rank for item in split.few)
    )


def _doubt_connection(picture: Picture) -> tuple[Doubt, ...]:
    others = picture.missing or picture.at(Place.CANNOT_RUN, Place.UNSEEN)
    # Without a rank that is left, all other deaths have been explained.
    is_alone = (len(picture.deaths) == 1 or not picture.live) and not others
    return (doubts.CONNECTION_LOST if is_alone else doubts.CONNECTION_LOST_AMONG_OTHERS,)


def _is_another_reason(deaths: Sequence[Death]) -> bool:
    """Return whether a rank died of more than these exits: the launcher ends the others later."""
    explained = find_put_to_death(deaths)
    return any(
        death.rank not in explained
        for death in deaths
        if death.kind not in {DeathKind.CLEAN, DeathKind.CONSEQUENTIAL}
    )


def _followed(death: Death, left: Sequence[Death]) -> bool:
    return death.kind is DeathKind.CONSEQUENTIAL and death.age_s <= max(item.age_s for item in left)


def _accuse_lingering(picture: Picture, cause: Cause) -> Accusation | None:
    """Accuse ranks whose program is over, by an exception or not, while their process is there."""
    by_exception = cause is Cause.EXCEPTION
    found = [each for each in find_lingering(picture) if each.has_raised is by_exception]
    if not found:
        return None
    suspects = tuple(each.position for each in found)
    reasons = [*map(_lingers, found[:MAX_QUOTED]), *peers_reason(picture, suspects)]
    for item in suspects[:MAX_QUOTED]:
        reasons += stack_reason(item)
        reasons += step_reason(picture, item)
    return Accusation(
        cause=cause,
        tier=Tier.CANNOT_ANSWER,
        suspects=suspects,
        reasons=tuple(reasons),
        doubts=find_doubts(picture, suspects),
        advice=("read_traceback" if by_exception else "find_why_its_program_ended", "end_process"),
        about=LingeringRanks(tuple(found)),
    )


def find_lingering(picture: Picture) -> tuple[Lingering, ...]:
    """Return the ranks that left their program while others wait, in ascending order."""
    known = {digest: _find_root(each) for digest, each in picture.stacks.items()}
    roots = {
        item.rank: [_root_of(dump, known) for dump in item.evidence.dumps[-2:]]
        for item in picture.live
    }
    inside = sum(bool(seen) and seen[-1] in PROGRAM_ROOTS for seen in roots.values())
    if 2 * inside <= len(picture.live) or not picture.waiting:
        return ()
    return tuple(Lingering(item) for item in picture.sinks if _is_outside(roots[item.rank]))


def _is_outside(roots: Sequence[str]) -> bool:
    """Return whether two dumps agree on a root that is not a program's; a torn stack has any."""
    return len(roots) > 1 and len(set(roots)) == 1 and not {"", *PROGRAM_ROOTS} & set(roots)


def _root_of(dump: RankDump, roots: Mapping[str, str]) -> str:
    """Return the outermost function of the main thread, empty without its stack."""
    for thread in dump.threads:
        if thread.main:
            return roots.get(thread.digest, "")
    return ""


def _find_root(known: KnownStack) -> str:
    frames = known.stack.frames
    return last_component(frames[-1].function) if frames else ""


def _lingers(found: Lingering) -> Reason:
    return Reason(ReasonKind.LINGERS, LINGERS_WEIGHT, (found.position.rank,), found)
