"""Process group set-up: ranks that never came, and ranks that keep the others waiting in it.

A rank that trains on a node without an agent seems to be missing, too: once any rank has stepped,
the missing ones must be there, and only unwatched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from watchtower.diagnosis.accusation import (
    CANDIDATE,
    MAX_QUOTED,
    Accusation,
    Doubt,
    Reason,
    Tier,
    of_rank,
)
from watchtower.diagnosis.domain import (
    BLOCKED_INSIDE,
    BLOCKED_OUTSIDE,
    IN_OWN_CODE,
    PLACES_MISSING,
    Line,
)
from watchtower.diagnosis.elsewhere import accuse_elsewhere, are_awaited
from watchtower.diagnosis.paths import find_unanswered
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.reasons import peers_reason, ranks_of
from watchtower.diagnosis.settings import MEETING, find_phantoms, list_in_init, read_settings
from watchtower.diagnosis.words import MAX_NAMED as MAX_NAMED_INSIDE
from watchtower.diagnosis.words import name_wait, node_of
from watchtower.evidence.case import PlaceHolder
from watchtower.evidence.connections import find_address, list_addresses, listens_at
from watchtower.evidence.frames import FrameClass
from watchtower.evidence.launchers import Meeting
from watchtower.wire.sockets import split_port
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import (
    clean,
    count_ranks,
    format_count,
    format_duration,
    join_sentences,
    name_nodes,
    name_some,
)


def _find_listener(
    picture: Picture, position: Position, address: str, port: int
) -> Position | None:
    """Return the other rank that accepts connections at an address; None if none is known."""
    for item in picture.live:
        is_here = item is not position and node_of(item) == node_of(position)
        if listens_at(item.evidence.dumps, address, port, is_here=is_here):
            return item
    return None


def _misses_listener(picture: Picture, position: Position) -> bool:
    """Return whether a rank has not reached the store although another rank listens there."""
    meeting = read_settings(position).get(MEETING, "")
    is_apart = position.reading is not None and position.reading.meets
    return is_apart and _find_listener(picture, position, *split_port(meeting)) is not None


WHOM_OF_NEVER_STARTED = (PLACES_MISSING,)
WHOM_OF_INIT_STUCK = (
    *BLOCKED_OUTSIDE,
    Line(
        Domain.NETWORK,
        "another rank's address does not answer the connection",
        lambda rank: bool(find_unanswered(rank.job.picture, rank.position)),
    ),
    *BLOCKED_INSIDE,
    IN_OWN_CODE,
    Line(
        Domain.NETWORK,
        "the rank has not reached the store, at whose address another rank listens",
        lambda rank: _misses_listener(rank.job.picture, rank.position),
    ),
    Line(
        Domain.USER_CODE,
        "the rank creates a process group in the middle of the job",
        lambda rank: (
            rank.position.frame_class is FrameClass.INIT and rank.position.step is not None
        ),
    ),
)

HOLDERS_WEIGHT = 0.6
"""Other jobs that are half-started, too, while agents report no node with room."""

NODES_WEIGHT, MEETING_WEIGHT = 0.9, 0.7
"""Launchers that lack nodes, and such that are complete and have started no rank: they may do
something before it, such as a check of the network."""

MISSING_WEIGHT, SET_UP_WEIGHT, UNANSWERED_WEIGHT, APART_WEIGHT = 0.75, 0.5, 0.9, 0.6

HOST = 0
"""Rank that serves torch's store, if the launcher does not. It waits for all ranks in the very call
in which the others connect to it."""

MAX_NAMED = 64
"""Suspects listed one by one; the summary has all of them as a rank set."""


LATECOMER = Doubt(
    "latecomer",
    0.7,
    "{suspects} may be creating a process group that the other ranks do not create",
)
MOST_LATECOMERS = Doubt("most_latecomers", CANDIDATE, "most ranks are still in set-up")
MOST_APART = Doubt(
    "most_apart", CANDIDATE, "most ranks have not reached the store, so it may only be slow"
)
MOST_OUTSIDE = Doubt("most_outside", CANDIDATE, "most ranks are not in set-up")
MOST_MISSING = Doubt("most_missing", CANDIDATE, "most ranks were never seen")

READ_LAUNCHER_OUTPUT = (
    "read the launcher's output for {ranks}: was the process started, on which node, and did it "
    "exit at once?"
)
START_ON_NODES = (
    "check that {launcher} was started on {nodes}, with the same command as on {joined}, and that "
    "{nodes} can connect to {joined}"
)
READ_OUTPUT_OF_LAUNCHERS = "read the output of {launcher} on {joined}: what does it wait for?"
END_ONE = (
    "end one of these jobs, so that the other one can start: {deadlock}; let the scheduler start "
    "all nodes of a job or none (gang scheduling)"
)
MAY_BE_ONE = (
    "if they are one job: give its launchers the same address and port; they meet at {endpoint} on "
    "{joined}, and at {other_endpoint} on {other_nodes}"
)
CHECK_AGENTS = "check that every node of the job runs an agent, and that the world size is right"
LOOK_BEFORE_IT_JOINS = (
    "check what rank {rank} on {node} does before it joins: imports, downloads, data set "
    "preparation"
)
TRY_THE_CONNECTION = (
    "try the connection on {node}, also from inside the job's container: `nc -vz {peer}`; if it "
    "fails there and not on other nodes: a firewall, a route, or the wrong interface"
)
CHECK_MASTER = "check that MASTER_ADDR, MASTER_PORT and the interface are the same for every rank"
COMPARE_MASTER = (
    "compare MASTER_ADDR and MASTER_PORT of rank {rank} with those of another rank: "
    "`tr '\\0' '\\n' < /proc/{pid}/environ | grep MASTER` on {node}, "
    "and what the program itself sets"
)
LOOK_AT_PORT = (
    "if they are equal, try the connection to that address on {node}, also from inside the job's "
    "container: a firewall, or a name that has another address there"
)
CREATE_GROUPS_TOGETHER = (
    "read the code around {place}: every rank of the job must create each process group, in the "
    "same order, even if it is not a member"
)
CREATE_GROUPS_ONCE = "create groups once, before the loop"


def find_never_started(picture: Picture) -> Accusation | None:
    """Accuse the ranks of the world size that were never seen, or the nodes that launchers lack."""
    if picture.meeting is not None:
        return _accuse_nodes(picture, picture.meeting)
    phantoms = find_phantoms(picture, picture.differences)
    missing = tuple(item for item in picture.missing if item.rank not in phantoms)
    in_init = list_in_init(picture)
    if not missing or (not in_init and _has_stepped(picture.by_rank.values())):
        return None
    world, ranks = picture.case.world_size, name_ranks(ranks_of(missing))
    duration = format_duration(picture.case.stalled_for_s)
    seen = count_ranks(len(picture.case.ranks) - len(missing))
    text = f"{seen} of {world} were seen in {duration}"
    waits = ""
    if in_init:
        verb = "waits" if len(in_init) == 1 else "wait"
        whom = ranks if len(missing) <= MAX_NAMED_INSIDE else "them"
        waits = f"{count_ranks(len(in_init))} {verb} for {whom} in {name_wait(in_init)}"
    have = "have" if len(missing) > 1 else "has"
    return Accusation(
        cause=Cause.NEVER_STARTED,
        tier=Tier.NEVER_CAME,
        suspects=missing[:MAX_NAMED],
        reasons=(
            Reason("process", MISSING_WEIGHT, ranks_of(missing), text),
            *peers_reason(picture, missing),
            *_blame_holders(picture),
        ),
        # More likely their nodes are not watched, or the world size is wrong.
        doubts=(MOST_MISSING,) if len(missing) > len(picture.live) else (),
        why=lambda _: "was not seen on any watched node",
        summary=join_sentences(
            f"{ranks} of {world} {have} not been seen since the first rank started {duration} ago",
            waits,
            *(reason.text for reason in _blame_holders(picture)),
        ),
        advice=(*_end_one(picture), READ_LAUNCHER_OUTPUT, CHECK_AGENTS),
        names={"ranks": ranks, "deadlock": _name_deadlock(picture)},
    )


def _blame_holders(picture: Picture) -> Iterator[Reason]:
    """Yield that other half-started jobs hold what this one lacks, and lack what it holds."""
    holders = picture.case.holders
    held = [
        f"job {clean(each.job, 64)} holds {name_nodes(each.nodes)} and lacks "
        f"{format_count(each.lacks, 'node')}"
        for each in holders[:MAX_QUOTED]
    ]
    if held:
        text = f"{'; '.join(held)}: these jobs and this one hold each other's places"
        yield Reason("node", HOLDERS_WEIGHT, (), text)


def _may_be_one(meeting: Meeting, other: PlaceHolder) -> bool:
    """Return whether two jobs may be one, whose launchers have two addresses: each has as many
    nodes as the other lacks."""
    has_two = other.endpoint and meeting.endpoints and other.endpoint not in meeting.endpoints
    fits = (len(meeting.joined), meeting.lacking) == (other.lacks, len(other.nodes))
    return bool(has_two) and fits


def _end_one(picture: Picture) -> tuple[str, ...]:
    return (END_ONE,) if picture.case.holders else ()


def _name_deadlock(picture: Picture) -> str:
    jobs = sorted({picture.case.job, *(each.job for each in picture.case.holders)})
    return name_some([clean(job, 64) for job in jobs], len(jobs))


def _accuse_nodes(picture: Picture, meeting: Meeting) -> Accusation:
    """Accuse the nodes that have not joined. No rank exists, so none is a suspect."""
    text = f"{meeting.launcher} has started no rank: {meeting.describe()}"
    twin = next((each for each in picture.case.holders if _may_be_one(meeting, each)), None)
    weight = NODES_WEIGHT if meeting.lacking else MEETING_WEIGHT
    return Accusation(
        cause=Cause.NEVER_STARTED,
        tier=Tier.NEVER_CAME,
        reasons=(Reason("process", weight, (), text), *_blame_holders(picture)),
        summary=join_sentences(text, *(reason.text for reason in _blame_holders(picture))),
        advice=(
            *((MAY_BE_ONE,) if twin else ()),
            *_end_one(picture),
            START_ON_NODES if meeting.lacking else READ_OUTPUT_OF_LAUNCHERS,
        ),
        names={
            "deadlock": _name_deadlock(picture),
            "endpoint": clean(next(iter(meeting.endpoints), ""), 64),
            "other_endpoint": clean(twin.endpoint, 64) if twin else "",
            "other_nodes": name_nodes(twin.nodes) if twin else "",
            "launcher": meeting.launcher,
            "nodes": name_nodes(meeting.missing) or "the nodes that have not joined",
            "joined": name_nodes(meeting.joined),
        },
    )


def find_init_stuck(picture: Picture) -> Accusation | None:
    """Accuse the ranks that are not in set-up while the others are, or the reverse.

    Among those in set-up, ranks whose connection is not answered are kept from the others, and so
    are those that have not reached the store of the others.
    """
    in_init = list_in_init(picture)
    if not in_init:
        return None
    unanswered = [item for item in in_init if find_unanswered(picture, item)]
    if unanswered and len(unanswered) < len(in_init):
        return _accuse_unanswered(picture, unanswered)
    if apart := _find_apart(in_init):
        return _accuse_apart(picture, apart, len(in_init))
    if len(in_init) == len(picture.waiting):
        return _accuse_absent(picture, in_init)
    return _accuse_latecomers(picture, in_init)


def _has_stepped(positions: Iterable[Position]) -> bool:
    return any(item.step is not None for item in positions)


def _accuse_unanswered(picture: Picture, unanswered: Sequence[Position]) -> Accusation | None:
    return _accuse(
        picture,
        unanswered,
        reasons=[
            of_rank("network", UNANSWERED_WEIGHT, item, _write_unanswered(picture, item))
            for item in unanswered[:MAX_QUOTED]
        ],
        advice=(TRY_THE_CONNECTION, CHECK_MASTER),
    )


def _find_apart(in_init: Sequence[Position]) -> Sequence[Position]:
    """Return the ranks that have not reached the store, if some have: it is there.

    Another address or port looks like this, and so does a port that is closed for one node: a
    connection that is refused is tried again, and leaves no socket between two attempts.
    """
    apart = [item for item in in_init if item.reading is not None and item.reading.meets]
    has_store = len(apart) < len(in_init)
    return [item for item in apart if item.rank != HOST] if has_store else []


def _accuse_apart(picture: Picture, apart: Sequence[Position], count: int) -> Accusation | None:
    text = "has not reached the store of the job, to which other ranks are connected"
    return _accuse(
        picture,
        apart,
        reasons=[of_rank("startup", APART_WEIGHT, item, text) for item in apart[:MAX_QUOTED]],
        why_not=[MOST_APART] if 2 * len(apart) > count else [],
        besides=partial(_write_attempts, picture),
        advice=(COMPARE_MASTER, LOOK_AT_PORT),
    )


def _write_attempts(picture: Picture, position: Position) -> str:
    """Return where the rank connects to, and who should listen there. A connection that is refused
    leaves no socket, so the address is that of its settings."""
    sleeps = position.asleep and position.wait.wait_class == "sleep"
    retries = "it sleeps between two attempts to connect" if sleeps else ""
    meeting = read_settings(position).get(MEETING, "")
    address = f"it connects to {clean(meeting, 64)}" if meeting else ""
    return join_sentences(
        "it has not reached the store of the other ranks",
        retries,
        address,
        _write_listener(picture, position, *split_port(meeting)) if meeting else "",
    )


def _accuse(
    picture: Picture,
    suspects: Sequence[Position],
    *,
    advice: tuple[str, ...],
    reasons: Sequence[Reason] = (),
    why_not: Sequence[Doubt] = (),
    besides: Callable[[Position], str] | None = None,
) -> Accusation | None:
    return accuse_elsewhere(
        picture,
        suspects,
        Cause.INIT_STUCK,
        tier=Tier.NEVER_CAME,
        reasons=reasons,
        why_not=why_not,
        besides=besides or partial(_write_unanswered, picture),
        advice=advice,
    )


def _write_unanswered(picture: Picture, position: Position) -> str:
    """Return "its connection to 10.0.0.1:29500 gets no answer", and who listens there, or
    nothing."""
    found = find_unanswered(picture, position)
    if not found:
        return ""
    return join_sentences(
        f"its connection to {clean(found, 64)} gets no answer",
        _write_listener(picture, position, *split_port(found)),
    )


def _write_listener(picture: Picture, position: Position, address: str, port: int) -> str:
    """Return who should answer a rank at an address; empty if agents sent no addresses of ranks."""
    known = [item for item in picture.live if list_addresses(item.evidence.dumps)]
    listener = _find_listener(picture, position, address, port)
    if listener is not None:
        return f"rank {listener.rank} ({node_of(listener)}) listens there, so the path is cut"
    for item in known:
        if find_address(item.evidence.dumps, address) is not None:
            return f"no rank listens there, though it is an address of {node_of(item)}"
    return "no rank of the job is known to have this address" if known else ""


def _accuse_absent(picture: Picture, in_init: Sequence[Position]) -> Accusation | None:
    absent = picture.at(Place.ELSEWHERE)
    weight = 0.0 if _has_stepped(picture.by_rank.values()) else SET_UP_WEIGHT
    return _accuse(
        picture,
        absent,
        reasons=[Reason("startup", weight, (), "no rank has finished set-up yet")],
        advice=(LOOK_BEFORE_IT_JOINS, CHECK_MASTER),
        why_not=[MOST_OUTSIDE] if len(absent) > len(in_init) else [],
    )


def _accuse_latecomers(picture: Picture, in_init: Sequence[Position]) -> Accusation | None:
    if _are_kept(picture, in_init):
        return None
    further = len(picture.waiting) - len(in_init)
    # In the middle of a job it makes a group of its own.
    is_group = _has_stepped(picture.waiting)
    return _accuse(
        picture,
        in_init,
        advice=(CREATE_GROUPS_TOGETHER, CREATE_GROUPS_ONCE)
        if is_group
        else (LOOK_BEFORE_IT_JOINS, CHECK_MASTER),
        why_not=[LATECOMER if further > len(in_init) else MOST_LATECOMERS],
    )


def _are_kept(picture: Picture, in_init: Sequence[Position]) -> bool:
    """Return whether they may wait themselves: for a member of a new group that has not come.

    Collective logs do not show set-up, so only ranks that are elsewhere, or gone, are known.
    """
    if are_awaited(picture, in_init) and not picture.sinks:
        return False
    return bool(picture.at(Place.ELSEWHERE, Place.CANNOT_RUN, Place.ABSENT))
