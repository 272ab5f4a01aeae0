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

from collections.abc import Callable, Iterator, Mapping, Sequence

from watchtower.diagnosis.accusation import (
    CANDIDATE,
    MAX_QUOTED,
    Accusation,
    Doubt,
    Reason,
    Tier,
    of_rank,
)
from watchtower.diagnosis.deaths import (
    Death,
    find_put_to_death,
    write_aftermath,
    write_aftermath_in_order,
    write_ending,
    write_exception,
)
from watchtower.diagnosis.domain import BlockedRank, Line
from watchtower.diagnosis.elsewhere import find_doubts
from watchtower.diagnosis.first_hand import Basis, FirstHand
from watchtower.diagnosis.known_errors import know_death, know_last_words
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.reasons import peers_reason, stack_reason, step_reason
from watchtower.diagnosis.waits.mismatches import Ground
from watchtower.diagnosis.words import name_rank, where_of, write_likewise, write_others
from watchtower.evidence.error_texts import Blames, read_error
from watchtower.evidence.exits import DeathKind, classify_ending
from watchtower.evidence.frames import last_component
from watchtower.evidence.threads import KnownStack
from watchtower.wire.dumps import RankDump
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.text import clean, count_ranks, format_duration, join_sentences


def _raised(domain: Domain) -> Callable[[BlockedRank], bool]:
    def holds(rank: BlockedRank) -> bool:
        evidence = rank.position.evidence
        known = evidence.ended or evidence.beat
        if known is None or not known.exception_type:
            return False
        return read_error(known.exception_type, known.exception_text).domain is domain

    return holds


def _died(*kinds: DeathKind) -> Callable[[BlockedRank], bool]:
    return lambda rank: classify_ending(rank.position.evidence.ended) in kinds


def _raised_its_own(rank: BlockedRank) -> bool:
    """Return whether it raised an exception that does not follow from another rank."""
    evidence = rank.position.evidence
    return evidence.ended is None or _died(DeathKind.OWN_EXCEPTION)(rank)


WHOM = (Line(Domain.USER_CODE),)
"""Of ranks that had too little memory, or left with code 0."""

WHOM_OF_EXCEPTION = (
    Line(Domain.STORAGE, "the exception comes from a file system", _raised(Domain.STORAGE)),
    Line(Domain.GPU, "the exception reports a failure of CUDA or a GPU", _raised(Domain.GPU)),
    Line(Domain.NODE, "NCCL reports a failed call of the system", _raised(Domain.NODE)),
    Line(
        Domain.NETWORK,
        "a connection was lost, or a service outside the job was not reached",
        _raised(Domain.NETWORK),
    ),
    Line(Domain.USER_CODE, "any other exception, except a wait that ended", _raised_its_own),
)
WHOM_OF_DEATH = (
    Line(
        Domain.USER_CODE,
        "a crash, or an exit code of its own",
        _died(DeathKind.CRASH, DeathKind.EXIT_CODE, DeathKind.EXIT_ONE),
    ),
    Line(Domain.OPERATOR, "SIGTERM or a similar signal", _died(DeathKind.TERMINATED)),
)
"""SIGKILL may come from anywhere, and SIGABRT from a watchdog that stopped waiting for others."""

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

SEVERAL_DEATHS = Doubt("several_deaths", 0.9, "several ranks ended at the same moment")
CONNECTION_LOST = Doubt(
    "connection_lost", 0.6, "the other end of the lost connection may be outside the job"
)
PEER_LOST = Doubt("peer_lost", 0.6, "it is not known what broke the connection between the ranks")
MAY_FOLLOW = Doubt(
    "may_follow",
    0.6,
    "the same error may follow from another rank, and it is not known whether one ended before",
)
CONNECTION_LOST_AMONG_OTHERS = Doubt(
    "connection_lost_among_others",
    CANDIDATE,
    "a lost connection may be a consequence, and other ranks are in trouble",
)
FIRST_OF_SAME = Doubt(
    "first_of_same",
    0.8,
    "other ranks raised the same error, and only the time separates {suspects} from them",
)
FIRST_OF_VICTIMS = Doubt(
    "first_of_victims",
    0.55,
    "each rank reports a lost connection, and only the time separates {suspects} from the others",
)
ODD_TEXT = Doubt(
    "odd_text",
    0.55,
    "other ranks ended at the same moment, and only the text separates {suspects} from them",
)
MAY_HAVE_GIVEN_UP = Doubt(
    "may_have_given_up",
    0.6,
    "these ranks may have given up waiting for a rank that ended after them",
)
LEFT_AFTERWARDS = Doubt(
    "left_afterwards",
    0.75,
    "no rank waits, so the job may have ended normally, with errors at exit",
)
MOST_LEFT = Doubt("most_left", CANDIDATE, "most ranks have exited")

COMPARE_MEMORY = (
    "compare the memory limit of the job's cgroup on {node} with what its ranks and their data "
    "loader workers use"
)
USE_LESS_MEMORY = (
    "lower the number of workers or the prefetch depth, or raise the limit, then restart from the "
    "last checkpoint"
)
READ_TRACEBACK = "read the traceback in the output of rank {rank} on {node}"
FIX_AND_RESTART = "fix the cause, then restart the job from its last checkpoint"
RESTART = "restart the job from its last checkpoint"
FIND_CORE_DUMP = "check for a core dump and for faulthandler output of rank {rank} on {node}"
FIND_SIGKILL = (
    "find which process sent SIGKILL on {node}: read the kernel log and the scheduler's log"
)
READ_WHAT_GAVE_UP = (
    "read the last lines of the output of rank {rank} on {node}: they show which check or timeout "
    "aborted it"
)
FIND_SIGNAL = (
    "find which process sent the signal on {node}: read the logs of the scheduler and of the "
    "launcher"
)
READ_LAST_LINES = "read the last lines of the output of rank {rank} on {node}"
FIND_WHY_IT_LEFT = (
    "find why rank {rank} on {node} left its loop: it had fewer batches than the others, or only "
    "this rank met a stop condition"
)
FIND_WHY_ITS_PROGRAM_ENDED = (
    "find why rank {rank} on {node} left its loop: read the last lines of its output; count its "
    "batches; check its stop conditions"
)
END_PROCESS = (
    "end pid {pid} (a non-daemon thread or an exit handler keeps it alive), then restart the job "
    "from its last checkpoint"
)

ADVICE = {
    DeathKind.OOM: (COMPARE_MEMORY, USE_LESS_MEMORY),
    DeathKind.OWN_EXCEPTION: (READ_TRACEBACK, FIX_AND_RESTART),
    DeathKind.CONSEQUENTIAL: (READ_TRACEBACK, FIX_AND_RESTART),
    DeathKind.CRASH: (FIND_CORE_DUMP, RESTART),
    DeathKind.KILLED: (FIND_SIGKILL, RESTART),
    DeathKind.ABORTED: (READ_WHAT_GAVE_UP, RESTART),
    DeathKind.TERMINATED: (FIND_SIGNAL, RESTART),
    DeathKind.CLEAN: (FIND_WHY_IT_LEFT, RESTART),
}
LAST_LINES = (READ_LAST_LINES, RESTART)


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
    why_not = () if waiting else (LEFT_AFTERWARDS,)
    if len(left) > len(waiting) + len(victims):
        why_not = (MOST_LEFT,)
    return _accuse(picture, left, Cause.EXITED_EARLY, why_not)


def _accuse(
    picture: Picture, dead: Sequence[Death], cause: Cause, why_not: tuple[Doubt, ...]
) -> Accusation:
    suspects = tuple(death.position for death in dead)
    accused = {death.rank for death in dead}
    others = tuple(death for death in picture.deaths if death.rank not in accused)
    known = know_death(dead[0])
    reasons = [
        *(_ending_reason(WEIGHTS[each.kind], [each]) for each in dead[:MAX_QUOTED]),
        *known.reasons,
        *peers_reason(picture, suspects),
        *step_reason(picture, suspects[0]),
        *_aftermath(dead[0], others),
    ]
    ended = {death.rank: death for death in dead}
    return Accusation(
        cause=cause,
        tier=Tier.STACKS if _may_follow_mismatch(picture, dead) else Tier.CANNOT_ANSWER,
        suspects=suspects,
        reasons=tuple(reasons),
        doubts=(*why_not, *((SEVERAL_DEATHS,) if len(dead) > 1 else ())),
        why=lambda position: write_ending(ended[position.rank]),
        summary=join_sentences(
            f"{name_rank(suspects[0])} {write_ending(dead[0])}",
            *known.sentences,
            write_likewise(suspects),
            write_others(picture, suspects),
            write_aftermath(others),
        ),
        advice=known.advise(ADVICE.get(dead[0].kind, LAST_LINES)),
        quoted=known.beside,
    )


def _ending_reason(weight: float, alike: Sequence[Death]) -> Reason:
    first, ranks = alike[0], tuple(sorted(death.rank for death in alike))
    return Reason("ending", weight, ranks, f"rank {first.rank} {write_ending(first)}")


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
    reasons = [_ending_reason(weight, each) for each in list(alike.values())[:MAX_QUOTED]]
    known = know_death(dead[0])
    return Accusation(
        cause=cause,
        tier=Tier.CANNOT_ANSWER,
        reasons=(*reasons, *known.reasons, *_aftermath(dead[0], others)),
        doubts=(MAY_HAVE_GIVEN_UP,) if found.awaited else (),
        summary=join_sentences(
            _summarise_alike(picture, dead),
            *known.sentences,
            write_aftermath(others),
            "no rank is known to be the first",
        ),
        advice=known.advise(ADVICE.get(dead[0].kind, LAST_LINES)),
        quoted=known.beside,
        witnesses=tuple(death.position for death in dead),
    )


def _summarise_alike(picture: Picture, dead: Sequence[Death]) -> str:
    """Return "all 8 ranks exited with code 3 (after step 41, 2 s ago)"; if their texts differ, the
    first one is quoted."""
    first, ending = dead[0], write_ending(dead[0])
    if len({death.shape for death in dead}) > 1:
        ending = f"ended by errors: rank {first.rank} {ending}"
    elif ending.startswith("was "):
        ending = f"were {ending[4:]}"
    ranks = count_ranks(len(picture.by_rank))
    is_all = len(dead) == len(picture.by_rank)
    return f"{f'all {ranks}' if is_all else f'{len(dead)} of {ranks}'} {ending}"


def _aftermath(first: Death, others: tuple[Death, ...]) -> Iterator[Reason]:
    if others:
        ranks, text = tuple(d.rank for d in others), write_aftermath_in_order(others, first)
        yield Reason("aftermath", AFTERMATH_WEIGHT, ranks, text)


def _doubt_first(picture: Picture, found: FirstHand) -> tuple[Doubt, ...]:
    """Return why the deaths may not be the cause, by what separates them from the others."""
    is_victim = found.deaths[0].kind is DeathKind.CONSEQUENTIAL
    if found.basis is Basis.TEXT:
        return (ODD_TEXT,)
    if found.basis is Basis.TIME:
        return (FIRST_OF_VICTIMS if is_victim else FIRST_OF_SAME,)
    return _doubt_victim(picture, found.deaths[0].error.blames) if is_victim else ()


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


def _doubt_victim(picture: Picture, blames: Blames) -> tuple[Doubt, ...]:
    """Return why the rank may be a victim. Its text may show where the other end is."""
    others = picture.missing or picture.at(Place.CANNOT_RUN, Place.UNSEEN)
    # Without a rank that is left, all other deaths have been explained.
    is_alone = (len(picture.deaths) == 1 or not picture.live) and not others
    if not is_alone:
        return (CONNECTION_LOST_AMONG_OTHERS,)
    return ({Blames.PEER: PEER_LOST, Blames.OTHER_END: CONNECTION_LOST}.get(blames, MAY_FOLLOW),)


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
    suspects = [i for i in find_lingering(picture) if bool(_last_words(i)) is by_exception]
    if not suspects:
        return None
    reasons = [
        *(
            of_rank("ending", LINGERS_WEIGHT, item, _write_exit(item))
            for item in suspects[:MAX_QUOTED]
        ),
        *peers_reason(picture, suspects),
    ]
    for item in suspects[:MAX_QUOTED]:
        reasons += stack_reason(item)
        reasons += step_reason(picture, item)
    return Accusation(
        cause=cause,
        tier=Tier.CANNOT_ANSWER,
        suspects=tuple(suspects),
        reasons=tuple(reasons),
        doubts=find_doubts(picture, suspects),
        why=_write_lingering,
        advice=know_last_words(suspects[0]).advise(
            (READ_TRACEBACK if by_exception else FIND_WHY_ITS_PROGRAM_ENDED, END_PROCESS)
        ),
    )


def _last_words(position: Position) -> str:
    """Return the exception that ended a program: "ValueError: bad shard"; empty without one."""
    beat = position.evidence.beat
    if beat is None or not (beat.exception_type or beat.exception_text):
        return ""
    return write_exception(beat.exception_type, beat.exception_text)


def _write_exit(position: Position) -> str:
    raised = _last_words(position)
    words = f"; it raised {clean(raised)}" if raised else ""
    return f"its main thread has left the program and is exiting{words}"


def _write_lingering(position: Position) -> str:
    """Return "left its program after step 41. Its process has not exited: it has been at ...".

    The second sentence is about the process.
    """
    raised, place = _last_words(position), where_of(position)
    after = "" if position.step is None else f" after step {position.step}"
    left = f"raised {raised}" if raised else "left its program"
    at = f": it has been at {place}" if place else ""
    return join_sentences(
        f"{left}{after}",
        *know_last_words(position).sentences,
        f"its process has not exited{at} for {format_duration(position.age_s)}",
    )


def find_lingering(picture: Picture) -> tuple[Position, ...]:
    """Return the ranks that left their program while others wait, in ascending order."""
    known = {digest: _find_root(each) for digest, each in picture.stacks.items()}
    roots = {
        item.rank: [_root_of(dump, known) for dump in item.evidence.dumps[-2:]]
        for item in picture.live
    }
    inside = sum(bool(seen) and seen[-1] in PROGRAM_ROOTS for seen in roots.values())
    if 2 * inside <= len(picture.live) or not picture.waiting:
        return ()
    return tuple(item for item in picture.sinks if _is_outside(roots[item.rank]))


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
