"""Settings that cannot work: ranks of one job that try to meet by different settings.

A rank may have a setting that it does not use. So a difference counts only in set-up, of ranks that
have not met the others, and only if no rank elsewhere keeps the others waiting.
"""

from __future__ import annotations

from dataclasses import replace

from watchtower.diagnosis.accusation import MAX_QUOTED, Accusation, Reason, Tier, of_rank
from watchtower.diagnosis.domain import Line
from watchtower.diagnosis.elsewhere import accuse_elsewhere
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.reasons import ranks_of
from watchtower.diagnosis.settings import MEETING, PEER, Difference, has_not_met, list_in_init
from watchtower.evidence.launchers import Meeting
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, join_sentences, name_nodes

WHOM = (
    Line(
        Domain.NETWORK,
        "the network interfaces of two ranks have different MTUs",
        lambda rank: any(each.has_two_mtus for each in rank.job.picture.paths),
    ),
    Line(Domain.USER_CODE),
)

DIFFERS_WEIGHT = 0.9
"""Ranks with different settings cannot meet. Only a program that ignores the setting can."""

MAX_REASON = 200
"""Most characters of the reason why a launcher has ended."""

MAX_VALUE = 64
"""Most characters of one value in a sentence: an address, a port, an id."""

COMPARE_SETTINGS = (
    "give every rank the same {setting}: `tr '\\0' '\\n' < /proc/{pid}/environ | grep {variable}` "
    "on {node} shows what the launcher set; if that is right, the program itself changes it"
)
FREE_THE_PORT = (
    "on {node}: `ss -ltnp` shows the process at the port of {launcher}; end it, or start the job "
    "with another port"
)
COMPARE_COMMANDS = "start {launcher} with the same endpoint and id on {nodes} as on the others"
CHECK_TARGET = (
    "check which address the program of rank {rank} gives to `init_process_group`, and what its "
    "name means on {node}: `getent hosts NAME`"
)

ADVICE = {MEETING: (COMPARE_SETTINGS, CHECK_TARGET), PEER: (CHECK_TARGET,)}


def find(picture: Picture) -> Accusation | None:
    """Accuse the ranks of a job in set-up whose settings differ from those of most ranks."""
    if picture.meeting is not None:
        return _accuse_launchers(picture.meeting)
    if not list_in_init(picture):
        return None
    found = next((each for each in picture.differences if _decides(picture, each)), None)
    return _accuse(picture, found) if found is not None else None


def _accuse_launchers(meeting: Meeting) -> Accusation | None:
    """Accuse launchers that cannot meet. No rank exists, so none is a suspect."""
    if meeting.ended:
        return _accuse_ended(meeting)
    if len(meeting.endpoints) < 2:
        return None
    usual, *others = meeting.endpoints.items()
    endpoint, nodes = others[0]
    text = join_sentences(
        f"{meeting.launcher} on {name_nodes(nodes)} waits at {clean(endpoint, MAX_VALUE)}",
        f"on {name_nodes(usual[1])} it waits at {clean(usual[0], MAX_VALUE)}",
        meeting.describe(),
    )
    return Accusation(
        cause=Cause.MISCONFIGURED,
        tier=Tier.NEVER_CAME,
        reasons=(Reason("startup", DIFFERS_WEIGHT, (), text),),
        summary=text,
        advice=(COMPARE_COMMANDS,),
        names={"launcher": meeting.launcher, "nodes": name_nodes(nodes)},
    )


def _accuse_ended(meeting: Meeting) -> Accusation:
    """Accuse a launcher that has ended because another process has its port."""
    node, reason = next(iter(meeting.ended.items()))
    text = join_sentences(
        f"{meeting.launcher} on {name_nodes([node])} has ended before it had ranks: "
        f"{clean(reason, MAX_REASON)}",
        meeting.describe() if meeting.joined else "",
    )
    return Accusation(
        cause=Cause.MISCONFIGURED,
        tier=Tier.NEVER_CAME,
        reasons=(Reason("startup", DIFFERS_WEIGHT, (), text),),
        summary=text,
        advice=(FREE_THE_PORT,),
        names={"node": name_nodes([node]), "launcher": meeting.launcher},
    )


def _decides(picture: Picture, difference: Difference) -> bool:
    """Return whether the difference keeps the ranks from meeting.

    A rank that has reached the store of the others has met them in spite of another address.
    """
    odd = set(ranks_of(difference.odd))
    if all(has_not_met(item) for item in difference.odd):
        return True
    if any(item.rank not in odd for item in picture.at(Place.ELSEWHERE)):
        return False
    is_known = any(item.reading is not None and item.reading.meets for item in picture.waiting)
    return difference.name != MEETING or not is_known


def _accuse(picture: Picture, found: Difference) -> Accusation | None:
    have = "has" if len(found.usual_ranks) == 1 else "have"
    usual = f"{name_ranks(found.usual_ranks)} {have} {clean(found.usual, MAX_VALUE)}"

    def write(position: Position) -> str:
        value = clean(found.values[position.rank], MAX_VALUE)
        verb = "connects to" if found.name == PEER else f"has {found.name}"
        return join_sentences(f"{verb} {value}", usual)

    accusation = accuse_elsewhere(
        picture,
        found.odd,
        Cause.MISCONFIGURED,
        tier=Tier.NEVER_CAME,
        reasons=[
            of_rank("startup", DIFFERS_WEIGHT, item, write(item)) for item in found.odd[:MAX_QUOTED]
        ],
        advice=ADVICE.get(found.name, (COMPARE_SETTINGS,)),
    )
    if accusation is None:
        return None
    variable = "MASTER_" if found.name == MEETING else found.name
    # Where it waits is a consequence of the setting, so the setting is the whole sentence.
    return replace(accusation, why=write, names={"setting": found.name, "variable": variable})
